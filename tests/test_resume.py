"""Resumed is uninterrupted, and two processes are one, bit for bit: for every task, and for a kept checkpoint."""

import copy
import json
import math
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from config.data import BatchConfig, MaskingConfig, StreamConfig
from config.model import BertConfig, ClassifierConfig, TransformerXLConfig
from config.training import TrainingConfig
from models.bert import BertClassifier, BertForPreTraining
from models.transformer import Transformer
from models.transformer_xl import TransformerXL
from tests import test_training as translation
from tests.test_training import FAST, FP32, Witness, same
from tests.tiny import MODEL, tokenizers
from train import Trainer
from utils.dataset.batch import BucketSampler
from utils.dataset.ids import TokenArray
from utils.dataset.labelled import LabelledText, labelled_examples
from utils.dataset.masked import MaskedText, masked_examples
from utils.dataset.monolingual import Document, DocumentTokens, StreamSampler
from utils.training import muon
from utils.training.checkpoint import (
    CheckpointKeeper,
    CheckpointStore,
    WeightStore,
    read_n_averaged,
    read_rank,
    read_weights,
)
from utils.training.distributed import Processes
from utils.training.loss import (
    Objective,
    TranslationObjective,
    classification_loss,
    masked_language_loss,
    mean_loss,
    recurrent_loss,
)
from utils.training.optimizer import Optimizer
from utils.training.report import JsonlLog, Meter, Observer, Validation
from utils.training.schedule import Progress

VOCAB = len(tokenizers().src)
BERT = BertConfig(16, 2, 32, 2, max_length=40)
XL = TransformerXLConfig(16, 2, 32, 2, memory_length=10)


def sentences(n: int = 48, seed: int = 0) -> TokenArray:
    draw = np.random.default_rng(seed)
    return TokenArray.of([draw.integers(4, VOCAB, draw.integers(2, 9)).tolist() for _ in range(n)], VOCAB)


