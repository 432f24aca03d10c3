"""What is made once: kept in a folder named by a hash of all that it was made from, and checked at each use."""

import hashlib
import json
import shutil
import zlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from utils.command import Log
from utils.file import atomic_folder, locked, read_json, write_json

# Part of every key; raised when the format of the cache changes. Checkpoints hold keys, too: with a new number, a
# training that is resumed takes its dev text for another one, and a classifier also its training text.
_FORMAT = 2
_SUMS = "checksums.json"


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal; an unchanged file is read once a process."""
    stat = path.stat()
    # every write sets the inode's change time, and nobody can set it to a value of their choice
    return _sha256(path, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)


@lru_cache
def _sha256(path: Path, *_: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cache_key(*parts: object) -> str:
    """Return 16 hexadecimal digits that differ where any part does."""
    text = json.dumps([_FORMAT, *parts], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def cache_folder(root: Path, name: str, *made_from: object) -> Path:
    """Return where something is cached; the name is for people who look into the cache."""
    return root / "cache" / f"{name}-{cache_key(*made_from)}"


def cached(path: Path, make: Callable[[Path], None], log: Log) -> Path:
    """Return a folder that `make` fills at the first call; it is rebuilt where a file is no longer as it was written.

    Processes that need it at the same time wait for the first of them.
    """
    with locked(_lock(path)):
        if path.exists() and not _is_intact(path):
            log(f"{path} is damaged: rebuilding it")
            shutil.rmtree(path)
        if not path.exists():
            with atomic_folder(path) as draft:
                make(draft)
                write_json(draft / _SUMS, _sums(draft))
    return path


def remove_cached(path: Path) -> None:
    """Remove a folder that `cached` has made, once no process is making or checking it."""
    with locked(_lock(path)):
        shutil.rmtree(path, ignore_errors=True)


def _lock(path: Path) -> Path:
    return path.parent / ".locks" / path.name


def _is_intact(folder: Path) -> bool:
    try:
        return bool(read_json(folder / _SUMS) == _sums(folder))
    except (OSError, ValueError):
        return False


def _sums(folder: Path) -> dict[str, list[int]]:
    """Return sizes and CRC-32s, which detect every flipped bit and take a second per gigabyte."""
    files = sorted(file for file in folder.iterdir() if file.name != _SUMS)
    return {file.name: [file.stat().st_size, _checksum(file)] for file in files}


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            checksum = zlib.crc32(chunk, checksum)
    return checksum
