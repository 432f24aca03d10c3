"""What a training leaves on disk: its whole state to resume from, and the weights of past validations."""

import errno
import hashlib
import io
import json
import math
import os
import pickle
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from config.reader import ABSENT, changed_settings
from utils.command import Log, first_line, is_out_of_memory
from utils.file import atomic_file, sweep_drafts
from utils.training.report import Observer, Validation
from utils.training.schedule import Progress, Rank


def difference(saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
    """Describe the first setting in which a checkpoint differs from what it must contain; None: it fits."""
    if saved["format"] != wanted["format"]:
        return (
            f"the checkpoint has format {saved['format']} and this version reads {wanted['format']}: "
            "resume with the version that wrote it"
        )
    for name, pair in changed_settings({name: saved[name] for name in wanted if name in saved}, wanted).items():
        was, now = ("not set" if value in (None, ABSENT) else json.dumps(value).strip('"') for value in pair)
        return f"{name} is {was} in the checkpoint and {now} in the settings"
    return None


SUFFIX, WEIGHTS_SUFFIX = ".pt", ".safetensors"
_NAME = re.compile(r"step-(\d+)")


def step_file(folder: Path, step: int, suffix: str) -> Path:
    """Return the path of the file of a step."""
    return folder / f"step-{step:08d}{suffix}"


def step_files(folder: Path, suffix: str) -> list[Path]:
    """Return the existing files, ordered by step."""
    return sorted((path for path in folder.glob(f"step-*{suffix}") if _NAME.fullmatch(path.stem)), key=step_of)


def step_of(path: Path) -> int:
    """Return the step in the name of such a file."""
    return int(path.stem.removeprefix("step-"))


# Every file holds the SHA-256 of its contents, where its format leaves room for one: a digest in a file beside it could
# be older or newer than what it vouches for.


class DamagedError(ValueError):
    """A file that cannot be relied on."""


def _write(path: Path, data: memoryview | bytes) -> None:
    with atomic_file(path, len(data)) as draft:
        draft.write_bytes(data)


# The state of a training is the zip archive of `torch.save`, with tensors and plain values only, so that reading it
# never runs code. The digest is its comment, the last bytes: torch does not check the archive's own checksums, which
# leave out names, lengths and the directory. `torch.load` and `unzip` read the file as usual.

FORMAT = 3  # version of the state: the names and meanings of its parts
_MARK = b"miyako sha256 "
_SEAL_SIZE = 2 + len(_MARK) + 64  # length of the comment, mark, digest


def _seal(archive: memoryview) -> bytes:
    """Return what replaces the last two bytes of an archive, which say "no comment"."""
    digest = hashlib.sha256(archive[:-2])
    digest.update(b"\0\0")
    comment = _MARK + digest.hexdigest().encode()
    return struct.pack("<H", len(comment)) + comment


def save_checkpoint(state: Mapping[str, Any], path: Path) -> None:
    """Write a state; a previous file at this path stays until the new one is complete."""
    buffer = io.BytesIO()  # not the file: torch's writer would hide why a disk refuses it
    torch.save(state, buffer)
    seal = _seal(buffer.getbuffer())
    buffer.seek(-2, os.SEEK_END)
    buffer.write(seal)
    _write(path, buffer.getbuffer())


def load_checkpoint(path: Path, device: torch.device) -> dict[str, Any]:
    """Read a state, or raise a DamagedError; a damaged file never reaches torch.

    Other errors, such as too little memory, are left as they are: the file may be read another time.
    """
    try:
        data = path.read_bytes()
        if data[-_SEAL_SIZE:] != _seal(memoryview(data)[: 2 - _SEAL_SIZE]):
            raise DamagedError(f"{path.name} is damaged: its checksum is missing or wrong")
        state: dict[str, Any] = torch.load(io.BytesIO(data), map_location=device, weights_only=True)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EIO):  # the disk no longer has the file, or its contents
            raise
        raise DamagedError(f"{path.name} is damaged: {error.strerror}") from error
    except pickle.UnpicklingError as error:  # torch's own message explains how to run it anyway
        message = f"{path.name} is refused: it holds more than tensors and plain values; none of it was run"
        raise DamagedError(message) from error
    return state


