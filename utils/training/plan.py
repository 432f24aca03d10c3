"""How long to train, and how often to validate and report."""

from dataclasses import dataclass
from typing import Literal

from utils.device import Device, Precision

Criterion = Literal["bleu", "chrf", "loss", "accuracy"]  # decides which weights are the best


@dataclass(frozen=True)
class TrainingConfig:
    """The course of a training, which ends at whichever limit is reached first.

    Args:
        max_steps: stop after this many updates; null: no limit.
        max_epochs: stop after this many passes over the training text; null: no limit.
        max_minutes: stop after this much wall-clock time of training and validation, including earlier parts of a
            resumed run; null: no limit.
        patience: stop after this many consecutive validations without a better score; null: never.
        select_by: dev score that decides which weights are the best.
        validate_every: updates between validations; each validation also saves the run.
        report_every: updates between lines of the log, and between steps of the progress bar.
        max_skipped: stop after this many consecutive updates with a non-finite gradient (checked at each report).
        precision: precision of matrix products; auto: bf16 where the machine is fast at it, else fp32.
        compile: fuse operations with torch.compile; takes minutes at the start.
        device: cpu or cuda; auto: cuda if available.
        seed: random seed of initial weights, dropout, sub-word sampling and the order of batches.
    """

    max_steps: int | None = None
    max_epochs: int | None = 20
    max_minutes: float | None = None
    patience: int | None = None
    select_by: Criterion = "loss"
    validate_every: int = 1000
    report_every: int = 10
    max_skipped: int = 20
    precision: Precision = "auto"
    compile: bool = False
    device: Device = "auto"
    seed: int = 1

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        for name in ("validate_every", "report_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: give at least 1 update")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"patience={self.patience}: give at least 1 validation, or null for no limit")
        for name in ("max_steps", "max_epochs", "max_minutes"):
            bound = getattr(self, name)
            if bound is not None and not bound > 0:  # written so that NaN is refused, too
                raise ValueError(f"{name}={bound}: give more than 0, or null for no limit")
        if self.max_skipped < 1:
            raise ValueError(f"max_skipped={self.max_skipped}: give at least 1 update")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}: give 0 or more")

    def require_score(self, *known: str) -> None:
        """Refuse to select weights by a score that the task does not have.

        Args:
            known: the task's scores besides the loss.

        Raises:
            ValueError: when select_by is another score.
        """
        if self.select_by not in ("loss", *known):
            raise ValueError(
                f"select_by={self.select_by} is not scored by this task: give {', '.join((*known, 'loss'))}"
            )


@dataclass(frozen=True)
class TranslationTrainingConfig(TrainingConfig):
    """The course of a translator's training, with the settings of its objective.

    Args:
        select_by: dev score that decides which weights are the best.
        bleu_sentences: number of dev sentences, from the first, to translate at each validation; null: all. The dev
            loss is always over all sentences.
        n_samples: number of translations to show at each validation.
        label_smoothing: ε, the share of the target probability that is spread over the whole vocabulary.
        r_drop: α of R-Drop, which takes two passes per batch; 0: off.
    """

    select_by: Criterion = "bleu"
    bleu_sentences: int | None = None
    n_samples: int = 3
    label_smoothing: float = 0.1
    r_drop: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        super().__post_init__()
        if self.bleu_sentences is not None and self.bleu_sentences < 1:
            raise ValueError(f"bleu_sentences={self.bleu_sentences}: give at least 1, or null for all")
        if self.n_samples < 0:
            raise ValueError(f"n_samples={self.n_samples}: give 0 or more")
