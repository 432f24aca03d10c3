"""From summed gradients to weights: against the same by hand, with torch's own Adam and clipping."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from const.token import PAD_ID
from tests.tiny import translating
from utils.dataset.batch import Batch
from utils.device import Precision
from utils.training import optimizer as module
from utils.training.distributed import Processes
from utils.training.loss import TranslationObjective
from utils.training.muon import Muon, hidden_matrices
from utils.training.optimizer import GuardedOptimizer
from utils.training.plan import OptimizerConfig, OptimizerKind, build_adam, learning_rate

FAST = OptimizerConfig(peak_lr=0.1, warmup_steps=2, eps=1e-6)
TOKENS = torch.tensor(5.0)


def network() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def inputs(n: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(5, 4, generator=generator) for _ in range(n)]


def batch() -> Batch:
    ids = torch.randint(4, 20, (6, 9), generator=torch.Generator().manual_seed(2))
    ids[2, 5:] = PAD_ID
    return Batch(ids, ids.flip(0))


def go(net: nn.Linear, optimizer: GuardedOptimizer, batches: list[Tensor], first: int = 1) -> list[Tensor]:
    """Updates for a summed loss, and the norms that they tell."""
    norms = []
    for number, x in enumerate(batches, first):
        optimizer.zero_grad()
        (net(x).square().sum() * optimizer.loss_scale).backward()
        norms.append(optimizer.step(number, TOKENS))
    return norms


@pytest.mark.parametrize("clip_norm", [None, 0.3, 100.0])
def test_it_is_adam_on_the_clipped_mean(clip_norm: float | None) -> None:
    config = replace(FAST, clip_norm=clip_norm)
    net, twin = network(), network()
    norms = go(net, GuardedOptimizer(net, config, 4), inputs(4))
    adam = torch.optim.Adam(twin.parameters(), betas=config.betas, eps=config.eps)
    for number, x in enumerate(inputs(4), 1):
        adam.zero_grad()
        (twin(x).square().sum() / TOKENS).backward()
        norm = nn.utils.clip_grad_norm_(twin.parameters(), clip_norm or math.inf)
        assert norms[number - 1].item() == pytest.approx(norm.item(), rel=1e-5)
        adam.param_groups[0]["lr"] = learning_rate(number, config, 4)
        adam.step()
    torch.testing.assert_close(net.weight, twin.weight)
    torch.testing.assert_close(net.bias, twin.bias)


def test_a_loss_scale_changes_neither_norms_nor_weights() -> None:
    net, twin = network(), network()
    scaled, plain = GuardedOptimizer(net, FAST, 4, "fp16"), GuardedOptimizer(twin, FAST, 4)
    assert scaled.loss_scale > plain.loss_scale == 1
    torch.testing.assert_close(go(net, scaled, inputs(4)), go(twin, plain, inputs(4)))
    torch.testing.assert_close(net.weight, twin.weight)


def test_the_loss_scale_falls_when_gradients_overflow_and_rises_when_they_have_not_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_GROW_AFTER", 3)
    net = network()
    optimizer = GuardedOptimizer(net, FAST, 4, "fp16")
    begin = optimizer.loss_scale.item()
    too_large = torch.full((5, 4), 1e30)
    scales = []
    for number, x in enumerate([too_large, too_large, *inputs(2), too_large, *inputs(7)], 1):
        go(net, optimizer, [x], number)
        scales.append(optimizer.loss_scale.item() / begin)
    assert scales == [1 / 2, 1 / 4, 1 / 4, 1 / 4, 1 / 8, 1 / 8, 1 / 8, 1 / 4, 1 / 4, 1 / 4, 1 / 2, 1 / 2]
    assert int(optimizer.skipped) == 3


def test_without_half_precision_the_loss_is_never_scaled() -> None:
    net = network()
    optimizer = GuardedOptimizer(net, FAST, 4)
    go(net, optimizer, [torch.full((5, 4), 1e30)])
    assert optimizer.loss_scale == 1


def test_a_state_brings_everything_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GROW_AFTER", 3)
    config = replace(FAST, ema_decay=0.9)
    batches = [torch.full((5, 4), 1e30), *inputs(5), torch.full((5, 4), 1e30), *inputs(2)]
    net, twin = network(), network()
    whole = GuardedOptimizer(net, config, 4, "fp16")
    go(net, whole, batches)
    first = GuardedOptimizer(twin, config, 4, "fp16")
    go(twin, first, batches[:3])
    third = network()
    third.load_state_dict(twin.state_dict())
    second = GuardedOptimizer(third, config, 4, "fp16")
    second.load_state_dict(first.state_dict())
    go(third, second, batches[3:], 4)
    assert third.weight.equal(net.weight)
    assert int(second.skipped) == 2
    torch.testing.assert_close(second.state_dict(), whole.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("was", "now", "scale"),
    [
        ("fp16", "fp16", module._FIRST_SCALE / 2),  # as it is by then
        ("fp32", "fp16", module._FIRST_SCALE),
        ("fp16", "fp32", 1.0),
    ],
)
def test_a_loss_scale_is_gone_on_with_where_there_was_one_and_is_one(
    was: Precision, now: Precision, scale: float
) -> None:
    net = network()
    before, after = (GuardedOptimizer(net, FAST, 4, precision) for precision in (was, now))
    go(net, before, [torch.full((5, 4), 1e30)])
    after.load_state_dict(before.state_dict())
    assert after.loss_scale == scale


def test_what_is_said_anew_holds_for_adam_too() -> None:
    net = network()
    first = GuardedOptimizer(net, replace(FAST, weight_decay=0.1), 4)
    go(net, first, inputs(2))
    again = GuardedOptimizer(net, replace(FAST, weight_decay=0.2, betas=(0.5, 0.75), eps=1e-3), 4)
    again.load_state_dict(first.state_dict())
    assert [(group["weight_decay"], group["betas"], group["eps"]) for group in again.adam.param_groups] == [
        (0.2, (0.5, 0.75), 1e-3),
        (0.0, (0.5, 0.75), 1e-3),
    ]
    without = GuardedOptimizer(net, FAST, 4)
    with pytest.raises(ValueError, match=r"^weight_decay=0\.0 cannot be switched on or off .*: give its old value, or"):
        without.load_state_dict(first.state_dict())


def test_an_average_that_was_not_there_begins_with_the_weights() -> None:
    net, other = network(), network()
    with torch.no_grad():
        other.weight.add_(1)
    averaged = GuardedOptimizer(net, replace(FAST, ema_decay=0.9), 4)
    net.load_state_dict(other.state_dict())
    averaged.load_state_dict(GuardedOptimizer(other, FAST, 4).state_dict())
    with averaged.averaged():
        assert net.weight.equal(other.weight)


def test_an_update_that_is_skipped_leaves_the_average_as_it_was() -> None:
    net = network()
    optimizer = GuardedOptimizer(net, replace(FAST, ema_decay=0.9), 4)
    go(net, optimizer, inputs(2))
    with optimizer.averaged():
        before = net.weight.detach().clone()
    assert not before.equal(net.weight)
    go(net, optimizer, [torch.full((5, 4), 1e30)], 3)
    assert optimizer.skipped == 1
    with optimizer.averaged():
        assert net.weight.equal(before)


def test_who_has_no_gradient_lends_a_zero() -> None:
    net = network()
    optimizer = GuardedOptimizer(net, FAST, 4)
    net.weight.grad = torch.ones_like(net.weight)
    optimizer.fill_missing_gradients()
    assert net.weight.grad.eq(1).all()
    assert net.bias.grad is not None
    assert not net.bias.grad.any()
    assert len(optimizer.gradients()) == 2


def test_without_an_average_the_network_is_used_as_it_is() -> None:
    net = network()
    optimizer = GuardedOptimizer(net, FAST, 4)
    before = net.weight.data_ptr()
    with optimizer.averaged():
        assert net.weight.data_ptr() == before


def test_muon_takes_the_matrices_of_blocks_and_adam_the_rest() -> None:
    """Of the mean of the gradients, after clipping, at the same rate."""
    net, twin = translating().train(), translating().train()
    optimizer = GuardedOptimizer(net, replace(FAST, kind="muon", clip_norm=0.01), 16, "fp32")
    matrices = hidden_matrices(twin)
    muon = Muon(matrices, 0.95, 0.0, torch.float32)
    adam = build_adam([p for p in twin.parameters() if p not in matrices], FAST)
    tokens = batch().tgt[:, 1:].ne(PAD_ID).sum()
    for number in (1, 2, 3):
        for each in (net, twin):
            each.zero_grad()
            TranslationObjective()(each, batch()).nats.backward()
        optimizer.step(number, tokens)
        for parameter in twin.parameters():
            parameter.grad = None if parameter.grad is None else parameter.grad / tokens
        nn.utils.clip_grad_norm_(twin.parameters(), 0.01)
        adam.param_groups[0]["lr"] = rate = learning_rate(number, FAST, 16)
        adam.step()
        muon.step(rate, torch.ones(()), torch.tensor(True))
    for one, other in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_muon_is_told_all_that_it_must_know(precision: Precision, dtype: torch.dtype) -> None:
    config, processes = replace(FAST, kind="muon", momentum=0.8, weight_decay=0.1), Processes(1, 3)
    muon = GuardedOptimizer(translating(), config, 16, precision, processes).muon
    assert muon is not None
    assert (muon.momentum, muon.weight_decay, muon.dtype, muon.processes) == (0.8, 0.1, dtype, processes)


@pytest.mark.parametrize(("was", "now"), [("adam", "muon"), ("muon", "adam")])
def test_what_one_optimizer_began_another_does_not_go_on_with(was: OptimizerKind, now: OptimizerKind) -> None:
    before, after = (GuardedOptimizer(translating(), replace(FAST, kind=kind), 16) for kind in (was, now))
    with pytest.raises(ValueError, match=f"^kind={now}, but the checkpoint is of kind {was}: give --optimizer.kind"):
        after.load_state_dict(before.state_dict())


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["adam", "muon"])
def test_an_update_never_waits_for_the_device(kind: OptimizerKind) -> None:
    net = translating().cuda().train()
    optimizer = GuardedOptimizer(net, replace(FAST, kind=kind, ema_decay=0.9, weight_decay=0.1), 16, "fp16")
    there, tokens = batch().to(torch.device("cuda")), TOKENS.cuda()
    for number in (1, 2):
        optimizer.zero_grad()
        (TranslationObjective()(net, there).nats * optimizer.loss_scale).backward()
        torch.cuda.set_sync_debug_mode("error" if number == 2 else "default")
        try:
            optimizer.step(number, tokens)
        finally:
            torch.cuda.set_sync_debug_mode("default")
