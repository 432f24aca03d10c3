"""Bucketing of rows of similar length within a budget of positions, and filling of rows with ids."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from const.token import EOS_ID


class Buckets:
    """The rows of each batch of an epoch, and its width; a row has one sequence, or one on either side.

    Rows are sorted by length; of two sides, by the second and, among equals, by the first: ascending for one length of
    the second, descending for the next, so that no batch has the longest beside the shortest. Rows of equal lengths are
    in random order. The sequence is cut wherever a bound is reached, and the batches are then shuffled.

    Args:
        sides: lengths of the sequences of each side, special tokens included.
        tokens_per_batch: most positions of a batch on either side, padding included; a longer row is a batch by itself.
        multiple: widths are padded up to a multiple of it, and the rows of a batch are a multiple of it where there
            are that many.
        random: generator that decides the order.
        most: most rows of a batch; None: as many as fit.
    """

    def __init__(
        self,
        sides: Sequence[NDArray[np.integer]],
        tokens_per_batch: int,
        multiple: int,
        random: np.random.Generator,
        most: int | None = None,
    ) -> None:
        n = len(sides[0])
        wide = [_up(side, multiple) for side in sides]
        # a stable sort of a random order leaves equals in random order
        order = random.permutation(np.arange(n, dtype=np.int32))
        self._order = order[np.argsort(_by_length(*wide)[order], kind="stable")]
        wide = [side[self._order] for side in wide]
        self._cuts = cuts(np.maximum.reduce(wide), tokens_per_batch, most or n, multiple)
        begins = self._cuts[:-1]
        self._widths = np.stack([np.maximum.reduceat(side, begins) for side in wide], axis=1)
        self._batches = random.permutation(len(begins))
        real = sum(int(side.sum(dtype=np.int64)) for side in sides)
        self.padding = 1 - real / int(self._positions().sum())  # share of all positions, on all sides

    def _positions(self) -> NDArray[np.int64]:
        """Return the number of positions of each batch, padding included, in order of lengths."""
        return np.diff(self._cuts) * self._widths.sum(axis=1, dtype=np.int64)

    def __len__(self) -> int:
        """Number of batches."""
        return len(self._batches)

    def rows(self, i: int) -> NDArray[np.int32]:
        """Return the rows of batch i."""
        if not 0 <= i < len(self):
            raise IndexError(f"batch {i} of {len(self)}")
        batch = self._batches[i]
        return self._order[self._cuts[batch] : self._cuts[batch + 1]]

    def width(self, i: int) -> int:
        """Return the width of batch i, on its wider side."""
        return int(self._widths[self._batches[i]].max())

    def largest(self) -> int:
        """Return the batch with the most positions, which memory must be able to hold."""
        return int(self._positions()[self._batches].argmax())


def _up(lengths: NDArray[np.integer], multiple: int) -> NDArray[np.integer]:
    """Round lengths up to a multiple."""
    return lengths if multiple == 1 else -(-lengths // multiple) * multiple


def _by_length(first: NDArray[np.integer], second: NDArray[np.integer] | None = None) -> NDArray[np.integer]:
    """Return sort keys: by the second length, then by the first, ascending and descending in turn."""
    widest = int(first.max()) + 1
    if second is None:
        number, most = first, widest
    else:
        rank = (np.bincount(second) > 0).cumsum() - 1  # of each length among those that occur
        base, sign = rank * widest, np.where(rank % 2, 1, -1)
        base += np.where(rank % 2, 0, widest - 1)
        number, most = base[second], len(rank) * widest
        number += sign[second] * first
    # two-byte numbers are radix-sorted, ten times as fast as by comparison
    return number.astype(np.min_scalar_type(most))


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
    """Write sequences into the rows of an array, each truncated to the ids that are kept, and </s> after it.

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
    out[np.arange(len(lengths)), begins + kept] = EOS_ID
