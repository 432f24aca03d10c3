"""The Trainer on a tiny Transformer, and train.py from two text files to a translation."""

import copy
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast
from weakref import ref

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn

import train
from const.corpora import CORPORA
from const.path import ROOT
from models.transformer import Transformer
from tests.test_surface import PARSERS
from tests.tiny import MODEL, TEXT
from train import Trainer, Update
from utils.arguments import read_arguments
from utils.command import run_command
from utils.config import TranslationConfig
from utils.dataset import batch as batch_module
from utils.dataset.batch import Batch, BatchConfig, BucketSampler, Epoch, batch_of
from utils.dataset.corpus import prepare_corpus
from utils.dataset.ids import TokenArray, TokenPairs
from utils.device import Precision, product_dtype
from utils.run import load_run
from utils.task import translation
from utils.task.task import Task
from utils.training.checkpoint import CheckpointKeeper, CheckpointStore, WeightStore
from utils.training.distributed import Processes
from utils.training.interrupt import Interrupt
from utils.training.loss import Loss, Objective, RDropObjective, TranslationObjective, mean_loss
from utils.training.optimizer import GuardedOptimizer
from utils.training.plan import OptimizerConfig, Progress, TrainingConfig, TranslationTrainingConfig, learning_rate
from utils.training.report import JsonlLog, Observer, StepReport, Validation, read_log

VOCAB = 24
GOLDEN = [
    3.66336,
    3.81002,
    3.78649,
    3.47623,
    3.60035,
    3.19261,
    3.24571,
    3.18114,
    3.10507,
    3.0592,
    2.90711,
    2.86691,
    3.22399,
    3.00487,
    3.04611,
    2.99876,
    2.84867,
    3.07118,
    2.68001,
    2.87041,
]

FAST = OptimizerConfig(peak_lr=0.01, warmup_steps=10)
FP32 = TrainingConfig(precision="fp32")


def pairs(n: int = 40, seed: int = 0) -> TokenPairs:
    """Random sources of 1 to 8 tokens, to be written backwards."""
    draw = np.random.default_rng(seed)
    sources = [draw.integers(4, VOCAB, draw.integers(1, 9)).tolist() for _ in range(n)]
    return TokenPairs(TokenArray.of(sources, VOCAB), TokenArray.of([ids[::-1] for ids in sources], VOCAB))


def new_sampler(n: int = 40, tokens: int = 40) -> BucketSampler:
    return BucketSampler(pairs(n), tokens, 16, seed=3)


def new_trainer(dropout: float = 0.0, optimizer: OptimizerConfig = FAST, objective: Objective | None = None) -> Trainer:
    torch.manual_seed(1)
    net = Transformer(replace(MODEL, dropout=dropout, attention_dropout=dropout, tie="all"), VOCAB, VOCAB)
    return Trainer(net, objective or TranslationObjective(0.1), GuardedOptimizer(net, optimizer, MODEL.d_model), FP32)


def gradients(trainer: Trainer) -> list[Tensor]:
    return [p.grad.clone() for p in trainer.net.parameters() if p.grad is not None]


def weights(trainer: Trainer) -> list[Tensor]:
    return [p.detach().clone() for p in trainer.net.parameters()]


# one update


