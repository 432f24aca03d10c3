"""Detection of repeated pairs in a text by 64-bit hashes, which does not need the text in memory.

Two different pairs among ten million share a hash in one of 400,000 texts.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray


def pair_hashes(pairs: Iterable[Sequence[str]]) -> NDArray[np.uint64]:
    """Hash each pair of lines."""
    digests = (blake2b(f"{src}\n{tgt}".encode(), digest_size=8).digest() for src, tgt in pairs)
    return np.frombuffer(b"".join(digests), np.uint64)


def repeated(hashes: NDArray[np.uint64], among: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark what occurs earlier too, where `among` marks both occurrences."""
    rows = np.flatnonzero(among)
    order = np.argsort(hashes[rows], kind="stable")
    ordered = hashes[rows[order]]
    again = rows[order[1:][ordered[1:] == ordered[:-1]]]
    marks = np.zeros(len(hashes), bool)
    marks[again] = True
    return marks
