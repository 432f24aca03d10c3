import pytest
import torch
from torch import nn

from utils.training.optimizer import OptimizerConfig, build_adam, inverse_sqrt


def test_the_rate_is_that_of_the_paper() -> None:
    """Vaswani et al. 2017, eq. 3: d^-0.5 · min(step^-0.5, step · warmup^-1.5)."""
    d_model, warmup = 512, 4000
    config = OptimizerConfig(peak_lr=d_model**-0.5 * warmup**-0.5, warmup_steps=warmup)
    for step in (1, 2, 3999, 4000, 4001, 100_000):
        expected = d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert inverse_sqrt(step, config) == pytest.approx(expected)


def test_the_peak_is_at_the_end_of_the_warm_up() -> None:
    config = OptimizerConfig(peak_lr=0.01, warmup_steps=20)
    rates = [inverse_sqrt(step, config) for step in range(1, 100)]
    assert max(rates) == rates[19] == pytest.approx(0.01)
    assert rates[0] == pytest.approx(0.01 / 20)
    assert rates[79] == pytest.approx(0.01 / 2)


def test_no_warm_up_begins_at_the_peak() -> None:
    config = OptimizerConfig(peak_lr=0.01, warmup_steps=0)
    assert [inverse_sqrt(step, config) for step in (1, 4)] == pytest.approx([0.01, 0.005])


def test_adam_moves_as_its_settings_say() -> None:
    """Kingma & Ba 2015, algorithm 1, two steps by hand."""
    config = OptimizerConfig(betas=(0.8, 0.9), eps=0.5)
    net = nn.Linear(1, 1, bias=False)
    adam = build_adam(net, config)
    adam.param_groups[0]["lr"] = 0.1
    expected, mean, square = net.weight.item(), 0.0, 0.0
    for t, gradient in enumerate((2.0, -0.5), start=1):
        net.weight.grad = torch.full((1, 1), gradient)
        adam.step()
        mean, square = 0.8 * mean + 0.2 * gradient, 0.9 * square + 0.1 * gradient**2
        expected -= 0.1 * (mean / (1 - 0.8**t)) / ((square / (1 - 0.9**t)) ** 0.5 + 0.5)
        assert net.weight.item() == pytest.approx(expected, rel=1e-5)


def test_adam_has_every_parameter_once_and_no_decay() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    (group,) = build_adam(net, OptimizerConfig()).param_groups
    assert [id(parameter) for parameter in group["params"]] == [id(parameter) for parameter in net.parameters()]
    assert group["weight_decay"] == 0