@pytest.mark.parametrize("sizes", [[1, 7], [2, 3, 3], [1] * 8])
@pytest.mark.parametrize("clip_norm", [1e9, 0.01], ids=["free", "clipped"])
def test_any_split_into_micro_batches_is_the_whole_batch(sizes: list[int], clip_norm: float) -> None:
    # with a tiny eps Adam makes steps of noise, where a gradient is nothing but noise (biases of keys)
    text, optimizer = pairs(), replace(FAST, clip_norm=clip_norm, eps=1e-4)
    whole, split = new_trainer(optimizer=optimizer), new_trainer(optimizer=optimizer)
    for update in range(3):
        rows = np.arange(8) + 8 * update
        cuts = np.split(rows, np.cumsum(sizes)[:-1])
        nats_a, tokens_a, norm_a = whole.train_step([batch_of(text, rows)])
        nats_b, tokens_b, norm_b = split.train_step([batch_of(text, cut) for cut in cuts])
        for trainer in (whole, split):
            trainer.progress.step += 1
        assert tokens_a == tokens_b
        torch.testing.assert_close(nats_b, nats_a, rtol=1e-4, atol=0)
        torch.testing.assert_close(norm_b, norm_a, rtol=1e-4, atol=0)
        if update == 0:
            torch.testing.assert_close(gradients(split), gradients(whole), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(weights(split), weights(whole), rtol=0, atol=2e-4)


def test_the_gradient_is_that_of_the_mean_over_tokens_and_clipped_as_such() -> None:
    batch = batch_of(pairs(), np.arange(8))
    free = new_trainer(optimizer=replace(FAST, clip_norm=1e9))
    nats, tokens, norm = free.train_step([batch])
    mean = gradients(free)

    by_hand = new_trainer()
    loss, n, _ = by_hand.loss_fn(batch)
    (loss / n).backward()
    torch.testing.assert_close(mean, gradients(by_hand), rtol=1e-4, atol=1e-6)
    expected = torch.cat([gradient.flatten() for gradient in gradients(by_hand)]).norm()
    torch.testing.assert_close(norm, expected)
    assert nats.item() == pytest.approx(loss.item())
    assert tokens == n

    for clip_norm in (expected.item() / 3, expected.item() * 1.01):
        clipped = new_trainer(optimizer=replace(FAST, clip_norm=clip_norm))
        assert clipped.train_step([batch])[2] == norm  # as it was before
        scale = min(1.0, clip_norm / expected.item())
        torch.testing.assert_close(gradients(clipped), [scale * gradient for gradient in mean])


def test_an_update_forgets_the_gradient_before_it_and_goes_at_the_rate_of_its_step() -> None:
    batch = batch_of(pairs(), np.arange(8))
    trainer, other = new_trainer(), new_trainer()
    trainer.train_step([batch_of(pairs(), np.arange(20, 30))])
    other.net.load_state_dict(trainer.net.state_dict())
    trainer.progress.step = 7
    trainer.train_step([batch])
    other.train_step([batch])
    torch.testing.assert_close(gradients(trainer), gradients(other))
    assert trainer.optimizer.learning_rate == learning_rate(8, FAST, MODEL.d_model)
    assert other.optimizer.learning_rate == learning_rate(1, FAST, MODEL.d_model)


def test_a_loss_is_a_sum_and_validating_teaches_nothing() -> None:
    trainer, batch = new_trainer(dropout=0.5), batch_of(pairs(), np.arange(8))
    trainer.net.train()
    nats, tokens, _ = trainer.loss_fn(batch)
    assert nats.requires_grad
    assert tokens == (batch.tgt[:, 1:] != 0).sum()
    before = weights(trainer)
    first, n, _ = trainer.val_step(batch)
    assert not trainer.net.training
    assert n == tokens
    assert trainer.val_step(batch)[0] == first != nats
    assert not first.requires_grad
    assert not gradients(trainer)
    assert all(a.equal(b) for a, b in zip(weights(trainer), before, strict=True))
    trainer.train_step([batch])
    assert trainer.net.training


def test_the_mean_loss_is_the_same_however_the_text_is_cut() -> None:
    trainer = new_trainer()
    losses = [mean_loss(trainer.val_step, new_sampler(tokens=tokens).all()) for tokens in (20, 90, 10_000)]
    assert losses[1:] == pytest.approx(losses[:1] * 2, rel=1e-5)
    nats, tokens, _ = trainer.val_step(batch_of(pairs(), np.arange(40)))
    assert losses[0] == pytest.approx((nats / tokens).item(), rel=1e-5)


# a whole training


@dataclass
class Witness(Observer):
    """Judge and observer: gives these BLEU scores one after another, and writes down all that it is told."""

    bleu: Sequence[float] = ()
    interrupt: Interrupt = field(default_factory=Interrupt)
    interrupt_at: int | None = None
    judged: list[float] = field(default_factory=list)
    steps: list[tuple[Progress, StepReport]] = field(default_factory=list)
    validations: list[tuple[Progress, Validation]] = field(default_factory=list)

    def judge(self, loss: float) -> Validation:
        self.judged.append(loss)
        bleu = self.bleu[len(self.judged) - 1] if self.bleu else float(len(self.judged))
        return Validation(loss, {"bleu": bleu, "chrf": 0.0})

    def on_step(self, progress: Progress, report: StepReport) -> None:
        self.steps.append((copy.copy(progress), report))
        if progress.step == self.interrupt_at:
            self.interrupt.asked = True

    def on_validation(self, progress: Progress, validation: Validation) -> None:
        self.validations.append((copy.copy(progress), validation))

    def validated(self) -> list[int]:
        return [progress.step for progress, _ in self.validations]


def fit(
    trainer: Trainer,
    plan: TranslationTrainingConfig,
    witness: Witness,
    accumulate: int = 1,
    observers: Sequence[Any] = (),
) -> None:
    dev = BucketSampler(pairs(10, seed=9), 60).all()
    batch = BatchConfig(accumulate=accumulate)
    trainer.plan = replace(plan, precision="fp32")
    trainer.fit(new_sampler(), batch, dev, witness.judge, [witness, *observers], witness.interrupt)


def test_it_trains_for_so_many_steps_and_validates_on_the_way_and_at_the_end() -> None:
    trainer, witness = new_trainer(), Witness()
    fit(trainer, TranslationTrainingConfig(max_steps=25, max_epochs=None, validate_every=10, report_every=4), witness)
    assert trainer.progress.step == 25
    assert [progress.step for progress, _ in witness.steps] == [4, 8, 12, 16, 20, 24]
    assert witness.validated() == [10, 20, 25]
    assert [validation.loss for _, validation in witness.validations] == witness.judged
    assert witness.judged[2] == pytest.approx(mean_loss(trainer.val_step, BucketSampler(pairs(10, seed=9), 60).all()))
    assert witness.judged[2] < witness.judged[0]


def test_a_validation_that_falls_on_the_end_happens_once() -> None:
    witness = Witness()
    fit(new_trainer(), TranslationTrainingConfig(max_steps=6, max_epochs=None, validate_every=3), witness)
    assert witness.validated() == [3, 6]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_epochs_are_whole_passes_over_the_text(accumulate: int) -> None:
    trainer, witness = new_trainer(), Witness()
    seen: list[Batch] = []
    train_step = trainer.train_step

    def watched(micro_batches: Iterable[Any]) -> Update:
        seen.extend(micro_batches)
        return train_step(micro_batches)

    trainer.train_step = watched  # type: ignore[method-assign]
    fit(trainer, TranslationTrainingConfig(max_epochs=2, report_every=1), witness, accumulate)
    updates = [-(-len(new_sampler().epoch(epoch)) // accumulate) for epoch in (0, 1)]
    assert trainer.progress.step == sum(updates) > 2
    assert (trainer.progress.epoch, trainer.progress.position) == (2, 0)
    assert witness.validated() == [sum(updates)]
    lines = sorted(tuple(i for i in row if i > 3) for batch in seen for row in batch.src.tolist())
    assert lines == sorted(2 * [tuple(ids.tolist()) for ids in pairs().src])  # type: ignore[attr-defined]
    sampler = new_sampler()
    planned = [batch for epoch in (0, 1) for batch in sampler.epoch(epoch)]
    assert [batch.src.tolist() for batch in seen] == [batch.src.tolist() for batch in planned]
    assert trainer.progress.target_tokens == 2 * int((pairs().tgt.lengths + 1).sum())
    places = [(progress.epoch, progress.position) for progress, _ in witness.steps]
    assert places == [
        *((0, n) for n in range(1, updates[0])),
        (1, 0),
        *((1, n) for n in range(1, updates[1])),
        (2, 0),
    ]


def test_minutes_count_training_and_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10_000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))  # a second passes between two looks at it
    trainer, witness = new_trainer(), Witness()
    fit(trainer, TranslationTrainingConfig(max_minutes=0.5, max_epochs=None, validate_every=10), witness)
    # ten updates and a validation are eleven seconds: 30 are over at the second validation and eight more updates
    assert trainer.progress.seconds == 31
    assert witness.validated() == [10, 20, 28]


def test_time_before_a_training_is_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, now = new_trainer(), time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 1000)
    fit(trainer, TranslationTrainingConfig(max_steps=1, max_epochs=None), Witness())
    assert trainer.progress.seconds == 0


