"""Sums over the updates between two reports, read from the device only when a report is due."""

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from utils.dataset.training_data import AnyBatch, filling
from utils.training.guarded_optimizer import GuardedOptimizer
from utils.training.observer import StepReport
from utils.training.progress import Progress


class Meter:
    """Counts updates into a Progress and collects the figures of a report.

    Args:
        progress: advanced by each update.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._norm = torch.zeros(())
        self._clock = time.monotonic()
        self._clear()

    def _clear(self) -> None:
        self._nats = self._tokens = torch.zeros(())  # over the updates that were not skipped
        self._seconds = 0.0
        self._target_tokens = self._real = self._padded = 0

    def restart_clock(self) -> None:
        """Discard the time since the last update: it was spent on something else."""
        self._clock = time.monotonic()

    def count(
        self, target_tokens: int, micro_batches: Sequence[AnyBatch], nats: Tensor, tokens: Tensor, norm: Tensor
    ) -> None:
        """Count an update.

        Args:
            target_tokens: number of target tokens in the update, over all processes.
            micro_batches: the batches of this process, whose padding is counted.
            nats: loss summed over the update.
            tokens: number of tokens that it was summed over.
            norm: of the gradient; if it is not finite, the update was skipped.
        """
        now = time.monotonic()
        self._seconds += now - self._clock
        self._progress.seconds += now - self._clock
        self._clock = now
        self._progress.step += 1
        self._progress.position += 1
        self._progress.target_tokens += target_tokens
        self._target_tokens += target_tokens
        self._norm = norm
        made = norm.isfinite()
        self._nats = self._nats.to(nats.device) + torch.where(made, nats, 0.0)
        self._tokens = self._tokens.to(nats.device) + torch.where(made, tokens, 0.0)
        for batch in micro_batches:
            real, padded = filling(batch)
            self._real, self._padded = self._real + real, self._padded + padded

    def report(self, optimizer: GuardedOptimizer) -> StepReport:
        """Return the figures since the last report, and start over."""
        report = StepReport(
            loss=(self._nats / self._tokens).item(),
            gradient_norm=self._norm.item(),
            learning_rate=optimizer.learning_rate,
            target_tokens=self._progress.target_tokens,
            tokens_per_second=self._target_tokens / max(self._seconds, 1e-9),
            padding=1 - self._real / max(self._padded, 1),
            skipped=int(optimizer.skipped),
        )
        self._clear()
        return report

    def state_dict(self) -> dict[str, Any]:
        """Return the sums over the updates since the last report."""
        names = ("nats", "tokens", "seconds", "target_tokens", "real", "padded")
        return {name: getattr(self, f"_{name}") for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a `state_dict`."""
        for name, value in state.items():
            setattr(self, f"_{name}", value)
