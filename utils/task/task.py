"""What train.py needs to know about a task, and what is done at the end of a training."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from const.token import EOS
from utils.command import typed_command
from utils.config import AnyConfig
from utils.dataset.batch import AnyBatch, Sampler
from utils.dataset.corpus import Corpus
from utils.dataset.text import read_parallel
from utils.evaluation.judge import Validator
from utils.file import write_json, write_lines
from utils.run import ATTENTION, CURVE, TEST, TRANSLATIONS, WEIGHTS, Run, load_weights, portable, provenance
from utils.text.tokenizer import Vocabulary
from utils.training.checkpoint import WeightStore, average, read_n_averaged, read_score, write_weights
from utils.training.loss import Objective
from utils.training.plan import Progress
from utils.training.report import Judge, Sample, Validation
from utils.visualize.attention import cross_attention, draw_cross_attention

# What is done at the end of a training: an average of the weights is tried, and the best weights are tested.


class Trained(Protocol):
    """The part of train.py's Trainer that is needed here."""

    net: Any  # of the task's own class
    progress: Progress

    def test(self, batches: Sequence[AnyBatch], judge: Judge) -> Validation:
        """Return the loss and scores of a text."""


def try_average(
    trained: Trained,
    store: WeightStore,
    folder: Path,
    select_by: str,
    dev: Sequence[AnyBatch],
    judge: Judge,
    say: Callable[[str], None],
) -> None:
    """Average the weights of the last validations; if they score no worse on dev than the best, they replace them.

    The best weights may be an average, too: that of a training that had ended and was resumed.

    Args:
        trained: its network is left with the average.
        store: of the weights.
        folder: of the run, whose best weights may be replaced.
        select_by: the score that decides which are better.
        dev: text to score on.
        judge: translates and scores it.
        say: called with the outcome.
    """
    paths = store.last()
    if not paths:
        return
    try:
        mean = average(paths, say)
        trained.net.load_state_dict(mean.weights)
    except ValueError as error:  # hours of training are not lost for that: the best weights are still tested
        say(f"\nNo average of weights: {error}")
        return
    score, best = trained.test(dev, judge).score(select_by), read_score(folder / WEIGHTS)
    good, sign = score >= best, -1 if select_by == "loss" else 1
    if good:
        write_weights(trained.net.state_dict(), folder / WEIGHTS, score, mean.n)
    say(
        f"\nAverage of the weights of the last {mean.n} validations: dev {select_by} {sign * score:.2f} against "
        f"{sign * best:.2f} for the best weights: {'used' if good else 'not used'}"
    )


def score_best(
    trained: Trained,
    folder: Path,
    config: AnyConfig,
    about: Mapping[str, object],
    test: Sequence[AnyBatch],
    judge: Judge,
    say: Callable[[str], None],
) -> Validation:
    """Score the best weights on the test set.

    Args:
        trained: the best weights are loaded into its network.
        folder: of the run, which has the weights and receives the result.
        config: of the run; the result includes its name and seed.
        about: further entries of the result.
        test: the test set.
        judge: scores the network on it.
        say: called with the scores.
    """
    load_weights(trained.net, folder)
    scores = trained.test(test, judge)
    result = {
        "name": config.name,
        "seed": config.training.seed,
        **about,
        **_result(trained, scores),
        "averaged": read_n_averaged(folder / WEIGHTS),
        **provenance(next(trained.net.parameters()).device),
        "config": config.plain(portable),
    }
    write_json(folder / TEST, result)
    say("\n".join([f"test  {scores}", *(f"      {signature}" for signature in scores.signatures.values())]))
    return scores


def score_translator(
    trained: Trained, run: Run, corpus: Corpus, test: Sequence[AnyBatch], say: Callable[[str], None]
) -> None:
    """Score the best weights of a translator, show some translations, and draw what the decoder attended to.

    Args:
        trained: the best weights are loaded into its network.
        run: its folder has the weights, and receives the results.
        corpus: what it was trained on.
        test: the test set.
        say: called with the scores.
    """
    folder, config = run.folder, run.config
    say(f"\nTesting the best weights, beam size {config.search.beam_size}")
    validator = Validator(run.translator, read_parallel(corpus.test), corpus, n_samples=5)
    about = {
        "corpus": corpus.name,
        "direction": f"{corpus.src_lang}-{corpus.tgt_lang}",
        "beam": config.search.beam_size,
    }
    scores = score_best(trained, folder, config, about, test, validator, say)
    write_lines(folder / TRANSLATIONS, validator.translations)
    say("")
    for sample in scores.samples:
        say(f"  {sample.source}\n  → {sample.translation}\n    ({sample.reference})\n")
    # a correct translation of a length that is easy to read, if there is one
    sample = min(scores.samples, key=lambda s: (s.translation != s.reference, abs(len(s.translation) - 60)))
    _draw(run, sample)
    for name in (TRANSLATIONS, TEST, CURVE, ATTENTION):
        say(f"  {folder / name}")
    for line in what_next(folder, sample.source):
        say(line)


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


def _result(trained: Trained, scores: Validation) -> dict[str, object]:
    progress = trained.progress
    return {
        "parameters": sum(p.numel() for p in trained.net.parameters()),
        "best_step": progress.best_step,
        "steps": progress.step,
        "target_tokens": progress.target_tokens,
        "minutes": round(progress.seconds / 60, 1),
        "perplexity": scores.perplexity,
        **scores.scores,
        **{f"{name}_signature": signature for name, signature in scores.signatures.items()},
    }


def _draw(run: Run, sample: Sample) -> None:
    """Draw the cross-attention of a translation."""
    src, tgt = run.tokenizers
    src_ids, tgt_ids = (
        side.encode([text])[0][: run.window - 1] for side, text in ((src, sample.source), (tgt, sample.translation))
    )
    weights = cross_attention(run.model, src_ids, tgt_ids)
    draw_cross_attention(weights, [*src.tokens(src_ids), EOS], [*tgt.tokens(tgt_ids), EOS], run.folder / ATTENTION)


# What train.py needs to know about a task.
#
# The tasks are modules next to this one: translation, masked_language, language, classification. So are the commands
# that use the models of the last three.

Say = Callable[[str], None]


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

    def validation(self, net: Any) -> tuple[Sequence[AnyBatch], Judge]:
        """Return the dev text, and what scores the network on it, given its loss."""

    def conclude(self, trained: Trained, folder: Path, say: Say) -> None:
        """Test the best weights, and write the results to the folder."""
