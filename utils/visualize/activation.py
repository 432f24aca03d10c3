"""The activations of `layers.feed_forward`, and their derivatives."""

from pathlib import Path

import torch

from layers.feed_forward import ACTIVATION
from utils.visualize.sheet import sheet

_REACH = 4.0


def draw_activations(picture: Path) -> None:
    """Draw f(x) and f'(x) of each available activation."""
    with sheet(picture, (9, 3.8), columns=2) as (value, slope):
        for name, activation in ACTIVATION.items():
            x = torch.linspace(-_REACH, _REACH, 401, dtype=torch.float64, requires_grad=True)
            y = activation(x)
            (dy,) = torch.autograd.grad(y.sum(), x)
            value.plot(x.detach().numpy(), y.detach().numpy(), label=name)
            slope.plot(x.detach().numpy(), dy.numpy(), label=name)
        value.set(title="f(x)", xlabel="x", ylim=(-0.6, _REACH))
        slope.set(title="f′(x)", xlabel="x")
        for axes in (value, slope):
            axes.axhline(0, color="gray", lw=0.8)
            axes.grid(alpha=0.3)
            axes.legend(frameon=False)
