"""Resumed is uninterrupted, and two processes are one, bit for bit: for every task, and for a kept checkpoint."""

import copy
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from config.data import BatchConfig, MaskingConfig, StreamConfig
from config.model import BertConfig, TransformerXLConfig
from config.training import TrainingConfig
from models.bert import BertClassifier, BertForPreTraining
from models.transformer import Transformer
from models.transformer_xl import TransformerXL
from tests import test_training as translation
from tests.test_training import FAST, FP32, Witness, interrupting, same
from tests.tiny import MODEL, tokenizers
from train import Trainer
from utils.dataset.batch import BucketSampler
from utils.dataset.ids import TokenArray
from utils.dataset.labelled import LabelledText, labelled_examples
from utils.dataset.masked import MaskedText, masked_examples
from utils.dataset.monolingual import Document, DocumentTokens
from utils.dataset.stream import StreamSampler
from utils.training.checkpoint import (
    CheckpointKeeper,
    CheckpointStore,
    WeightStore,
    read_n_averaged,
    read_score,
    read_weights,
)
from utils.training.distributed import Processes
from utils.training.loss import (
    ClassificationObjective,
    MaskedLanguageObjective,
    Objective,
    RecurrentObjective,
    TranslationObjective,
    mean_loss,
)
from utils.training.optimizer import Optimizer
from utils.training.report import JsonlLog

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


def bert(dropout: float) -> Case:
    config = replace(BERT, dropout=dropout, attention_dropout=dropout)
    return Case(
        lambda: BertForPreTraining(config, VOCAB + 1),
        MaskedLanguageObjective(),
        lambda: BucketSampler(
            MaskedText(documents(), tokenizers().src, MaskingConfig()), 80, 24, seed=3, examples=masked_examples
        ),
    )


def transformer_xl(dropout: float) -> Case:
    config = replace(XL, dropout=dropout, attention_dropout=dropout)
    return Case(
        lambda: TransformerXL(config, VOCAB),
        RecurrentObjective(),
        lambda: StreamSampler(documents(), StreamConfig(2, 6, accumulate=2), seed=3),
    )


def classifier(dropout: float) -> Case:
    config = replace(BERT, dropout=dropout, attention_dropout=dropout)
    text = LabelledText(sentences(), np.arange(48) % 3)
    return Case(
        lambda: BertClassifier(config, VOCAB + 1, 3),
        ClassificationObjective(),
        lambda: BucketSampler(text, 60, seed=3, examples=labelled_examples),
    )


def translator(dropout: float) -> Case:
    """With R-Drop, and other ids each epoch, as sub-word sampling gives."""
    config = replace(MODEL, dropout=dropout, attention_dropout=dropout, tie="all")
    return Case(
        lambda: Transformer(config, translation.VOCAB, translation.VOCAB),
        TranslationObjective(0.1, 2.0),
        lambda: BucketSampler(lambda epoch: translation.pairs(seed=epoch), 30, 16, seed=3),
    )


def new_trainer(case: Case, plan: TrainingConfig = FP32, processes: Processes | None = None) -> Trainer:
    torch.manual_seed(1)
    net, plan = case.net(), replace(plan, precision="fp32")
    return Trainer(net, case.objective, Optimizer(net, EVERYTHING), plan, processes)


# in the middle of an epoch and between two reports, with all that remembers or draws something switched on
@pytest.mark.parametrize(
    ("case_of", "interrupt_at"),
    [(translator, 3), (translator, 10), (bert, 8), (transformer_xl, 3), (classifier, 8)],
)
def test_resumed_is_uninterrupted_bit_for_bit(
    case_of: Callable[[float], Case], interrupt_at: int, tmp_path: Path
) -> None:
    case, scores = case_of(0.2), [3.0, 4.0, 2.0, 1.0]
    plan = TrainingConfig(max_steps=14, max_epochs=None, validate_every=4, report_every=3, patience=3)
    batch, dev = BatchConfig(accumulate=2), case.sampler().all()

    def go(trainer: Trainer, witness: Witness, name: str) -> CheckpointStore:
        store, weights = CheckpointStore(tmp_path / name, 2), WeightStore(tmp_path / name, 1, 2, trainer.progress.step)
        keeper = CheckpointKeeper(store, weights, tmp_path / "best", trainer.state, trainer.net.state_dict, "loss")
        log = JsonlLog(tmp_path / f"{name}.jsonl", trainer.progress.step)
        trainer.fit(case.sampler(), batch, dev, witness.judge, [witness, log, keeper], witness.interrupt)
        keeper.save(trainer.progress.step)
        log.close()
        return store

    straight = new_trainer(case, plan)
    go(straight, Witness(bleu=scores), "straight")
    assert straight.progress.step == 14
    broken, witness = new_trainer(case, plan), Witness(bleu=scores)
    broken.optimizer.step = interrupting(broken.optimizer, witness.interrupt, interrupt_at)  # type: ignore[method-assign, assignment]
    store = go(broken, witness, "broken")
    assert broken.progress.step == interrupt_at
    resumed = new_trainer(case, plan)
    for parameter in resumed.net.parameters():
        nn.init.zeros_(parameter)
    torch.manual_seed(99)
    resumed.restore(store.load(resumed.device, print))
    assert resumed.progress == broken.progress
    go(resumed, Witness(bleu=scores[len(witness.judged) :]), "broken")
    assert same(resumed.state() | {"progress": 0}, straight.state() | {"progress": 0}, {"seconds"})
    assert replace(resumed.progress, seconds=0) == replace(straight.progress, seconds=0)
    assert timeless(tmp_path / "broken.jsonl") == timeless(tmp_path / "straight.jsonl")


