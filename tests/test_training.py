"""The Trainer on a tiny Transformer; learning rates, Adam, Muon and the moving average against papers and torch."""

import copy
import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, get_args, get_type_hints
from weakref import ref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, SequentialLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from config.data import BatchConfig
from config.model import BertConfig, TransformerXLConfig
from config.training import OptimizerConfig, Precision, TrainingConfig, TranslationTrainingConfig
from const.token import PAD_ID
from models.bert import BertForPreTraining
from models.transformer import Transformer
from models.transformer_xl import TransformerXL
from tests.tiny import MODEL, translating
from train import Trainer, Update
from utils.dataset import batch as batch_module
from utils.dataset.batch import Batch, BucketSampler, Epoch, batch_of
from utils.dataset.ids import TokenArray, TokenPairs
from utils.device import product_dtype
from utils.removed_setting import without_removed
from utils.training import muon as muon_module
from utils.training import optimizer as optimizer_module
from utils.training.distributed import Interrupt, Processes
from utils.training.loss import Loss, Objective, TranslationObjective, mean_loss
from utils.training.muon import Muon, hidden_matrices, orthogonal
from utils.training.optimizer import MovingAverage, Optimizer, build_adam
from utils.training.plan import OptimizerKind, Progress, learning_rate
from utils.training.report import Observer, StepReport, Validation

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
    return Trainer(net, objective or TranslationObjective(0.1), Optimizer(net, optimizer), FP32)


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
    assert trainer.optimizer.learning_rate == learning_rate(8, FAST)
    assert other.optimizer.learning_rate == learning_rate(1, FAST)


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


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_learns_what_single_precision_does(precision: Precision) -> None:
    text = pairs()
    batches = [batch_of(text, np.arange(8 * i, 8 * i + 8)) for i in range(5)] * 6
    losses, norms = [], []
    for each in (precision, "fp32"):
        trainer, products = new_trainer(), set[torch.dtype]()
        trainer.plan = replace(FP32, precision=each)
        trainer.optimizer = Optimizer(trainer.net, FAST, each)
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
        Optimizer(net, FAST, precision),
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


def interrupting(optimizer: Optimizer, interrupt: Interrupt, at: int) -> Callable[[int, Tensor], Tensor]:
    """Its `step`, during one of which somebody asks to stop."""
    step = optimizer.step

    def interrupted(number: int, tokens: Tensor) -> Tensor:
        interrupt.asked = interrupt.asked or number == at
        return step(number, tokens)

    return interrupted


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


def test_it_ends_when_nothing_gets_better() -> None:
    trainer, witness = new_trainer(), Witness(bleu=[1.0, 3.0, 2.0, 4.0, 4.0, 1.0, 2.0, 9.0])
    fit(trainer, TranslationTrainingConfig(max_steps=50, max_epochs=None, validate_every=2, patience=3), witness)
    assert witness.validated() == [2, 4, 6, 8, 10, 12, 14]
    assert trainer.progress.best_step == 8
    ended = Witness()
    fit(trainer, TranslationTrainingConfig(max_steps=50, max_epochs=None, validate_every=2, patience=3), ended)
    assert not ended.steps


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


# plan and learning rate


@pytest.mark.parametrize(
    ("plan", "before", "at"),
    [
        (TranslationTrainingConfig(max_epochs=None, max_steps=7), Progress(step=6), Progress(step=7)),
        (TranslationTrainingConfig(max_epochs=3), Progress(epoch=2, position=900), Progress(epoch=3)),
        (TranslationTrainingConfig(max_epochs=None, max_minutes=0.5), Progress(seconds=29.9), Progress(seconds=30.0)),
        (TranslationTrainingConfig(max_epochs=3, max_steps=7), Progress(epoch=2, step=6), Progress(epoch=1, step=7)),
        (
            TranslationTrainingConfig(max_epochs=3, max_minutes=1),
            Progress(epoch=2, seconds=59),
            Progress(epoch=3, seconds=1),
        ),
    ],
    ids=["steps", "epochs", "minutes", "steps first", "epochs first"],
)
def test_the_first_bound_ends_it(plan: TranslationTrainingConfig, before: Progress, at: Progress) -> None:
    assert not before.ended(plan)
    assert at.ended(plan)


