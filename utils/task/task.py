"""What train.py needs to know about a task, and what is done at the end of a training."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from config.reader import changed_settings
from const.token import UNK_ID
from utils.arguments import as_text
from utils.command import Log
from utils.config import (
    AnyConfig,
    ClassificationConfig,
    DecoderOnlyTranslationConfig,
    LanguageConfig,
    MaskedLanguageConfig,
    RecurrentTranslationConfig,
    TranslationConfig,
)
from utils.dataset.batch import AnyBatch, BucketSampler, Epoch, ExamplesOf, Sampler, pair_examples
from utils.dataset.cache import cache_key, file_hash
from utils.dataset.corpus import facts
from utils.dataset.monolingual import MonolingualCorpus, prepare_monolingual
from utils.dataset.text import BLOCK, lines_of
from utils.device import WORTH_IT, resolve_precision, speedup
from utils.file import write_json
from utils.load import load_weights
from utils.provenance import own_commit, portable, provenance
from utils.run import TEST, WEIGHTS, read_config
from utils.text.tokenizer import Tokenizer, TokenizerPair, Vocabulary, every_token, id_of_each, load_tokenizers
from utils.training.checkpoint import FORMAT, difference, read_n_averaged
from utils.training.distributed import Processes
from utils.training.loss import Objective
from utils.training.optimizer import Optimizer
from utils.training.report import Observer, Validate, Validation
from utils.training.schedule import Progress

HeldOut = Literal["dev", "test"]
Weights = Callable[[], AbstractContextManager[None]]  # within the block, a network has those that are to be used


class Task(ABC):
    """Something to learn, with its texts prepared. `net` is always what `build` returned.

    Subclasses are built from all settings, from a run whose vocabulary is used, when training resumes or starts from
    one, and from `log`, which is called with a line about what takes time.
    """

    config: Any  # all settings, including those that follow from another run
    sampler: Sampler[Any]  # splits the training text into batches
    objective: Objective
    unit: ClassVar[str]  # what is predicted and the loss is averaged over, for reports of speed
    next_step: ClassVar[str]  # a command for the run, {} being its folder
    sizes: dict[str, int]  # number of tokens of each vocabulary, and of labels
    fingerprint: str  # hash of the texts' content
    dev: Sequence[Path]  # files of the text that chooses the best weights
    scoring: str  # hash of `scored_by`: scores of another one do not compare
    vocabulary: Vocabulary
    reads: dict[str, tuple[Tokenizer, Path]]  # sides of the training text, and what reads each
    identity: dict[str, object]  # of task and texts, written beside the scores of the test text
    held_out: dict[HeldOut, Sequence[Any]]  # batches of the texts to validate and to test on

    def learn_from(self, train: Sampler[Any], dev: Sampler[Any], test: Sampler[Any]) -> None:
        """Set the three texts; what has no examples or cannot be scored is refused now, not after the training."""
        self.sampler, self.held_out = train, {"dev": dev.all(), "test": test.all()}
        self.scoring = cache_key(*self.scored_by())

    def bucket_sampler(self, text: Any, seed: int, examples: ExamplesOf = pair_examples) -> BucketSampler:
        """Return what splits a text into batches, as the settings say."""
        batch = self.config.batch
        n_tokens, multiple, n_sentences = batch.tokens_per_batch, batch.length_multiple, batch.sentences_per_batch
        return BucketSampler(text, n_tokens, batch.max_tokens, seed, multiple, n_sentences, examples)

    def vocabularies(self) -> Sequence[Vocabulary]:
        """Return all that is saved in the folder of a run besides its settings."""
        return [self.vocabulary]

    @abstractmethod
    def build(self) -> nn.Module:
        """Build the network, initialised with torch's random number generator."""

    @abstractmethod
    def scorer(self, net: Any, split: HeldOut) -> Validate:
        """Return what scores the network on a held-out text, given its loss."""

    def scored_by(self) -> Sequence[object]:
        """Return all that dev scores depend on besides the weights; what scoring needs and lacks is refused."""
        return [*map(file_hash, self.dev)]

    def validation(self, net: Any, split: HeldOut = "dev") -> tuple[Sequence[AnyBatch], Validate]:
        """Return a held-out text, and what scores the network on it, given its loss."""
        return self.held_out[split], self.scorer(net, split)

    def choose_on_dev(self, net: Any, folder: Path, log: Log) -> None:  # noqa: B027 (most have no choice)
        """Choose on dev, with the trained network, what the run is to do from now on, and keep it in its settings."""

    def checked_on_resume(self) -> dict[str, Any]:
        """Return what a checkpoint records of its task; when it is resumed, only `streams` and `scoring` may differ."""
        config = self.config
        # decides which batch comes when
        streams = {"batch": asdict(config.batch), "seed": config.training.seed, "text": self.fingerprint}
        model = config.model.architecture()
        fixed = {"format": FORMAT, "task": config.task, "model": model, "vocabulary": self.sizes}
        return {**fixed, "streams": streams, "scoring": self.scoring}

    def refuse_other(self, state: dict[str, Any]) -> None:
        """Refuse to resume from the state of another task, network or vocabulary; new options had their defaults."""
        state["model"] = type(self.config.model)().architecture() | state.get("model", {})
        own, may_change = self.checked_on_resume(), ("streams", "scoring")
        if differs := difference(state, {name: value for name, value in own.items() if name not in may_change}):
            raise ValueError(f"cannot resume the run: {differs}")

    def observers(self, net: Any, averaged: Weights, folder: Path, step: int) -> Sequence[Observer]:  # noqa: ARG002
        """Return what else is to be told of a training that is at this step; within `averaged()`, weights are final."""
        return ()

    def show(self, net: Any, folder: Path, test: Validation, log: Log) -> None:  # noqa: ARG002 (translation needs all)
        """Show the results on the test text, and what can be done with the run now."""
        for sample in test.samples:
            log("".join(f"\n  {line}" for line in sample.lines()))
        log(f"\n{self.next_step.format(folder)}")


