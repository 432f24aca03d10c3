"""How long a training goes and how often it is looked at."""

from dataclasses import dataclass

from utils.device import Device, Precision


@dataclass(frozen=True)
class TrainingConfig:
    """The course of a training; it ends at whichever bound comes first.

    Args:
        max_steps: updates.
        max_epochs: passes over the training text.
        max_minutes: wall-clock time of training and validation, earlier parts of a resumed run counted in.
        validate_every: updates between two validations, each of which also saves the run.
        report_every: updates between two lines of the log and moves of the progress bar.
        bleu_sentences: dev sentences that a validation translates (the first ones; null: all); the loss is
            always that of all.
        n_samples: translations that a validation shows.
        label_smoothing: ε, the share of the probability that training spreads over the whole vocabulary.
        precision: of matrix products; auto takes bf16 where the machine is fast at it.
        device: cpu, cuda, or whichever is there.
        seed: of weights, dropout and the order of the batches.
    """

    max_steps: int | None = None
    max_epochs: int | None = 20
    max_minutes: float | None = None
    validate_every: int = 1000
    report_every: int = 10
    bleu_sentences: int | None = None
    n_samples: int = 3
    label_smoothing: float = 0.1
    precision: Precision = "auto"
    device: Device = "auto"
    seed: int = 1

    def __post_init__(self) -> None:
        """Refuse what no training can follow."""
        for name in ("validate_every", "report_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: give at least 1 update")


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

    def ended(self, plan: TrainingConfig) -> bool:
        """Whether a bound is reached."""
        return (
            (plan.max_steps is not None and self.step >= plan.max_steps)
            or (plan.max_epochs is not None and self.epoch >= plan.max_epochs)
            or (plan.max_minutes is not None and self.seconds >= 60 * plan.max_minutes)
        )