@pytest.mark.parametrize(
    ("name", "least", "remedy"),
    [
        ("validate_every", 1, "at least 1 update"),
        ("report_every", 1, "at least 1 update"),
        ("patience", 1, "at least 1 validation, or null"),
        ("max_skipped", 1, "at least 1 update"),
        ("seed", 0, "0 or more"),
        ("bleu_sentences", 1, "at least 1, or null"),
        ("n_samples", 0, "0 or more"),
    ],
)
def test_a_plan_that_no_training_can_follow_is_refused(name: str, least: int, remedy: str) -> None:
    given: dict[str, Any] = {name: least}
    assert getattr(TranslationTrainingConfig(**given), name) == least
    given[name] -= 1
    with pytest.raises(ValueError, match=f"^{name}={least - 1}: give {remedy}"):
        TranslationTrainingConfig(**given)


@pytest.mark.parametrize("name", ["max_steps", "max_epochs", "max_minutes"])
@pytest.mark.parametrize("bound", [-1, 0, math.nan])
def test_a_bound_that_ends_nothing_or_everything_is_refused(name: str, bound: float) -> None:
    given: dict[str, Any] = {name: bound}
    with pytest.raises(ValueError, match=f"^{name}={bound}: give more than 0, or null for no limit"):
        TranslationTrainingConfig(**given)


def test_weights_are_chosen_by_the_loss_or_by_what_is_scored() -> None:
    for known in ((), ("accuracy",), ("bleu", "chrf")):
        TranslationTrainingConfig(select_by="loss").require_score(*known)
    TranslationTrainingConfig(select_by="chrf").require_score("bleu", "chrf")
    with pytest.raises(ValueError, match=r"^select_by=accuracy is not scored by this task: give bleu, chrf, loss$"):
        TranslationTrainingConfig(select_by="accuracy").require_score("bleu", "chrf")


WARMUPS = [0, 1, 7]
STEPS = range(1, 41)
INVERSE_SQRT = OptimizerConfig(peak_lr=0.01, warmup_steps=20)
CONSTANT = OptimizerConfig(schedule="constant", peak_lr=0.01, warmup_steps=20)
COSINE = OptimizerConfig(schedule="cosine", peak_lr=0.01, final_lr=0.001, warmup_steps=20, decay_steps=60)


def rates(config: OptimizerConfig) -> list[float]:
    return [learning_rate(step, config) for step in STEPS]


def torch_adam(lr: float) -> torch.optim.Adam:
    return torch.optim.Adam([torch.zeros(1, requires_grad=True)], lr=lr)


def walked(scheduler: torch.optim.lr_scheduler.LRScheduler) -> list[float]:
    """The rates by which torch would go, update after update."""
    found = []
    for _ in STEPS:
        found.append(float(scheduler.get_last_lr()[0]))
        scheduler.optimizer.step()
        scheduler.step()
    return found


def test_inverse_sqrt_is_the_equation_of_the_paper() -> None:
    """Vaswani et al. 2017, eq. 3."""
    config = OptimizerConfig(peak_lr=(512 * 4000) ** -0.5, warmup_steps=4000)
    for step in (1, 2, 3999, 4000, 4001, 100_000):
        expected = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert learning_rate(step, config) == pytest.approx(expected, rel=1e-12)


def test_settings_saved_with_the_schedule_noam_keep_their_rates() -> None:
    """It had the equation of the paper, times a factor."""
    optimizer = {"schedule": "noam", "noam_factor": 2.0, "warmup_steps": 20, "peak_lr": 7e-4}
    settings = {"model": {"d_model": 512}, "optimizer": optimizer}
    found = OptimizerConfig(**without_removed(settings)["optimizer"])
    expected = [2 * 512**-0.5 * min(step**-0.5, step * 20**-1.5) for step in STEPS]
    assert rates(found) == pytest.approx(expected, rel=1e-12)
    settings["optimizer"] = optimizer | {"schedule": "constant"}
    assert OptimizerConfig(**without_removed(settings)["optimizer"]).peak_lr == 7e-4