def documents(n: int = 48) -> DocumentTokens:
    return DocumentTokens.of(sentences(n), [Document(str(i), 4) for i in range(n // 4)])


EVERYTHING = replace(FAST, kind="muon", ema_decay=0.9, weight_decay=0.01)


def timeless(path: Path) -> list[dict[str, Any]]:
    """The records of a log but for what a clock said."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    clocks = ("minutes", "tokens_per_second")
    return [{key: value for key, value in record.items() if key not in clocks} for record in records]


class Case(NamedTuple):
    """A network to learn, and what from."""

    net: Callable[[], nn.Module]
    objective: Objective
    sampler: Callable[[], Any]


def translator(dropout: float) -> Case:
    """With R-Drop, and other ids each epoch, as sub-word sampling gives."""
    config = replace(MODEL, dropout=dropout, attention_dropout=dropout, tie="all")
    return Case(
        lambda: Transformer(config, translation.VOCAB, translation.VOCAB),
        TranslationObjective(0.1, 2.0),
        lambda: BucketSampler(lambda epoch: translation.pairs(seed=epoch), 30, 16, seed=3),
    )


def bert(dropout: float) -> Case:
    config = replace(BERT, dropout=dropout, attention_dropout=dropout)
    text = MaskedText(documents(), tokenizers().src, MaskingConfig())
    return Case(
        lambda: BertForPreTraining(config, VOCAB + 1),
        masked_language_loss,
        lambda: BucketSampler(text, 80, 24, seed=3, examples=masked_examples),
    )


def transformer_xl(dropout: float) -> Case:
    config = replace(XL, dropout=dropout, attention_dropout=dropout)
    return Case(
        lambda: TransformerXL(config, VOCAB),
        recurrent_loss,
        lambda: StreamSampler(documents(), StreamConfig(2, 6, accumulate=2), seed=3),
    )


def classifier(dropout: float) -> Case:
    config = replace(BERT, dropout=dropout, attention_dropout=dropout)
    text = LabelledText(sentences(), np.arange(48) % 3)
    return Case(
        lambda: BertClassifier(ClassifierConfig(**asdict(config), pooling="mean"), VOCAB + 1, 3),
        classification_loss,
        lambda: BucketSampler(text, 60, seed=3, examples=labelled_examples),
    )


def new_trainer(case: Case, training: TrainingConfig = FP32, processes: Processes | None = None) -> Trainer:
    torch.manual_seed(1)
    net, training = case.net(), replace(training, precision="fp32")
    return Trainer(net, case.objective, Optimizer(net, EVERYTHING), training, processes)


def during(step: int, trainer: Trainer, act: Callable[[], object]) -> None:
    """Have something happen while this update is made."""
    make_step = trainer.optimizer.step

    def watched(number: int, tokens: Tensor, time_spent: float = 0.0) -> Tensor:
        if number == step:
            act()
        return make_step(number, tokens, time_spent)

    trainer.optimizer.step = watched  # type: ignore[method-assign, assignment]


def train_in(folder: Path, trainer: Trainer, case: Case, witness: Witness) -> CheckpointStore:
    """Train, with a folder for the log and all that is kept; the last state is kept, too."""
    store, weights = CheckpointStore(folder, 2), WeightStore(folder / "weights", 1, 2, trainer.progress.step)
    keeper = CheckpointKeeper(store, weights, folder / "best", trainer.state, trainer.net.state_dict, "loss")
    dev, batch = case.sampler().all()[:2], BatchConfig(accumulate=2)
    with closing(JsonlLog(folder / "log.jsonl", trainer.progress.step)) as log:
        trainer.fit(case.sampler(), batch, dev, witness.validate, [witness, log, keeper], witness.interrupt)
    keeper.save(trainer.progress.step)
    return store


def assert_same_end(ours: Trainer, theirs: Trainer) -> None:
    """But for what a clock said."""
    assert same(ours.state() | {"progress": 0}, theirs.state() | {"progress": 0}, {"seconds"})
    assert replace(ours.progress, seconds=0) == replace(theirs.progress, seconds=0)


# in the middle of an epoch and between two reports, with all that remembers or draws something switched on
@pytest.mark.parametrize(
    ("case_of", "interrupt_at"),
    [(translator, 3), (translator, 10), (bert, 8), (transformer_xl, 3), (classifier, 8)],
)
def test_resumed_is_uninterrupted_bit_for_bit(
    case_of: Callable[[float], Case], interrupt_at: int, tmp_path: Path
) -> None:
    case, scores = case_of(0.2), [3.0, 4.0, 2.0, 1.0]
    witness = Witness(bleu=scores)
    training = TrainingConfig(max_steps=14, max_epochs=None, validate_every=4, report_every=3, patience=3)
    straight, broken, resumed = (new_trainer(case, training) for _ in range(3))
    train_in(tmp_path / "straight", straight, case, Witness(bleu=scores))
    assert straight.progress.step == 14
    during(interrupt_at, broken, witness.ask_to_stop)
    store = train_in(tmp_path / "broken", broken, case, witness)
    assert broken.progress.step == interrupt_at
    for parameter in resumed.net.parameters():
        nn.init.zeros_(parameter)
    torch.manual_seed(99)
    resumed.restore(store.load(resumed.device, print))
    assert resumed.progress == broken.progress
    train_in(tmp_path / "broken", resumed, case, Witness(bleu=scores[len(witness.dev_losses) :]))
    assert_same_end(resumed, straight)
    assert timeless(tmp_path / "broken" / "log.jsonl") == timeless(tmp_path / "straight" / "log.jsonl")


def test_validations_by_the_clock_change_nothing_that_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come at other steps on each machine."""
    case, now = translator(0.2), iter(range(10_000))
    training = TrainingConfig(max_steps=14, max_epochs=None, validate_every=9, report_every=3, patience=2)
    fast, broken, slow = (new_trainer(case, training) for _ in range(3))

    def validated(name: str, trainer: Trainer, pace: float, stop_at: int = 99) -> list[int]:
        monkeypatch.setattr(time, "monotonic", lambda: pace * next(now))
        witness = Witness()
        during(stop_at, trainer, witness.ask_to_stop)
        train_in(tmp_path / name, trainer, case, witness)
        return witness.validated

    assert validated("fast", fast, 0.0) == [9, 14]
    assert validated("slow", broken, 200.0, stop_at=5) == [3]
    slow.restore(copy.deepcopy(broken.state()))
    assert validated("slow", slow, 200.0) == [6, 9, 14]
    assert_same_end(slow, fast)
    kept = [sorted((tmp_path / name / "weights").iterdir()) for name in ("fast", "slow")]
    for ours, theirs in zip([tmp_path / "fast/best", *kept[0]], [tmp_path / "slow/best", *kept[1]], strict=True):
        assert ours.name == theirs.name
        assert read_rank(ours) == read_rank(theirs)
        assert same(read_weights(ours), read_weights(theirs), set())


KEPT = Path(__file__).parent / "kept"  # step 5 of 14, and its averaged weights, written by commit 529257f


def test_a_checkpoint_kept_from_before_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Muon, Adam with weight decay, moving average, R-Drop, a report and an epoch begun: on its way to today's end."""
    monkeypatch.setattr(muon, "_SAFETY", 1.01)  # as it was then
    training = TrainingConfig(max_steps=14, max_epochs=None, validate_every=4, report_every=3)
    case, dev = translator(0.2), BucketSampler(translation.pairs(10, seed=9), 60).all()
    trainers = [new_trainer(case, training) for _ in range(2)]
    state = CheckpointStore(KEPT, 1).load(torch.device("cpu"), pytest.fail)
    trainers[0].restore(copy.deepcopy(state))
    state["progress"] = asdict(Progress()) | state["progress"]
    state["meter"] = asdict(Meter()) | state["meter"]
    assert same({name: state[name] for name in trainers[0].state()}, trainers[0].state(), {"nll"})
    weights = read_weights(KEPT / "model.safetensors")
    average = state["optimizer"]["average"]["average"]
    assert all(weights[name].equal(tensor) for name, tensor in average.items())
    assert (read_rank(KEPT / "model.safetensors").score, read_n_averaged(KEPT / "model.safetensors")) == (-1.5, 3)
    witness = Witness()
    for trainer in trainers:
        observers = [witness] if trainer is trainers[0] else []
        trainer.fit(case.sampler(), BatchConfig(accumulate=2), dev, witness.validate, observers)
    assert [math.isnan(report.nll) for _, report in witness.steps] == [True, False, False]  # the first: not all summed
    assert all(0 < train_loss < 5 for train_loss in witness.train_losses)
    resumed, straight = trainers
    assert (resumed.progress.epoch, resumed.progress.target_tokens) == (3, 658)
    assert resumed.progress.best_score == pytest.approx(straight.progress.best_score, rel=1e-2)
    for ours, theirs in zip(resumed.net.parameters(), straight.net.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=3e-2)
    # the first steps drew another dropout: 0.018 to 0.026 by precision and rounding; another probability of it, 0.05


CASES = (translator, bert, transformer_xl)
PLAN = TrainingConfig(max_steps=9, max_epochs=None, max_minutes=30, validate_every=4, report_every=1)


class Saver(Observer):
    """Keeps what a validation would save."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.saved = trainer, list[dict[str, Any]]()

    def on_validation(self, progress: Progress, validation: Validation) -> None:  # noqa: ARG002
        self.saved.append(copy.deepcopy(self.trainer.state()))


def fit(trainer: Trainer, case: Case, witness: Witness) -> list[dict[str, Any]]:
    """Train as every process does; the first alone has a text to validate on, and observers."""
    saver, is_first = Saver(trainer), trainer.processes.is_first
    dev, observers = (case.sampler().all()[:2], [witness, saver]) if is_first else ([], [])
    trainer.fit(case.sampler(), BatchConfig(accumulate=2), dev, witness.validate, observers, witness.interrupt)
    return saver.saved


def what_two_come_to(rank: int, store: str) -> dict[str, Any]:
    """What one of two processes, which exchange by gloo, comes to in one training after another."""
    patience = timedelta(minutes=5)  # until the other has begun, and for trainer exchange
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=patience)
    outcome, processes = dict[str, Any](), Processes(rank, 2)

    def begun(case: Case) -> tuple[Trainer, Witness]:
        return new_trainer(case, PLAN, processes), Witness(bleu=[1.0] * 9)

    for case in (case_of(0.2) for case_of in CASES):
        straight, witness = begun(case)
        saved = fit(straight, case, witness)
        losses = witness.losses + witness.train_losses
        outcome[type(straight.net).__name__] = losses, witness.dev_losses, set(straight.memories)
    resumed, witness = begun(case)
    resumed.restore(processes.broadcast(saved[0] if saved else None))
    fit(resumed, case, witness)
    ours, theirs = (trainer.state() | {"progress": 0} for trainer in (resumed, straight))
    if rank == 1:  # of what the first process remembers, nothing is known here
        ours["memories"], theirs["memories"] = ours["memories"][1], theirs["memories"][1]
    outcome["resumed"] = same(ours, theirs, {"seconds"})
    for reason in ("signal", "time"):
        trainer, witness = begun(case)
        late = partial(setattr, trainer.progress, "seconds", 3600.0)
        if rank == 1:
            during(3, trainer, witness.ask_to_stop if reason == "signal" else late)
        fit(trainer, case, witness)
        outcome[reason] = trainer.progress.step, witness.interrupt.asked, set(trainer.memories)
    slow, witness = begun(case)
    during(2, slow, partial(setattr, slow.progress, "seconds", 500.0 * rank))
    fit(slow, case, witness)
    outcome["slow"] = witness.validated
    dist.destroy_process_group()
    return outcome


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """This process, and one that it starts."""
    store, spawn = str(tmp_path_factory.mktemp("two") / "store"), multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        second = pool.submit(what_two_come_to, 1, store)
        return what_two_come_to(0, store), second.result()


@pytest.mark.parametrize("case_of", CASES)
def test_two_processes_are_one(case_of: Callable[[float], Case], two: tuple[dict[str, Any], ...]) -> None:
    """Dropout too: a batch's draws are its own, whichever process learns from it."""
    alone, witness = new_trainer(case_of(0.2), PLAN), Witness(bleu=[1.0] * 9)
    fit(alone, case_of(0.2), witness)
    losses, dev_losses, remembered = two[0][type(alone.net).__name__]
    assert losses == pytest.approx(witness.losses + witness.train_losses, rel=1e-4)
    assert dev_losses == pytest.approx(witness.dev_losses, rel=1e-3)
    assert two[1][type(alone.net).__name__][1] == []
    assert remembered == set(alone.memories)  # also what only the other one remembers, to be saved


def test_two_processes_resume_stop_and_validate_together(two: tuple[dict[str, Any], ...]) -> None:
    """What a validation saves has what all processes remember, and must not come back over what is known by then.

    All stop where one is asked to or its time is over, and the first then knows what all remember; all validate where
    it is time in one.
    """
    first, second = two
    assert first["resumed"]
    assert second["resumed"]
    for reason, asked in (("signal", True), ("time", False)):
        assert first[reason] == (3, asked, {0, 1})
        assert second[reason][:2] == (3, asked)
    assert (first["slow"], second["slow"]) == ([2, 4, 8, 9], [])


def test_what_is_not_finite_is_not_remembered() -> None:
    case = transformer_xl(0.0)
    trainer, batch = new_trainer(case), case.sampler().epoch(0)[0]
    trainer.net.get_parameter("embedding.weight").data[int(batch.ids[0, 0])] = float("inf")
    trainer.train_step([batch])
    assert all(layer.isfinite().all() for layer in trainer.memories[0].hidden)


def test_larger_batches_after_a_resume_end_the_epoch() -> None:
    case = classifier(0.0)
    trainer = new_trainer(case, TrainingConfig(max_epochs=2))
    trainer.progress.position = len(case.sampler().epoch(0)) // 2 + 1
    trainer.fit(case.sampler(), BatchConfig(accumulate=3), case.sampler().all())
    assert trainer.progress.epoch == 2


def test_a_batch_goes_on_where_its_streams_ended() -> None:
    """Each place of an update has streams of its own, and an epoch begins with nothing to remember."""
    case = transformer_xl(0.0)
    trainer, sampler = new_trainer(case, TrainingConfig(max_epochs=2, validate_every=1000)), case.sampler()
    objective, seen = trainer.objective, list[tuple[int, int | None]]()

    def watched(net: nn.Module, batch: Any, memory: Any) -> Any:
        if net.training:
            seen.append((int(batch.document[0, 0]), None if memory is None else int(memory[1][0, -1])))
        return objective(net, batch, memory)

    trainer.objective = watched
    expected = [
        (int(epoch[i].document[0, 0]), int(epoch[i - 2].document[0, -1]) if i > 1 else None)
        for epoch in map(sampler.epoch, (0, 1))
        for i in range(len(epoch))
    ]
    trainer.fit(sampler, BatchConfig(accumulate=2), sampler.all()[:2])
    assert seen == expected


def test_what_training_remembers_is_not_what_validation_does() -> None:
    case = transformer_xl(0.0)
    trainer, epoch, dev = new_trainer(case), case.sampler().epoch(0), case.sampler().all()[:3]
    trainer.train_step([epoch[0], epoch[1]])
    before = copy.deepcopy(trainer.memories)
    first = mean_loss(trainer.val_step, dev)
    assert first == mean_loss(trainer.val_step, dev)
    assert same(trainer.memories, before, set())


def test_validation_reads_its_text_on_from_batch_to_batch() -> None:
    """In pieces, the loss is that of the text in one piece, as long as all of it is remembered."""
    torch.manual_seed(2)
    net = TransformerXL(XL, VOCAB)

    def loss(memory_length: int, segment_length: int) -> float:
        net.config = replace(XL, memory_length=memory_length)
        trainer = Trainer(net, recurrent_loss, Optimizer(net, FAST), FP32)
        return mean_loss(trainer.val_step, StreamSampler(documents(8), StreamConfig(1, segment_length)).all())

    whole = loss(1000, 1000)
    assert [loss(1000, 5), loss(1000, 7)] == pytest.approx([whole] * 2, rel=1e-5)
    assert loss(0, 5) != pytest.approx(whole, rel=1e-4)
