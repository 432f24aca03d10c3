"""The Trainer on a tiny Transformer; learning rates, Adam, Muon and the moving average against papers and torch."""

import copy
import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR
from torch.utils._python_dispatch import TorchDispatchMode

from config.data import BatchConfig
from config.model import BertConfig, ClassifierConfig, TransformerConfig, TransformerXLConfig
from config.reader import without_removed
from config.training import OptimizerConfig, Precision, TrainingConfig, TranslationTrainingConfig
from const.token import PAD_ID
from layers.feed_forward import FeedForward
from models.bert import BertClassifier, BertForPreTraining
from models.transformer import Transformer
from models.transformer_xl import TransformerXL
from tests.tiny import MODEL, translating
from train import Trainer
from utils.dataset.batch import Batch, BucketSampler, batch_of
from utils.dataset.ids import TokenArray, TokenPairs
from utils.dataset.labelled import LabelledBatch
from utils.dataset.masked import MaskedBatch
from utils.dataset.monolingual import SegmentBatch
from utils.device import product_dtype
from utils.training import muon as muon_module
from utils.training import optimizer as optimizer_module
from utils.training.distributed import Interrupt
from utils.training.dry_run import FreedMemory
from utils.training.graph import GraphedPasses
from utils.training.loss import (
    Loss,
    Objective,
    TranslationObjective,
    classification_loss,
    masked_language_loss,
    mean_loss,
    recurrent_loss,
)
from utils.training.muon import Muon, block_matrices, orthogonal
from utils.training.optimizer import MovingAverage, Optimizer
from utils.training.report import Observer, StepReport, Validation
from utils.training.schedule import Progress, learning_rate

VOCAB = 24


# fmt: off
GOLDEN = [
    3.66336, 3.81002, 3.78649, 3.47623, 3.60035, 3.19261, 3.24571, 3.18114, 3.10507, 3.0592,
    2.90711, 2.86691, 3.22399, 3.00487, 3.04611, 2.99876, 2.84867, 3.07118, 2.68001, 2.87041,
]
# fmt: on
FAST = OptimizerConfig(peak_lr=0.01, warmup_steps=10)
FP32 = TrainingConfig(precision="fp32")


def pairs(n: int = 40, seed: int = 0) -> TokenPairs:
    """Random sources of 1 to 8 tokens, to be written backwards."""
    draw = np.random.default_rng(seed)
    sources = [draw.integers(4, VOCAB, draw.integers(1, 9)).tolist() for _ in range(n)]
    return TokenPairs(TokenArray.of(sources, VOCAB), TokenArray.of([ids[::-1] for ids in sources], VOCAB))


def new_sampler(tokens: int = 40) -> BucketSampler:
    return BucketSampler(pairs(), tokens, 16, seed=3)


BATCHES = [batch_of(pairs(), np.arange(8 * i, 8 * i + 8)) for i in range(3)]
DEV = BucketSampler(pairs(10, seed=9), 60).all()


def new_trainer(dropout: float = 0.0, optimizer: OptimizerConfig = FAST, objective: Objective | None = None) -> Trainer:
    torch.manual_seed(1)
    net = Transformer(replace(MODEL, dropout=dropout, attention_dropout=dropout, tie="all"), VOCAB, VOCAB)
    return Trainer(net, objective or TranslationObjective(0.1), Optimizer(net, optimizer), FP32)


def values(net: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in net.parameters()]


def weights(trainer: Trainer) -> list[Tensor]:
    return values(trainer.net)


@pytest.mark.parametrize(("sizes", "clip_norm"), [([1, 7], 1e9), ([2, 3, 3], 0.01)])
def test_any_split_into_micro_batches_is_the_whole_batch(sizes: list[int], clip_norm: float) -> None:
    # with a tiny eps Adam makes steps of noise, where a gradient is nothing but noise (biases of keys)
    text, optimizer = pairs(), replace(FAST, clip_norm=clip_norm, eps=1e-4)
    whole, split = new_trainer(optimizer=optimizer), new_trainer(optimizer=optimizer)
    for rows in (np.arange(8), np.arange(8, 16)):
        a = whole.train_step([batch_of(text, rows)])
        b = split.train_step([batch_of(text, part) for part in np.split(rows, np.cumsum(sizes)[:-1])])
        torch.testing.assert_close((*b[0][:3], b[1]), (*a[0][:3], a[1]), rtol=1e-4, atol=0)
        whole.progress.step, split.progress.step = 1, 1
    torch.testing.assert_close(weights(split), weights(whole), rtol=0, atol=2e-4)


def test_a_validation_is_the_mean_loss_of_its_text_and_teaches_nothing() -> None:
    """However its text is cut."""
    trainer = new_trainer(dropout=0.5)
    before = weights(trainer)
    nats, tokens, *_ = trainer.val_step(batch_of(pairs(), np.arange(40)))
    assert tokens == pairs().tgt.lengths.sum() + 40
    losses = [mean_loss(trainer.val_step, new_sampler(tokens=size).all()) for size in (20, 90, 10_000)]
    assert losses == pytest.approx([float(nats / tokens)] * 3, rel=1e-5)
    assert not nats.requires_grad
    assert same(weights(trainer), before, set())
    trainer.train_step(BATCHES)
    assert trainer.net.training