@pytest.mark.parametrize("warmup", WARMUPS)
def test_cosine_is_a_warm_up_and_an_annealing_of_torch(warmup: int) -> None:
    w, decay, peak, final = max(1, warmup), 40, 0.01, 0.002  # torch's would rise again after the decay
    adam = torch_adam(peak)
    rise = LinearLR(adam, start_factor=1 / w, total_iters=w - 1) if w > 1 else LambdaLR(adam, lambda _: 1.0)
    theirs = SequentialLR(adam, [rise, CosineAnnealingLR(adam, decay, eta_min=final)], milestones=[w - 1])
    config = OptimizerConfig(schedule="cosine", peak_lr=peak, final_lr=final, warmup_steps=warmup, decay_steps=decay)
    assert rates(config) == pytest.approx(walked(theirs), rel=1e-9)


@pytest.mark.parametrize("warmup", WARMUPS)
def test_constant_is_a_warm_up_and_a_constant_of_torch(warmup: int) -> None:
    w, adam = max(1, warmup), torch_adam(0.01)
    rise = LinearLR(adam, start_factor=1 / w, total_iters=w - 1) if w > 1 else LambdaLR(adam, lambda _: 1.0)
    config = OptimizerConfig(schedule="constant", peak_lr=0.01, warmup_steps=warmup)
    assert rates(config) == pytest.approx(walked(rise), rel=1e-9)
    assert learning_rate(10**9, config) == 0.01


def test_a_trapezoid_is_constant_until_its_decay_which_ends_with_the_training() -> None:
    """Hägele et al. 2024, eq. 2, 1 - sqrt."""
    endless = OptimizerConfig(schedule="trapezoid", peak_lr=0.01, warmup_steps=20)
    assert rates(endless.ending_at(None)) == rates(CONSTANT)
    ended = replace(endless, final_lr=0.001).ending_at(100)
    assert (ended.decay_from, ended.decay_steps) == (80, 20)  # a fifth, unless told
    assert learning_rate(80, ended) == pytest.approx(0.01)
    assert learning_rate(85, ended) == pytest.approx(0.001 + 0.009 * (1 - 0.5))
    assert learning_rate(100, ended) == learning_rate(10**6, ended) == pytest.approx(0.001)
    assert replace(endless, decay_steps=30).ending_at(100).decay_from == 70


@pytest.mark.parametrize("config", [INVERSE_SQRT, COSINE, CONSTANT], ids=lambda config: config.schedule)
def test_the_peak_is_at_the_end_of_the_warm_up_and_nothing_jumps(config: OptimizerConfig) -> None:
    found = rates(config)
    assert max(found) == found[19]
    assert found[19] == pytest.approx(0.01)
    assert found[:20] == pytest.approx([found[19] * step / 20 for step in range(1, 21)])
    assert all(abs(b - a) < found[19] / 19 for a, b in pairwise(found))


@given(
    schedule=st.sampled_from(get_args(get_type_hints(OptimizerConfig)["schedule"])),
    step=st.integers(1, 10**9),
    warmup=st.integers(0, 10**6),
    decay=st.integers(1, 10**6),
    peak=st.floats(1e-9, 1e3),
    final=st.floats(0, 1),
)
def test_a_rate_is_never_negative_and_never_above_the_peak(
    schedule: str, step: int, warmup: int, decay: int, peak: float, final: float
) -> None:
    config = OptimizerConfig(
        schedule=schedule,  # type: ignore[arg-type]
        peak_lr=peak,
        warmup_steps=warmup,
        decay_steps=decay,
        final_lr=final * peak,
    )
    rate = learning_rate(step, config)
    assert 0 <= rate <= peak * (1 + 1e-12)
    assert math.isfinite(rate)
    if step > warmup:
        assert learning_rate(step + 1, config) <= rate * (1 + 1e-12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"peak_lr": 0.0}, "peak_lr=0.0: give a number above 0"),
        ({"peak_lr": math.nan}, "peak_lr=nan: give a number above 0"),
        ({"peak_lr": math.inf}, "peak_lr=inf: give a number above 0"),
        ({"eps": 0.0}, "eps=0.0: give a number above 0"),
        ({"clip_norm": 0.0}, "clip_norm=0.0: give a number above 0"),
        ({"warmup_steps": -1}, "warmup_steps=-1: give 0 or more"),
        ({"final_lr": -1e-5}, "final_lr=-1e-05: give 0 or more"),
        ({"weight_decay": -0.1}, "weight_decay=-0.1: give 0 or more"),
        ({"betas": (0.9, 1.0)}, "betas=[0.9, 1.0]: give two numbers from 0 to below 1, such as [0.9, 0.98]"),
        ({"betas": (-0.1, 0.9)}, "betas=[-0.1, 0.9]: give two numbers from 0 to below 1, such as [0.9, 0.98]"),
        ({"momentum": 1.0}, "momentum=1.0: give at least 0 and below 1, such as 0.95"),
        ({"momentum": -0.1}, "momentum=-0.1: give at least 0 and below 1, such as 0.95"),
        ({"ema_decay": 1.0}, "ema_decay=1.0: give at least 0 and below 1, such as 0.999, or null for none"),
        (
            {"schedule": "cosine", "decay_steps": 0},
            "schedule=cosine with decay_steps=0: give the number of updates over which the learning rate falls, or "
            "null",
        ),
        (
            {"schedule": "cosine", "decay_steps": 9, "peak_lr": 0.1, "final_lr": 0.2},
            "final_lr=0.2 is above peak_lr=0.1: give at most that",
        ),
    ],
)
def test_what_no_training_can_follow_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the whole message is compared)
        OptimizerConfig(**settings)
    assert str(caught.value) == message


