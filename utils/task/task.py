"""What train.py needs to know about a task, and what is done at the end of a training."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from const.token import EOS
from utils.command import typed_command
from utils.config import AnyConfig, ClassificationConfig, LanguageConfig, MaskedLanguageConfig, TranslationConfig
from utils.dataset.batch import AnyBatch, AnyEpoch, Sampler
from utils.dataset.corpus import Corpus, facts
from utils.dataset.text import read_parallel
from utils.device import product_dtype
from utils.evaluation.judge import Validator
from utils.file import write_json, write_lines
from utils.run import (
    ATTENTION,
    CURVE,
    TEST,
    TRANSLATIONS,
    WEIGHTS,
    Run,
    load_weights,
    portable,
    provenance,
    read_config,
)
from utils.text.tokenizer import Vocabulary
from utils.training.checkpoint import (
    FORMAT,
    WeightStore,
    average,
    difference,
    read_n_averaged,
    read_score,
    write_weights,
)
from utils.training.loss import Objective
from utils.training.plan import Progress
from utils.training.report import Sample, Validate, Validation
from utils.visualize.attention import cross_attention, draw_cross_attention

Say = Callable[[str], None]

LARGE_FOR_A_CPU = 20_000_000  # parameters


class Trained(Protocol):
    """The part of train.py's Trainer that is needed here."""

    net: Any  # of the task's own class
    progress: Progress

    def test(self, batches: Sequence[AnyBatch], validate: Validate) -> Validation:
        """Return the loss and scores of a text."""


def init_from(net: nn.Module, source: Path, config: AnyConfig, log: Callable[[str], None]) -> None:
    """Initialise a network with the best weights of a run of the same task."""
    theirs = read_config(source, type(config)).model.architecture()
    if differs := difference({"model": theirs}, {"model": config.model.architecture()}):
        raise ValueError(f"cannot initialise from the weights of {source}: {differs}")
    load_weights(net, source)
    log(f"Initialised from the weights of {source}")


def try_average(
    trained: Trained,
    store: WeightStore,
    folder: Path,
    select_by: str,
    dev: Sequence[AnyBatch],
    validate: Validate,
    log: Say,
) -> None:
    """Average the weights of the last validations; if they score no worse on dev than the best, they replace them.

    The best weights may be an average, too: that of a training that had ended and was resumed. The network is left with
    the average.
    """
    paths = store.last()
    if not paths:
        return
    try:
        mean, n = average(paths, log)
        trained.net.load_state_dict(mean)
    except ValueError as error:  # hours of training are not lost for that: the best weights are still tested
        log(f"\nNo average of weights: {error}")
        return
    score, best = trained.test(dev, validate).score(select_by), read_score(folder / WEIGHTS)
    good, sign = score >= best, -1 if select_by == "loss" else 1
    if good:
        write_weights(trained.net.state_dict(), folder / WEIGHTS, score, n)
    log(
        f"\nAverage of the weights of the last {n} validations: dev {select_by} {sign * score:.2f} against "
        f"{sign * best:.2f} for the best weights: {'used' if good else 'not used'}"
    )


def score_best(
    trained: Trained,
    folder: Path,
    config: AnyConfig,
    about: Mapping[str, object],
    test: Sequence[AnyBatch],
    validate: Validate,
    log: Say,
) -> Validation:
    """Load the best weights of a run into its network, and score them on the test set.

    The result is written to the folder, with further entries `about` it, and its scores are returned.
    """
    load_weights(trained.net, folder)
    scores, progress = trained.test(test, validate), trained.progress
    signatures = {f"{name}_signature": signature for name, signature in scores.signatures.items()}
    result = {
        "name": config.name,
        "seed": config.training.seed,
        **about,
        "parameters": sum(p.numel() for p in trained.net.parameters()),
        "best_step": progress.best_step,
        "steps": progress.step,
        "target_tokens": progress.target_tokens,
        "minutes": round(progress.seconds / 60, 1),
        "perplexity": scores.perplexity,
        **scores.scores,
        **signatures,
        "averaged": read_n_averaged(folder / WEIGHTS),
        **provenance(next(trained.net.parameters()).device),
        "config": config.plain(portable),
    }
    write_json(folder / TEST, result)
    log("\n".join([f"test  {scores}", *(f"      {signature}" for signature in signatures.values())]))
    return scores


def score_translator(trained: Trained, run: Run, corpus: Corpus, test: Sequence[AnyBatch], log: Say) -> None:
    """Score the best weights of a translator, show some translations, and draw what the decoder attended to.

    The network of `run`, in whose folder the weights are and the results go, is that of `trained`.
    """
    folder, config = run.folder, run.config
    log(f"\nTesting the best weights, beam size {config.search.beam_size}")
    validator = Validator(run.translator, read_parallel(corpus.test), corpus, n_samples=5)
    about = {
        "corpus": corpus.name,
        "direction": f"{corpus.src_lang}-{corpus.tgt_lang}",
        **facts(corpus.fingerprint(), corpus.rebuilt),
        "beam": config.search.beam_size,
    }
    scores = score_best(trained, folder, config, about, test, validator, log)
    write_lines(folder / TRANSLATIONS, validator.translations)
    log("")
    for sample in scores.samples:
        log(f"  {sample.source}\n  → {sample.translation}\n    ({sample.reference})\n")
    # a correct translation of a length that is easy to read, if there is one
    sample = min(scores.samples, key=lambda s: (s.translation != s.reference, abs(len(s.translation) - 60)))
    _draw(run, sample)
    for name in (TRANSLATIONS, TEST, CURVE, ATTENTION):
        log(f"  {folder / name}")
    for line in what_next(folder, sample.source):
        log(line)


