"""Observers are notified of what happens during training: terminal, logs, checkpoints, a picture, a trace."""

from typing import NamedTuple

from utils.training.progress import Progress
from utils.training.validation import Validation


class StepReport(NamedTuple):
    """Figures of the updates since the last report."""

    loss: float  # nats per target token, label smoothing included; NaN if no update was finite
    gradient_norm: float  # of the last update, before clipping
    learning_rate: float
    target_tokens: int
    tokens_per_second: float  # target tokens, since the last report
    padding: float  # share of the positions, source and target together
    skipped: int  # updates so far whose gradient was not finite


class Observer:
    """Base of the observers, which override what they want to know."""

    def on_update(self) -> None:
        """Handle an update."""

    def on_step(self, progress: Progress, report: StepReport) -> None:
        """Handle a reported update, before `on_update`."""

    def on_validation(self, progress: Progress, validation: Validation) -> None:
        """Handle a validation."""

    def close(self) -> None:
        """Handle the end of the training, interrupted or not."""