def test_a_cosine_comes_down_where_the_training_ends_unless_it_is_told_where() -> None:
    cosine = OptimizerConfig(schedule="cosine", warmup_steps=20)
    assert cosine.ending_at(100) == replace(cosine, decay_steps=80)
    told = replace(cosine, decay_steps=7)
    assert told.ending_at(100) == told.ending_at(None) == told
    assert replace(cosine, schedule="constant").ending_at(None).decay_steps is None


# Adam and its guard


def test_adam_moves_as_its_settings_say() -> None:
    """Kingma & Ba 2015, algorithm 1, two steps by hand."""
    config = OptimizerConfig(betas=(0.8, 0.9), eps=0.5)
    net = nn.Linear(1, 1, bias=False)
    adam = build_adam(net.parameters(), config)
    adam.param_groups[0]["lr"] = 0.1
    expected, mean, square = net.weight.item(), 0.0, 0.0
    for t, gradient in enumerate((2.0, -0.5), start=1):
        net.weight.grad = torch.full((1, 1), gradient)
        adam.step()
        mean, square = 0.8 * mean + 0.2 * gradient, 0.9 * square + 0.1 * gradient**2
        expected -= 0.1 * (mean / (1 - 0.8**t)) / ((square / (1 - 0.9**t)) ** 0.5 + 0.5)
        assert net.weight.item() == pytest.approx(expected, rel=1e-5)


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 2), nn.LayerNorm(2))


