"""The newest checkpoints of a training, so that it can be resumed even if one of them is damaged."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from utils.training.checkpoint import DamagedError, load_checkpoint, save_checkpoint
from utils.training.step_file import step_file, step_files

SUFFIX = ".pt"


@dataclass(frozen=True)
class CheckpointConfig:
    """What a training leaves on disk.

    Args:
        keep_last: number of newest checkpoints to keep; if the newest is damaged, the one before it is used.
        keep_best: number of validations, the best by dev score, whose weights are kept in weights/.
        average_last: number of last validations whose weights are averaged at the end; the average is used if it
            scores no worse on the dev set. 0: no averaging.
    """

    keep_last: int = 2
    keep_best: int = 1
    average_last: int = 0

    def __post_init__(self) -> None:
        """Refuse values that would leave nothing to resume from."""
        for name, least in (("keep_last", 1), ("keep_best", 0), ("average_last", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"checkpoint.{name}={getattr(self, name)}: give at least {least}")


class CheckpointStore:
    """A folder of checkpoints named by step, of which the newest are kept.

    Args:
        folder: where the files are.
        keep_last: number of checkpoints to keep.
    """

    def __init__(self, folder: Path, keep_last: int) -> None:
        self._folder = folder
        self._keep_last = keep_last
        self._damaged: set[Path] = set()

    def _paths(self) -> list[Path]:
        """Return all checkpoints, newest first."""
        return step_files(self._folder, SUFFIX)[::-1]

    def save(self, state: Mapping[str, Any], step: int) -> None:
        """Write a checkpoint, and only then delete old ones; those that `load` found damaged do not count as kept.

        Raises:
            OSError: when writing fails, for example because the disk is full; earlier checkpoints stay.
            TypeError: when the state holds more than tensors and plain values.
        """
        path = step_file(self._folder, step, SUFFIX)
        save_checkpoint(state, path)
        self._damaged.discard(path)
        good = [other for other in self._paths() if other not in self._damaged]
        for old in {*good[self._keep_last :], *self._damaged} - {path}:
            old.unlink(missing_ok=True)
        self._damaged.clear()

    def load(self, device: torch.device, say: Callable[[str], None]) -> dict[str, Any]:
        """Read the newest intact checkpoint.

        Args:
            device: where to put its tensors.
            say: called with a line about each damaged checkpoint that is skipped.

        Raises:
            ValueError: when there is none.
        """
        found: dict[Path, DamagedError] = {}
        for path in self._paths():
            try:
                state = load_checkpoint(path, device)
            except DamagedError as error:
                found[path] = error
                continue
            for complaint in found.values():
                say(f"Checkpoint {complaint}; resuming from {path.name} instead")
            self._damaged = set(found)
            return state
        if found:
            raise ValueError(
                f"no checkpoint in {self._folder} is intact ({'; '.join(map(str, found.values()))}): train from scratch"
            )
        raise ValueError(f"no checkpoint in {self._folder}: the run has not saved one yet; start it again")
