"""Bucketing of rows of similar length within a budget of positions, and filling of rows with ids."""

import numpy as np
from numpy.typing import NDArray


class Buckets:
    """The rows of each batch of an epoch, and its width.

    Rows are sorted by length, equal ones in random order, and cut where the budget is full; the batches are shuffled.

    Args:
        lengths: lengths of the rows, special tokens included.
        tokens_per_batch: most positions of a batch, padding included; a longer row is a batch by itself.
        multiple: widths are padded up to a multiple of it, and the rows of a batch are a multiple of it where there
            are that many.
        random: generator that decides the order.
        most: most rows of a batch; None: as many as fit.
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
        """Return the number of positions of each batch, padding included, in order of lengths."""
        return np.diff(self._cuts) * self._widths

    def __len__(self) -> int:
        """Number of batches."""
        return len(self._batches)

    def rows(self, i: int) -> NDArray[np.int64]:
        """Return the rows of batch i."""
        if not 0 <= i < len(self):
            raise IndexError(f"batch {i} of {len(self)}")
        batch = self._batches[i]
        return self._order[self._cuts[batch] : self._cuts[batch + 1]]

    def width(self, i: int) -> int:
        """Return the width of batch i."""
        return int(self._widths[self._batches[i]])

    def largest(self) -> int:
        """Return the batch with the most positions, which memory must be able to hold."""
        return int(self._positions()[self._batches].argmax())


def cuts(widths: NDArray[np.integer], budget: int, most: int, multiple: int) -> NDArray[np.int64]:
    """Return where batches begin, and the end: each takes as many consecutive rows as the bounds allow.

    Args:
        widths: widths of the rows.
        budget: most positions of a batch, padding included; a wider row is a batch by itself.
        most: most rows of a batch.
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
    """Write sequences into the rows of an array, each truncated to the ids that are kept.

    Args:
        out: where to write.
        begins: the column where each sequence begins.
        ids: ids of the sequences, concatenated.
        lengths: lengths of the sequences.
        kept: how many ids of each are written.
    """
    row = np.repeat(np.arange(len(lengths)), lengths)
    within = np.arange(len(ids)) - (lengths.cumsum() - lengths)[row]
    stays = within < kept[row]
    row, within = row[stays], within[stays]
    out[row, np.broadcast_to(begins, lengths.shape)[row] + within] = ids[stays]
