"""Some of the pairs of two files, read a block at a time when needed: the text itself is never kept in memory."""

import codecs
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from utils.dataset.parallel_text import ParallelFiles, ParallelText, read_blocks


class TextBlocks:
    """The blocks of two files, and which of their pairs are kept.

    Args:
        files: the text and its translation.
        ends: for each block, the lines, source bytes and target bytes up to its end.
        kept: whether each pair is kept, line by line.
    """

    def __init__(self, files: ParallelFiles, ends: NDArray[np.int64], kept: NDArray[np.bool_]) -> None:
        self.files = files
        self._ends = ends
        self._kept = kept
        self._n_kept = int(np.count_nonzero(kept))

    @classmethod
    def whole(cls, files: ParallelFiles) -> "TextBlocks":
        """Keep all pairs of two files.

        Raises:
            ValueError: a file is missing, empty or not UTF-8, or the line counts differ.
        """
        ends = [block.ends for block in read_blocks(files)]
        return cls(files, np.array(ends, np.int64), np.ones(ends[-1][0], bool))

    @classmethod
    def load(cls, files: ParallelFiles, folder: Path) -> "TextBlocks":
        """Load what `save` wrote about these files."""
        return cls(files, np.load(folder / "ends.npy"), np.load(folder / "kept.npy"))

    def save(self, folder: Path) -> None:
        """Write everything but the text into a folder."""
        np.save(folder / "ends.npy", self._ends)
        np.save(folder / "kept.npy", self._kept)

    def __len__(self) -> int:
        """Number of pairs that are kept."""
        return self._n_kept

    @property
    def n_blocks(self) -> int:
        """Number of blocks; a block may have no pair that is kept."""
        return len(self._ends)

    def block(self, i: int) -> ParallelText:
        """Read the pairs of block i that are kept."""
        return ParallelText(self._lines(i, 0), self._lines(i, 1))

    @property
    def src(self) -> "Side":
        """The source lines."""
        return Side(self, 0)

    @property
    def tgt(self) -> "Side":
        """The target lines."""
        return Side(self, 1)

    def _lines(self, i: int, side: int) -> list[str]:
        first, begin = (int(self._ends[i - 1, place]) if i else 0 for place in (0, 1 + side))
        last, end = (int(self._ends[i, place]) for place in (0, 1 + side))
        with self.files[side].open("rb") as file:
            file.seek(begin)
            text = file.read(end - begin)
        if not begin:
            text = text.removeprefix(codecs.BOM_UTF8)
        lines = text.decode("utf-8").split("\n")  # with an empty one after a final "\n"
        return [lines[row].rstrip("\r") for row in np.flatnonzero(self._kept[first:last]).tolist()]


class Side:
    """The lines of one side, in order; may be iterated over repeatedly.

    Args:
        text: the pairs.
        side: 0 for the source, 1 for the target.
    """

    def __init__(self, text: TextBlocks, side: int) -> None:
        self._text = text
        self._side = side

    def __len__(self) -> int:
        """Number of lines."""
        return len(self._text)

    def __iter__(self) -> Iterator[str]:
        for i in range(self._text.n_blocks):
            yield from self._text._lines(i, self._side)