def step_adam(net: nn.Module, adam: torch.optim.Optimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in net.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    for group in adam.param_groups:
        group["lr"] = 0.1 / (1 + seed)
    adam.step()


def test_decay_shrinks_matrices_by_its_share_of_the_rate_and_nothing_else() -> None:
    """Loshchilov & Hutter 2019, algorithm 2: beside the gradient's step_adam, not through it."""
    decayed, free = layers(), layers()
    adam, plain = (
        build_adam(decayed.parameters(), OptimizerConfig(weight_decay=0.25)),
        build_adam(free.parameters(), OptimizerConfig()),
    )
    start = values(decayed)
    step_adam(decayed, adam, 1)  # at a rate of 0.05
    step_adam(free, plain, 1)
    for before, with_decay, without in zip(start, values(decayed), values(free), strict=True):
        shrunk = 0.05 * 0.25 * before if before.dim() > 1 else torch.zeros_like(before)
        torch.testing.assert_close(with_decay, without - shrunk, rtol=0, atol=1e-6)


COARSE = OptimizerConfig(peak_lr=0.1, warmup_steps=2, eps=1e-6)


TOKENS = torch.tensor(5.0)


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def inputs(n: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(5, 4, generator=generator) for _ in range(n)]


def ids_batch() -> Batch:
    ids = torch.randint(4, 20, (6, 9), generator=torch.Generator().manual_seed(2))
    ids[2, 5:] = PAD_ID
    return Batch(ids, ids.flip(0))


def go(net: nn.Linear, optimizer: Optimizer, batches: list[Tensor], first: int = 1) -> list[Tensor]:
    """Updates for a summed loss, and the norms that they tell."""
    norms = []
    for number, x in enumerate(batches, first):
        optimizer.zero_grad()
        (net(x).square().sum() * optimizer.loss_scale).backward()
        norms.append(optimizer.step(number, TOKENS))
    return norms


@pytest.mark.parametrize("clip_norm", [None, 0.3, 100.0])
def test_it_is_adam_on_the_clipped_mean(clip_norm: float | None) -> None:
    config = replace(COARSE, clip_norm=clip_norm)
    net, twin = linear(), linear()
    norms = go(net, Optimizer(net, config), inputs(4))
    adam = torch.optim.Adam(twin.parameters(), betas=config.betas, eps=config.eps)
    for number, x in enumerate(inputs(4), 1):
        adam.zero_grad()
        (twin(x).square().sum() / TOKENS).backward()
        norm = nn.utils.clip_grad_norm_(twin.parameters(), clip_norm or math.inf)
        assert norms[number - 1].item() == pytest.approx(norm.item(), rel=1e-5)
        adam.param_groups[0]["lr"] = learning_rate(number, config)
        adam.step()
    torch.testing.assert_close(net.weight, twin.weight)
    torch.testing.assert_close(net.bias, twin.bias)


def test_the_loss_scale_falls_when_gradients_overflow_and_rises_when_they_have_not_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(optimizer_module, "_GROW_AFTER", 3)
    net = linear()
    optimizer = Optimizer(net, COARSE, "fp16")
    begin = optimizer.loss_scale.item()
    too_large = torch.full((5, 4), 1e30)
    scales = []
    for number, x in enumerate([too_large, too_large, *inputs(2), too_large, *inputs(7)], 1):
        go(net, optimizer, [x], number)
        scales.append(optimizer.loss_scale.item() / begin)
    assert scales == [1 / 2, 1 / 4, 1 / 4, 1 / 4, 1 / 8, 1 / 8, 1 / 8, 1 / 4, 1 / 4, 1 / 4, 1 / 2, 1 / 2]
    assert int(optimizer.skipped) == 3


def test_a_state_brings_everything_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer_module, "_GROW_AFTER", 3)
    config = replace(COARSE, ema_decay=0.9)
    batches = [torch.full((5, 4), 1e30), *inputs(4)]  # the scale rises after the fourth
    net, twin = linear(), linear()
    whole = Optimizer(net, config, "fp16")
    go(net, whole, batches)
    first = Optimizer(twin, config, "fp16")
    go(twin, first, batches[:3])
    third = linear()
    third.load_state_dict(twin.state_dict())
    second = Optimizer(third, config, "fp16")
    second.load_state_dict(first.state_dict())
    go(third, second, batches[3:], 4)
    assert third.weight.equal(net.weight)
    assert int(second.skipped) == 1
    torch.testing.assert_close(second.state_dict(), whole.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("was", "now", "scale"),
    [
        ("fp16", "fp16", optimizer_module._FIRST_SCALE / 2),  # as it is by then
        ("fp32", "fp16", optimizer_module._FIRST_SCALE),
        ("fp16", "fp32", 1.0),
    ],
)
def test_a_loss_scale_is_gone_on_with_where_there_was_one_and_is_one(
    was: Precision, now: Precision, scale: float
) -> None:
    net = linear()
    before, after = (Optimizer(net, COARSE, precision) for precision in (was, now))
    go(net, before, [torch.full((5, 4), 1e30)])
    after.load_state_dict(before.state_dict())
    assert after.loss_scale == scale


def test_what_is_said_anew_holds_for_adam_too() -> None:
    net = linear()
    first = Optimizer(net, replace(COARSE, weight_decay=0.1))
    go(net, first, inputs(2))
    again = Optimizer(net, replace(COARSE, weight_decay=0.2, betas=(0.5, 0.75), eps=1e-3))
    again.load_state_dict(first.state_dict())
    assert [(group["weight_decay"], group["betas"], group["eps"]) for group in again.adam.param_groups] == [
        (0.2, (0.5, 0.75), 1e-3),
        (0.0, (0.5, 0.75), 1e-3),
    ]
    without = Optimizer(net, COARSE)
    with pytest.raises(ValueError, match=r"^weight_decay=0\.0 cannot be switched on or off .*: give its old value, or"):
        without.load_state_dict(first.state_dict())


