"""Who is told what happens while a network trains: the terminal, logs, whoever keeps weights, a picture."""

from typing import NamedTuple, Protocol

from utils.training.plan import Progress
from utils.training.validation import Validation


class StepReport(NamedTuple):
    """The updates since the last report."""

    loss: float  # nats per target token, label smoothing included; NaN where none was finite
    gradient_norm: float  # of the last one, before clipping
    learning_rate: float
    target_tokens: int
    tokens_per_second: float  # target tokens, since the last report
    padding: float  # share of both sides' positions
    skipped: int  # updates left out so far, for a gradient that was not finite


class Observer(Protocol):
    """Is told of each update that is reported, and of each validation."""

    def on_step(self, progress: Progress, report: StepReport) -> None:
        """After an update."""

    def on_validation(self, progress: Progress, validation: Validation) -> None:
        """After a validation."""

    def close(self) -> None:
        """At the end, also that of an interrupted training."""
