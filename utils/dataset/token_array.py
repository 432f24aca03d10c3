"""Many sequences of token ids in one flat array, memory-mapped where they come from a file."""

import io
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class TokenArray:
    """Many sequences of ids in one flat array.

    Args:
        ids: all ids, concatenated.
        offsets: where each sequence begins, and the total length.
    """

    def __init__(self, ids: NDArray[np.uint16 | np.int32], offsets: NDArray[np.int64]) -> None:
        self._ids = ids
        self._offsets = offsets

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]], vocab_size: int) -> "TokenArray":
        """Pack sequences; ids take two bytes each where the vocabulary allows it."""
        lengths = np.fromiter((len(sequence) for sequence in sequences), np.int64, len(sequences))
        offsets = np.concatenate([np.zeros(1, np.int64), lengths.cumsum()])
        ids = np.fromiter((i for sequence in sequences for i in sequence), np.int32, int(offsets[-1]))
        return cls(ids.astype(np.uint16) if vocab_size <= 2**16 else ids, offsets)

    @classmethod
    def load(cls, stem: Path) -> "TokenArray":
        """Memory-map what a `TokenWriter` wrote; nothing is read until it is used."""
        ids, offsets = (np.load(stem.with_suffix(f".{part}.npy"), mmap_mode="r") for part in ("ids", "offsets"))
        return cls(ids, offsets)

    def __len__(self) -> int:
        """Number of sequences."""
        return len(self._offsets) - 1

    def __getitem__(self, i: int) -> NDArray[np.uint16 | np.int32]:
        return self._ids[self._offsets[i] : self._offsets[i + 1]]

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Number of tokens of each sequence."""
        return np.diff(self._offsets).astype(np.int32)

    def gather(self, rows: NDArray[np.integer]) -> tuple[NDArray[np.uint16 | np.int32], NDArray[np.int64]]:
        """Return these sequences concatenated, and the length of each."""
        begins = self._offsets[rows]
        lengths = self._offsets[rows + 1] - begins
        # the offset between a sequence's place in the file and its place in the result is the same for all of its ids
        places = np.repeat(begins - (lengths.cumsum() - lengths), lengths) + np.arange(lengths.sum())
        return self._ids[places], lengths


class TokenWriter:
    """Writes sequences to two .npy files, part by part, for `TokenArray.load`; they are complete on exit.

    Args:
        stem: path of the files without their suffix.
        vocab_size: size of the vocabulary; ids take two bytes each where it allows that.
    """

    def __init__(self, stem: Path, vocab_size: int) -> None:
        self._stem = stem
        self._dtype: np.dtype[Any] = np.dtype(np.uint16 if vocab_size <= 2**16 else np.int32)
        self._lengths: list[NDArray[np.int32]] = []

    def __enter__(self) -> "TokenWriter":
        self._file = self._stem.with_suffix(".ids.npy").open("wb")
        self._file.write(_header(self._dtype, 0))
        return self

    def write(self, ids: NDArray[np.integer], lengths: NDArray[np.int32]) -> None:
        """Add sequences, given concatenated."""
        self._file.write(ids.astype(self._dtype).tobytes())
        self._lengths.append(lengths)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        offsets = np.zeros(1 + sum(map(len, self._lengths)), np.int64)
        np.cumsum(np.concatenate([np.empty(0, np.int32), *self._lengths]), out=offsets[1:])
        self._file.seek(0)
        self._file.write(_header(self._dtype, int(offsets[-1])))
        self._file.close()
        np.save(self._stem.with_suffix(".offsets.npy"), offsets)


def _header(dtype: np.dtype[Any], n: int) -> bytes:
    """Return the header of a .npy file of n numbers; numpy leaves room in it for n to grow."""
    header = io.BytesIO()
    fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (n,)}
    np.lib.format.write_array_header_1_0(header, fields)
    return header.getvalue()


class TokenPairs(NamedTuple):
    """Source and target ids of a split, line by line."""

    src: TokenArray
    tgt: TokenArray

    @classmethod
    def load(cls, folder: Path) -> "TokenPairs":
        """Memory-map both sides."""
        return cls(TokenArray.load(folder / "src"), TokenArray.load(folder / "tgt"))
