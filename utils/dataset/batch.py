"""Batches of about equal work and little padding: buckets of similar length, epochs drawn by seed, prefetching."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from const.token import BOS_ID, EOS_ID, PAD_ID
from utils.dataset.ids import TokenArray, TokenPairs

EpochT = TypeVar("EpochT", bound="AnyEpoch")
BatchT = TypeVar("BatchT", bound="AnyBatch")
X = TypeVar("X")


class Batch(NamedTuple):
    """B pairs, padded at the end."""

    src: Int[Tensor, "B S"]  # ... </s>
    tgt: Int[Tensor, "B T"]  # <s> ... </s>: all but the last are read, all but the first predicted

    @property
    def target_tokens(self) -> int:
        """Number of tokens to predict, </s> included; read it before the batch goes to a device."""
        return int((self.tgt[:, 1:] != PAD_ID).sum())

    @property
    def sides(self) -> dict[str, Int[Tensor, "B L"]]:
        """Source and target, the target without <s>, which is not predicted."""
        return {"source": self.src, "target tokens": self.tgt[:, 1:]}

    def to(self, device: torch.device) -> "Batch":
        """Copy to a device; from pinned memory without waiting."""
        return Batch(self.src.to(device, non_blocking=True), self.tgt.to(device, non_blocking=True))


def within_budget(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Yield the places of sequences, batch by batch, longest first, so that running out of memory shows at once.

    A batch has at most `budget` positions, padding included; a longer sequence is a batch by itself.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    while order:
        size = max(1, budget // lengths[order[0]])
        rows, order = order[:size], order[size:]
        yield rows


def padded(sequences: Sequence[NDArray[np.integer] | Sequence[int]], bos: bool = False) -> Int[Tensor, "B L"]:
    """Make one tensor of sequences of different lengths, each followed by </s> and optionally preceded by <s>."""
    longest = max(len(sequence) for sequence in sequences)
    out = np.full((len(sequences), longest + 1 + bos), PAD_ID, np.int64)
    if bos:
        out[:, 0] = BOS_ID
    for row, sequence in zip(out, sequences, strict=True):
        end = len(sequence) + bos
        row[int(bos) : end] = sequence
        row[end] = EOS_ID
    return torch.from_numpy(out)


class AnyBatch(Protocol):
    """A batch of tensors to learn from."""

    @property
    def sides(self) -> Mapping[str, Int[Tensor, "B L"]]:
        """The ids that the network reads or predicts, padded, by name."""

    def to(self, device: torch.device) -> Self:
        """Copy to a device; from pinned memory without waiting."""


def filling(batch: AnyBatch) -> tuple[int, int]:
    """Count positions that hold tokens, and all positions; call it before the batch goes to a device."""
    sides = batch.sides.values()
    return sum(int((ids != PAD_ID).sum()) for ids in sides), sum(ids.numel() for ids in sides)


def size(batch: AnyBatch) -> str:
    """Describe the size of a batch, rows x columns, for people."""
    return " and ".join(f"{ids.size(0):,} x {ids.size(1):,} {name}" for name, ids in batch.sides.items())


class AnyEpoch(Protocol):
    """The batches of an epoch, in training order; each is made on demand."""

    n_dropped: int  # examples left out for their length
    padding: float  # share of all positions

    def __len__(self) -> int:
        """Number of batches."""

    def __getitem__(self, i: int) -> AnyBatch: ...

    def target_tokens(self, i: int) -> int:
        """Return the number of tokens that batch i predicts."""

    def largest(self) -> int:
        """Return the batch with the most positions, which memory must be able to hold."""


class BatchSettings(Protocol):
    """How a text becomes batches."""

    @property
    def accumulate(self) -> int:
        """Batches whose gradients are added before an update."""

    def remedy(self) -> str:
        """Return what to change where a batch does not fit in memory."""


class Sampler(Generic[EpochT]):
    """Makes epochs of batches; the last one requested is remembered.

    Args:
        make: makes the epoch of a number, always an equal one.
    """

    def __init__(self, make: Callable[[int], EpochT]) -> None:
        self._make = make
        self._last: tuple[int, EpochT] | None = None

    def epoch(self, epoch: int) -> EpochT:
        """Return the batches of an epoch, from 0: the same at every call."""
        if self._last is None or self._last[0] != epoch:
            self._last = None  # frees it before the next one is made
            self._last = epoch, self._make(epoch)
        return self._last[1]

    def all(self) -> list[Any]:  # of the batches of such an epoch
        """Return the batches of the first epoch, for validation and testing."""
        epoch = self.epoch(0)
        return [epoch[i] for i in range(len(epoch))]


class Buckets(ABC, Generic[BatchT]):
    """The batches of an epoch, in training order, a function of seed and epoch alone; each is made on demand.

    Rows have one sequence, or one on either side. They are sorted by length; of two sides, by the second and, among
    equals, by the first: ascending for one length of the second, descending for the next, so that no batch has the
    longest beside the shortest. Rows of equal lengths are in random order. The sequence is cut wherever a bound is
    reached, and the batches are then shuffled.

    Args:
        sides: lengths of the sequences of each side, special tokens included.
        tokens_per_batch: most positions of a batch on either side, padding included; a longer row is a batch by itself.
        multiple: widths are padded up to a multiple of it, and the rows of a batch are a multiple of it where there
            are that many.
        random: generator that decides the order.
        sentences_per_batch: most rows of a batch; None: as many as fit.
    """

    n_dropped = 0  # examples left out for their length

    def __init__(
        self,
        sides: Sequence[NDArray[np.integer]],
        tokens_per_batch: int,
        multiple: int,
        random: np.random.Generator,
        sentences_per_batch: int | None = None,
    ) -> None:
        n = len(sides[0])
        wide = [-(-side // multiple) * multiple for side in sides]
        # a stable sort of a random order leaves equals in random order
        order = random.permutation(np.arange(n, dtype=np.int32))
        self._order = order[np.argsort(_by_length(*wide)[order], kind="stable")]
        wide = [side[self._order] for side in wide]
        self._cuts = _cut(np.maximum.reduce(wide), tokens_per_batch, sentences_per_batch or n, multiple)
        begins = self._cuts[:-1]
        self._widths = np.stack([np.maximum.reduceat(side, begins) for side in wide], axis=1)
        self._batches = random.permutation(len(begins))
        self._positions = np.diff(self._cuts) * self._widths.sum(axis=1, dtype=np.int64)  # in order of lengths
        real = sum(int(side.sum(dtype=np.int64)) for side in sides)
        self.padding = 1 - real / int(self._positions.sum())  # share of all positions, on all sides

    def __len__(self) -> int:
        """Number of batches."""
        return len(self._batches)

    def __iter__(self) -> Iterator[BatchT]:
        return (self[i] for i in range(len(self)))

    @abstractmethod
    def __getitem__(self, i: int) -> BatchT: ...

    @abstractmethod
    def target_tokens(self, i: int) -> int:
        """Return the number of tokens that batch i predicts."""

    def bucket(self, i: int) -> NDArray[np.int32]:
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
        return int(self._positions[self._batches].argmax())


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


def _cut(widths: NDArray[np.integer], budget: int, most: int, multiple: int) -> NDArray[np.int64]:
    """Return where batches begin, and the end: each takes as many consecutive rows as the bounds allow."""
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


class Epoch(Buckets[Batch]):
    """The batches of pairs.

    Args:
        max_tokens: pairs with a longer side (</s> included), and pairs with an empty one, are left out; None keeps all.
        key: seed of the order, and number of the epoch.
    """

    def __init__(
        self,
        pairs: TokenPairs,
        tokens_per_batch: int,
        max_tokens: int | None,
        multiple: int,
        key: tuple[int, int],
        sentences_per_batch: int | None = None,
    ) -> None:
        self._pairs, self._multiple = pairs, multiple
        src, tgt = (side.lengths + 1 for side in pairs)  # with </s>
        n = len(src)
        kept = np.arange(n, dtype=np.int32)
        if max_tokens is not None:
            kept = kept[(src > 1) & (tgt > 1) & (np.maximum(src, tgt) <= max_tokens)]
            src, tgt = src[kept], tgt[kept]
        self._kept, self._tgt_lengths = kept, tgt
        self.n_dropped = n - len(kept)
        if not len(kept):
            raise ValueError(f"no pair of {n:,} has at most max_tokens={max_tokens} tokens a side: raise it")
        super().__init__((src, tgt), tokens_per_batch, multiple, np.random.default_rng(key), sentences_per_batch)

    def rows(self, i: int) -> NDArray[np.int32]:
        """Return the pairs of batch i."""
        return self._kept[self.bucket(i)]

    def target_tokens(self, i: int) -> int:
        """Return the number of tokens that batch i predicts, </s> included, without making the batch."""
        return int(self._tgt_lengths[self.bucket(i)].sum())

    def __getitem__(self, i: int) -> Batch:
        return batch_of(self._pairs, self.rows(i), self._multiple)


def batch_of(pairs: TokenPairs, rows: NDArray[np.integer], multiple: int = 1) -> Batch:
    """Make tensors of these pairs, lengths padded up to a multiple; <s>, which is not predicted, comes on top."""
    sides = []
    for side, begin in zip(pairs, (0, 1), strict=True):
        ids, lengths = side.gather(rows)
        width = -(-(int(lengths.max()) + 1) // multiple) * multiple
        out = np.full((len(rows), begin + width), PAD_ID, np.int64)
        out[:, :begin] = BOS_ID
        fill(out, begin, ids, lengths, lengths)
        sides.append(torch.from_numpy(out))
    return Batch(*sides)


class BucketSampler(Sampler[Epoch]):
    """Makes epochs of batches of a split; arguments as in `Epoch`, and `pairs` may depend on the epoch."""

    def __init__(
        self,
        pairs: TokenPairs | Callable[[int], TokenPairs],
        tokens_per_batch: int,
        max_tokens: int | None = None,
        seed: int = 0,
        multiple: int = 1,
        sentences_per_batch: int | None = None,
    ) -> None:
        pairs_of = pairs if callable(pairs) else lambda _: pairs
        super().__init__(
            lambda n: Epoch(pairs_of(n), tokens_per_batch, max_tokens, multiple, (seed, n), sentences_per_batch)
        )


class BothDirections:
    """The batches of an epoch of two directions, mixed: each batch is of one direction, an update may have both."""

    def __init__(self, forward: Epoch, backward: Epoch, key: tuple[int, int]) -> None:
        self._epochs = forward, backward
        self._order = np.random.default_rng((*key, 2)).permutation(len(forward) + len(backward))
        self.n_dropped = forward.n_dropped + backward.n_dropped
        self.padding = sum(len(epoch) * epoch.padding for epoch in self._epochs) / len(self)

    def __len__(self) -> int:
        """Number of batches."""
        return len(self._order)

    def _place(self, i: int) -> tuple[Epoch, int]:
        forward, backward = self._epochs
        place = int(self._order[i])
        return (forward, place) if place < len(forward) else (backward, place - len(forward))

    def __getitem__(self, i: int) -> Batch:
        epoch, place = self._place(i)
        return epoch[place]

    def target_tokens(self, i: int) -> int:
        """Return the number of tokens that batch i predicts, </s> included, without making the batch."""
        epoch, place = self._place(i)
        return epoch.target_tokens(place)

    def largest(self) -> int:
        """Return the batch with the most positions, which memory must be able to hold."""
        forward, backward = self._epochs
        places = np.argsort(self._order)
        return max(
            (int(places[forward.largest()]), int(places[len(forward) + backward.largest()])),
            key=lambda i: sum(ids.numel() for ids in self[i].sides.values()),
        )


def require_positions(lines: TokenArray, file: Path, positions: int, option: str) -> None:
    """Refuse a text with lines longer than a learned table of positions; lines are scored whole."""
    # a decoder reads <s> and all tokens, which are as many as all tokens and </s>
    lengths = lines.lengths + 1
    if lengths.max(initial=0) > positions:
        line, longest = int(lengths.argmax()), int(lengths.max())
        raise ValueError(
            f"{file}, line {line + 1} takes {longest} positions, </s> included, and the learned table has "
            f"{option}={positions}: give --{option} {longest}, or shorten the line"
        )


_AHEAD = 4


def prefetched(items: Iterable[X], pin: bool = False) -> Generator[X, None, None]:
    """Yield the same items in the same order, some of them made ahead by a thread during an update.

    The thread ends when the items do, when making one fails (taking it then raises the exception), and when the
    iterator is closed or discarded half-way.

    Args:
        pin: put tensors (also in tuples and lists) into pinned memory, from which a GPU copies by itself.
    """
    rest = iter(items)

    def take() -> list[X]:  # one, or none at the end
        return [_pinned(item) if pin else item for item in islice(rest, 1)]

    pool = ThreadPoolExecutor(1, "prefetch")
    try:
        pending = deque(pool.submit(take) for _ in range(_AHEAD))
        while item := pending.popleft().result():
            pending.append(pool.submit(take))
            yield item[0]
    finally:
        pool.shutdown(cancel_futures=True)


def _pinned(item: Any) -> Any:
    match item:
        case Tensor():
            return item.pin_memory()
        case list():
            return [_pinned(part) for part in item]
        case tuple():
            parts = map(_pinned, item)
            return type(item)(*parts) if hasattr(item, "_fields") else tuple(parts)
    return item
