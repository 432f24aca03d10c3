"""Adam (Kingma & Ba 2015) and how fast it may go at each step."""

from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class OptimizerConfig:
    """Adam with a warm-up.

    Args:
        peak_lr: learning rate at the end of the warm-up.
        warmup_steps: updates of linear rise; from there the rate falls with the inverse square root of the step.
        betas: decay of the running means of gradient and squared gradient.
        eps: added to the denominator of each step.
        clip_norm: longest gradient, as a norm over all parameters.
    """

    peak_lr: float = 7e-4
    warmup_steps: int = 4000
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-9
    clip_norm: float = 1.0


def inverse_sqrt(step: int, config: OptimizerConfig) -> float:
    """peak · min(step / warmup, √(warmup / step)), the schedule of Vaswani et al. 2017, eq. 3, by its peak.

    Args:
        step: of the update that is about to be made, from 1.
        config: peak and warm-up.
    """
    warmup = max(1, config.warmup_steps)
    return config.peak_lr * min(step / warmup, (warmup / step) ** 0.5)


def build_adam(net: nn.Module, config: OptimizerConfig) -> torch.optim.Adam:
    """Adam over all parameters in one fused kernel; its rate is set before each step."""
    return torch.optim.Adam(net.parameters(), lr=config.peak_lr, betas=config.betas, eps=config.eps, fused=True)
