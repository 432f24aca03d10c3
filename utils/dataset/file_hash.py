"""File hashes; that of a large file is remembered until the file changes."""

import hashlib
import json
import time
from pathlib import Path
from typing import Any

from utils.file import write_json

_LARGE = 2**24  # bytes: below it, hashing is faster than looking up
# Seconds within which two changes may get the same time stamp. A file hashed so soon after a change might change once
# more unnoticed, so hashing waits until this much time has passed.
_RESOLUTION = 2.0


def file_hash(path: Path, root: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal.

    Args:
        path: the file.
        root: where corpora and caches are kept, known hashes among them.
    """
    memory = root / "cache" / "hashes.json"
    before = path.stat()
    if before.st_size < _LARGE:
        return _hash(path)
    name = str(path.resolve())
    # every write sets the inode's change time, and nobody can set it to a value of their choice
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
    """Return the known hashes; none where the file is missing or damaged."""
    try:
        known = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
