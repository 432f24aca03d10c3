"""Adam (Kingma & Ba 2015) with decoupled weight decay (Loshchilov & Hutter 2019), and all that says how to step."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import nn

OptimizerKind = Literal["adam", "muon"]


@dataclass(frozen=True)
class OptimizerConfig:
    """How weights move; `utils.training.schedule` says what the learning rate is at each step.

    Args:
        kind: adam, for all weights; muon, for the matrices of hidden layers, which then learn more from an update and
            take longer for it, with adam for embeddings, output, biases and norms, at the same learning rate.
        schedule: course of the learning rate after its linear rise: falling with the inverse square root of the
            step, the same by Vaswani et al.'s formula (its peak follows from d_model and warmup_steps), half a
            cosine down to final_lr, or constant, which stays at the peak.
        peak_lr: learning rate at the end of the warm-up (not noam).
        warmup_steps: updates of linear rise; 0 begins at the peak.
        noam_factor: the learning rate is as many times that of the paper (noam only).
        decay_steps: updates from the end of the warm-up to final_lr (cosine only); null: as many as
            training.max_steps leaves.
        final_lr: learning rate at the end (cosine only).
        betas: decay of the running means of gradient and squared gradient (adam).
        eps: added to the denominator of each step (adam).
        momentum: decay of the running mean of the gradient (muon).
        weight_decay: an update shrinks each matrix by this share times the learning rate; biases and norms are left
            alone.
        clip_norm: longest gradient, as a norm over all parameters; null clips none.
        ema_decay: what validates and translates is a moving average of the weights, of which each update keeps this
            share, such as 0.999; null: the weights themselves.
    """

    kind: OptimizerKind = "adam"
    schedule: Literal["inverse_sqrt", "noam", "cosine", "constant"] = "inverse_sqrt"
    peak_lr: float = 7e-4
    warmup_steps: int = 4000
    noam_factor: float = 1.0
    decay_steps: int | None = None
    final_lr: float = 0.0
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-9
    momentum: float = 0.95
    weight_decay: float = 0.0
    clip_norm: float | None = 1.0
    ema_decay: float | None = None

    def __post_init__(self) -> None:
        """Refuse what no training can follow."""
        positive = ("peak_lr", "noam_factor", "eps", *(["clip_norm"] if self.clip_norm is not None else []))
        for name in positive:
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)}: give a number above 0")
        for name in ("warmup_steps", "final_lr", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)}: give 0 or more")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas={list(self.betas)}: give two of at least 0 and below 1, such as [0.9, 0.98]")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum={self.momentum}: give at least 0 and below 1, such as 0.95")
        if self.ema_decay is not None and not 0 <= self.ema_decay < 1:
            raise ValueError(
                f"ema_decay={self.ema_decay}: give at least 0 and below 1, such as 0.999, or null for none"
            )
        if self.schedule == "cosine":
            if self.decay_steps is not None and self.decay_steps < 1:
                raise ValueError(
                    f"schedule=cosine with decay_steps={self.decay_steps}: give the updates from the warm-up's end to "
                    "that of the training, or null"
                )
            if self.final_lr > self.peak_lr:
                raise ValueError(f"final_lr={self.final_lr} is above peak_lr={self.peak_lr}: give at most as much")

    def ending_at(self, max_steps: int | None) -> Self:
        """The same with a cosine that has come down when the training ends, where nothing says when it has.

        Args:
            max_steps: updates of the training, where that is known.

        Raises:
            ValueError: it is not, or the warm-up takes them all.
        """
        if self.schedule != "cosine" or self.decay_steps is not None:
            return self
        if max_steps is None:
            raise ValueError(
                "schedule=cosine comes down to the end of a training whose length in updates is known: "
                "give training.max_steps, or optimizer.decay_steps"
            )
        if max_steps <= self.warmup_steps:
            raise ValueError(
                f"warmup_steps={self.warmup_steps} leave none of max_steps={max_steps} for schedule=cosine: "
                "give a shorter warm-up"
            )
        return replace(self, decay_steps=max_steps - self.warmup_steps)


def build_adam(parameters: Iterable[nn.Parameter], config: OptimizerConfig) -> torch.optim.Adam:
    """Adam over some parameters in one fused kernel; the rate of its groups is set before each step.

    Without weight decay it is Adam and a single group; with it, matrices are the first group and the rest the second.
    """
    parameters = list(parameters)
    groups = [{"params": parameters, "weight_decay": 0.0}]
    if config.weight_decay:
        groups = [
            {"params": [p for p in parameters if p.dim() > 1], "weight_decay": config.weight_decay},
            {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
        ]
    return torch.optim.AdamW(groups, lr=config.peak_lr, betas=config.betas, eps=config.eps, fused=True)