def test_what_dropout_draws_is_a_function_of_seed_step_and_batch() -> None:
    def nats(step: int = 0, seed: int = 0, batches: Sequence[Batch] = BATCHES) -> float:
        trainer = new_trainer(dropout=0.3)
        trainer.progress.step, trainer.training = step, replace(FP32, seed=seed)
        return trainer.train_step(batches)[0].nats.item()

    first = nats()
    torch.manual_seed(1234)
    assert nats() == first
    assert len({first, nats(step=1), nats(seed=1)}) == 3
    assert nats(batches=BATCHES[:1] * 2) != pytest.approx(2 * nats(batches=BATCHES[:1]), rel=1e-6)


def poisoned(at: set[int]) -> Objective:
    """An objective whose gradient is no number at these calls, counted from 1 while the network trains."""
    calls, plain = 0, TranslationObjective(0.1)

    def objective(net: Transformer, batch: Batch, _memory: None) -> Loss:
        nonlocal calls
        loss = plain(net, batch)
        calls += net.training
        return loss._replace(nats=loss.nats * float("nan")) if net.training and calls in at else loss

    return objective


@pytest.mark.parametrize("kind", ["adam", "muon"])
def test_a_gradient_that_is_not_finite_moves_nothing_is_counted_and_forgotten(kind: Any) -> None:
    optimizer = replace(FAST, kind=kind, ema_decay=0.5, weight_decay=0.1)
    trainer, other = new_trainer(objective=poisoned({2}), optimizer=optimizer), new_trainer(optimizer=optimizer)
    counts = {"skipped", "skipped_in_a_row", "n_updates"}
    for i, batch in enumerate(BATCHES):
        before = copy.deepcopy(trainer.state())
        _, norm = trainer.train_step([batch])
        if i == 1:
            assert not norm.isfinite()
            assert same(trainer.state(), before, counts)
            assert int(trainer.optimizer.skipped) == int(trainer.optimizer.skipped_in_a_row) == 1
        else:
            other.train_step([batch])
    assert same(weights(trainer), weights(other), set())
    assert (int(trainer.optimizer.skipped), int(trainer.optimizer.skipped_in_a_row)) == (1, 0)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_learns_what_single_precision_does(precision: Precision) -> None:
    outcomes = []
    for dtype in (precision, "fp32"):
        trainer, products = new_trainer(), set[torch.dtype]()
        trainer.training = replace(FP32, precision=dtype)
        trainer.optimizer = Optimizer(trainer.net, FAST, dtype)
        narrow = trainer.net.get_submodule("decoder.0.feed_forward.narrow")
        narrow.register_forward_hook(lambda *call, seen=products: seen.add(call[2].dtype))
        updates = []
        for batch in BATCHES * 3:
            updates.append(trainer.train_step([batch]))
            trainer.progress.step += 1
        # the norm is of a gradient whose scale was taken back
        (_, norm), (loss, _) = updates[0], updates[-1]
        outcomes.append([(loss.nats / loss.tokens).item(), norm.item()])
        assert not trainer.optimizer.skipped
        trainer.val_step(BATCHES[0])
        assert products == {product_dtype(dtype)}
    assert outcomes[0] == pytest.approx(outcomes[1], rel=0.05)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("kind", ["adam", "muon"])
def test_an_update_on_a_gpu_waits_for_nothing_and_is_that_of_a_cpu(precision: Precision, kind: Any) -> None:
    """But for the transfer of batches that are not pinned, which are put there before."""
    optimizer = replace(FAST, kind=kind, ema_decay=0.9, weight_decay=0.1)
    here = new_trainer(optimizer=optimizer)
    net, training = copy.deepcopy(here.net).cuda(), TrainingConfig(precision=precision)
    there = Trainer(net, TranslationObjective(0.1), Optimizer(net, optimizer, precision), training)
    for i, batch in enumerate(BATCHES):
        expected, _ = here.train_step([batch])
        on_device = batch.to(torch.device("cuda"))
        torch.cuda.set_sync_debug_mode("error" if i else "default")
        try:
            loss, _ = there.train_step([on_device])
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert loss.nats.item() == pytest.approx(expected.nats.item(), rel=1e-3 if precision == "fp32" else 0.05)


@dataclass(frozen=True, eq=False)
class HereBatch(Batch):
    """A batch that stays on the CPU, wherever it is sent."""

    def to(self, _device: torch.device) -> "HereBatch":
        return HereBatch(*(part.clone() for part in self))


class Recording:
    """A graph that replays what ran while it was recorded, on the CPU."""

    last: "Recording"

    def __init__(self) -> None:
        self.replays, Recording.last = 0, self

    def replay(self) -> None:
        self.replays += 1