class CheckpointStore:
    """A folder of checkpoints named by step, of which the newest `keep_last` are kept."""

    def __init__(self, folder: Path, keep_last: int) -> None:
        self._folder, self._keep_last = folder, keep_last
        self._damaged: dict[Path, DamagedError] = {}

    def save(self, state: Mapping[str, Any], step: int) -> None:
        """Write a checkpoint, and only then delete old ones; those that `load` found damaged do not count as kept."""
        path = step_file(self._folder, step, SUFFIX)
        save_checkpoint(state, path)
        good = [other for other in step_files(self._folder, SUFFIX) if other == path or other not in self._damaged]
        for old in {*good[: -self._keep_last], *self._damaged} - {path}:
            old.unlink(missing_ok=True)
        self._damaged.clear()

    def load(self, device: torch.device, log: Log) -> dict[str, Any]:
        """Read the newest intact checkpoint; `log` gets a line about each damaged one that is skipped."""
        for path in reversed(step_files(self._folder, SUFFIX)):
            try:
                state = load_checkpoint(path, device)
            except DamagedError as error:
                self._damaged[path] = error
                continue
            for reason in self._damaged.values():
                log(f"Checkpoint {reason}; resuming from {path.name} instead")
            return state
        if self._damaged:
            reasons = "; ".join(map(str, self._damaged.values()))
            raise ValueError(f"no checkpoint in {self._folder} is intact ({reasons}): train from scratch")
        raise ValueError(f"no checkpoint in {self._folder}: the run has not saved one yet; start it again")


# Weights of past validations are safetensors, whose metadata hold scores on dev, names of tied weights, and a digest of
# tensors and metadata: it stands among the bytes, and so cannot be one of them.

_CHECKSUM, _SCORE, _LOSS, _SCORING, _AVERAGED = "sha256", "score", "loss", "scoring", "averaged"
_SCALE = ".int8_scale"  # beside a matrix of 8-bit integers: what to multiply each of its rows by
_INT8 = 127  # the largest of these integers, as far from zero as the smallest
_UNREADABLE = (SafetensorError, OSError, RuntimeError, ValueError, LookupError, TypeError)  # as safetensors says it


def write_weights(
    weights: Mapping[str, Tensor],
    path: Path,
    rank: Rank,
    n_averaged: int = 1,
    scoring: str | None = None,
    in_int8: bool = False,
) -> None:
    """Write weights, the mean of `n_averaged` validations, and the rank they reached under this scoring of dev text.

    Tied weights are written once, under their first name: `safetensors.torch.load_model` can read the file. `in_int8`
    rounds each row of a matrix to 255 steps, in a quarter of the size: the dev loss of our translators stays the same
    to four digits.
    """
    tensors: dict[str, Tensor] = {}
    names: dict[tuple[object, ...], str] = {}
    facts = {_SCORE: repr(rank.score), _LOSS: repr(-rank.minus_loss), _AVERAGED: str(n_averaged)}
    facts |= {} if scoring is None else {_SCORING: scoring}
    for name, tensor in weights.items():
        kept = names.setdefault((tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device), name)
        if kept == name:
            tensors[name] = tensor.detach().cpu().contiguous()
        else:
            facts[name] = kept
    for name, tensor in [*tensors.items()] if in_int8 else []:
        if tensor.ndim == 2:
            tensors[name], tensors[name + _SCALE] = rounded(tensor)
    facts[_CHECKSUM] = _digest(tensors, facts)
    _write(path, save(tensors, metadata=facts))


