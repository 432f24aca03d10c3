"""The newest checkpoints of a training, so that it goes on whatever happened to one of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from utils.training.checkpoint import DamagedError, load_checkpoint, save_checkpoint
from utils.training.step_file import step_file, step_files

_SUFFIX = ".pt"


@dataclass(frozen=True)
class CheckpointConfig:
    """What a training leaves on disk.

    Args:
        keep_last: newest checkpoints that are kept: the second newest serves when the newest is damaged.
        keep_best: validations whose weights are kept in weights/, the best by the dev score.
        average_last: validations, the last ones, whose weights are averaged at the end; the average is used if the
            dev score says so. 0: none.
    """

    keep_last: int = 2
    keep_best: int = 1
    average_last: int = 0

    def __post_init__(self) -> None:
        """Refuse what would leave nothing to go on from."""
        for name, least in (("keep_last", 1), ("keep_best", 0), ("average_last", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"checkpoint.{name}={getattr(self, name)}: give at least {least}")


class CheckpointStore:
    """A folder of checkpoints by step, of which the newest stay.

    Args:
        folder: of the files.
        keep_last: how many stay.
    """

    def __init__(self, folder: Path, keep_last: int) -> None:
        self._folder = folder
        self._keep_last = keep_last
        self._damaged: set[Path] = set()

    def _paths(self) -> list[Path]:
        """The newest first."""
        return step_files(self._folder, _SUFFIX)[::-1]

    def save(self, state: Mapping[str, Any], step: int) -> None:
        """Write a checkpoint, and only then let old ones go; those that `load` found damaged do not count as kept.

        Raises:
            OSError: the disk is full, among others; all that was there before stays.
            TypeError: the state holds more than tensors and plain values.
        """
        path = step_file(self._folder, step, _SUFFIX)
        save_checkpoint(state, path)
        self._damaged.discard(path)
        good = [other for other in self._paths() if other not in self._damaged]
        for old in {*good[self._keep_last :], *self._damaged} - {path}:
            old.unlink(missing_ok=True)
        self._damaged.clear()

    def load(self, device: torch.device, say: Callable[[str], None]) -> dict[str, Any]:
        """Read the newest checkpoint that is whole.

        Args:
            device: where its tensors shall live.
            say: is told of each damaged one that is passed over.

        Raises:
            ValueError: there is none.
        """
        found: dict[Path, DamagedError] = {}
        for path in self._paths():
            try:
                state = load_checkpoint(path, device)
            except DamagedError as error:
                found[path] = error
                continue
            for complaint in found.values():
                say(f"Checkpoint {complaint}; going on from {path.name} instead")
            self._damaged = set(found)
            return state
        if found:
            raise ValueError(
                f"no checkpoint in {self._folder} is whole ({'; '.join(map(str, found.values()))}): start anew"
            )
        raise ValueError(f"no checkpoint in {self._folder}: the run saved none yet, start it anew")
