"""Saving the training at each validation."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from utils.file import sweep_drafts
from utils.training.checkpoint_store import CheckpointStore
from utils.training.observer import Observer
from utils.training.progress import Progress
from utils.training.validation import Validation
from utils.training.weight_store import WeightStore, read_score, write_weights


class CheckpointKeeper(Observer):
    """Saves the state of the training and the learned weights at each validation.

    The checkpoint is written last: whatever a killed process did not get to write, the process that resumes writes
    again. Half-written files anywhere in the run are removed at the start.

    Args:
        checkpoints: where the state of the training is saved.
        weights: where the weights of good and recent validations are kept.
        best: file of the best weights, in the run folder.
        state: returns everything needed to resume from here.
        learned: returns the validated weights by name.
        select_by: the score that decides which weights are the best.
    """

    def __init__(
        self,
        checkpoints: CheckpointStore,
        weights: WeightStore,
        best: Path,
        state: Callable[[], Mapping[str, Any]],
        learned: Callable[[], Mapping[str, Tensor]],
        select_by: str = "bleu",
    ) -> None:
        self._checkpoints = checkpoints
        self._weights = weights
        self._best = best
        self._state = state
        self._learned = learned
        self._select_by = select_by
        sweep_drafts(best.parent)

    def on_validation(self, progress: Progress, validation: Validation) -> None:
        """Save the weights and the state of the training."""
        learned, score = self._learned(), validation.score(self._select_by)
        self._weights.save(learned, progress.step, score)
        # the average of a training that had ended and was resumed may be better than every validation so far
        if progress.best_step == progress.step and score >= read_score(self._best):
            write_weights(learned, self._best, score)
        self.save(progress.step)

    def save(self, step: int) -> None:
        """Save the present state of the training."""
        self._checkpoints.save(self._state(), step)
