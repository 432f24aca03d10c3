"""From summed gradients to weights: against the same by hand, with torch's own Adam and clipping."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from utils.training import guarded_adam as module
from utils.training.guarded_adam import GuardedAdam
from utils.training.optimizer import OptimizerConfig
from utils.training.schedule import learning_rate

FAST = OptimizerConfig(peak_lr=0.1, warmup_steps=2, eps=1e-6)
TOKENS = torch.tensor(5.0)


def network() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def inputs(n: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(5, 4, generator=generator) for _ in range(n)]


def go(net: nn.Linear, adam: GuardedAdam, batches: list[Tensor], first: int = 1) -> list[Tensor]:
    """Updates for a summed loss, and the norms that they tell."""
    norms = []
    for number, x in enumerate(batches, first):
        adam.zero_grad()
        (net(x).square().sum() * adam.loss_scale).backward()
        norms.append(adam.step(number, TOKENS))
    return norms


@pytest.mark.parametrize("clip_norm", [None, 0.3, 100.0])
def test_it_is_adam_on_the_clipped_mean(clip_norm: float | None) -> None:
    config = replace(FAST, clip_norm=clip_norm)
    net, twin = network(), network()
    norms = go(net, GuardedAdam(net, config, 4), inputs(4))
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
    scaled, plain = GuardedAdam(net, FAST, 4, half=True), GuardedAdam(twin, FAST, 4)
    assert scaled.loss_scale > plain.loss_scale == 1
    torch.testing.assert_close(go(net, scaled, inputs(4)), go(twin, plain, inputs(4)))
    torch.testing.assert_close(net.weight, twin.weight)


def test_the_loss_scale_falls_when_gradients_overflow_and_rises_when_they_have_not_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_GROW_AFTER", 3)
    net = network()
    adam = GuardedAdam(net, FAST, 4, half=True)
    begin = adam.loss_scale.item()
    too_large = torch.full((5, 4), 1e30)
    scales = []
    for number, x in enumerate([too_large, too_large, *inputs(2), too_large, *inputs(7)], 1):
        go(net, adam, [x], number)
        scales.append(adam.loss_scale.item() / begin)
    assert scales == [1 / 2, 1 / 4, 1 / 4, 1 / 4, 1 / 8, 1 / 8, 1 / 8, 1 / 4, 1 / 4, 1 / 4, 1 / 2, 1 / 2]
    assert int(adam.skipped) == 3


def test_without_half_precision_the_loss_is_never_scaled() -> None:
    net = network()
    adam = GuardedAdam(net, FAST, 4)
    go(net, adam, [torch.full((5, 4), 1e30)])
    assert adam.loss_scale == 1


def test_a_state_brings_everything_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GROW_AFTER", 3)
    config = replace(FAST, ema_decay=0.9)
    batches = [torch.full((5, 4), 1e30), *inputs(5), torch.full((5, 4), 1e30), *inputs(2)]
    net, twin = network(), network()
    go(net, GuardedAdam(net, config, 4, half=True), batches)
    first = GuardedAdam(twin, config, 4, half=True)
    go(twin, first, batches[:3])
    third = network()
    third.load_state_dict(twin.state_dict())
    second = GuardedAdam(third, config, 4, half=True)
    second.load_state_dict(first.state_dict())
    go(third, second, batches[3:], 4)
    assert third.weight.equal(net.weight)
    straight = GuardedAdam(net, config, 4, half=True)
    assert int(second.skipped) == 2
    assert second.loss_scale.item() != straight.loss_scale.item()


def test_who_has_no_gradient_lends_a_zero() -> None:
    net = network()
    adam = GuardedAdam(net, FAST, 4)
    net.weight.grad = torch.ones_like(net.weight)
    adam.missing_gradients()
    assert net.weight.grad.eq(1).all()
    assert net.bias.grad is not None
    assert not net.bias.grad.any()
    assert len(adam.gradients()) == 2


def test_without_an_average_the_network_is_used_as_it_is() -> None:
    net = network()
    adam = GuardedAdam(net, FAST, 4)
    before = net.weight.data_ptr()
    with adam.averaged():
        assert net.weight.data_ptr() == before


@pytest.mark.gpu
def test_an_update_never_waits_for_the_device() -> None:
    net = network().cuda()
    adam = GuardedAdam(net, replace(FAST, ema_decay=0.9), 4, half=True)
    x, tokens = torch.randn(5, 4, device="cuda"), TOKENS.cuda()
    for number in (1, 2):
        adam.zero_grad()
        (net(x).square().sum() * adam.loss_scale).backward()
        torch.cuda.set_sync_debug_mode("error" if number == 2 else "default")
        try:
            adam.step(number, tokens)
        finally:
            torch.cuda.set_sync_debug_mode("default")
