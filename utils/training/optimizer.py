"""Adam (Kingma & Ba 2015) with decoupled weight decay (Loshchilov & Hutter 2019), and the optimizer settings."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import nn

OptimizerKind = Literal["adam", "muon"]


@dataclass(frozen=True)
class OptimizerConfig:
    """How the weights are updated; `utils.training.schedule` has the learning rate of each step.

    Args:
        kind: adam, for all weights; or muon, for the matrices of hidden layers (each update then learns more and takes
            longer), with adam for embeddings, output, biases and norms at the same learning rate.
        schedule: course of the learning rate after the linear warm-up: inverse_sqrt, falling with the inverse square
            root of the step; noam, the same by the formula of Vaswani et al. (its peak follows from d_model and
            warmup_steps); cosine, half a cosine down to final_lr; trapezoid, staying at the peak and falling to
            final_lr over the last updates, of which a training without an end has none (see `train.py --branch`);
            constant, staying at the peak.
        peak_lr: learning rate at the end of the warm-up (not used by noam).
        warmup_steps: updates of linear warm-up; 0: start at the peak.
        noam_factor: factor by which the learning rate of the paper is multiplied (noam only).
        decay_steps: updates over which the rate falls to final_lr. cosine: from the end of the warm-up; null: until
            training.max_steps. trapezoid: the last ones before training.max_steps; null: a fifth of them.
        decay_from: update after which a trapezoid falls; null: decay_steps before training.max_steps.
        final_lr: learning rate at the end (cosine, trapezoid).
        betas: decay rates of the running means of the gradient and the squared gradient (adam).
        eps: added to the denominator of each step (adam).
        momentum: decay rate of the running mean of the gradient (muon).
        weight_decay: each update shrinks each matrix by this share times the learning rate; biases and norms are not
            decayed.
        clip_norm: maximum gradient norm over all parameters; null: no clipping.
        ema_decay: validate and translate with a moving average of the weights, which keeps this share at each update,
            such as 0.999; null: with the weights themselves.
    """

    kind: OptimizerKind = "adam"
    schedule: Literal["inverse_sqrt", "noam", "cosine", "trapezoid", "constant"] = "inverse_sqrt"
    peak_lr: float = 7e-4
    warmup_steps: int = 4000
    noam_factor: float = 1.0
    decay_steps: int | None = None
    decay_from: int | None = None
    final_lr: float = 0.0
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-9
    momentum: float = 0.95
    weight_decay: float = 0.0
    clip_norm: float | None = 1.0
    ema_decay: float | None = None

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        positive = ("peak_lr", "noam_factor", "eps", *(["clip_norm"] if self.clip_norm is not None else []))
        for name in positive:
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)}: give a number above 0")
        for name in ("warmup_steps", "final_lr", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)}: give 0 or more")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas={list(self.betas)}: give two numbers from 0 to below 1, such as [0.9, 0.98]")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum={self.momentum}: give at least 0 and below 1, such as 0.95")
        if self.ema_decay is not None and not 0 <= self.ema_decay < 1:
            raise ValueError(
                f"ema_decay={self.ema_decay}: give at least 0 and below 1, such as 0.999, or null for none"
            )
        if self.schedule in ("cosine", "trapezoid"):
            if self.decay_steps is not None and self.decay_steps < 1:
                raise ValueError(
                    f"schedule={self.schedule} with decay_steps={self.decay_steps}: give the number of updates over "
                    "which the learning rate falls, or null"
                )
            if self.final_lr > self.peak_lr:
                raise ValueError(f"final_lr={self.final_lr} is above peak_lr={self.peak_lr}: give at most that")

    def ending_at(self, max_steps: int | None) -> Self:
        """Return the settings with the place of the decay filled in, so that it ends with the training.

        Args:
            max_steps: number of updates of the training, if known.

        Raises:
            ValueError: when a cosine needs max_steps and it is unknown, or the warm-up takes all of them.
        """
        if self.schedule == "trapezoid" and max_steps is not None and self.decay_from is None:
            decay_steps = self.decay_steps or max(1, max_steps // 5)
            return replace(self, decay_steps=decay_steps, decay_from=max(0, max_steps - decay_steps))
        if self.schedule != "cosine" or self.decay_steps is not None:
            return self
        if max_steps is None:
            raise ValueError(
                "schedule=cosine needs the length of the training in updates: "
                "give training.max_steps, or optimizer.decay_steps"
            )
        if max_steps <= self.warmup_steps:
            raise ValueError(
                f"warmup_steps={self.warmup_steps} leaves none of max_steps={max_steps} for schedule=cosine: "
                "give a shorter warm-up"
            )
        return replace(self, decay_steps=max_steps - self.warmup_steps)


def build_adam(parameters: Iterable[nn.Parameter], config: OptimizerConfig) -> torch.optim.Adam:
    """Build Adam for some parameters, in one fused kernel; the learning rate of its groups is set before each step.

    Without weight decay there is a single group; with it, matrices are the first group and the rest the second.
    """
    parameters = list(parameters)
    groups = [{"params": parameters, "weight_decay": 0.0}]
    if config.weight_decay:
        groups = [
            {"params": [p for p in parameters if p.dim() > 1], "weight_decay": config.weight_decay},
            {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
        ]
    return torch.optim.AdamW(groups, lr=config.peak_lr, betas=config.betas, eps=config.eps, fused=True)