KEPT = Path(__file__).parent / "kept"  # step 5 of 14, and its averaged weights, written by commit 529257f


def test_a_checkpoint_kept_from_before_is_resumed() -> None:
    """Muon, Adam with weight decay, moving average, R-Drop, a report and an epoch begun: on its way to today's end."""
    plan = TrainingConfig(max_steps=14, max_epochs=None, validate_every=4, report_every=3)
    case, dev = translator(0.2), BucketSampler(translation.pairs(10, seed=9), 60).all()
    trainers = [new_trainer(case, plan) for _ in range(2)]
    state = CheckpointStore(KEPT, 1).load(torch.device("cpu"), pytest.fail)
    trainers[0].restore(copy.deepcopy(state))
    assert same({name: state[name] for name in trainers[0].state()}, trainers[0].state(), set())
    weights = read_weights(KEPT / "model.safetensors")
    average = state["optimizer"]["average"]["average"]
    assert all(weights[name].equal(tensor) for name, tensor in average.items())
    assert (read_score(KEPT / "model.safetensors"), read_n_averaged(KEPT / "model.safetensors")) == (-1.5, 3)
    for trainer in trainers:
        trainer.fit(case.sampler(), BatchConfig(accumulate=2), dev)
    resumed, straight = trainers
    assert (resumed.progress.epoch, resumed.progress.target_tokens) == (3, 658)
    assert resumed.progress.best_score == pytest.approx(straight.progress.best_score, rel=1e-2)
    for ours, theirs in zip(resumed.net.parameters(), straight.net.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-2)  # the first steps drew another dropout


class Together(Processes):
    """One of two threads that stand for processes: what these exchange goes through a list."""

    def __init__(self, rank: int, slots: list[Any], barrier: threading.Barrier) -> None:
        super().__init__(rank, 2)
        self._slots, self._barrier = slots, barrier

    def _all(self, value: Any) -> list[Any]:
        self._slots[self.rank] = value
        self._barrier.wait(300)
        values = list(self._slots)
        self._barrier.wait(300)
        return values

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        for tensor, *parts in zip(tensors, *self._all([tensor.clone() for tensor in tensors]), strict=True):
            tensor.copy_(parts[0] + parts[1])

    def any(self, *flags: bool) -> list[bool]:
        return [any(flag) for flag in zip(*self._all(flags), strict=True)]

    def broadcast(self, value: Any) -> Any:
        return self._all(value)[0]

    def gather(self, places: Mapping[int, Any]) -> dict[int, Any]:
        first, second = self._all(dict(places))
        return first | second if self.is_first else {}


def fit_together(
    case: Case,
    plan: TrainingConfig,
    state: dict[str, Any] | None = None,
    to_first: Callable[[Trainer, Witness], None] = lambda *_: None,
    to_second: Callable[[Trainer, Witness], None] = lambda *_: None,
) -> tuple[list[Trainer], list[Witness]]:
    """Two processes from the beginning, or from a checkpoint; to each of them something may be done before."""
    slots, barrier = [None, None], threading.Barrier(2)
    pair = [new_trainer(case, plan, Together(rank, slots, barrier)) for rank in (0, 1)]
    told = [Witness(bleu=[1.0] * 9) for _ in pair]
    to_first(pair[0], told[0])
    to_second(pair[1], told[1])

    def run(rank: int) -> None:
        if state is not None:
            pair[rank].restore(copy.deepcopy(state))
        dev, observers = (case.sampler().all(), [told[0]]) if rank == 0 else ([], [])
        batch = BatchConfig(accumulate=2)
        pair[rank].fit(case.sampler(), batch, dev, told[rank].judge, observers, told[rank].interrupt)

    second = threading.Thread(target=run, args=(1,))
    second.start()
    run(0)
    second.join(300)
    assert not second.is_alive()
    return pair, told


