"""What happened between two reports: sums that are read from the device only when a report is due."""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from const.token import PAD_ID
from utils.dataset.batch import Batch
from utils.training.observer import StepReport
from utils.training.plan import Progress


class Meter:
    """Counts updates into a Progress and gathers what a report says.

    Args:
        progress: is moved on by each update.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._norm = torch.zeros(())
        self._clock = time.monotonic()
        self._clear()

    def _clear(self) -> None:
        self._nats: list[Tensor] = []
        self._tokens: list[Tensor] = []
        self._seconds = 0.0
        self._real = self._padded = 0

    def restart_clock(self) -> None:
        """Forget the time since the last update: something else took it."""
        self._clock = time.monotonic()

    def count(self, micro_batches: Sequence[Batch], nats: Tensor, tokens: Tensor, norm: Tensor) -> None:
        """After an update."""
        now = time.monotonic()
        self._seconds += now - self._clock
        self._progress.seconds += now - self._clock
        self._clock = now
        self._progress.step += 1
        self._progress.position += 1
        self._nats.append(nats)
        self._tokens.append(tokens)
        self._norm = norm
        for batch in micro_batches:
            self._progress.target_tokens += int((batch.tgt[:, 1:] != PAD_ID).sum())
            self._real += int((batch.src != PAD_ID).sum()) + int((batch.tgt[:, 1:] != PAD_ID).sum())
            self._padded += batch.src.numel() + batch.tgt[:, 1:].numel()

    def report(self, learning_rate: float) -> StepReport:
        """The mean since the last report."""
        nats, tokens = (float(sum(x.item() for x in sums)) for sums in (self._nats, self._tokens))
        report = StepReport(
            loss=nats / tokens,
            gradient_norm=self._norm.item(),
            learning_rate=learning_rate,
            target_tokens=self._progress.target_tokens,
            tokens_per_second=tokens / self._seconds,
            padding=1 - self._real / self._padded,
        )
        self._clear()
        return report
