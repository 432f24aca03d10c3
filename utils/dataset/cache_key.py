"""Names of cache entries: a hash of everything that they were made from."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

_FORMAT = 2  # raised when the format of the cache changes


def cache_key(*parts: object) -> str:
    """Return 16 hexadecimal digits that differ where any part does."""
    text = json.dumps([_FORMAT, *parts], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def saved_hashes(save: Callable[[Path], None]) -> dict[str, str]:
    """Return the identity of an object: the hashes of the files that it saves into a folder."""
    with TemporaryDirectory() as folder:
        save(Path(folder))
        return {file.name: hashlib.blake2b(file.read_bytes()).hexdigest() for file in Path(folder).iterdir()}
