"""Weights of past validations, as safetensors with a checksum: the best, the last, and their average."""

import hashlib
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from utils.file import FULL, atomic_file, no_room
from utils.out_of_memory import is_out_of_memory
from utils.training.step_file import step_file, step_files, step_of

_SUFFIX = ".safetensors"
_CHECKSUM, _SCORE, _AVERAGED = "sha256", "score", "averaged"  # entries of the metadata; the rest name tied weights


def write_weights(weights: Mapping[str, Tensor], path: Path, score: float, n_averaged: int = 1) -> None:
    """Write weights and the dev score they reached; tied ones once, under their first name.

    `safetensors.torch.load_model` can read the file.

    Args:
        weights: by their names in the network.
        path: where to write.
        score: their dev score, of which more is better.
        n_averaged: the number of validations that they are the mean of.

    Raises:
        OSError: when writing fails, for example because the disk is full.
    """
    tensors: dict[str, Tensor] = {}
    names: dict[tuple[object, ...], str] = {}
    facts = {_SCORE: repr(score), _AVERAGED: str(n_averaged)}
    for name, tensor in weights.items():
        kept = names.setdefault((tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device), name)
        if kept == name:
            tensors[name] = tensor.detach().cpu().contiguous()
        else:
            facts[name] = kept
    facts[_CHECKSUM] = _digest(tensors, facts)
    with atomic_file(path) as draft:
        try:
            save_file(tensors, draft, metadata=facts)
        except SafetensorError as error:
            if (found := re.search(r"os error (\d+)", str(error))) is None:
                raise
            number, size = int(found[1]), sum(tensor.nbytes for tensor in tensors.values())
            if number in FULL:
                raise no_room(path, draft, size, os.strerror(number)) from error
            raise OSError(number, os.strerror(number), str(path)) from error
        draft.chmod(0o644)  # safetensors makes it unreadable to other users


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read what `write_weights` wrote, under all names. Files from elsewhere have no checksum, and are trusted.

    Raises:
        ValueError: when the file is missing or damaged.
        RuntimeError: when memory runs out.
    """
    try:
        with safe_open(path, "pt") as file:
            facts = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError, RuntimeError, ValueError, LookupError, TypeError) as error:
        if is_out_of_memory(error):
            raise
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(f"{path} cannot be read ({reason[:200]})") from error
    checksum = facts.pop(_CHECKSUM, None)
    if checksum is not None and checksum != _digest(tensors, facts):
        raise ValueError(f"{path} is damaged: its checksum is wrong")
    return tensors | {name: tensors[kept] for name, kept in facts.items() if kept in tensors}


def read_score(path: Path) -> float:
    """Return the dev score of the weights in a file; minus infinity if it cannot be read or is NaN."""
    score = _number(path, _SCORE, -math.inf)
    return -math.inf if math.isnan(score) else score


def read_n_averaged(path: Path) -> int:
    """Return the number of validations whose weights are averaged in a file; 1 if it does not say."""
    return int(_number(path, _AVERAGED, 1))


def _number(path: Path, fact: str, default: float) -> float:
    try:
        with safe_open(path, "pt") as file:
            return float((file.metadata() or {})[fact])
    except (SafetensorError, OSError, RuntimeError, ValueError, LookupError):
        return default


def _digest(tensors: Mapping[str, Tensor], facts: Mapping[str, str]) -> str:
    """Return a digest of the contents of a file; the format has no place for one over its bytes."""
    digest = hashlib.sha256(repr(sorted(facts.items())).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


class Average(NamedTuple):
    """The mean of several weights, and of how many."""

    weights: dict[str, Tensor]
    n: int


def average(paths: Sequence[Path], say: Callable[[str], None]) -> Average:
    """Average the weights in several files (checkpoint averaging, Vaswani et al. 2017, §6.1), under all names.

    The sum is in double precision. A damaged file is left out and reported.

    Raises:
        ValueError: when no file can be read, or they are of different networks.
    """
    sums: dict[str, Tensor] = {}
    latest: dict[str, Tensor] = {}
    n = 0
    for path in paths:
        try:
            latest = read_weights(path)
        except ValueError as error:
            say(f"Left out of the average: {error}")
            continue
        n += 1
        sums = sums or {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in latest.items()}
        if {name: t.shape for name, t in latest.items()} != {name: t.shape for name, t in sums.items()}:
            raise ValueError(f"{path} is of another network than {paths[0]}: average weights of a single training only")
        for name, tensor in latest.items():
            sums[name] += tensor
    if not n:
        raise ValueError(f"no weights to average: none of {len(paths)} files can be read")
    means: dict[int, Tensor] = {}  # tied weights are one tensor here, too
    return Average(
        {name: means.setdefault(id(tensor), (sums[name] / n).to(tensor.dtype)) for name, tensor in latest.items()}, n
    )


class WeightStore:
    """A folder of weights named by step, of which the best and the last are kept. Each file contains its score.

    Args:
        folder: where the files are.
        keep_best: number of files to keep for their score; of equal scores, the earlier.
        keep_last: number of latest files to keep.
        step: of the checkpoint that the run resumes from; weights of later steps, which were lost, are removed.
    """

    def __init__(self, folder: Path, keep_best: int, keep_last: int, step: int) -> None:
        self._folder = folder
        self._keep_best = keep_best
        self._keep_last = keep_last
        for path in self._paths():
            if step_of(path) > step:
                path.unlink()

    def _paths(self) -> list[Path]:
        """Return all files, ordered by step."""
        return step_files(self._folder, _SUFFIX)

    def best(self) -> list[Path]:
        """Return the best files, best first."""
        return sorted(self._paths(), key=lambda path: (-read_score(path), step_of(path)))[: self._keep_best]

    def last(self) -> list[Path]:
        """Return the latest files, oldest first."""
        return self._paths()[-self._keep_last :] if self._keep_last else []

    def save(self, weights: Mapping[str, Tensor], step: int, score: float) -> None:
        """Keep the weights of a validation, unless there are enough better ones."""
        path = step_file(self._folder, step, _SUFFIX)
        others = [other for other in self._paths() if other != path]
        if self._keep_last or sum(read_score(other) >= score for other in others) < self._keep_best:
            write_weights(weights, path, score)
        kept = {*self.best(), *self.last()}
        for path in self._paths():
            if path not in kept:
                path.unlink()