@pytest.mark.parametrize("case_of", [bert, transformer_xl, classifier])
def test_two_processes_are_one(case_of: Callable[[float], Case]) -> None:
    case = case_of(0.0)
    plan = TrainingConfig(max_steps=9, max_epochs=None, validate_every=4, report_every=1)
    alone, witness = new_trainer(case, plan), Witness(bleu=[1.0] * 9)
    dev = case.sampler().all()
    alone.fit(case.sampler(), BatchConfig(accumulate=2), dev, witness.judge, [witness], witness.interrupt)
    pair, told = fit_together(case, plan)
    for (_, ours), (_, theirs) in zip(told[0].steps, witness.steps, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-4)
    assert told[0].judged == pytest.approx(witness.judged, rel=1e-4)
    assert told[1].judged == []
    assert pair[0].memories.keys() == alone.memories.keys()  # also what only the other one remembers, to be saved


def test_two_processes_that_are_resumed_remember_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a validation saves has what all processes remember, and must not come back over what is known by then."""
    case, saved = transformer_xl(0.0), list[dict[str, Any]]()

    def save(first: Trainer, witness: Witness) -> None:
        monkeypatch.setattr(witness, "on_validation", lambda *_: saved.append(copy.deepcopy(first.state())))

    plan = TrainingConfig(max_steps=8, max_epochs=None, validate_every=4)
    straight, _ = fit_together(case, plan, to_first=save)
    assert saved[0]["memories"].keys() == {0, 1}
    resumed, _ = fit_together(case, plan, saved[0])
    assert same(resumed[0].state() | {"progress": 0}, straight[0].state() | {"progress": 0}, {"seconds"})
    assert same(dict(resumed[1].memories)[1], dict(straight[1].memories)[1], set())


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
    trainer.fit(sampler, BatchConfig(accumulate=2), sampler.all())
    assert seen == expected


def test_what_training_remembers_is_not_what_validation_does() -> None:
    case = transformer_xl(0.0)
    trainer, epoch = new_trainer(case), case.sampler().epoch(0)
    trainer.train_step([epoch[0], epoch[1]])
    before = copy.deepcopy(trainer.memories)
    first = mean_loss(trainer.val_step, case.sampler().all())
    assert first == mean_loss(trainer.val_step, case.sampler().all())
    assert same(trainer.memories, before, set())
    net, objective = TransformerXL(XL, VOCAB), RecurrentObjective(2)  # as its settings say, or as its objective does
    assert objective(net.train(), epoch[0]).memory.document.size(1) == epoch[0].ids.size(1) == 6
    assert objective(net.eval(), epoch[0]).memory.document.size(1) == 2


def test_validation_reads_its_text_on_from_batch_to_batch() -> None:
    """In pieces, the loss is that of the text in one piece, as long as all of it is remembered."""
    torch.manual_seed(2)
    net = TransformerXL(replace(XL, memory_length=4), VOCAB)

    def loss(memory_length: int, segment_length: int) -> float:
        trainer = Trainer(net, RecurrentObjective(memory_length), Optimizer(net, FAST), FP32)
        return mean_loss(trainer.val_step, StreamSampler(documents(8), StreamConfig(1, segment_length)).all())

    whole = loss(1000, 1000)
    assert [loss(1000, 5), loss(1000, 7)] == pytest.approx([whole] * 2, rel=1e-5)
    assert loss(0, 5) != pytest.approx(whole, rel=1e-4)


def test_all_processes_stop_where_one_is_asked_to_or_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the first knows what all remember."""

    def ask(second: Trainer, witness: Witness) -> None:
        monkeypatch.setattr(second.optimizer, "step", interrupting(second.optimizer, witness.interrupt, 3))

    def hurry(second: Trainer, _: Witness) -> None:
        step = second.optimizer.step

        def late(number: int, tokens: Tensor) -> Tensor:
            second.progress.seconds += 3600 * (number == 3)
            return step(number, tokens)

        monkeypatch.setattr(second.optimizer, "step", late)

    for to_second in (ask, hurry):
        plan = TrainingConfig(max_steps=9, max_epochs=None, max_minutes=30, validate_every=1000)
        pair, told = fit_together(transformer_xl(0.0), plan, to_second=to_second)
        assert [trainer.progress.step for trainer in pair] == [3, 3]
        assert [witness.interrupt.asked for witness in told] == [to_second is ask] * 2
        assert pair[0].memories.keys() == {0, 1}
        assert same(tuple(pair[0].memories[1]), tuple(pair[1].memories[1]), set())