def test_an_update_that_is_skipped_leaves_the_average_as_it_was() -> None:
    net = linear()
    optimizer = Optimizer(net, replace(COARSE, ema_decay=0.9))
    go(net, optimizer, inputs(2))
    with optimizer.averaged():
        before = net.weight.detach().clone()
    assert not before.equal(net.weight)
    go(net, optimizer, [torch.full((5, 4), 1e30)], 3)
    assert optimizer.skipped == 1
    with optimizer.averaged():
        assert net.weight.equal(before)


def test_muon_takes_the_matrices_of_blocks_and_adam_the_rest() -> None:
    """Of the mean of the gradients, after clipping, at the same rate."""
    net, twin = translating().train(), translating().train()
    optimizer = Optimizer(net, replace(COARSE, kind="muon", clip_norm=0.01), "fp32")
    matrices = hidden_matrices(twin)
    muon = Muon(matrices, 0.95, 0.0, torch.float32)
    adam = build_adam([p for p in twin.parameters() if p not in matrices], COARSE)
    tokens = ids_batch().tgt[:, 1:].ne(PAD_ID).sum()
    for number in (1, 2, 3):
        for each in (net, twin):
            each.zero_grad()
            TranslationObjective()(each, ids_batch()).nats.backward()
        optimizer.step(number, tokens)
        for parameter in twin.parameters():
            parameter.grad = None if parameter.grad is None else parameter.grad / tokens
        nn.utils.clip_grad_norm_(twin.parameters(), 0.01)
        adam.param_groups[0]["lr"] = rate = learning_rate(number, COARSE)
        adam.step()
        muon.step(rate, torch.ones(()), torch.tensor(True))
    for one, other in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("was", "now"), [("adam", "muon"), ("muon", "adam")])
def test_what_one_optimizer_began_another_does_not_go_on_with(was: OptimizerKind, now: OptimizerKind) -> None:
    before, after = (Optimizer(translating(), replace(COARSE, kind=kind)) for kind in (was, now))
    with pytest.raises(ValueError, match=f"^kind={now}, but the checkpoint is of kind {was}: give --optimizer.kind"):
        after.load_state_dict(before.state_dict())


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["adam", "muon"])
def test_an_update_never_waits_for_the_device(kind: OptimizerKind) -> None:
    net = translating().cuda().train()
    optimizer = Optimizer(net, replace(COARSE, kind=kind, ema_decay=0.9, weight_decay=0.1), "fp16")
    there, tokens = ids_batch().to(torch.device("cuda")), TOKENS.cuda()
    for number in (1, 2):
        optimizer.zero_grad()
        (TranslationObjective()(net, there).nats * optimizer.loss_scale).backward()
        torch.cuda.set_sync_debug_mode("error" if number == 2 else "default")
        try:
            optimizer.step(number, tokens)
        finally:
            torch.cuda.set_sync_debug_mode("default")


# the moving average


MOVED = torch.tensor(True)


def tied() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5), nn.LayerNorm(5))
    net[1].weight = net[0].weight
    return net


def values(net: nn.Module) -> list[Tensor]:
    return [weight.detach().clone() for weight in net.parameters()]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def move(net: nn.Module) -> None:
    with torch.no_grad():
        for weight in net.parameters():
            weight.add_(torch.randn_like(weight))


def averaged(net: nn.Module, average: MovingAverage) -> list[Tensor]:
    with average.swapped():
        return values(net)


def test_the_first_updates_are_soon_forgotten_and_then_it_keeps_its_decay() -> None:
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 5.0)
    average, expected = MovingAverage(net, 0.4), 5.0
    for n, value in enumerate([1.0, -2.0, 3.0, 0.5, 7.0, 2.0, -1.0]):
        nn.init.constant_(net.weight, value)
        average.update(MOVED)
        decay = min(0.4, (1 + n) / (10 + n))  # 0.1, 0.18, ..., 0.36, and 0.4 from the sixth
        expected = decay * expected + (1 - decay) * value
        assert averaged(net, average)[0].item() == pytest.approx(expected, rel=1e-6)


