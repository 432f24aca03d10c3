"""The hash of a file; that of a large one is remembered as long as nobody touches it."""

import hashlib
import json
import time
from pathlib import Path
from typing import Any

from utils.file import write_json

_LARGE = 2**24  # bytes: below it, hashing takes less than looking up
# Seconds within which two changes may get the same time stamp: a file that was hashed sooner after a change might be
# changed once more unnoticed, so it is waited for.
_RESOLUTION = 2.0


def file_hash(path: Path, root: Path) -> str:
    """SHA-256 of what is in a file, in hexadecimal.

    Args:
        path: of the file.
        root: where corpora and caches are kept, and what is known already is written down.
    """
    memory = root / "cache" / "hashes.json"
    before = path.stat()
    if before.st_size < _LARGE:
        return _hash(path)
    name = str(path.resolve())
    # the time of the last change of the inode is set by whatever writes, and by nobody's wish
    stamp = [before.st_size, before.st_mtime_ns, before.st_ctime_ns, before.st_ino]
    match _read(memory).get(name):
        case [*known, str(digest)] if known == stamp and len(digest) == 64:
            return digest
    changed = max(before.st_mtime, before.st_ctime)
    time.sleep(min(max(0.0, changed + _RESOLUTION - time.time()), _RESOLUTION))
    settled = time.time() >= changed + _RESOLUTION
    found = _hash(path)
    after = path.stat()
    if settled and stamp == [after.st_size, after.st_mtime_ns, after.st_ctime_ns, after.st_ino]:
        write_json(memory, {**_read(memory), name: [*stamp, found]})
    return found


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(memory: Path) -> dict[str, Any]:
    """What is remembered; nothing where the file is missing or damaged."""
    try:
        known = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
