"""Saving a training at each validation."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from utils.file import sweep_drafts
from utils.training.checkpoint_store import CheckpointStore
from utils.training.observer import StepReport
from utils.training.plan import Progress
from utils.training.validation import Validation
from utils.training.weight_store import WeightStore, read_score, write_weights


class CheckpointKeeper:
    """Puts down a training and what it has learned at each validation.

    The checkpoint comes last: whatever a killed process did not write is written again by the one that goes on. What
    it has half written anywhere in the run is swept at the start.

    Args:
        checkpoints: where the training is put down.
        weights: where the weights of good and recent validations stay.
        best: file of the best weights, in the folder of the run.
        state: gives all that going on from here needs.
        learned: gives the weights that were validated, by name.
        select_by: the score that says which are the best.
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

    def on_step(self, progress: Progress, report: StepReport) -> None:
        """Nothing: see `on_validation`."""

    def on_validation(self, progress: Progress, validation: Validation) -> None:
        """Save."""
        learned, score = self._learned(), validation.score(self._select_by)
        self._weights.save(learned, progress.step, score)
        # an average that a training ended with, before it went on, may be better than all validations so far
        if progress.best_step == progress.step and score >= read_score(self._best):
            write_weights(learned, self._best, score)
        self.save(progress.step)

    def save(self, step: int) -> None:
        """Save where training stands now."""
        self._checkpoints.save(self._state(), step)

    def close(self) -> None:
        """Nothing is open."""
