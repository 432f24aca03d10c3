"""Folders that are made once and checked at each use, by checksums stored with their files."""

import json
import shutil
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from utils.file import atomic_folder, locked

_SUMS = "checksums.json"


def cached_folder(path: Path, make: Callable[[Path], None], say: Callable[[str], None]) -> Path:
    """Return a folder that `make` fills at the first call; it is rebuilt where a file is no longer as it was written.

    Processes that need it at the same time wait for the first of them.

    Args:
        path: the folder.
        make: fills an empty folder.
        say: called with a message about damage.
    """
    with _alone(path):
        if path.exists() and (fault := _fault(path)):
            say(f"{path} is damaged ({fault}): rebuilding it")
            shutil.rmtree(path)
        if not path.exists():
            with atomic_folder(path) as draft:
                make(draft)
                sums = {file.name: [file.stat().st_size, _checksum(file)] for file in sorted(draft.iterdir())}
                (draft / _SUMS).write_text(json.dumps(sums, indent=1), encoding="utf-8")
    return path


def remove_cached(path: Path) -> None:
    """Remove a folder that `cached_folder` has made, once no process is making or checking it."""
    with _alone(path):
        shutil.rmtree(path, ignore_errors=True)


def _alone(path: Path) -> AbstractContextManager[None]:
    return locked(path.parent / ".locks" / path.name)


def _fault(folder: Path) -> str | None:
    """Return what is wrong with a folder, None if nothing is."""
    try:
        sums = json.loads((folder / _SUMS).read_text(encoding="utf-8"))
        for name, (size, checksum) in sums.items():
            found = (folder / name).stat().st_size
            if found != size:
                return f"{name} has {found:,} bytes, not {size:,}"
            if _checksum(folder / name) != checksum:
                return f"{name} differs from what was written"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return f"{_SUMS} cannot be read: {error}"
    return None


def _checksum(path: Path) -> int:
    """Return the CRC-32, which detects every flipped bit and takes a second per gigabyte."""
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            checksum = zlib.crc32(chunk, checksum)
    return checksum