def test_the_best_step_is_that_of_the_first_best_bleu() -> None:
    trainer = new_trainer()
    witness = Witness(bleu=[0.0, 3.0, 2.0, 3.0, 1.0])
    fit(trainer, TranslationTrainingConfig(max_steps=10, max_epochs=None, validate_every=2), witness)
    assert (trainer.progress.best_step, trainer.progress.best_score) == (4, 3.0)
    assert [progress.best_step for progress, _ in witness.validations] == [2, 4, 4, 4, 4]


def test_an_interrupted_training_stops_after_the_update_and_an_ended_one_does_nothing() -> None:
    trainer, witness = new_trainer(), Witness(interrupt_at=4)
    plan = TranslationTrainingConfig(max_steps=9, max_epochs=None, validate_every=5, report_every=1)
    fit(trainer, plan, witness)
    assert trainer.progress.step == 4
    assert not witness.validations
    ended = Witness()
    trainer.progress.step = 9
    fit(trainer, plan, ended)
    assert not ended.steps
    assert not ended.validations


def test_a_signal_that_comes_while_the_processes_agree_is_heard_at_the_next_update() -> None:
    class Signalled(Processes):
        def any(self, *flags: bool) -> list[bool]:
            if trainer.progress.step == 3:  # whether it came has been read
                witness.interrupt.asked = True
            return list(flags)

    trainer, witness = new_trainer(), Witness()
    trainer.processes = Signalled()
    fit(trainer, TranslationTrainingConfig(max_steps=9, max_epochs=None, validate_every=99), witness)
    assert witness.interrupt.asked
    assert trainer.progress.step == 4


def test_an_epoch_is_gone_before_the_next_one_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    class Watched(Epoch):
        def __init__(self, *given: Any) -> None:
            alive.append(sum(other() is not None for other in made))
            made.append(ref(self))
            super().__init__(*given)

    made, alive = list[ref[Epoch]](), list[int]()
    monkeypatch.setattr(batch_module, "Epoch", Watched)
    fit(new_trainer(), TranslationTrainingConfig(max_epochs=3), Witness())
    assert alive == [0, 0, 0, 0]  # the first is of the dev text


def test_a_test_gives_the_judge_the_loss_of_the_text() -> None:
    trainer, witness = new_trainer(), Witness(bleu=[12.5])
    batches = new_sampler().all()
    assert trainer.test(batches, witness.judge).scores["bleu"] == 12.5
    assert witness.judged == [mean_loss(trainer.val_step, batches)]