class MonolingualTask(Task):
    """Learns from one text in document order."""

    vocabulary: TokenizerPair

    def __init__(self, config: MaskedLanguageConfig | LanguageConfig, source: Path | None, log: Log) -> None:
        self.config = config
        self.corpus: MonolingualCorpus = prepare_monolingual(config.data)
        self.tokenizer = load_tokenizers(source).src if source else self.corpus.tokenizer(config.tokenizer, log)
        self.vocabulary, self.sizes = TokenizerPair(self.tokenizer, self.tokenizer), {"source": len(self.tokenizer)}
        self.fingerprint, self.dev = self.corpus.fingerprint(), [self.corpus.dev]
        self.reads = {"text": (self.tokenizer, self.corpus.train)}
        text = f"{self.corpus.name} {self.corpus.language}"
        self.identity = {"task": config.task, "text": text, **facts(self.fingerprint, self.corpus.rebuilt)}


def prepare(config: AnyConfig, source: Path | None, log: Log) -> Task:
    """Prepare the task that the settings describe, with the vocabulary of a run if there is one to start from."""
    from utils.task import bert, classification, language, translation  # which import this module

    own_commit()  # asked for now, for the code may change while this trains
    if source is not None:
        changes = changed_settings(read_config(source, type(config)).plain(), config.plain())
        shown = (f"\n  {name}: {as_text(was)} → {as_text(now)}" for name, (was, now) in changes.items())
        log(f"Settings that differ from those of {source}:{''.join(shown) or ' none'}")
    tasks: dict[type[AnyConfig], Any] = {
        TranslationConfig: translation.TranslationTask,
        RecurrentTranslationConfig: translation.TranslationTask,
        DecoderOnlyTranslationConfig: translation.TranslationTask,
        MaskedLanguageConfig: bert.MaskedLanguageTask,
        LanguageConfig: language.LanguageTask,
        ClassificationConfig: classification.ClassificationTask,
    }
    task: Task = tasks[type(config)](config, source, log)
    refuse_unknown(task, source, log)
    return task


def settle_precision(task: Task, device: torch.device, resumes: bool, processes: Processes, log: Log) -> None:
    """Put the precision that all processes train in into the settings; say why, and whether another would be faster."""
    training, d_model = task.config.training, task.config.model.d_model
    chosen = processes.broadcast(resolve_precision(training.precision, device, d_model, learning=True))
    if device.type == "cpu" and (resumes or training.precision == "auto"):
        of_bf16 = speedup("bf16", d_model, learning=True)
        log(f"Training in {chosen}: measured here, bf16 is {of_bf16:.1f} times as fast as fp32 at d_model={d_model}")
        faster = "bf16" if of_bf16 >= WORTH_IT else "fp32" if of_bf16 < 1 else chosen
        if faster != chosen:
            log(f"  --training.precision {faster} would be faster; numbers would differ by rounding")
    task.config = replace(task.config, training=replace(training, precision=chosen))


_MAX_UNKNOWN = 0.2  # of the tokens; whole words that are rare may be a tenth