@pytest.mark.parametrize("rehearsed", [False, True])
def test_a_graph_is_recorded_for_each_shape_after_the_first_batch(
    rehearsed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Recording)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "graph", lambda *_, **__: nullcontext())
    ran: list[int] = []  # widths of the batches whose passes ran, recorded ones included

    def passes(batch: Batch, memory: Any) -> Loss:
        ran.append(batch.src.size(1))
        return Loss(batch.src.sum(), torch.ones(()), torch.ones(()), memory)

    graphed = GraphedPasses(passes, lambda: ran.append(0), rehearsed)
    small, large = (HereBatch(torch.full((2, n), n), torch.ones(2, 3)) for n in (4, 5))
    graphed(small, None)
    assert ran == [4]
    for _ in range(3):
        graphed(large, None)
    assert ran == ([4, 5, 0, 5] if rehearsed else [4, 0, 5])
    assert Recording.last.replays == (2 if rehearsed else 3)
    other = HereBatch(torch.zeros(2, 5, dtype=torch.long), torch.ones(2, 3))
    graphed(other, None)
    assert next(iter(graphed.graphs[other.src.shape, other.tgt.shape].batch)).sum() == 0  # what the graph reads

    lasting = GraphedPasses(passes, lambda: None)
    for _ in range(3):
        lasting(small, "a memory that moves")
    assert not lasting.graphs

    def broken(*_: object, **__: object) -> Any:
        raise RuntimeError("operation not permitted\nmore")

    monkeypatch.setattr(torch.cuda, "graph", broken)
    with pytest.raises(ValueError, match=r"recorded here \(operation not permitted\): give --training.graphs false"):
        graphed(HereBatch(torch.ones(9, 9), torch.ones(9, 9)) if not rehearsed else small, None)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_graphs_of_a_gpu_make_the_updates_that_single_launches_make(precision: Precision) -> None:
    """With dropout, two batches to an update and three shapes, each recorded and launched again."""
    finals, batches = [], [batch_of(pairs(), np.arange(rows)) for rows in (8, 16, 24)]
    for graphs in (False, True):
        net = copy.deepcopy(new_trainer(dropout=0.3).net).cuda()
        optimizer = Optimizer(net, replace(FAST, kind="muon", ema_decay=0.9), precision)
        trainer = Trainer(net, TranslationObjective(0.1), optimizer, TrainingConfig(precision=precision, graphs=graphs))
        nats = []
        for step in range(12):
            trainer.progress.step = step
            nats.append(trainer.train_step([batches[step % 3], batches[0]])[0].nats.item())
            trainer.val_step(DEV[0])
        assert len(trainer.passes.graphs if isinstance(trainer.passes, GraphedPasses) else ()) == 3 * graphs
        finals.append((nats, weights(trainer)))
    (eager, eager_weights), (graphed, graphed_weights) = finals
    assert graphed == pytest.approx(eager, rel=1e-4 if precision == "fp32" else 0.01)
    if precision == "fp32":
        torch.testing.assert_close(graphed_weights, eager_weights, rtol=1e-3, atol=1e-3)


def test_the_loss_falls_as_it_always_has() -> None:
    """Twenty steps in single precision on one thread: whatever changes a number on the way shows here."""
    trainer, sampler, losses = new_trainer(), new_sampler(), []
    for batch in [batch for epoch in range(3) for batch in sampler.epoch(epoch)][:20]:
        loss, _ = trainer.train_step([batch])
        trainer.progress.step += 1
        losses.append((loss.nats / loss.tokens).item())
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


@dataclass
class Witness(Observer):
    """Gives these BLEU scores one after another, and writes down all that it is told."""

    bleu: Sequence[float] = ()
    interrupt: Interrupt = field(default_factory=Interrupt)
    dev_losses: list[float] = field(default_factory=list)
    steps: list[tuple[Progress, StepReport]] = field(default_factory=list)
    validated: list[int] = field(default_factory=list)
    train_losses: list[float] = field(default_factory=list)

    @property
    def losses(self) -> list[float]:
        return [report.loss for _, report in self.steps]

    def ask_to_stop(self) -> None:
        self.interrupt.asked = True

    def validate(self, loss: float) -> Validation:
        self.dev_losses.append(loss)
        bleu = self.bleu[len(self.dev_losses) - 1] if self.bleu else float(len(self.dev_losses))
        return Validation(loss, {"bleu": bleu, "chrf": 0.0})

    def on_step(self, progress: Progress, report: StepReport) -> None:
        self.steps.append((copy.copy(progress), report))

    def on_validation(self, progress: Progress, validation: Validation) -> None:
        assert validation.loss == self.dev_losses[-1]
        self.validated.append(progress.step)
        self.train_losses.append(validation.train_loss)


def fit(trainer: Trainer, witness: Witness, accumulate: int = 1, **settings: Any) -> None:
    trainer.training = TranslationTrainingConfig(**{"precision": "fp32", "max_epochs": None, **settings})
    trainer.fit(new_sampler(), BatchConfig(accumulate=accumulate), DEV, witness.validate, [witness], witness.interrupt)


def test_it_trains_for_so_many_steps_and_validates_on_the_way_and_at_the_end() -> None:
    trainer, witness = new_trainer(), Witness()
    fit(trainer, witness, max_steps=11, validate_every=4, report_every=3)
    assert trainer.progress.step == 11
    assert [progress.step for progress, _ in witness.steps] == [3, 6, 9]
    assert witness.validated == [4, 8, 11]
    assert witness.dev_losses[2] == pytest.approx(mean_loss(trainer.val_step, DEV))
    assert witness.dev_losses[2] < witness.dev_losses[0]
    fit(trainer, witness, max_steps=12, validate_every=4, report_every=3)
    assert witness.validated == [4, 8, 11, 12]  # at the end once
    fit(trainer, witness, max_steps=12, validate_every=4, report_every=3)  # has ended
    assert witness.validated == [4, 8, 11, 12]


