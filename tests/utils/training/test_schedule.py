"""The learning rate against the papers' formulas and torch's schedulers, which walk it step by step."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import get_args, get_type_hints

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, SequentialLR

from utils.training.plan import OptimizerConfig, learning_rate

WARMUPS = [0, 1, 7]
D_MODEL = 512
STEPS = range(1, 41)

INVERSE_SQRT = OptimizerConfig(peak_lr=0.01, warmup_steps=20)
NOAM = OptimizerConfig(schedule="noam", noam_factor=2.0, warmup_steps=20)
CONSTANT = OptimizerConfig(schedule="constant", peak_lr=0.01, warmup_steps=20)
COSINE = OptimizerConfig(schedule="cosine", peak_lr=0.01, final_lr=0.001, warmup_steps=20, decay_steps=60)


def rates(config: OptimizerConfig, d_model: int = D_MODEL) -> list[float]:
    return [learning_rate(step, config, d_model) for step in STEPS]


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


def test_noam_is_the_equation_of_the_paper() -> None:
    """Vaswani et al. 2017, eq. 3."""
    config = OptimizerConfig(schedule="noam", warmup_steps=4000)
    for step in (1, 2, 3999, 4000, 4001, 100_000):
        assert learning_rate(step, config, D_MODEL) == pytest.approx(
            D_MODEL**-0.5 * min(step**-0.5, step * 4000**-1.5), rel=1e-12
        )


def test_inverse_sqrt_is_noam_with_its_peak_set() -> None:
    peak = 2.0 * (D_MODEL * 20) ** -0.5
    assert rates(OptimizerConfig(peak_lr=peak, warmup_steps=20)) == pytest.approx(rates(NOAM), rel=1e-12)


def test_noam_goes_by_the_width_and_the_factor_and_the_others_do_not() -> None:
    assert rates(NOAM, 4 * D_MODEL) == pytest.approx([rate / 2 for rate in rates(NOAM)])
    assert rates(OptimizerConfig(schedule="noam", warmup_steps=20)) == pytest.approx([r / 2 for r in rates(NOAM)])
    for config in (INVERSE_SQRT, COSINE, CONSTANT):
        assert rates(config, 4 * D_MODEL) == rates(config)


@pytest.mark.parametrize("warmup", WARMUPS)
def test_noam_is_a_lambda_of_torch(warmup: int) -> None:
    w = max(1, warmup)

    def factor(updates: int) -> float:
        return D_MODEL**-0.5 * min((updates + 1) ** -0.5, (updates + 1) * w**-1.5)

    config = OptimizerConfig(schedule="noam", warmup_steps=warmup)
    assert rates(config) == pytest.approx(walked(LambdaLR(torch_adam(1.0), factor)), rel=1e-9)


@pytest.mark.parametrize("warmup", WARMUPS)
def test_cosine_is_a_warm_up_and_an_annealing_of_torch(warmup: int) -> None:
    w, decay, peak, final = max(1, warmup), 40, 0.01, 0.002  # torch's would rise again after the decay
    adam = torch_adam(peak)
    rise = LinearLR(adam, start_factor=1 / w, total_iters=w - 1) if w > 1 else LambdaLR(adam, lambda _: 1.0)
    theirs = SequentialLR(adam, [rise, CosineAnnealingLR(adam, decay, eta_min=final)], milestones=[w - 1])
    config = OptimizerConfig(schedule="cosine", peak_lr=peak, final_lr=final, warmup_steps=warmup, decay_steps=decay)
    assert rates(config) == pytest.approx(walked(theirs), rel=1e-9)


def test_a_cosine_is_half_way_in_the_middle_and_stays_at_the_end() -> None:
    assert learning_rate(20 + 30, COSINE, D_MODEL) == pytest.approx((0.01 + 0.001) / 2)
    assert learning_rate(20 + 60, COSINE, D_MODEL) == learning_rate(10**6, COSINE, D_MODEL) == pytest.approx(0.001)
    assert learning_rate(20 + 59, COSINE, D_MODEL) > 0.001


def test_a_cosine_of_unknown_length_has_no_rate() -> None:
    with pytest.raises(ValueError, match="without decay_steps"):
        learning_rate(21, replace(COSINE, decay_steps=None), D_MODEL)


@pytest.mark.parametrize("warmup", WARMUPS)
def test_constant_is_a_warm_up_and_a_constant_of_torch(warmup: int) -> None:
    w, adam = max(1, warmup), torch_adam(0.01)
    rise = LinearLR(adam, start_factor=1 / w, total_iters=w - 1) if w > 1 else LambdaLR(adam, lambda _: 1.0)
    config = OptimizerConfig(schedule="constant", peak_lr=0.01, warmup_steps=warmup)
    assert rates(config) == pytest.approx(walked(rise), rel=1e-9)
    assert learning_rate(10**9, config, D_MODEL) == 0.01


def test_a_trapezoid_is_constant_until_its_decay_which_ends_with_the_training() -> None:
    """Hägele et al. 2024, eq. 2, 1 - sqrt."""
    endless = OptimizerConfig(schedule="trapezoid", peak_lr=0.01, warmup_steps=20)
    assert rates(endless.ending_at(None)) == rates(CONSTANT)
    ended = replace(endless, final_lr=0.001).ending_at(100)
    assert (ended.decay_from, ended.decay_steps) == (80, 20)  # a fifth, unless told
    assert learning_rate(80, ended, D_MODEL) == pytest.approx(0.01)
    assert learning_rate(85, ended, D_MODEL) == pytest.approx(0.001 + 0.009 * (1 - 0.5))
    assert learning_rate(100, ended, D_MODEL) == learning_rate(10**6, ended, D_MODEL) == pytest.approx(0.001)
    assert replace(endless, decay_steps=30).ending_at(100).decay_from == 70


@pytest.mark.parametrize("config", [INVERSE_SQRT, NOAM, COSINE, CONSTANT], ids=lambda config: config.schedule)
def test_the_peak_is_at_the_end_of_the_warm_up_and_nothing_jumps(config: OptimizerConfig) -> None:
    found = rates(config)
    assert max(found) == found[19]
    assert found[19] == pytest.approx(2.0 * (D_MODEL * 20) ** -0.5 if config is NOAM else 0.01)
    assert found[:20] == pytest.approx([found[19] * step / 20 for step in range(1, 21)])
    assert all(abs(b - a) < found[19] / 19 for a, b in pairwise(found))


@pytest.mark.parametrize("schedule", get_args(get_type_hints(OptimizerConfig)["schedule"]))
def test_no_warm_up_begins_at_the_peak(schedule: str) -> None:
    config = OptimizerConfig(schedule=schedule, peak_lr=0.01, warmup_steps=0, decay_steps=8)  # type: ignore[arg-type]
    found = rates(config)
    assert found[0] == pytest.approx(D_MODEL**-0.5 if schedule == "noam" else 0.01)
    assert found == sorted(found, reverse=True)


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
        noam_factor=peak,
    )
    highest = peak * (D_MODEL * max(1, warmup)) ** -0.5 if schedule == "noam" else peak
    rate = learning_rate(step, config, D_MODEL)
    assert 0 <= rate <= highest * (1 + 1e-12)
    assert math.isfinite(rate)
    if step > warmup:
        assert learning_rate(step + 1, config, D_MODEL) <= rate * (1 + 1e-12)