def refuse_unknown(task: Task, source: Path | None, log: Log) -> None:
    """Say which share of the tokens of each side is unknown to the vocabulary, and refuse a text it cannot write."""
    shares = {}
    for side, (tokenizer, text) in task.reads.items():
        ids = [i for line in tokenizer.encode([*islice(lines_of(text), BLOCK)]) for i in line]
        shares[side] = share = ids.count(UNK_ID) / max(1, len(ids))
        if share > _MAX_UNKNOWN:
            remedy = "raise --tokenizer.vocab_size or --tokenizer.character_coverage, or lower --tokenizer.min_freq"
            if source is not None:
                remedy = f"it was learned for {source}; train a new run, whose vocabulary is learned from your text"
            raise ValueError(f"{share:.0%} of the tokens of {text} are unknown to the vocabulary: {remedy}")
    log("Unknown tokens: " + ", ".join(f"{share:.2%} of the {side}" for side, share in shares.items()))


def init_from(net: nn.Module, source: Path, task: Task, log: Log) -> None:
    """Initialise a network with the best weights of a run of the same task; a vocabulary of its own may be another."""
    config = task.config
    theirs, ours = (
        {"format": FORMAT, "model": c.model.architecture()} for c in (read_config(source, type(config)), config)
    )
    if differs := difference(theirs, ours):
        raise ValueError(f"cannot initialise from the weights of {source}: {differs}")
    if isinstance(task.vocabulary, TokenizerPair):
        load_weights(net, source, partial(_with_tokens, net, load_tokenizers(source), task.vocabulary, log))
    else:
        load_weights(net, source)
    log(f"Initialised from the weights of {source}")


_BY_TOKEN = {"src_embedding.weight": 0, "tgt_embedding.weight": 1, "output.weight": 1, "output.bias": 1}  # side


def _with_tokens(
    net: nn.Module, theirs: TokenizerPair, own: TokenizerPair, log: Log, weights: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Return the weights of a run for a vocabulary of one's own.

    The row of a token is that of the same token or, where the run has none, the mean of the rows of the tokens that the
    run reads in its place; where it reads none, what the network has drawn.
    """
    drawn = net.state_dict()
    for name in _BY_TOKEN.keys() & weights.keys():
        side = _BY_TOKEN[name]
        ids, tokens = id_of_each(theirs[side]), every_token(own[side])
        if [*ids] == tokens:
            continue
        read = theirs[side].encode([token.replace("▁", " ").strip() for token in tokens])
        n_tags, rows = len(theirs.tags) if side == 0 else 0, drawn[name].clone()
        for i, token in enumerate(tokens):
            if pieces := [ids[token]] if token in ids else [piece for piece in read[i][n_tags:] if piece != UNK_ID]:
                rows[i] = weights[name][pieces].mean(0)
        log(f"{name}: {sum(token in ids for token in tokens):,} of {len(tokens):,} tokens are known to the run")
        weights[name] = rows
    return weights


def write_scores(task: Task, net: nn.Module, test: Validation, progress: Progress, folder: Path) -> None:
    """Write the scores of the test text to the folder of a run, with what somebody needs to reproduce them."""
    config = task.config
    result = {
        "name": config.name,
        "seed": config.training.seed,
        **task.identity,
        "parameters": sum(p.numel() for p in net.parameters()),
        "best_step": progress.best_step,
        "steps": progress.step,
        "target_tokens": progress.target_tokens,
        "minutes": round(progress.seconds / 60, 1),
        "perplexity": test.perplexity,
        **test.record(),
        "averaged": read_n_averaged(folder / WEIGHTS),
        **provenance(next(net.parameters()).device),
        "config": config.plain(portable),
    }
    write_json(folder / TEST, result)


def describe(task: Task, net: nn.Module, optimizer: Optimizer, epoch: Epoch, n_updates: int, n_processes: int) -> str:
    """Describe what is about to be trained, and on what."""
    config, sizes, n_parameters = task.config, task.sizes, sum(p.numel() for p in net.parameters())
    device = next(net.parameters()).device
    together = f" by {n_processes} processes" if n_processes > 1 else ""
    vocabulary = f"a vocabulary of {sizes['source']:,} tokens"
    if "target" in sizes and not config.tokenizer.joint:
        vocabulary = f"vocabularies of {sizes['source']:,} source and {sizes['target']:,} target tokens"
    text = (
        f"{n_parameters:,} parameters on {device}{together} in {config.training.precision}; {vocabulary}; "
        f"{n_updates:,} updates per epoch, padding {epoch.padding:.1%}"
    )
    if "target" in sizes:
        text += f", {epoch.n_dropped:,} pairs longer than {config.batch.max_tokens} tokens left out"
    if matrices := optimizer.matrices:
        others = [name for name, p in net.named_parameters() if p.dim() > 1 and p not in matrices]
        text += f"\nMuon moves {len(matrices)} matrices, Adam {', '.join(others)} and what is no matrix"
    return text