def test_freed_memory_is_returned_by_the_clock_and_after_validations(monkeypatch: pytest.MonkeyPatch) -> None:
    now, returned = [0.0], list[float]()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr("utils.training.dry_run.return_freed_memory", lambda: returned.append(now[0]))
    observer = FreedMemory(60.0)
    for now[0] in range(10, 301, 10):
        observer.on_update()
        if now[0] == 200:
            observer.on_validation(Progress(), Validation(1.0))
    assert returned == [60, 120, 180, 200, 260]


def test_train_and_dev_compare_whatever_is_minimised_and_however_it_is_batched() -> None:
    """With label smoothing, R-Drop, micro-batches and a report between two validations."""
    trainer, witness = new_trainer(objective=TranslationObjective(0.1, 2.0)), Witness()
    updates: list[tuple[float, int]] = []  # NLL and tokens, by torch
    train_step = trainer.train_step

    def watched(micro_batches: list[Batch]) -> tuple[Loss, Tensor]:
        nll, tokens = 0.0, 0
        for src, tgt in micro_batches:
            logits = trainer.net(src, tgt[:, :-1]).flatten(0, 1)  # there is no dropout
            nll += F.cross_entropy(logits, tgt[:, 1:].flatten(), ignore_index=PAD_ID, reduction="sum").item()
            tokens += int((tgt[:, 1:] != PAD_ID).sum())
        updates.append((nll, tokens))
        return train_step(micro_batches)

    trainer.train_step = watched  # type: ignore[method-assign, assignment]
    fit(trainer, witness, accumulate=2, max_steps=5, validate_every=3, report_every=2)
    assert len({tokens for _, tokens in updates}) > 1

    def mean(begin: int, end: int) -> Any:
        nats, tokens = zip(*updates[begin:end], strict=True)
        return pytest.approx(sum(nats) / sum(tokens), rel=1e-5)

    assert [report.nll for _, report in witness.steps] == [mean(0, 2), mean(2, 4)]
    assert witness.train_losses == [mean(0, 3), mean(3, 5)]
    assert all(report.loss > report.nll for _, report in witness.steps)  # of which smoothing and R-Drop are a part