def rounded(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return integers of 8 bits, and what to multiply each row by."""
    scale = matrix.abs().amax(1, keepdim=True).clamp(min=torch.finfo(matrix.dtype).tiny) / _INT8
    return (matrix / scale).round().to(torch.int8), scale


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read what `write_weights` wrote, under all names. Files from elsewhere have no checksum, and are trusted."""
    try:
        with safe_open(path, "pt") as file:
            facts = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except _UNREADABLE as error:
        if is_out_of_memory(error):
            raise
        raise DamagedError(f"{path} cannot be read ({first_line(error)[:200]})") from error
    checksum = facts.pop(_CHECKSUM, None)
    if checksum is not None and checksum != _digest(tensors, facts):
        raise DamagedError(f"{path} is damaged: its checksum is wrong")
    scales = {name: tensors.pop(name) for name in [*tensors] if name.endswith(_SCALE)}
    for name, scale in scales.items():
        tensors[name.removesuffix(_SCALE)] = tensors[name.removesuffix(_SCALE)] * scale
    return tensors | {name: tensors[kept] for name, kept in facts.items() if kept in tensors}


def read_rank(path: Path, scoring: str | None = None) -> Rank:
    """Return the rank of the weights in a file; the lowest if it cannot be read, is NaN, or is of another scoring.

    Files of earlier versions do not say their scoring, and fit any; without `scoring`, every file does.
    """
    facts = _facts(path)
    try:
        rank = Rank(float(facts[_SCORE]), -float(facts.get(_LOSS, "inf")))
    except (LookupError, ValueError):
        return Rank()
    comparable = scoring is None or facts.get(_SCORING, scoring) == scoring
    return rank if comparable and not any(map(math.isnan, rank)) else Rank()


def read_n_averaged(path: Path) -> int:
    """Return the number of validations whose weights are averaged in a file; 1 if it does not say."""
    return int(_facts(path).get(_AVERAGED, 1))


def _facts(path: Path) -> dict[str, str]:
    try:
        with safe_open(path, "pt") as file:
            return dict(file.metadata() or {})
    except _UNREADABLE:
        return {}


def _digest(tensors: Mapping[str, Tensor], facts: Mapping[str, str]) -> str:
    digest = hashlib.sha256(repr(sorted(facts.items())).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def average(paths: Sequence[Path], log: Log) -> tuple[dict[str, Tensor], int]:
    """Average the weights in several files (checkpoint averaging, Vaswani et al. 2017, §6.1), under all names.

    The sum is in double precision. A damaged file is left out and reported. Also return of how many this is the mean.
    """
    sums: dict[str, Tensor] = {}
    weights: dict[str, Tensor] = {}
    n = 0
    for path in paths:
        try:
            weights = read_weights(path)
        except DamagedError as error:
            log(f"Left out of the average: {error}")
            continue
        n += 1
        sums = {name: sums[name] + tensor if sums else tensor.double() for name, tensor in weights.items()}
    return {name: (total / n).to(weights[name].dtype) for name, total in sums.items()}, n


class WeightStore:
    """A folder of weights named by step, of which the best and the last are kept. Each file contains its score.

    Of equals the earlier is the better. Weights later than the `step` that the run resumes from are removed, and those
    of another `scoring` are worse than any.
    """

    def __init__(self, folder: Path, keep_best: int, keep_last: int, step: int, scoring: str | None = None) -> None:
        self._folder, self._keep_best, self._keep_last, self.scoring = folder, keep_best, keep_last, scoring
        for path in step_files(folder, WEIGHTS_SUFFIX):
            if step_of(path) > step:
                path.unlink()

    def last(self) -> list[Path]:
        """Return the latest files, oldest first."""
        return step_files(self._folder, WEIGHTS_SUFFIX)[-self._keep_last :] if self._keep_last else []

    def save(self, weights: Mapping[str, Tensor], step: int, rank: Rank) -> None:
        """Keep the weights of a validation, unless there are enough better ones."""
        write_weights(weights, step_file(self._folder, step, WEIGHTS_SUFFIX), rank, scoring=self.scoring)
        paths = step_files(self._folder, WEIGHTS_SUFFIX)
        best = sorted(paths, key=lambda path: read_rank(path, self.scoring), reverse=True)  # stable, also in reverse
        for path in {*paths} - {*best[: self._keep_best], *self.last()}:
            path.unlink()


class CheckpointKeeper(Observer):
    """Saves the state of the training and the learned weights at each validation, and at the end their average.

    The checkpoint is written last: whatever a killed process did not get to write, the process that resumes writes
    again. Half-written files anywhere in the run are removed at the start.

    `state` returns everything needed to resume from here, `learned` the validated weights by name; `best` is the file
    of the best of them, by the score `select_by`.
    """

    def __init__(
        self,
        checkpoints: CheckpointStore,
        weights: WeightStore,
        best: Path,
        state: Callable[[], Mapping[str, Any]],
        learned: Callable[[], Mapping[str, Tensor]],
        select_by: str,
    ) -> None:
        self._checkpoints, self._weights, self._best = checkpoints, weights, best
        self._state, self._learned, self._select_by, self._scoring = state, learned, select_by, weights.scoring
        sweep_drafts(best.parent)

    def on_validation(self, progress: Progress, validation: Validation) -> None:
        """Save the weights and the state of the training."""
        learned, rank = self._learned(), validation.rank(self._select_by)
        if progress.has_scores:
            self._weights.save(learned, progress.step, rank)
        else:  # before the first that counts: weights to translate with until then, worse than any
            write_weights(learned, self._best, Rank(), scoring=self._scoring)
        # the average of a training that had ended and was resumed may be better than every validation so far
        if progress.best_step == progress.step and rank >= read_rank(self._best, self._scoring):
            write_weights(learned, self._best, rank, scoring=self._scoring)
        self.save(progress.step)

    def save(self, step: int) -> None:
        """Save the present state of the training."""
        self._checkpoints.save(self._state(), step)

    def try_average(self, net: nn.Module, validate: Callable[[], Validation], log: Log) -> None:
        """Average the weights of the last validations; if they score no worse on dev than the best, they replace them.

        The best weights may be an average, too: that of a training that had ended and was resumed. `validate` validates
        the network, which is left with the average.
        """
        mean, n = average(self._weights.last(), log)
        if not n:
            return
        net.load_state_dict(mean)
        by = self._select_by
        rank, before = validate().rank(by), read_rank(self._best, self._scoring)
        good, sign = rank >= before, -1 if by == "loss" else 1
        if good:
            write_weights(net.state_dict(), self._best, rank, n, self._scoring)
        log(
            f"\nAverage of the weights of the last {n} validations: dev {by} {sign * rank.score:.2f} against "
            f"{sign * before.score:.2f} for the best weights: {'used' if good else 'not used'}"
        )
