"""The learning rate of each step, how far a training has come, and when it ends."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from config.training import OptimizerConfig, TrainingConfig

_DECAY = 0.2  # share of a training's time over which a trapezoid falls
_FIRST_WEIGHTS = 8 * 60.0  # seconds: with an update and the validation itself, there are weights after ten minutes


def learning_rate(step: int, config: OptimizerConfig, time_spent: float = 0.0) -> float:
    """Learning rate of an update, numbered from 1: a function of the step, so that resuming needs no state.

    It is a linear warm-up to the peak, and then one of

    - inverse_sqrt: peak · √(warmup / step);
    - cosine: final + ½ (peak - final) (1 + cos(π · (step - warmup) / decay)), Loshchilov & Hutter 2017, eq. 5,
      without restarts: afterwards it stays at `final`;
    - trapezoid: the peak until `from`, then final + (peak - final) (1 - √((step - from) / decay)), Hägele et al. 2024,
      eq. 2: a training that need not know its end, since any of its checkpoints can be given a decay of its own;
    - constant: the peak.

    Where a training ends by the clock, its last step is unknown: a cosine or trapezoid then falls by `time_spent`, the
    share of its time that has passed; the trapezoid over the last fifth of it.
    """
    warmup, peak, final = max(1, config.warmup_steps), config.peak_lr, config.final_lr
    if step <= warmup:
        return peak * (step / warmup)
    if config.schedule == "cosine":
        done = time_spent if config.decay_steps is None else min(1.0, (step - warmup) / config.decay_steps)
        return final + (peak - final) * (1 + math.cos(math.pi * done)) / 2
    if config.schedule == "trapezoid":
        done = max(0.0, (time_spent - 1 + _DECAY) / _DECAY)
        if config.decay_from is not None and config.decay_steps is not None:
            done = min(1.0, max(0, step - config.decay_from) / config.decay_steps)
        return final + (peak - final) * (1 - math.sqrt(done)) if done else peak
    return peak * math.sqrt(warmup / step) if config.schedule == "inverse_sqrt" else peak


def total_steps(training: TrainingConfig, n_updates: int) -> int | None:
    """Return after how many updates a training ends whose epochs have `n_updates`; None: that is not known."""
    limits = training.max_steps, training.max_epochs and training.max_epochs * n_updates
    return min((limit for limit in limits if limit is not None), default=None)


class Rank(NamedTuple):
    """How good a validation was, for comparisons: the higher the better; of equal scores, the one with less loss."""

    score: float = float("-inf")
    minus_loss: float = float("-inf")


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
    best_minus_loss: float = float("-inf")  # decides between equal scores: BLEU may stay 0.00 for long
    stale: int = 0  # validations since the best one
    validated: int = 0  # step of the last validation

    def advance(self, target_tokens: int, seconds: float, n_updates: int) -> None:
        """Count an update of an epoch that has `n_updates`."""
        self.step, self.position = self.step + 1, self.position + 1
        self.target_tokens, self.seconds = self.target_tokens + target_tokens, self.seconds + seconds
        if self.position >= n_updates:
            self.epoch, self.position = self.epoch + 1, 0

    def note(self, rank: Rank) -> None:
        """Record a validation."""
        if rank > (self.best_score, self.best_minus_loss):
            (self.best_score, self.best_minus_loss), self.best_step, self.stale = rank, self.step, 0
        else:
            self.stale += 1

    @property
    def has_scores(self) -> bool:
        """Whether a validation has been recorded, the best one or another."""
        return bool(self.best_step or self.stale)

    def forget_scores(self) -> None:
        """Begin to compare scores anew."""
        (self.best_score, self.best_minus_loss), self.best_step, self.stale = Rank(), 0, 0

    def time_spent(self, training: TrainingConfig) -> float:
        """Return the share of the training's time that has passed, at most 1; 0 where it has no such limit."""
        return 0.0 if training.max_minutes is None else min(1.0, self.seconds / 60 / training.max_minutes)

    def lacks_validation(self, training: TrainingConfig) -> bool:
        """Return whether a validation is due at this step and was not completed, because scoring failed for example.

        Where updates are slow, the first is due after eight minutes, and further ones each time that the number of
        updates has doubled, so that they take a small share of the time, until a scheduled one.
        """
        early = not self.has_scores and self.seconds >= _FIRST_WEIGHTS and self.step >= 2 * self.validated
        return self.step > 0 and self.validated != self.step and (early or self.is_scheduled(training))

    def is_scheduled(self, training: TrainingConfig) -> bool:
        """Return whether a validation is scheduled at this step, by the number of updates or the end.

        Only these choose the best weights and count for patience: those by the clock come at other steps each time, and
        what a training comes to must not depend on that.
        """
        return self.step % training.validate_every == 0 or self.ended(training)

    def ended(self, training: TrainingConfig) -> bool:
        """Return whether a limit of the training is reached."""
        return (
            (training.max_steps is not None and self.step >= training.max_steps)
            or (training.max_epochs is not None and self.epoch >= training.max_epochs)
            or (training.max_minutes is not None and self.seconds >= 60 * training.max_minutes)
            or (training.patience is not None and self.stale >= training.patience)
        )
