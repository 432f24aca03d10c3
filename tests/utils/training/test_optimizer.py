import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from utils.training.plan import OptimizerConfig, build_adam


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 2), nn.LayerNorm(2))


def step(net: nn.Module, adam: torch.optim.Optimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in net.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    for group in adam.param_groups:
        group["lr"] = 0.1 / (1 + seed)
    adam.step()


def weights(net: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in net.parameters()]


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


def test_without_decay_it_is_torchs_adam_bit_for_bit() -> None:
    ours, theirs = network(), network()
    config = OptimizerConfig(betas=(0.8, 0.9), eps=1e-6)
    mine = build_adam(ours.parameters(), config)
    adam = torch.optim.Adam(theirs.parameters(), betas=(0.8, 0.9), eps=1e-6, fused=True)
    for seed in range(5):
        step(ours, mine, seed)
        step(theirs, adam, seed)
    assert all(torch.equal(a, b) for a, b in zip(weights(ours), weights(theirs), strict=True))


def test_decay_shrinks_matrices_by_its_share_of_the_rate_and_nothing_else() -> None:
    """Loshchilov & Hutter 2019, algorithm 2: beside the gradient's step, not through it."""
    decayed, free = network(), network()
    adam, plain = (
        build_adam(decayed.parameters(), OptimizerConfig(weight_decay=0.25)),
        build_adam(free.parameters(), OptimizerConfig()),
    )
    start = weights(decayed)
    step(decayed, adam, 1)  # at a rate of 0.05
    step(free, plain, 1)
    for before, with_decay, without in zip(start, weights(decayed), weights(free), strict=True):
        shrunk = 0.05 * 0.25 * before if before.dim() > 1 else torch.zeros_like(before)
        torch.testing.assert_close(with_decay, without - shrunk, rtol=0, atol=1e-6)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adam_has_every_parameter_once(weight_decay: float) -> None:
    tied = nn.Linear(3, 2)
    net = network().append(tied)
    tied.weight = net[1].weight  # type: ignore[assignment]
    held = [
        p
        for group in build_adam(net.parameters(), OptimizerConfig(weight_decay=weight_decay)).param_groups
        for p in group["params"]
    ]
    assert len(held) == len(list(net.parameters()))
    assert {id(p) for p in held} == {id(p) for p in net.parameters()}


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_a_step_with_a_gradient_that_is_not_finite_moves_nothing(weight_decay: float) -> None:
    """What the kernel is told in `found_inf`: weights, means and the count of steps stay, weight decay rests."""
    net = network()
    adam = build_adam(net.parameters(), OptimizerConfig(weight_decay=weight_decay))
    step(net, adam, 0)
    before = weights(net), [value.clone() for state in adam.state.values() for value in state.values()]
    adam.found_inf = torch.ones(())  # type: ignore[attr-defined]
    step(net, adam, 1)
    after = weights(net), [value for state in adam.state.values() for value in state.values()]
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    adam.found_inf = torch.zeros(())  # type: ignore[attr-defined]
    step(net, adam, 1)
    assert all(not torch.equal(a, b) for a, b in zip(weights(net), before[0], strict=True))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"peak_lr": 0.0}, "peak_lr=0.0: give a number above 0"),
        ({"peak_lr": math.nan}, "peak_lr=nan: give a number above 0"),
        ({"peak_lr": math.inf}, "peak_lr=inf: give a number above 0"),
        ({"noam_factor": -1.0}, "noam_factor=-1.0: give a number above 0"),
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


@pytest.mark.parametrize(
    ("max_steps", "message"),
    [
        (
            None,
            "schedule=cosine needs the length of the training in updates: "
            "give training.max_steps, or optimizer.decay_steps",
        ),
        (20, "warmup_steps=20 leaves none of max_steps=20 for schedule=cosine: give a shorter warm-up"),
    ],
)
def test_a_cosine_without_an_end_is_refused(max_steps: int | None, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the whole message is compared)
        OptimizerConfig(schedule="cosine", warmup_steps=20).ending_at(max_steps)
    assert str(caught.value) == message


def test_the_ends_of_what_can_be_given_are_taken() -> None:
    config = OptimizerConfig(warmup_steps=0, betas=(0.0, 0.0), clip_norm=None, ema_decay=0.0, weight_decay=0.0)
    assert config.clip_norm is None
    OptimizerConfig(schedule="cosine", decay_steps=1, peak_lr=0.1, final_lr=0.1)