def test_it_is_torchs_average_once_the_start_is_over() -> None:
    net = tied()
    average = MovingAverage(net, 0.5)
    for _ in range(8):  # from here (1 + n) / (10 + n) is above the decay
        average.update(MOVED)
    theirs = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    theirs.update_parameters(net)  # torch's first only copies
    for _ in range(10):
        move(net)
        average.update(MOVED)
        theirs.update_parameters(net)
    assert equal(averaged(net, average), values(theirs.module))


@pytest.mark.parametrize("fails", [False, True])
def test_the_networks_own_weights_come_back_bit_for_bit_where_they_were(fails: bool) -> None:
    net = tied()
    adam = build_adam(net.parameters(), OptimizerConfig())
    average = MovingAverage(net, 0.9)
    move(net)
    average.update(MOVED)
    mean = [value.clone() for value in average.state_dict()["average"].values()]
    before, identities = values(net), [(id(weight), weight.data_ptr()) for weight in net.parameters()]
    end: AbstractContextManager[object] = pytest.raises(RuntimeError, match="inside") if fails else nullcontext()
    with end, average.swapped():
        assert equal(values(net), mean)
        assert torch.equal(net.state_dict()["0.weight"], mean[0])  # what is saved inside
        assert not equal(values(net), before)
        if fails:
            raise RuntimeError("inside")
    assert equal(values(net), before)
    assert [(id(weight), weight.data_ptr()) for weight in net.parameters()] == identities
    assert equal(list(average.state_dict()["average"].values()), mean)
    held = [weight for group in adam.param_groups for weight in group["params"]]
    assert [id(weight) for weight in held] == [id(weight) for weight in net.parameters()]


# Muon


FINITE, ONE = torch.tensor(True), torch.ones(())


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def polar(x: Tensor, _dtype: torch.dtype = torch.float32) -> Tensor:
    """U Vᵀ, decomposed."""
    u, _, v = torch.linalg.svd(x, full_matrices=False)
    return u @ v


def whole(x: Tensor) -> Tensor:
    return x[None]


def muon_of(*matrices: Tensor, momentum: float = 0.0, weight_decay: float = 0.0) -> Muon:
    return Muon(dict.fromkeys(matrices, whole), momentum, weight_decay, torch.float32)


@pytest.mark.parametrize(
    ("dtype", "smallest", "tolerance"), [(torch.float32, -2.5, 1e-3), (torch.bfloat16, -1.5, 0.03)]
)
def test_singular_values_come_near_one_and_their_vectors_stay(
    dtype: torch.dtype, smallest: float, tolerance: float
) -> None:
    values = torch.logspace(smallest, 0, 8)  # of a whole that is little longer than the largest
    u, v = polar(draw(3, 8, 8)), polar(draw(3, 8, 20, seed=1))
    x = 7 * u @ values.diag() @ v
    made = orthogonal(x, dtype).float()
    found = (u.mT @ made @ v.mT).diagonal(dim1=1, dim2=2)
    assert ((found > 0.85) & (found < 1.15)).all()
    rest = made - u @ torch.diag_embed(found) @ v
    assert rest.abs().max() < tolerance


def test_it_steps_as_its_authors_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jordan et al. 2024, with Nesterov's momentum; the size of Liu et al. 2025, section 2.2; a shrink before it."""
    monkeypatch.setattr(muon_module, "orthogonal", polar)
    weight = nn.Parameter(draw(4, 6))
    muon = muon_of(weight, momentum=0.9, weight_decay=0.5)
    expected, mean = weight.detach().clone(), torch.zeros(4, 6)
    for seed, rate in ((1, 0.1), (2, 0.3), (3, 0.2)):
        weight.grad = draw(4, 6, seed=seed)
        mean = 0.9 * mean + 0.1 * weight.grad / 5
        ahead = 0.9 * mean + 0.1 * weight.grad / 5
        expected = expected * (1 - 0.5 * rate) - rate * 0.2 * math.sqrt(6) * polar(ahead)
        muon.step(rate, torch.tensor(5.0), FINITE)
        torch.testing.assert_close(weight.detach(), expected)


