"""How far a training has come."""

from dataclasses import dataclass

from utils.training.plan import TrainingConfig


@dataclass
class Progress:
    """How far a training has come: everything besides tensors that is needed to resume it."""

    step: int = 0  # updates made
    epoch: int = 0  # from 0
    position: int = 0  # updates made in this epoch
    target_tokens: int = 0  # trained on so far
    seconds: float = 0.0  # of training and validation
    best_step: int = 0
    best_score: float = float("-inf")
    stale: int = 0  # validations since the best one

    def note(self, score: float) -> None:
        """Record the score of a validation."""
        if score > self.best_score:
            self.best_score, self.best_step, self.stale = score, self.step, 0
        else:
            self.stale += 1

    def forget_scores(self) -> None:
        """Begin to compare scores anew."""
        self.best_score, self.best_step, self.stale = float("-inf"), 0, 0

    def ended(self, plan: TrainingConfig) -> bool:
        """Return whether a limit of the plan is reached."""
        return (
            (plan.max_steps is not None and self.step >= plan.max_steps)
            or (plan.max_epochs is not None and self.epoch >= plan.max_epochs)
            or (plan.max_minutes is not None and self.seconds >= 60 * plan.max_minutes)
            or (plan.patience is not None and self.stale >= plan.patience)
        )