def what_next(folder: Path, sentence: str) -> list[str]:
    """List what can be done with a translator that has just been trained: commands that work as they are."""
    run, text = shlex.quote(str(folder)), shlex.quote(sentence)
    if text.startswith(("-", "'-")):
        text = f"-- {text}"
    translate, serve, evaluate = map(typed_command, ("translate.py", "serve.py", "evaluate.py"))
    wishes = [
        ("translate", f"{translate} --run {run} {text}"),
        ("see what every attention head looks at", f"{translate} --run {run} --attention attention.html {text}"),
        ("translate line by line", f"{translate} --run {run}"),
        ("translate in a browser", f"{serve} --run {run}"),
        ("see its mistakes", f"{evaluate} run {run} --html report.html"),
    ]
    return ["\nWhat next?", *(f"  {wish}:\n    {command}" for wish, command in wishes)]


def _draw(run: Run, sample: Sample) -> None:
    """Draw the cross-attention of a translation."""
    src, tgt = run.tokenizers
    src_ids, tgt_ids = (
        side.encode([text])[0][: run.window - 1] for side, text in ((src, sample.source), (tgt, sample.translation))
    )
    weights = cross_attention(run.model, src_ids, tgt_ids)
    draw_cross_attention(weights, [*src.tokens(src_ids), EOS], [*tgt.tokens(tgt_ids), EOS], run.folder / ATTENTION)


class Task(Protocol):
    """Something to learn, with its texts prepared. `net` is always what `build` returned."""

    @property
    def config(self) -> AnyConfig:
        """All settings, including those that follow from another run."""

    @property
    def sampler(self) -> Sampler[Any]:
        """Splits the training text into batches."""

    @property
    def objective(self) -> Objective:
        """What to minimise."""

    @property
    def unit(self) -> str:
        """Name of what is predicted and the loss is averaged over, for reports of speed."""

    @property
    def sizes(self) -> dict[str, int]:
        """Number of tokens of each vocabulary, and of labels."""

    @property
    def fingerprint(self) -> str:
        """Hash of the texts' content."""

    @property
    def vocabulary(self) -> Vocabulary:
        """What is saved in the folder of a run besides its settings."""

    def build(self) -> nn.Module:
        """Build the network, initialised with torch's random number generator."""

    def validation(self, net: Any) -> tuple[Sequence[AnyBatch], Validate]:
        """Return the dev text, and what scores the network on it, given its loss."""

    def test_and_save(self, trained: Trained, folder: Path, say: Say) -> None:
        """Test the best weights, and write the results to the folder."""


def prepare(config: AnyConfig, source: Path | None, log: Say) -> Task:
    """Prepare the task that the settings describe, with the vocabulary of a run if there is one to start from."""
    match config:  # the tasks are imported here: they import this module
        case TranslationConfig():
            from utils.task.translation import TranslationTask

            return TranslationTask(config, source, log)
        case MaskedLanguageConfig():
            from utils.task.bert import MaskedLanguageTask

            return MaskedLanguageTask(config, source, log)
        case LanguageConfig():
            from utils.task.language import LanguageTask

            return LanguageTask(config, source, log)
        case ClassificationConfig():
            from utils.task.classification import ClassificationTask

            return ClassificationTask(config, source, log)


def architecture(task: Task) -> dict[str, Any]:
    """Return what a checkpoint must contain to fit the network of a task, and how the text was split into streams."""
    config = task.config
    streams = {"batch": asdict(config.batch), "seed": config.training.seed, "text": task.fingerprint}
    model = config.model.architecture()
    return {"format": FORMAT, "task": config.task, "model": model, "vocabulary": task.sizes, "streams": streams}


def describe(task: Task, net: nn.Module, epoch: AnyEpoch, n_updates: int, n_processes: int) -> str:
    """Describe what is about to be trained, and on what."""
    config, sizes, n_parameters = task.config, task.sizes, sum(p.numel() for p in net.parameters())
    device = next(net.parameters()).device
    dtype = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
    together = f" by {n_processes} processes" if n_processes > 1 else ""
    vocabulary = f"a vocabulary of {sizes['source']:,} tokens"
    if isinstance(config, TranslationConfig) and not config.tokenizer.joint:
        vocabulary = f"vocabularies of {sizes['source']:,} source and {sizes['target']:,} target tokens"
    text = (
        f"{n_parameters:,} parameters on {device}{together} in "
        f"{dtype[product_dtype(device, config.training.precision)]}; {vocabulary}; "
        f"{n_updates:,} updates per epoch, padding {epoch.padding:.1%}"
    )
    if isinstance(config, TranslationConfig):
        text += f", {epoch.n_dropped:,} pairs longer than {config.batch.max_tokens} tokens left out"
    if device.type == "cpu" and n_parameters > LARGE_FOR_A_CPU:
        text += (
            "\nNo CUDA here: a model of this size takes days on a CPU. Presets made for CPUs: "
            "--config kftt_ja_en_small (hours) and --config demo (minutes)."
        )
    return text
