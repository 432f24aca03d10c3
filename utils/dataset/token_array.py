"""Many sequences of token ids in one flat array, memory-mapped where they come from a file."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class TokenArray:
    """Many sequences of ids in one flat array.

    Args:
        ids: all ids behind one another.
        offsets: where each sequence begins, and the end.
    """

    def __init__(self, ids: NDArray[np.uint16 | np.int32], offsets: NDArray[np.int64]) -> None:
        self._ids = ids
        self._offsets = offsets

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]], vocab_size: int) -> "TokenArray":
        """Pack sequences; two bytes an id where the vocabulary allows it."""
        lengths = np.fromiter((len(sequence) for sequence in sequences), np.int64, len(sequences))
        offsets = np.concatenate([np.zeros(1, np.int64), lengths.cumsum()])
        ids = np.fromiter((i for sequence in sequences for i in sequence), np.int32, int(offsets[-1]))
        return cls(ids.astype(np.uint16) if vocab_size <= 2**16 else ids, offsets)

    @classmethod
    def load(cls, stem: Path) -> "TokenArray":
        """Map what `save` wrote; nothing is read before it is asked for."""
        ids, offsets = (np.load(stem.with_suffix(f".{part}.npy"), mmap_mode="r") for part in ("ids", "offsets"))
        return cls(ids, offsets)

    def save(self, stem: Path) -> None:
        """Write two .npy files."""
        np.save(stem.with_suffix(".ids.npy"), self._ids)
        np.save(stem.with_suffix(".offsets.npy"), self._offsets)

    def __len__(self) -> int:
        """Number of sequences."""
        return len(self._offsets) - 1

    def __getitem__(self, i: int) -> NDArray[np.uint16 | np.int32]:
        return self._ids[self._offsets[i] : self._offsets[i + 1]]

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Tokens of each sequence."""
        return np.diff(self._offsets).astype(np.int32)

    def gather(self, rows: NDArray[np.integer]) -> tuple[NDArray[np.uint16 | np.int32], NDArray[np.int64]]:
        """These sequences behind one another, and the length of each."""
        begins = self._offsets[rows]
        lengths = self._offsets[rows + 1] - begins
        # where a sequence begins in the file, less where it begins in the answer, is the same for all of its ids
        places = np.repeat(begins - (lengths.cumsum() - lengths), lengths) + np.arange(lengths.sum())
        return self._ids[places], lengths


class TokenPairs(NamedTuple):
    """Source and target ids of a split, line by line."""

    src: TokenArray
    tgt: TokenArray
