"""A training put down on disk: tensors and plain values only, so that reading it never runs code."""

import pickle
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from utils.file import atomic_file
from utils.training.observer import StepReport, Validation
from utils.training.plan import Progress


def save_checkpoint(state: dict[str, Any], path: Path) -> None:
    """Write a state; the file before it stays until this one is whole."""
    with atomic_file(path) as draft:
        torch.save(state, draft)


def load_checkpoint(path: Path, device: torch.device) -> dict[str, Any]:
    """Read a state.

    The file is a zip archive. Torch does not look at the checksums in it, so that flipped bits would become weights:
    they are looked at here.

    Raises:
        ValueError: it is missing, damaged, or holds anything but tensors and plain values.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if damaged := archive.testzip():
                raise zipfile.BadZipFile(f"wrong checksum of {damaged}")
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise ValueError(f"no checkpoint {path}: the run saved none yet, start it anew") from None
    except (
        zipfile.BadZipFile,
        zlib.error,
        pickle.UnpicklingError,
        RuntimeError,
        ValueError,
        LookupError,
        EOFError,
        OSError,
    ) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(f"checkpoint {path} is damaged or not one of ours ({reason}): start the run anew") from error
    return state


def first_difference(error: RuntimeError) -> str:
    """What torch says first of weights that do not fit a network: a name, or two shapes."""
    head, _, rest = str(error).strip().partition("\n")
    return (rest or head).splitlines()[0].strip()[:200]


class CheckpointKeeper:
    """Saves a training at each validation, and its weights when they are the best so far.

    Args:
        path: of the checkpoint.
        state: gives all that going on from here needs.
        save_best: saves what is used later.
    """

    def __init__(self, path: Path, state: Callable[[], dict[str, Any]], save_best: Callable[[], None]) -> None:
        self._path = path
        self._state = state
        self._save_best = save_best

    def on_step(self, progress: Progress, report: StepReport) -> None:
        """Nothing: see `on_validation`."""

    def on_validation(self, progress: Progress, validation: Validation) -> None:  # noqa: ARG002
        """Save."""
        if progress.best_step == progress.step:
            self._save_best()
        self.save()

    def save(self) -> None:
        """Save where training stands now."""
        save_checkpoint(self._state(), self._path)

    def close(self) -> None:
        """Nothing is open."""
