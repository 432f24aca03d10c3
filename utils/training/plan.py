"""How long a training goes and how often it is looked at."""

from dataclasses import dataclass
from typing import Literal

from utils.device import Device, Precision

Criterion = Literal["bleu", "chrf", "loss", "accuracy"]  # that says which weights are the best


@dataclass(frozen=True)
class PlanConfig:
    """The course of a training; it ends at whichever bound comes first.

    Args:
        max_steps: updates.
        max_epochs: passes over the training text.
        max_minutes: wall-clock time of training and validation, earlier parts of a resumed run counted in.
        patience: validations in a row that may bring no better score; null: as many as there are.
        select_by: the dev score that says which weights are the best.
        validate_every: updates between two validations, each of which also saves the run.
        report_every: updates between two lines of the log and moves of the progress bar.
        max_skipped: after so many updates in a row whose gradient was infinite or no number, the next report ends the
            training.
        precision: of matrix products; auto takes bf16 where the machine is fast at it.
        compile: have torch.compile make one kernel of many operations; takes minutes at the start.
        device: cpu, cuda, or whichever is there.
        seed: of weights, dropout, sub-words and the order of the batches.
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
        """Refuse what no training can follow."""
        for name in ("validate_every", "report_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: give at least 1 update")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"patience={self.patience}: give at least 1 validation, or null for no end")
        for name in ("max_steps", "max_epochs", "max_minutes"):
            bound = getattr(self, name)
            if bound is not None and not bound >= 0:  # nor what is no number
                raise ValueError(f"{name}={bound}: give 0 or more, or null for no such bound")
        if self.max_skipped < 1:
            raise ValueError(f"max_skipped={self.max_skipped}: give at least 1 update")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}: give 0 or more")

    def require_score(self, *known: str) -> None:
        """Refuse to choose weights by what a task does not score.

        Args:
            known: the scores that it has beside the loss.

        Raises:
            ValueError: another one is asked for.
        """
        if self.select_by not in ("loss", *known):
            raise ValueError(f"select_by={self.select_by} is not scored here: give {', '.join((*known, 'loss'))}")


@dataclass(frozen=True)
class TrainingConfig(PlanConfig):
    """The same of a translator, whose translations are looked at.

    Args:
        select_by: the dev score that says which weights are the best.
        bleu_sentences: dev sentences that a validation translates (the first ones; null: all); the loss is
            always that of all.
        n_samples: translations that a validation shows.
        label_smoothing: ε, the share of the probability that training spreads over the whole vocabulary.
        r_drop: α of R-Drop, which takes two passes a batch; 0: none.
    """

    select_by: Criterion = "bleu"
    bleu_sentences: int | None = None
    n_samples: int = 3
    label_smoothing: float = 0.1
    r_drop: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what no training can follow."""
        super().__post_init__()
        if self.bleu_sentences is not None and self.bleu_sentences < 1:
            raise ValueError(f"bleu_sentences={self.bleu_sentences}: give at least 1, or null for all")
        if self.n_samples < 0:
            raise ValueError(f"n_samples={self.n_samples}: give 0 or more")


@dataclass
class Progress:
    """Where a training stands; all that a resumed one must know besides tensors."""

    step: int = 0  # updates made
    epoch: int = 0  # from 0
    position: int = 0  # updates made in this epoch
    target_tokens: int = 0  # learned from so far
    seconds: float = 0.0  # of training and validation
    best_step: int = 0
    best_score: float = float("-inf")
    stale: int = 0  # validations since the best one

    def note(self, score: float) -> None:
        """After a validation."""
        if score > self.best_score:
            self.best_score, self.best_step, self.stale = score, self.step, 0
        else:
            self.stale += 1

    def ended(self, plan: PlanConfig) -> bool:
        """Whether a bound is reached."""
        return (
            (plan.max_steps is not None and self.step >= plan.max_steps)
            or (plan.max_epochs is not None and self.epoch >= plan.max_epochs)
            or (plan.max_minutes is not None and self.seconds >= 60 * plan.max_minutes)
            or (plan.patience is not None and self.stale >= plan.patience)
        )