@pytest.mark.parametrize("shape", [(24, 48), (32, 32)])
def test_it_goes_where_torchs_muon_goes(shape: tuple[int, int]) -> None:
    """Whose polynomials leave singular values between 0.7 and 1.2."""
    ours, theirs = nn.Parameter(draw(*shape)), nn.Parameter(draw(*shape))
    muon = muon_of(ours, momentum=0.95)
    reference = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.0, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for seed in range(1, 5):
        before = ours.detach().clone(), theirs.detach().clone()
        ours.grad, theirs.grad = draw(*shape, seed=seed), draw(*shape, seed=seed)
        muon.step(0.02, ONE, FINITE)
        reference.step()
        moved = (ours - before[0]).flatten(), (theirs - before[1]).flatten()
        assert torch.cosine_similarity(*moved, dim=0) > 0.97
        assert moved[0].norm().item() == pytest.approx(moved[1].norm().item(), rel=0.25)


def bert() -> BertForPreTraining:
    return BertForPreTraining(BertConfig(16, 2, 64, 2, max_length=40), 50)


def translator(**options: object) -> Transformer:
    return Transformer(replace(MODEL, **options), 40, 40)  # type: ignore[arg-type]


def language_model() -> TransformerXL:
    return TransformerXL(TransformerXLConfig(16, 4, 32, 2, memory_length=10), 50)


@pytest.mark.parametrize("net", [translator(), translator(tie="none"), bert(), language_model()])
def test_matrices_of_blocks_are_cut_and_nothing_else(net: nn.Module) -> None:
    names: dict[Tensor, str] = {parameter: name for name, parameter in net.named_parameters()}
    cut = {names[weight] for weight in hidden_matrices(net)}
    expected = {
        name
        for name, parameter in net.named_parameters()
        if parameter.dim() == 2 and name.endswith(".weight") and any(part.isdigit() for part in name.split("."))
    }
    assert cut == expected
    assert len(cut) >= 10
    assert not any(word in name for name in cut for word in ("embedding", "pool", "classifier"))


def test_heads_are_matrices_of_their_own() -> None:
    """As slices of what they multiply: W_Qⁱ, W_Kⁱ and W_Vⁱ are rows, W_Oⁱ columns."""
    net = language_model()
    attention = net.get_submodule("blocks.0.self_attention")
    cuts = hidden_matrices(net)
    by_name = {name: cuts[p](p) for name, p in net.named_parameters() if p in cuts and "blocks.0" in name}
    for name in ("query", "key_value", "score_bias.distance_key"):
        weight = attention.get_parameter(f"{name}.weight")
        found = by_name[f"blocks.0.self_attention.{name}.weight"]
        assert found.shape == (len(weight) // 4, 4, 16)
        torch.testing.assert_close(found[1], weight[4:8])
    output = attention.get_parameter("output.weight")
    torch.testing.assert_close(by_name["blocks.0.self_attention.output.weight"][1], output[:, 4:8].mT)


def test_every_matrix_takes_its_own_step() -> None:
    """Together, in batches of a shape, they move as each would alone."""
    together, alone = translator(), translator()
    alone.load_state_dict(together.state_dict())
    start = [parameter.detach().clone() for parameter in alone.parameters()]
    for seed, (one, other) in enumerate(zip(together.parameters(), alone.parameters(), strict=True)):
        one.grad = other.grad = draw(*one.shape, seed=seed)
    Muon(hidden_matrices(together), 0.9, 0.1, torch.float32).step(0.1, ONE, FINITE)
    for weight, cut in hidden_matrices(alone).items():
        Muon({weight: cut}, 0.9, 0.1, torch.float32).step(0.1, ONE, FINITE)
    torch.testing.assert_close(together.state_dict(), alone.state_dict())
    moved = {p for p, before in zip(alone.parameters(), start, strict=True) if not p.equal(before)}
    assert moved == set(hidden_matrices(alone))


def test_what_is_not_finite_moves_nothing_and_is_forgotten() -> None:
    weight, twin = nn.Parameter(draw(4, 6)), nn.Parameter(draw(4, 6))
    muon, other = (muon_of(each, momentum=0.9, weight_decay=0.1) for each in (weight, twin))
    for seed, bad in ((1, None), (2, math.nan), (3, math.inf), (4, None)):
        gradient = draw(4, 6, seed=seed)
        if bad is None:
            twin.grad = gradient
            other.step(0.1, ONE, FINITE)
        else:
            gradient[1, 2] = bad
        weight.grad = gradient
        muon.step(0.1, ONE, torch.tensor(bad is None))
        assert weight.equal(twin)
