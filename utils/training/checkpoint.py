"""The state of a training in a file: tensors and plain values only, so that reading it never runs code.

The file is the zip archive of `torch.save`; the archive's comment, its last bytes, is the SHA-256 of everything before
it. Torch does not check the archive's own checksums, and those leave out names, lengths and the directory; a digest in
a separate file could be older or newer than what it vouches for. This one covers every byte and is written together
with them; `torch.load` and `unzip` read the file as usual.
"""

import errno
import hashlib
import io
import os
import pickle
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

import torch

from utils.changed_setting import ABSENT, changed_settings
from utils.file import FULL, atomic_file, no_room

FORMAT = 3  # version of the state: the names and meanings of its parts

_MARK = b"miyako sha256 "
_SEAL_SIZE = 2 + len(_MARK) + 64  # length of the comment, mark, digest
_CHUNK = 1 << 20
_LOST = {errno.ENOENT, errno.EIO}  # the disk no longer has the file, or its contents


class DamagedError(ValueError):
    """A checkpoint that cannot be relied on."""


class _Sealing:
    """A file for `torch.save` that hashes what is written and holds back a disk error until the end.

    Raised inside torch's C++ writer, the error would come out as one that does not mention the disk.
    """

    def __init__(self, file: io.FileIO) -> None:
        self.hash = hashlib.sha256()
        self.size = 0
        self.error: OSError | None = None
        self._file = file

    def write(self, data: memoryview | bytes) -> int:
        self.size += len(data)
        self.hash.update(data)
        rest = memoryview(data)
        try:
            while rest and self.error is None:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self.error = error
        return len(data)

    def flush(self) -> None:
        """Do nothing: writes are not buffered."""

    def seal(self) -> None:
        """Write the comment over the archive's last two bytes, which say "no comment"."""
        seal = _seal(self.hash)
        if self.error is None:
            self._file.seek(-2, os.SEEK_END)
        self.write(seal)


def _seal(digest: "hashlib._Hash") -> bytes:
    comment = _MARK + digest.hexdigest().encode()
    return struct.pack("<H", len(comment)) + comment


def save_checkpoint(state: Mapping[str, Any], path: Path) -> None:
    """Write a state; a previous file at this path stays until the new one is complete.

    Raises:
        OSError: when writing fails, for example because the disk is full.
        TypeError: when the state holds more than tensors and plain values, and so could not be read back.
    """
    with atomic_file(path) as draft:
        with io.FileIO(draft, "w") as file:
            sealing = _Sealing(file)
            torch.save(state, cast(IO[bytes], sealing))
            sealing.seal()
        if sealing.error is not None:
            if sealing.error.errno in FULL:
                raise no_room(path, draft, sealing.size, os.strerror(sealing.error.errno)) from sealing.error
            raise sealing.error
        try:  # takes milliseconds: tensors are mapped, not read
            torch.load(draft, map_location="cpu", weights_only=True, mmap=True)
        except pickle.UnpicklingError as error:
            raise TypeError("a checkpoint holds tensors and plain values only") from error


def load_checkpoint(path: Path, device: torch.device) -> dict[str, Any]:
    """Read a state; a damaged file never reaches torch.

    Raises:
        DamagedError: when the file is not what was written, or holds more than tensors and plain values.
        OSError, RuntimeError: when an intact file cannot be read now, for example because memory has run out.
    """
    try:
        reason = _damage(path)
    except OSError as error:
        if error.errno not in _LOST:
            raise
        reason = os.strerror(error.errno)
    if reason is not None:
        raise DamagedError(f"{path.name} is damaged: {reason}")
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except pickle.UnpicklingError as error:  # torch's own message explains how to run it anyway
        message = f"{path.name} is refused: it holds more than tensors and plain values; none of it was run"
        raise DamagedError(message) from error
    if not isinstance(state, dict):
        raise DamagedError(f"{path.name} is refused: it does not hold a state")
    return state


def _damage(path: Path) -> str | None:
    """Return what is wrong with a file, or None."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= _SEAL_SIZE:
            return f"truncated at {size} bytes"
        digest = hashlib.sha256()
        left = size - _SEAL_SIZE
        while chunk := file.read(min(left, _CHUNK)):
            digest.update(chunk)
            left -= len(chunk)
        seal = file.read()
    digest.update(b"\0\0")  # "no comment", as torch wrote it
    if _MARK not in seal:
        return "no checksum at its end (truncated, or not written by this project)"
    return None if seal == _seal(digest) else "its checksum is wrong"


def difference(saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
    """Describe the first setting in which a checkpoint differs from what is wanted; None: it fits.

    Args:
        saved: the checkpoint; anything else it holds is ignored.
        wanted: what it must contain, as nested groups of settings.
    """
    if saved.get("format") != wanted.get("format"):
        return (
            f"the checkpoint has format {saved.get('format')} and this version reads {wanted.get('format')}: "
            "resume with the version that wrote it"
        )
    for name, (was, now) in changed_settings({name: saved[name] for name in wanted if name in saved}, wanted).items():
        if was is ABSENT:
            return f"{name} is unknown to the checkpoint and {_shown(now)} in the settings"
        if now is ABSENT:
            return f"{name} is {_shown(was)} in the checkpoint and unknown to this version"
        return f"{name} is {_shown(was)} in the checkpoint and {_shown(now)} in the settings"
    return None


def _shown(value: Any) -> str:
    """Return a value as a person would write it, in at most 60 characters."""
    text = str(value).lower() if isinstance(value, bool) else "not set" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def first_difference(error: RuntimeError) -> str:
    """Return the first mismatch torch reports for weights that do not fit a network: a name, or two shapes."""
    head, _, rest = str(error).strip().partition("\n")
    return (rest or head).splitlines()[0].strip()[:200]