def timeless(path: Path) -> list[dict[str, Any]]:
    """The records of a log but for what a clock said."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    clocks = ("minutes", "tokens_per_second")
    return [{key: value for key, value in record.items() if key not in clocks} for record in records]


EVERYTHING = replace(FAST, kind="muon", ema_decay=0.9, weight_decay=0.01)


def cut_anew(epoch: int) -> TokenPairs:
    """Other ids each epoch, as sub-word sampling gives."""
    return pairs(seed=epoch)


@pytest.mark.parametrize("interrupt_at", [3, 4, 5, 10])
def test_resumed_is_uninterrupted_bit_for_bit(interrupt_at: int, tmp_path: Path) -> None:
    """In the middle of an epoch and between two reports, with all that remembers or draws something switched on."""
    plan = TranslationTrainingConfig(max_steps=18, max_epochs=None, validate_every=4, report_every=3, patience=4)
    batch, dev = BatchConfig(accumulate=2), BucketSampler(pairs(10, seed=9), 60).all()
    scores = [3.0, 4.0, 2.0, 1.0, 5.0]

    def start() -> tuple[Trainer, BucketSampler]:
        trainer = new_trainer(0.2, EVERYTHING, RDropObjective(0.1, 2.0))
        return trainer, BucketSampler(cut_anew, 30, 16, seed=3)

    def go(trainer: Trainer, sampler: BucketSampler, witness: Witness, name: str) -> CheckpointStore:
        store = CheckpointStore(tmp_path / name, 2)
        weights = WeightStore(tmp_path / name, 1, 2, trainer.progress.step)
        keeper = CheckpointKeeper(
            store, weights, tmp_path / "best.safetensors", trainer.state, trainer.net.state_dict, "bleu"
        )
        log = JsonlLog(tmp_path / f"{name}.jsonl", trainer.progress.step)
        trainer.plan = replace(plan, precision="fp32")
        trainer.fit(sampler, batch, dev, witness.judge, [witness, log, keeper], witness.interrupt)
        keeper.save(trainer.progress.step)
        log.close()
        return store

    straight, sampler = start()
    go(straight, sampler, Witness(bleu=scores), "straight")
    assert straight.progress.step == 18
    assert straight.progress.epoch > 1

    torch.manual_seed(5)
    broken, sampler = start()
    witness = Witness(bleu=scores)
    broken.optimizer.step = interrupting(broken.optimizer, witness.interrupt, interrupt_at)  # type: ignore[method-assign, assignment]
    store = go(broken, sampler, witness, "broken")
    assert broken.progress.step == interrupt_at

    resumed, sampler = start()
    for parameter in resumed.net.parameters():
        nn.init.zeros_(parameter)
    torch.manual_seed(99)
    resumed.restore(store.load(resumed.device, print))
    assert resumed.progress == broken.progress
    go(resumed, sampler, Witness(bleu=scores[len(witness.judged) :]), "broken")

    assert same(resumed.state() | {"progress": 0}, straight.state() | {"progress": 0}, {"seconds"})
    assert replace(resumed.progress, seconds=0) == replace(straight.progress, seconds=0)
    assert timeless(tmp_path / "broken.jsonl") == timeless(tmp_path / "straight.jsonl")


def interrupting(optimizer: GuardedOptimizer, interrupt: Interrupt, at: int) -> Callable[[int, Tensor], Tensor]:
    """Its `step`, during one of which somebody asks to stop."""
    step = optimizer.step

    def interrupted(number: int, tokens: Tensor) -> Tensor:
        interrupt.asked = interrupt.asked or number == at
        return step(number, tokens)

    return interrupted


def same(ours: Any, theirs: Any, ignored: set[str]) -> bool:
    """Bit for bit, whatever the nesting."""
    if isinstance(ours, Tensor):
        return ours.equal(theirs)
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(
            same(ours[key], theirs[key], ignored) for key in ours if key not in ignored
        )
    if isinstance(ours, list | tuple):
        return len(ours) == len(theirs) and all(same(a, b, ignored) for a, b in zip(ours, theirs, strict=True))
    return bool(ours == theirs)


def test_what_dropout_draws_is_a_function_of_seed_step_and_batch() -> None:
    text = pairs()
    batches = [batch_of(text, np.arange(8)), batch_of(text, np.arange(8, 16))]

    def nats(step: int = 0, seed: int = 0, batches: Sequence[Batch] = batches) -> float:
        trainer = new_trainer(dropout=0.3)
        trainer.progress.step, trainer.plan = step, replace(FP32, seed=seed)
        return trainer.train_step(batches).nats.item()

    first = nats()
    torch.manual_seed(1234)
    assert nats() == first
    assert len({first, nats(step=1), nats(seed=1)}) == 3
    assert nats(batches=batches[:1] * 2) != pytest.approx(2 * nats(batches=batches[:1]), rel=1e-6)


def poisoned(at: set[int]) -> Objective:
    """An objective whose gradient is no number at these calls, counted from 1 while the network trains."""
    calls, plain = 0, TranslationObjective(0.1)

    def objective(net: Transformer, batch: Batch, _memory: None) -> Loss:
        nonlocal calls
        loss = plain(net, batch)
        calls += net.training
        return loss._replace(nats=loss.nats * float("nan")) if net.training and calls in at else loss

    return objective


def test_a_gradient_that_is_not_finite_moves_nothing_is_counted_and_forgotten() -> None:
    text = pairs()
    batches = [batch_of(text, np.arange(8 * i, 8 * i + 8)) for i in range(3)]
    trainer = new_trainer(objective=poisoned({2}), optimizer=replace(FAST, ema_decay=0.5))
    other = new_trainer(optimizer=replace(FAST, ema_decay=0.5))
    trainer.train_step([batches[0]])
    other.train_step([batches[0]])
    before, state = weights(trainer), copy.deepcopy(trainer.optimizer.adam.state_dict()["state"])
    assert not trainer.train_step([batches[1]]).norm.isfinite()
    assert same(weights(trainer), before, set())
    assert same(trainer.optimizer.adam.state_dict()["state"], state, set())
    assert int(trainer.optimizer.skipped) == int(trainer.optimizer.skipped_in_a_row) == 1
    trainer.train_step([batches[2]])
    other.train_step([batches[2]])
    assert same(weights(trainer), weights(other), set())
    assert (int(trainer.optimizer.skipped), int(trainer.optimizer.skipped_in_a_row)) == (1, 0)


def test_too_many_gradients_in_a_row_that_are_not_finite_end_it_with_a_remedy() -> None:
    plan = TranslationTrainingConfig(max_steps=40, max_epochs=None, report_every=2, max_skipped=4)
    witness = Witness()
    with pytest.raises(
        ValueError, match=r"4 updates in a row, up to step 12, was not finite: lower --optimizer.peak_lr"
    ):
        fit(new_trainer(objective=poisoned({3, *range(9, 99)})), plan, witness)
    reports = [report for _, report in witness.steps]
    assert [report.skipped for report in reports] == [0, 1, 1, 1, 3, 5]
    assert np.isfinite([report.loss for report in reports]).tolist() == [True] * 4 + [False] * 2


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_learns_what_single_precision_does(precision: Precision) -> None:
    text = pairs()
    batches = [batch_of(text, np.arange(8 * i, 8 * i + 8)) for i in range(5)] * 6
    losses, norms = [], []
    for each in (precision, "fp32"):
        trainer, products = new_trainer(), set[torch.dtype]()
        trainer.plan = replace(FP32, precision=each)
        trainer.optimizer = GuardedOptimizer(trainer.net, FAST, MODEL.d_model, each)
        widen = trainer.net.get_submodule("decoder.0.feed_forward.narrow")
        widen.register_forward_hook(lambda *call, seen=products: seen.add(call[2].dtype))
        for batch in batches:
            update = trainer.train_step([batch])
            norms += [update.norm.item()] if trainer.progress.step == 0 else []
            trainer.progress.step += 1
        losses.append((update.nats / update.tokens).item())
        assert not trainer.optimizer.skipped
        trainer.val_step(batches[0])
        assert products == {product_dtype(trainer.device, each)}
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
    assert norms[0] == pytest.approx(norms[1], rel=0.05)  # of gradients whose scale was taken back


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_an_update_on_a_gpu_waits_for_nothing_and_is_that_of_a_cpu(precision: Precision) -> None:
    """But for the transfer of batches that are not pinned, which are put there before."""
    batches = [batch_of(pairs(), np.arange(8 * i, 8 * i + 8)) for i in range(3)]
    here = new_trainer()
    torch.manual_seed(1)
    net = copy.deepcopy(here.net).cuda()
    there = Trainer(
        net,
        TranslationObjective(0.1),
        GuardedOptimizer(net, FAST, MODEL.d_model, precision),
        TrainingConfig(precision=precision),
    )
    for i, batch in enumerate(batches):
        expected = here.train_step([batch])
        on_device = batch.to(torch.device("cuda"))
        torch.cuda.set_sync_debug_mode("error" if i else "default")
        try:
            update = there.train_step([on_device])
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert update.nats.item() == pytest.approx(expected.nats.item(), rel=1e-3 if precision == "fp32" else 0.05)


def test_it_ends_when_nothing_gets_better() -> None:
    trainer, witness = new_trainer(), Witness(bleu=[1.0, 3.0, 2.0, 4.0, 4.0, 1.0, 2.0, 9.0])
    fit(trainer, TranslationTrainingConfig(max_steps=50, max_epochs=None, validate_every=2, patience=3), witness)
    assert witness.validated() == [2, 4, 6, 8, 10, 12, 14]
    assert trainer.progress.best_step == 8
    ended = Witness()
    fit(trainer, TranslationTrainingConfig(max_steps=50, max_epochs=None, validate_every=2, patience=3), ended)
    assert not ended.steps


def test_the_lowest_loss_may_be_what_is_best() -> None:
    trainer, witness = new_trainer(), Witness(bleu=[5.0, 4.0, 3.0])
    fit(trainer, TranslationTrainingConfig(max_steps=30, max_epochs=None, validate_every=10, select_by="loss"), witness)
    assert trainer.progress.best_step == 30
    assert trainer.progress.best_score == -min(witness.judged)


def test_a_test_is_of_the_weights_that_the_network_has_been_given() -> None:
    trainer = new_trainer(optimizer=replace(FAST, ema_decay=0.9))
    fit(trainer, TranslationTrainingConfig(max_steps=6, max_epochs=None), Witness())
    for parameter in trainer.net.parameters():
        nn.init.zeros_(parameter)
    assert trainer.test(new_sampler().all(), Witness().judge).loss == pytest.approx(math.log(VOCAB))


def test_what_is_validated_is_the_moving_average_and_what_goes_on_is_not() -> None:
    trainer = new_trainer(optimizer=replace(FAST, ema_decay=0.9))
    seen: list[list[Tensor]] = []
    witness = Witness()
    judge = witness.judge
    witness.judge = lambda loss: (seen.append(weights(trainer)), judge(loss))[1]  # type: ignore[method-assign, func-returns-value]
    fit(trainer, TranslationTrainingConfig(max_steps=6, max_epochs=None), witness)
    average = trainer.state()["optimizer"]["average"]["average"]
    assert same(seen[0], list(average.values()), set())
    assert not same(seen[0], weights(trainer), set())


def test_the_loss_falls_as_it_always_has() -> None:
    """Twenty steps in single precision on one thread: whatever changes a number on the way shows here."""
    trainer, sampler = new_trainer(), new_sampler()
    batches = [batch for epoch in range(3) for batch in sampler.epoch(epoch)][:20]
    losses = []
    for batch in batches:
        nats, tokens, _ = trainer.train_step([batch])
        trainer.progress.step += 1
        losses.append((nats / tokens).item())
    assert losses == pytest.approx(GOLDEN, rel=1e-4)


# the command


def run_python(*arguments: str | Path, home: Path, **options: Any) -> subprocess.Popen[str]:
    """A command of the project, whose corpus and pickles lie under `home`."""
    places = {"MIYAKO_CORPUS": str(home / "corpus"), "MIYAKO_PICKLES": str(home / "pickles"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | places,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def finished(process: subprocess.Popen[str], status: int = 0) -> str:
    out, err = process.communicate(timeout=600)
    assert process.returncode == status, out + err
    assert "Traceback" not in err
    return out


SETTINGS = """
name: tiny
data: {held_out: 8}
tokenizer: {kind: bpe, vocab_size: 48, joint: false}
model: {d_model: 16, n_heads: 2, d_ff: 32, n_encoder_layers: 1, n_decoder_layers: 1, max_length: 40, tie: target}
batch: {tokens_per_batch: 200, max_tokens: 40}
optimizer: {peak_lr: 0.01, warmup_steps: 10}
training: {max_steps: 6, validate_every: 3, report_every: 2, precision: fp32, device: cpu}
search: {beam_size: 2, max_ratio: 1.0}
"""


def settings(home: Path) -> tuple[str | Path, ...]:
    return "--config", home / "tiny.yaml", "--data.src", home / "my.ja", "--data.tgt", home / "my.en"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two text files, and the run that train.py makes of them."""
    home = tmp_path_factory.mktemp("home")
    (home / "tiny.yaml").write_text(SETTINGS)
    for name, lines in (("my.ja", TEXT.src), ("my.en", TEXT.tgt)):
        (home / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    out = finished(run_python("train.py", *settings(home), home=home))
    (home / "said.txt").write_text(out, encoding="utf-8")
    return home


def newest(folder: Path) -> dict[str, Any]:
    """The newest checkpoint of a run."""
    return CheckpointStore(folder / "checkpoints", 2).load(torch.device("cpu"), print)


def only_run(home: Path) -> Path:
    (folder,) = (home / "pickles").iterdir()
    return folder


def test_two_text_files_become_a_run_folder_that_holds_everything(home: Path) -> None:
    folder = only_run(home)
    assert folder.name.startswith("tiny-")
    names = {file.name for file in folder.iterdir() if not file.name.startswith("events.")}
    assert names == {
        "config.yaml",
        "tokenizer_src.model",
        "tokenizer_tgt.model",
        "model.safetensors",
        ".training",
        "checkpoints",
        "weights",
        "log.jsonl",
        "curve.png",
        "attention.png",
        "test.json",
        "test.txt",
    }
    records = [(record["kind"], record["step"]) for record in timeless(folder / "log.jsonl")]
    assert records == [("train", 2), ("dev", 3), ("train", 4), ("train", 6), ("dev", 6)]
    events = EventAccumulator(str(folder))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [2, 4, 6]
    assert [event.step for event in events.Scalars("dev/bleu")] == [3, 6]
    for name in ("curve.png", "attention.png"):
        with Image.open(folder / name) as image:
            image.load()
            assert min(image.size) > 100
    assert newest(folder)["progress"]["step"] == 6
    config = load_run(folder, torch.device("cpu")).config
    assert (config.name, config.model.d_model, config.data.src) == ("tiny", 16, home / "my.ja")


def test_the_test_set_is_scored_with_the_best_weights_and_the_runs_own_search(home: Path) -> None:
    folder = only_run(home)
    translations = (folder / "test.txt").read_text(encoding="utf-8").split("\n")[:-1]
    (held_out,) = (home / "corpus").glob("files-*/test.src")
    sources = held_out.read_text(encoding="utf-8").split("\n")[:-1]
    assert len(sources) == 8
    found = load_run(folder, torch.device("cpu")).translator().translate(sources)
    assert [t.text for t in found] == translations
    scores = json.loads((folder / "test.json").read_text(encoding="utf-8"))
    assert "tok:13a" in scores["bleu_signature"]
    resolved = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    assert resolved["data"] | {"src": "my.ja", "tgt": "my.en"} == scores["config"]["data"]
    assert resolved["model"] == scores["config"]["model"]
    assert {"commit", "machine", "finished", "versions"} <= set(scores)
    assert 0 <= scores["bleu"] < 100
    out = (home / "said.txt").read_text(encoding="utf-8")
    assert f"BLEU {scores['bleu']:.2f}" in out
    assert scores["bleu_signature"] in out


def test_what_comes_next_works_as_it_is_printed(home: Path) -> None:
    said = (home / "said.txt").read_text(encoding="utf-8")
    _, _, next_steps = said.partition("What next?\n")
    commands = [shlex.split(line) for line in next_steps.splitlines() if line.startswith("    ")]
    assert [words[1] for words in commands] == [
        "translate.py",
        "translate.py",
        "translate.py",
        "serve.py",
        "evaluate.py",
    ]
    for python, name, *arguments in commands:
        assert Path(python).samefile(sys.executable)
        PARSERS[name]().parse_args(arguments)
    assert (home / "said.txt").read_text(encoding="utf-8").count(commands[0][-1]) > 2  # a sentence that was shown
    out = finished(run_python(*commands[0][1:], home=home))
    assert out.strip() in (only_run(home) / "test.txt").read_text(encoding="utf-8").split("\n")


def test_translate_finds_the_run_and_repeats_what_its_test_has_found(home: Path) -> None:
    (held_out,) = (home / "corpus").glob("files-*/test.src")
    out = finished(run_python("translate.py", "--input", held_out, home=home))
    assert out == (only_run(home) / "test.txt").read_text(encoding="utf-8")


def test_a_run_goes_on_until_it_is_stopped_and_then_again(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "corpus", tmp_path / "corpus")
    shutil.copytree(home / "pickles", tmp_path / "pickles")
    folder = only_run(tmp_path)
    endless = run_python("train.py", "--resume", "--training.max_steps", "1000000", home=tmp_path)
    patience = time.monotonic() + 90
    while read_log(folder / "log.jsonl")[-1][1]["step"] < 30:
        assert time.monotonic() < patience
        assert endless.poll() is None, endless.communicate()
        time.sleep(0.05)
    endless.send_signal(signal.SIGTERM)
    out = finished(endless, 130)
    assert "Resuming from step 6\n" in out
    assert f"Run folder: {folder}\n" in out
    told = re.search(r"Stopped at step (\d+); resume with: (.+ --resume .+)\n", out)
    assert told is not None
    stopped = int(told[1])
    progress = newest(folder)["progress"]
    assert progress["step"] == stopped >= 30
    assert progress["epoch"] > 0

    python, *command = shlex.split(told[2])
    assert Path(python).samefile(sys.executable)
    out = finished(run_python(*command, "--training.max_steps", str(stopped + 4), home=tmp_path))
    assert f"Resuming from step {stopped:,}\n" in out
    assert newest(folder)["progress"]["step"] == stopped + 4
    steps = [record["step"] for record in timeless(folder / "log.jsonl") if record["kind"] == "train"]
    assert steps == list(range(2, stopped + 5, 2))
    assert len(list(tmp_path.glob("pickles/*"))) == 1


def test_a_trunk_of_both_directions_and_its_branch_resume_bit_for_bit(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "corpus", tmp_path / "corpus")

    def again(run: Path, *options: str) -> bool:
        """Whether a run that is resumed from its last checkpoint but one ends as it did."""
        last = max((run / "checkpoints").glob("*.pt"))
        state = newest(run)
        last.unlink()
        finished(run_python("train.py", "--resume", run, *options, home=tmp_path))
        assert last.is_file()
        return same(newest(run), state, {"seconds", "active_seconds"})

    both = ("--data.both_directions", "true", "--tokenizer.tag", "true", "--tokenizer.joint", "true")
    shape = ("--tokenizer.vocab_size", "80", "--model.tie", "all", "--model.positions", "rotary", "--name", "trunk")
    moves = ("--optimizer.kind", "muon", "--optimizer.ema_decay", "0.8", "--optimizer.schedule", "trapezoid")
    waits = (
        "--optimizer.decay_from",
        "1000000",
        "--optimizer.warmup_steps",
        "2",
        "--training.report_every",
        "1",
    )  # longer than the trunk lasts
    finished(run_python("train.py", *settings(home), *both, *shape, *moves, *waits, home=tmp_path))
    trunk = only_run(tmp_path)
    assert again(trunk)
    untouched = {file: file.read_bytes() for file in trunk.rglob("*") if file.is_file()}

    back = ("--data.both_directions", "false", "--data.src_lang", "en", "--data.tgt_lang", "ja")
    files = ("--data.src", home / "my.en", "--data.tgt", home / "my.ja", "--optimizer.decay_steps", "6")
    finished(run_python("train.py", "--branch", trunk, "--name", "done", *back, *files, home=tmp_path))
    assert untouched == {file: file.read_bytes() for file in trunk.rglob("*") if file.is_file()}
    (branch,) = tmp_path.glob("pickles/done-*")
    rates = [record["learning_rate"] for record in timeless(branch / "log.jsonl") if record["kind"] == "train"]
    assert rates == pytest.approx([0.01 * (1 - (n / 6) ** 0.5) for n in range(1, 7)])
    assert again(branch)
    src = load_run(branch, torch.device("cpu")).tokenizers.src
    assert src.tokens(src.encode(["an old temple"])[0])[0] == "<2ja>"


def test_two_processes_are_one(home: Path, tmp_path: Path) -> None:
    """Dropout too: a batch's draws are its own, whichever process learns from it."""
    shutil.copytree(home / "corpus", tmp_path / "corpus")
    batch = ("--batch.accumulate", "2", "--batch.tokens_per_batch", "100", "--training.max_steps", "8")
    moves = ("--optimizer.kind", "muon", "--optimizer.ema_decay", "0.8")
    more = (*batch, *moves, "--training.report_every", "1", "--model.attention_dropout", "0.1")
    finished(run_python("train.py", *settings(home), *more, "--name", "one", home=tmp_path))
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py")
    out = finished(run_python(*torchrun, *settings(home), *more, "--name", "two", home=tmp_path))
    assert "by 2 processes" in out
    assert out.count("Run folder") == 1
    one, two = (next(tmp_path.glob(f"pickles/{name}-*")) for name in ("one", "two"))
    assert len(list((tmp_path / "pickles").iterdir())) == 2
    for ours, theirs in zip(timeless(two / "log.jsonl"), timeless(one / "log.jsonl"), strict=True):
        assert (ours["kind"], ours["step"], ours["epoch"]) == (theirs["kind"], theirs["step"], theirs["epoch"])
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        if ours["kind"] == "train":
            assert ours["gradient_norm"] == pytest.approx(theirs["gradient_norm"], rel=1e-4)
            assert ours["target_tokens"] == theirs["target_tokens"]
    for a, b in zip(newest(one)["net"].values(), newest(two)["net"].values(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-3)  # Adam makes steps of noise where a gradient is only noise


@pytest.mark.slow
def test_all_processes_stop_when_one_is_asked_to(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "corpus", tmp_path / "corpus")
    endless = ("--batch.accumulate", "2", "--training.max_steps", "1000000", "--training.validate_every", "1000000")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py")
    process = run_python(*torchrun, *settings(home), *endless, home=tmp_path)
    patience = time.monotonic() + 90
    while not any(read_log(log) for log in tmp_path.glob("pickles/*/log.jsonl")):
        assert time.monotonic() < patience
        time.sleep(0.05)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (second,) = (pid for pid in children if b"\0RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes())
    os.kill(int(second), signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    told = re.search(r"Stopped at step (\d+); resume with", out)
    assert told is not None
    assert newest(only_run(tmp_path))["progress"]["step"] == int(told[1])


def test_processes_that_cannot_share_an_update_are_refused(home: Path) -> None:
    arguments = read_arguments([str(word) for word in settings(home)])
    with pytest.raises(ValueError, match=r"give --batch\.accumulate 4 or a multiple of it"):
        train.train(arguments, Processes(0, 4), torch.device("cpu"))


def test_a_dry_run_says_how_large_it_is_and_leaves_nothing(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "corpus", tmp_path / "corpus")
    out = finished(run_python("train.py", *settings(home), "--dry-run", home=tmp_path))
    assert f"{sum(p.numel() for p in load_run(only_run(home), torch.device('cpu')).model.parameters()):,}" in out
    assert "13 updates" in out
    assert not (tmp_path / "pickles").exists()


def test_a_new_run_begins_with_the_weights_and_the_vocabulary_of_another(home: Path, tmp_path: Path) -> None:
    source = only_run(home)
    other = tmp_path / "other.ja"
    other.write_text("".join(line[::-1] + "\n" for line in TEXT.src), encoding="utf-8")
    more = ("--init-from", source, "--data.src", other, "--optimizer.peak_lr", "1e-12", "--name", "tuned", "--profile")
    out = finished(run_python("train.py", *more, home=tmp_path))
    assert f"Initialised from the weights of {source}" in out
    tuned = only_run(tmp_path)
    assert tuned.name.startswith("tuned-")
    for name in ("tokenizer_src.model", "tokenizer_tgt.model"):
        assert (tuned / name).read_bytes() == (source / name).read_bytes()
    before, after = (load_run(folder, torch.device("cpu")) for folder in (source, tuned))
    assert after.config.data.src == other
    for a, b in zip(before.model.parameters(), after.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)
    assert (tuned / "trace.json.gz").stat().st_size > 1000


def test_another_architecture_is_named(home: Path) -> None:
    folder = only_run(home)
    config = TranslationConfig.load(folder / "config.yaml")
    other = replace(config, model=replace(config.model, n_heads=4))
    net = Transformer(other.model, 48, 48)
    trainer = Trainer(net, TranslationObjective(), GuardedOptimizer(net, FAST, MODEL.d_model), FP32)
    before = weights(trainer)
    task = cast(Task, SimpleNamespace(config=other, sizes={"source": 48, "target": 48}, fingerprint=""))
    differs = r"model\.n_heads is 2 in the checkpoint and 4 in the settings$"
    with pytest.raises(ValueError, match=differs):
        train.go_on(trainer, CheckpointStore(folder / "checkpoints", 2), task, print)
    with pytest.raises(ValueError, match=differs):
        train.begin_with(net, folder, other, print)
    assert same(weights(trainer), before, set())


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_a_checkpoint_from_before_an_option_is_of_its_default(
    tmp_path: Path, positions: Literal["sinusoidal", "learned"]
) -> None:
    trainer = new_trainer()
    config = TranslationConfig(model=replace(MODEL, positions=positions))
    task = cast(Task, SimpleNamespace(config=config, sizes={}, fingerprint=""))
    state = train.architecture(task) | trainer.state()
    del state["model"]["positions"]
    CheckpointStore(tmp_path, 1).save(state, 1)
    going_on = partial(train.go_on, new_trainer(), CheckpointStore(tmp_path, 1), task, print)
    if positions == "sinusoidal":
        going_on()
    else:
        with pytest.raises(ValueError, match=r"model\.positions is sinusoidal in the checkpoint and learned in the"):
            going_on()


def test_a_training_that_goes_on_keeps_what_it_chooses_by(home: Path) -> None:
    folder = only_run(home)
    assert read_arguments(["--resume", str(folder), "--training.select_by", "bleu"]).resume == folder
    told = f"select_by=loss, but the best weights of {folder} were chosen by bleu: give --training.select_by bleu, or"
    with pytest.raises(ValueError, match=re.escape(told)):
        read_arguments(["--resume", str(folder), "--training.select_by", "loss"])
    assert read_arguments(["--init-from", str(folder), "--training.select_by", "loss"]).init_from == folder


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        run_command("train.py", train.main)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    last = err.splitlines()[-1]
    assert last.startswith("train.py: error: ")
    return last


def test_without_a_network_kftt_names_both_ways_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unreachable = replace(CORPORA["kftt"], url="http://127.0.0.1:9/kftt.tar.gz")
    monkeypatch.setitem(CORPORA, "kftt", unreachable)
    monkeypatch.setattr(translation, "prepare_corpus", partial(prepare_corpus, root=tmp_path))
    monkeypatch.setattr(sys, "argv", ["train.py"])
    message = complaint(capsys)
    assert "http://127.0.0.1:9/kftt.tar.gz" in message
    assert "--data.archive" in message
    assert "--config demo" in message
    assert not any(tmp_path.iterdir())


def test_resuming_what_is_not_there_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--resume", str(tmp_path / "nowhere")])
    assert f"no run {tmp_path / 'nowhere'}" in complaint(capsys)