@pytest.mark.parametrize("accumulate", [1, 3])
def test_epochs_are_whole_passes_over_the_text(accumulate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, witness = new_trainer(), Witness()
    updates = Mock(wraps=trainer.train_step)
    monkeypatch.setattr(trainer, "train_step", updates)
    fit(trainer, witness, accumulate, max_epochs=2, report_every=1)
    seen = [batch for call in updates.call_args_list for batch in call.args[0]]
    sampler = new_sampler()
    planned = [batch for epoch in (0, 1) for batch in sampler.epoch(epoch)]
    assert [batch.src.tolist() for batch in seen] == [batch.src.tolist() for batch in planned]
    n, m = (-(-len(sampler.epoch(epoch)) // accumulate) for epoch in (0, 1))
    assert witness.validated == [n + m]
    assert trainer.progress.target_tokens == 2 * int((pairs().tgt.lengths + 1).sum())
    places = [(progress.epoch, progress.position) for progress, _ in witness.steps]
    assert places == [*((0, i) for i in range(1, n)), (1, 0), *((1, i) for i in range(1, m)), (2, 0)]


def test_minutes_count_training_and_validation_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, witness, now = new_trainer(), Witness(), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def lasts(seconds: float, act: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any) -> Any:
            now[0] += seconds
            return act(*given)

        return timed

    monkeypatch.setattr(trainer, "train_step", lasts(1, trainer.train_step))
    for name, seconds in {"validate": 2, "on_step": 100, "on_validation": 1000}.items():
        monkeypatch.setattr(witness, name, lasts(seconds, getattr(witness, name)))
    fit(trainer, witness, max_minutes=0.5, validate_every=10, report_every=10)
    # ten updates and a validation are 12 seconds: 30 are over after the second validation and six more updates
    assert trainer.progress.seconds == 32
    assert witness.validated == [10, 20, 26]


def test_where_updates_are_slow_validations_come_by_the_clock_before_the_scheduled_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer, witness, clock = new_trainer(), Witness(bleu=[9.0, 8.0, 7.0, 6.0, 1.0, 3.0, 2.0]), iter(range(10_000))
    monkeypatch.setattr(time, "monotonic", lambda: 100.0 * next(clock))  # an update or a validation takes 100 seconds
    fit(trainer, witness, max_steps=110, validate_every=50, report_every=1000, patience=2)
    assert witness.validated == [5, 10, 20, 40, 50, 100, 110]
    assert (trainer.progress.best_step, trainer.progress.best_score, trainer.progress.stale) == (100, 3.0, 1)
    witness.bleu = [5.0] * 8
    fit(trainer, witness, max_steps=225, validate_every=1000, report_every=1000)  # not at 220: there are scores
    assert witness.validated[-2:] == [110, 225]

    trainer, witness = new_trainer(), Witness(bleu=[1.0])  # there is no second score
    with pytest.raises(IndexError):
        fit(trainer, witness, max_steps=30, report_every=1000)
    assert (trainer.progress.step, witness.validated) == (10, [5])
    witness.bleu = ()
    fit(trainer, witness, max_minutes=trainer.progress.seconds / 60 + 1, report_every=1000)
    assert witness.validated == [5, 10]
    assert trainer.progress.best_step == 10  # no other came after it: it took the rest of the time


def test_too_many_gradients_in_a_row_that_are_not_finite_end_it_with_a_remedy() -> None:
    witness, trainer = Witness(), new_trainer(objective=poisoned({3, *range(9, 99)}))
    with pytest.raises(ValueError, match=r"4 updates in a row, up to step 12, .*: lower --optimizer.peak_lr"):
        fit(trainer, witness, max_steps=40, report_every=2, max_skipped=4)
    assert [report.skipped for _, report in witness.steps] == [0, 1, 1, 1, 3, 5]
    assert [math.isfinite(report.loss) for _, report in witness.steps] == [True] * 4 + [False] * 2


def test_it_ends_when_nothing_gets_better() -> None:
    trainer, witness = new_trainer(), Witness(bleu=[3.0, 2.0, 4.0, 3.9, 1.0, 2.0, 9.0])
    fit(trainer, witness, max_steps=50, validate_every=2, patience=3)
    assert witness.validated == [2, 4, 6, 8, 10, 12]  # in the middle of an epoch
    assert (trainer.progress.best_step, trainer.progress.best_score) == (6, 4.0)


def test_what_is_validated_is_the_moving_average_and_what_goes_on_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, witness, seen = new_trainer(optimizer=replace(FAST, ema_decay=0.9)), Witness(), list[Any]()

    def validate(loss: float) -> Validation:
        seen.append((weights(trainer), copy.deepcopy(trainer.optimizer.state_dict()["average"]["average"])))
        assert trainer.net.state_dict()["output.weight"].equal(seen[-1][1]["src_embedding.weight"])  # tied, as is saved
        return Witness.validate(witness, loss)

    monkeypatch.setattr(witness, "validate", validate)
    fit(trainer, witness, max_steps=6, validate_every=3)
    for validated, average in seen:
        assert same(validated, list(average.values()), set())
    plain = new_trainer()
    fit(plain, Witness(), max_steps=6, validate_every=3)
    assert same(weights(trainer), weights(plain), set())


# learning rate


STEPS = range(1, 41)


def rates(config: OptimizerConfig) -> list[float]:
    return [learning_rate(step, config) for step in STEPS]


def test_inverse_sqrt_is_the_equation_of_the_paper() -> None:
    """Vaswani et al. 2017, eq. 3; settings saved with the schedule noam had it, times a factor."""
    optimizer = {"schedule": "noam", "noam_factor": 2.0, "warmup_steps": 20, "peak_lr": 7e-4}
    config = OptimizerConfig(**without_removed({"model": {"d_model": 512}, "optimizer": optimizer})["optimizer"])
    expected = [2 * 512**-0.5 * min(step**-0.5, step * 20**-1.5) for step in STEPS]
    assert rates(config) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("warmup", [0, 1, 7])
@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_rates_are_those_of_torchs_schedulers(schedule: Any, warmup: int) -> None:
    w, peak = max(1, warmup), 0.01
    adam = torch.optim.Adam([torch.zeros(1, requires_grad=True)], lr=peak)
    warming: Any = LinearLR(adam, start_factor=1 / w, total_iters=w - 1) if w > 1 else LambdaLR(adam, lambda _: 1.0)
    config = OptimizerConfig("adam", schedule, peak, final_lr=0.002, warmup_steps=warmup, decay_steps=40)
    theirs = warming
    for step, rate in zip(STEPS, rates(config), strict=True):
        if (schedule, step) == ("cosine", w):  # over 40 updates: torch's would rise again after them
            theirs = CosineAnnealingLR(torch.optim.Adam([torch.zeros(1)], lr=peak), 40, eta_min=0.002)
        assert rate == pytest.approx(theirs.get_last_lr()[0], rel=1e-9)
        theirs.optimizer.step()
        theirs.step()


def test_a_decay_ends_with_the_training_unless_told_where() -> None:
    """Of a trapezoid by Hägele et al. 2024, eq. 2, 1 - sqrt."""
    constant = OptimizerConfig(schedule="constant", peak_lr=0.01, final_lr=0.001, warmup_steps=20)
    endless, cosine = replace(constant, schedule="trapezoid"), replace(constant, schedule="cosine")
    assert rates(endless.ending_at(None)) == rates(constant)
    ended = endless.ending_at(100)
    assert (ended.decay_from, ended.decay_steps) == (80, 20)  # a fifth
    falling = [learning_rate(step, ended) for step in (80, 85, 100, 10**6)]
    assert falling == pytest.approx([0.01, 0.001 + 0.009 * (1 - 0.5), 0.001, 0.001])
    assert replace(endless, decay_steps=30).ending_at(100).decay_from == 70
    assert cosine.ending_at(100) == replace(cosine, decay_steps=80)
    told = replace(cosine, decay_steps=7)
    assert told.ending_at(100) == told.ending_at(None) == told


def test_a_rate_falls_by_the_clock_where_the_clock_ends_the_training() -> None:
    warming = OptimizerConfig(schedule="trapezoid", peak_lr=0.01, final_lr=0.001, warmup_steps=20)
    for schedule, spent, expected in (
        ("trapezoid", 0.8, 0.01),
        ("trapezoid", 0.85, 0.001 + 0.009 * 0.5),
        ("trapezoid", 1.0, 0.001),
        ("cosine", 0.0, 0.01),
        ("cosine", 0.5, 0.001 + 0.009 * 0.5),
        ("cosine", 1.0, 0.001),
    ):
        config = replace(warming, schedule=cast(Any, schedule)).ending_at(None, max_minutes=5)
        assert learning_rate(30, config, spent) == pytest.approx(expected)
        assert learning_rate(10, config, spent) == pytest.approx(0.005)  # the warm-up goes by updates
        known = config.ending_at(100, max_minutes=5)
        assert learning_rate(60, known, spent) == learning_rate(60, known)


def test_a_training_tells_its_optimizer_the_time() -> None:
    clock = OptimizerConfig(schedule="cosine", peak_lr=0.01, warmup_steps=0).ending_at(None, 1)
    trainer = new_trainer(optimizer=clock)
    trainer.training = replace(trainer.training, max_minutes=1)
    trainer.progress.step, trainer.progress.seconds = 5, 30
    trainer.train_step([BATCHES[0]])
    assert trainer.optimizer.learning_rate == pytest.approx(0.005)


# Adam and its guard


COARSE = OptimizerConfig(peak_lr=0.1, warmup_steps=2, eps=1e-6)

TOKENS, ONE, FINITE = torch.tensor(5.0), torch.ones(()), torch.tensor(True)


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def inputs(n: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(5, 4, generator=generator) for _ in range(n)]


@pytest.mark.parametrize("kind", ["adam", "muon"])
@pytest.mark.parametrize(("clip_norm", "decay"), [(None, 0.0), (0.01, 0.25), (100.0, 0.25)])
def test_it_is_adam_on_the_clipped_mean_and_muon_for_matrices_of_blocks(
    kind: Any, clip_norm: float | None, decay: float
) -> None:
    """And matrices alone shrink. A larger eps, for a key's bias has a gradient of noise alone."""
    config = replace(COARSE, clip_norm=clip_norm, kind=kind, eps=1e-3, weight_decay=decay)
    net, twin = translating().train(), translating().train()
    optimizer = Optimizer(net, config, "fp32")
    matrices = block_matrices(twin) if kind == "muon" else {}
    muon = Muon(matrices, 0.95, decay, torch.float32)
    rest = [p for p in twin.parameters() if p not in matrices]
    groups = [{"params": [p], "weight_decay": decay if p.dim() > 1 else 0.0} for p in rest]
    adam = torch.optim.AdamW(groups, betas=config.betas, eps=config.eps)
    tokens = BATCHES[0].tgt[:, 1:].ne(PAD_ID).sum()
    for number in (1, 2, 3):
        for network in (net, twin):
            network.zero_grad()
            TranslationObjective()(network, BATCHES[0]).nats.backward()
        norm = optimizer.step(number, tokens)
        for parameter in twin.parameters():
            parameter.grad = None if parameter.grad is None else parameter.grad / tokens
        expected = nn.utils.clip_grad_norm_(twin.parameters(), clip_norm or math.inf)
        assert norm.item() == pytest.approx(expected.item(), rel=1e-4)
        rate = learning_rate(number, config)
        for group in adam.param_groups:
            group["lr"] = rate
        adam.step()
        muon.step(rate, ONE, FINITE)
    for ours, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("resumed_after", [2, 3, 6])
def test_the_loss_scale_falls_when_gradients_overflow_and_rises_when_they_have_not_for_long(
    resumed_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the training is resumed on the way."""
    monkeypatch.setattr(optimizer_module, "_GROW_AFTER", 3)
    net, other = linear(), linear()
    optimizer, resumed = Optimizer(net, COARSE, "fp16"), Optimizer(other, COARSE, "fp16")
    too_large, scales = torch.full((5, 4), 1e30), [optimizer.loss_scale.item()]
    for number, x in enumerate([too_large, too_large, *inputs(2), too_large, *inputs(7)], 1):
        optimizer.zero_grad()
        (net(x).square().sum() * optimizer.loss_scale).backward()
        optimizer.step(number, TOKENS)
        scales.append(optimizer.loss_scale.item())
        if number == resumed_after:
            other.load_state_dict(net.state_dict())
            resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            net, optimizer = other, resumed
    falls = [1 / 2, 1 / 4, 1 / 4, 1 / 4, 1 / 8, 1 / 8, 1 / 8, 1 / 4, 1 / 4, 1 / 4, 1 / 2, 1 / 2]
    assert [scale / scales[0] for scale in scales[1:]] == falls
    assert int(optimizer.skipped) == 3


def test_settings_of_a_resumed_training_hold_unless_the_state_does_not_fit() -> None:
    net = linear()
    first = Optimizer(net, replace(COARSE, weight_decay=0.1))
    again = Optimizer(net, replace(COARSE, weight_decay=0.2, betas=(0.5, 0.75), eps=1e-3))
    again.load_state_dict(first.state_dict())
    held = [(group["weight_decay"], group["betas"], group["eps"]) for group in again.adam.param_groups]
    assert held == [(0.2, (0.5, 0.75), 1e-3), (0.0, (0.5, 0.75), 1e-3)]
    with pytest.raises(ValueError, match=r"^weight_decay=0\.0 cannot be switched on or off"):
        Optimizer(net, COARSE).load_state_dict(first.state_dict())
    adam, muon = (Optimizer(translating(), replace(COARSE, kind=kind)) for kind in ("adam", "muon"))
    for optimizer, other, was in ((adam, muon, "muon"), (muon, adam, "adam")):
        with pytest.raises(ValueError, match=f"the checkpoint is of kind {was}: give --optimizer.kind"):
            optimizer.load_state_dict(other.state_dict())


# the moving average


def test_the_first_updates_are_soon_forgotten_and_then_it_keeps_its_decay() -> None:
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 5.0)
    average, expected = MovingAverage(net, 0.4), 5.0
    for n, value in enumerate([1.0, -2.0, 3.0, 0.5, 7.0, 2.0, -1.0]):
        nn.init.constant_(net.weight, value)
        average.update(FINITE)
        decay = min(0.4, (1 + n) / (10 + n))  # 0.1, 0.18, ..., 0.36, and 0.4 from the sixth
        expected = decay * expected + (1 - decay) * value
        with average.swapped():
            assert net.weight.item() == pytest.approx(expected, rel=1e-6)


# Muon


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def polar(x: Tensor, _dtype: torch.dtype = torch.float32) -> Tensor:
    """U Vᵀ, decomposed."""
    u, _, v = torch.linalg.svd(x, full_matrices=False)
    return u @ v


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
    singular = (u.mT @ made @ v.mT).diagonal(dim1=1, dim2=2)
    assert ((singular > 0.85) & (singular < 1.15)).all()
    rest = made - u @ torch.diag_embed(singular) @ v
    assert rest.abs().max() < tolerance


def test_products_that_round_upwards_do_not_blow_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """By far more than any processor's: a step of 10⁹ once ended a training, whose loss then stayed finite."""
    exact = torch.baddbmm

    def rounded(*inputs: Any, **factors: Any) -> Tensor:
        product = exact(*inputs, **factors)
        return product if product.size(1) == product.size(2) else 1.04 * product  # of each iteration, the result

    monkeypatch.setattr(torch, "baddbmm", rounded)
    u, v = polar(draw(3, 8, 8)), polar(draw(3, 8, 20, seed=1))
    for values in torch.rand(100, 8, generator=torch.Generator().manual_seed(2)):
        assert torch.linalg.matrix_norm(orthogonal(u @ values.diag() @ v), 2).max() < 1.4


def test_it_steps_as_its_authors_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jordan et al. 2024, with Nesterov's momentum; the size of Liu et al. 2025, section 2.2; a shrink before it."""
    monkeypatch.setattr(muon_module, "orthogonal", polar)
    weight = nn.Parameter(draw(4, 6))
    muon = Muon({weight: lambda x: x[None]}, 0.9, 0.5, torch.float32)
    expected, mean = weight.detach().clone(), torch.zeros(4, 6)
    for seed, rate in ((1, 0.1), (2, 0.3), (3, 0.2)):
        weight.grad = draw(4, 6, seed=seed)
        mean = 0.9 * mean + 0.1 * weight.grad / 5
        ahead = 0.9 * mean + 0.1 * weight.grad / 5
        expected = expected * (1 - 0.5 * rate) - rate * 0.2 * math.sqrt(6) * polar(ahead)
        muon.step(rate, TOKENS, FINITE)
        torch.testing.assert_close(weight.detach(), expected)


XL = TransformerXL(TransformerXLConfig(16, 4, 32, 2, memory_length=10), 50)
BERT = BertForPreTraining(BertConfig(16, 2, 64, 2, max_length=40), 50)


@pytest.mark.parametrize("net", [Transformer(replace(MODEL, tie="none"), 40, 40), BERT, XL])
def test_matrices_of_blocks_are_split_and_nothing_else(net: nn.Module) -> None:
    splits = block_matrices(net)
    expected = {
        parameter
        for name, parameter in net.named_parameters()
        if parameter.dim() == 2 and name.endswith(".weight") and any(part.isdigit() for part in name.split("."))
    }
    assert splits.keys() == expected
    assert len(splits) >= 10


def test_heads_are_matrices_of_their_own() -> None:
    """As slices of what they multiply: W_Qⁱ, W_Kⁱ and W_Vⁱ are rows, W_Oⁱ columns."""
    attention, splits = XL.get_submodule("blocks.0.self_attention"), block_matrices(XL)
    for name in ("query", "key_value", "score_bias.distance_key"):
        weight = attention.get_parameter(f"{name}.weight")
        heads = splits[weight](weight)
        assert heads.shape == (len(weight) // 4, 4, 16)
        torch.testing.assert_close(heads[1], weight[4:8])
    output = attention.get_parameter("output.weight")
    torch.testing.assert_close(splits[output](output)[1], output[:, 4:8].mT)


def test_every_matrix_takes_its_own_step() -> None:
    """Together, in batches of a shape, they move as each would alone."""
    together, alone = (Transformer(MODEL, 40, 40) for _ in range(2))
    alone.load_state_dict(together.state_dict())
    start = values(alone)
    for seed, (parameter, twin) in enumerate(zip(together.parameters(), alone.parameters(), strict=True)):
        parameter.grad = twin.grad = draw(*parameter.shape, seed=seed)
    Muon(block_matrices(together), 0.9, 0.1, torch.float32).step(0.1, ONE, FINITE)
    for weight, split in block_matrices(alone).items():
        Muon({weight: split}, 0.9, 0.1, torch.float32).step(0.1, ONE, FINITE)
    torch.testing.assert_close(together.state_dict(), alone.state_dict())
    moved = {p for p, before in zip(alone.parameters(), start, strict=True) if not p.equal(before)}
    assert moved == set(block_matrices(alone))


# updates as CUDA would make them, where no GPU is at hand

SMALL: dict[str, Any] = {"d_model": 16, "n_heads": 2, "d_ff": 32, "dropout": 0.1}
ONE_EACH: dict[str, Any] = SMALL | {"n_encoder_layers": 1, "n_decoder_layers": 1}


def ids(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.long, device="cuda")


def on_cuda(rotary: bool = False) -> Transformer:
    config = TransformerConfig(**ONE_EACH, positions="rotary" if rotary else "sinusoidal", norm_first=not rotary)
    return Transformer(config, VOCAB, VOCAB)


TASKS: dict[str, tuple[Any, Objective, Any]] = {
    "translation": (on_cuda, TranslationObjective(0.1), lambda: Batch(ids(4, 7), ids(4, 9))),
    "rotary": (lambda: on_cuda(rotary=True), TranslationObjective(0.1), lambda: Batch(ids(4, 7), ids(4, 9))),
    "R-Drop": (on_cuda, TranslationObjective(0.1, 1.0), lambda: Batch(ids(4, 7), ids(4, 9))),
    "masked": (
        lambda: BertForPreTraining(BertConfig(**SMALL, n_layers=1), VOCAB),
        masked_language_loss,
        lambda: MaskedBatch(ids(4, 8), ids(4, 8), ids(4, 8), ids(4)),
    ),
    "recurrent": (
        lambda: TransformerXL(TransformerXLConfig(**SMALL, n_layers=1, memory_length=5), VOCAB),
        recurrent_loss,
        lambda: SegmentBatch(ids(4, 6), ids(4, 6), ids(4, 6)),
    ),
    "classification": (
        lambda: BertClassifier(ClassifierConfig(**SMALL, n_layers=1), VOCAB, 3),
        classification_loss,
        lambda: LabelledBatch(ids(4, 8), ids(4)),
    ),
}


class NoCopies(TorchDispatchMode):
    """Refuses copies from the CPU to the GPU, which would wait for it, and cannot be recorded in a graph."""

    def __torch_dispatch__(self, operation: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        if "copy" in str(operation):
            given = {value.device.type for value in (*args, result) if isinstance(value, Tensor)}
            assert given != {"cpu", "cuda"}, operation
        return result


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("kind", "precision"), [("adam", "fp32"), ("adam", "fp16"), ("muon", "bf16")])
def test_no_step_waits_for_the_gpu_or_mixes_devices(
    task: str, kind: Any, precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors have a shape, a type and a device, but no values: torch refuses to mix devices, and to look at a value.

    The engine of `backward` needs a real GPU: gradients of the right shape stand in for it.
    """

    def backward(loss: Tensor) -> None:
        assert loss.requires_grad
        assert loss.shape == ()
        for parameter in net.parameters():
            parameter.grad = torch.zeros_like(parameter)

    monkeypatch.setattr(Tensor, "backward", backward)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(nn.init, "trunc_normal_", lambda tensor, **_: tensor)  # which looks at what it has drawn
    products: list[torch.dtype] = []
    build, objective, batch_of_task = TASKS[task]
    with FakeTensorMode(allow_non_fake_inputs=True):
        with torch.device("cuda"):
            net = build()
        optimizer = Optimizer(net, OptimizerConfig(kind=kind, ema_decay=0.9, weight_decay=0.1), precision)
        trainer = Trainer(net, objective, optimizer, TrainingConfig(precision=precision, graphs=False))
        widen = next(part for part in net.modules() if isinstance(part, FeedForward)).widen
        widen.register_forward_hook(lambda _module, _inputs, output: products.append(output.dtype))
        batch = batch_of_task()
        for _ in range(2):  # the second with a memory, for which a table of positions grows
            trainer.meter.count(*trainer.train_step([batch, batch]), [], 9, 1.0)
        with NoCopies():  # type: ignore[no-untyped-call]
            loss, norm = trainer.train_step([batch, batch])
        values = [*loss[:3], norm, cast(Tensor, trainer.meter.nats), trainer.val_step(batch).nats]
    assert {value.device.type for value in values} == {"cuda"}
    assert set(products) == {product_dtype(precision)}


def test_muon_without_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^kind=muon finds no matrix in an EncoderBlock or DecoderBlock"):
        Optimizer(nn.Sequential(nn.Linear(4, 4)), OptimizerConfig(kind="muon"))
