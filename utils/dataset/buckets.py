"""Rows of like length together within a budget of positions, and rows filled with ids."""

import numpy as np
from numpy.typing import NDArray


class Buckets:
    """Which rows make up each batch of an epoch, and how wide it is.

    Rows are sorted by length, equal ones in random order, cut where the budget is full, and the batches shuffled.

    Args:
        lengths: of the rows, all that stands in them counted.
        tokens_per_batch: most positions of a batch, padding included; a longer row is a batch by itself.
        multiple: widths are padded up to a multiple of it, and the rows of a batch are a multiple of it where there
            are that many.
        random: of the order.
        most: rows of a batch; None: as many as there is room for.
    """

    def __init__(
        self,
        lengths: NDArray[np.integer],
        tokens_per_batch: int,
        multiple: int,
        random: np.random.Generator,
        most: int | None = None,
    ) -> None:
        order = random.permutation(len(lengths))
        self._order = order[np.argsort(lengths[order], kind="stable")]
        widths = -(-lengths[self._order] // multiple) * multiple
        self._cuts = cuts(widths, tokens_per_batch, most or len(widths), multiple)
        self._widths = widths[self._cuts[1:] - 1].astype(np.int64)
        self._batches = random.permutation(len(self._widths))
        self.padding = 1 - float(lengths.sum(dtype=np.int64) / self._positions().sum())  # share of all positions

    def _positions(self) -> NDArray[np.int64]:
        """Of each batch, padding included, in order of lengths."""
        return np.diff(self._cuts) * self._widths

    def __len__(self) -> int:
        """Number of batches."""
        return len(self._batches)

    def rows(self, i: int) -> NDArray[np.int64]:
        """Which rows are in batch i."""
        if not 0 <= i < len(self):
            raise IndexError(f"batch {i} of {len(self)}")
        batch = self._batches[i]
        return self._order[self._cuts[batch] : self._cuts[batch + 1]]

    def width(self, i: int) -> int:
        """How wide batch i is."""
        return int(self._widths[self._batches[i]])

    def largest(self) -> int:
        """The batch with most positions: what the memory must hold."""
        return int(self._positions()[self._batches].argmax())


def cuts(widths: NDArray[np.integer], budget: int, most: int, multiple: int) -> NDArray[np.int64]:
    """Where batches begin, and the end: each takes as many of these rows, in turn, as the bounds have room for.

    Args:
        widths: of the rows.
        budget: most positions of a batch, padding included; a wider row is a batch by itself.
        most: rows of a batch.
        multiple: the rows of a batch are a multiple of it where there are that many.
    """
    found = [0]
    while (begin := found[-1]) < len(widths):
        room = min(most, max(1, budget // int(widths[begin])))
        widest = np.maximum.accumulate(widths[begin : begin + room])
        size = max(1, int(np.count_nonzero(widest * np.arange(1, len(widest) + 1) <= budget)))
        found.append(begin + (size - size % multiple or size))
    return np.array(found)


def fill(
    out: NDArray[np.int64],
    begins: NDArray[np.integer] | int,
    ids: NDArray[np.integer],
    lengths: NDArray[np.integer],
    kept: NDArray[np.integer],
) -> None:
    """Write sequences into the rows of an array, each cut at its end.

    Args:
        out: where to write.
        begins: the column with which each sequence begins.
        ids: of the sequences, behind one another.
        lengths: of the sequences.
        kept: how many ids of each are written.
    """
    row = np.repeat(np.arange(len(lengths)), lengths)
    within = np.arange(len(ids)) - (lengths.cumsum() - lengths)[row]
    stays = within < kept[row]
    row, within = row[stays], within[stays]
    out[row, np.broadcast_to(begins, lengths.shape)[row] + within] = ids[stays]
