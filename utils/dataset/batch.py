"""Batches of about equal work and little padding: buckets of similar length, epochs drawn by seed, prefetching."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from config.data import BatchConfig, StreamConfig
from const.token import BOS_ID, EOS_ID, PAD_ID
from utils.dataset.ids import TokenArray, TokenPairs

BatchSettings = BatchConfig | StreamConfig
EpochT = TypeVar("EpochT", bound="AnyEpoch")
X = TypeVar("X")


@dataclass(frozen=True, eq=False)
class AnyBatch:
    """Tensors to learn from, with B rows; the first ones are ids, padded at the end."""

    def __iter__(self) -> Iterator[Tensor]:
        return (getattr(self, field.name) for field in fields(self))

    @property
    def sides(self) -> Mapping[str, Int[Tensor, "B L"]]:
        """The ids that the network reads or predicts, by name."""
        return {"tokens": next(iter(self))}

    def to(self, device: torch.device) -> Self:
        """Copy to a device; from pinned memory without waiting."""
        return type(self)(*(part.to(device, non_blocking=True) for part in self))

    def pin_memory(self) -> Self:
        """Copy to pinned memory, from which a GPU copies by itself."""
        return type(self)(*(part.pin_memory() for part in self))


@dataclass(frozen=True, eq=False)
class Batch(AnyBatch):
    """B pairs."""

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


def filling(batch: AnyBatch) -> tuple[int, int]:
    """Count positions that hold tokens, and all positions; call it before the batch goes to a device."""
    sides = batch.sides.values()
    return sum(int((ids != PAD_ID).sum()) for ids in sides), sum(ids.numel() for ids in sides)


def size(batch: AnyBatch) -> str:
    """Describe the size of a batch, rows x columns, for people."""
    return " and ".join(f"{ids.size(0):,} x {ids.size(1):,} {name}" for name, ids in batch.sides.items())


def within_budget(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Yield the places of sequences, batch by batch, longest first, so that running out of memory shows at once.

    A batch has at most `budget` positions, padding included; a longer sequence is a batch by itself.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    while order:
        n = max(1, budget // lengths[order[0]])
        rows, order = order[:n], order[n:]
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


def fill(
    out: NDArray[np.int64],
    begins: NDArray[np.integer] | int,
    ids: NDArray[np.integer],
    lengths: NDArray[np.integer],
    kept: NDArray[np.integer],
) -> None:
    """Write concatenated sequences into the rows of an array, `kept` ids of each from column `begins` on, then </s>."""
    row = np.repeat(np.arange(len(lengths)), lengths)
    within = np.arange(len(ids)) - (lengths.cumsum() - lengths)[row]
    stays = within < kept[row]
    row, within = row[stays], within[stays]
    out[row, np.broadcast_to(begins, lengths.shape)[row] + within] = ids[stays]
    out[np.arange(len(lengths)), begins + kept] = EOS_ID


class AnyEpoch(ABC):
    """The batches of an epoch, in training order; each is made on demand."""

    n_dropped = 0  # examples left out for their length
    padding: float  # share of all positions

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, i: int) -> Any: ...

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    @abstractmethod
    def target_tokens(self, i: int) -> int:
        """Return the number of tokens that batch i predicts, without making the batch where that is possible."""

    @abstractmethod
    def largest(self) -> int:
        """Return the batch with the most positions, which memory must be able to hold."""


class Sampler(Generic[EpochT]):
    """Makes epochs of batches by their numbers; the last one requested is remembered."""

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
        return list(self.epoch(0))


class Examples(NamedTuple):
    """What an epoch is made of.

    Attributes:
        sides: lengths of the one or two sequences of each example, special tokens included.
        make: makes a batch of some examples, given the width of each side.
        target_tokens: how many tokens some examples predict.
        n_dropped: how many were left out for their length.
    """

    sides: Sequence[NDArray[np.integer]]
    make: Callable[[NDArray[np.integer], list[int]], AnyBatch]
    target_tokens: Callable[[NDArray[np.integer]], int]
    n_dropped: int = 0


class Epoch(AnyEpoch):
    """The batches of an epoch as a function of lengths, bounds and generator alone.

    Examples are sorted by length; of two sides, by the second and, among equals, by the first: ascending for one length
    of the second, descending for the next, so that no batch has the longest beside the shortest. Examples of equal
    lengths are in random order. The sequence is cut wherever a bound is reached, and the batches are then shuffled.

    Args:
        examples: what to make batches of.
        random: generator that decides the order.
        tokens_per_batch: most positions of a batch on either side, padding included; a longer row is a batch by itself.
        multiple: widths are padded up to a multiple of it, and the rows of a batch are a multiple of it where there
            are that many.
        sentences_per_batch: most rows of a batch; None: as many as fit.
    """

    def __init__(
        self,
        examples: Examples,
        random: np.random.Generator,
        tokens_per_batch: int,
        multiple: int = 1,
        sentences_per_batch: int | None = None,
    ) -> None:
        self._make, self._target_tokens, self.n_dropped = examples.make, examples.target_tokens, examples.n_dropped
        n = len(examples.sides[0])
        wide = [-(-side // multiple) * multiple for side in examples.sides]
        # a stable sort of a random order leaves equals in random order
        order = random.permutation(np.arange(n, dtype=np.int32))
        self._order = order[np.argsort(_by_length(*wide)[order], kind="stable")]
        wide = [side[self._order] for side in wide]
        self._cuts = _cut(np.maximum.reduce(wide), tokens_per_batch, sentences_per_batch or n, multiple)
        begins = self._cuts[:-1]
        self._widths = np.stack([np.maximum.reduceat(side, begins) for side in wide], axis=1)
        self._batches = random.permutation(len(begins))
        self._positions = np.diff(self._cuts) * self._widths.sum(axis=1, dtype=np.int64)  # in order of lengths
        real = sum(int(side.sum(dtype=np.int64)) for side in examples.sides)
        self.padding = 1 - real / int(self._positions.sum())

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, i: int) -> Any:
        return self._make(self._rows(i), self._widths[self._batches[i]].tolist())

    def target_tokens(self, i: int) -> int:
        """Return the number of tokens that batch i predicts."""
        return self._target_tokens(self._rows(i))

    def largest(self) -> int:
        """Return the batch with the most positions."""
        return int(self._positions[self._batches].argmax())

    def _rows(self, i: int) -> NDArray[np.int32]:
        batch = self._batches[i]
        return self._order[self._cuts[batch] : self._cuts[batch + 1]]


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
        n = max(1, int(np.count_nonzero(widest * np.arange(1, len(widest) + 1) <= budget)))
        found.append(begin + (n - n % multiple or n))
    return np.array(found)


def pair_examples(
    pairs: TokenPairs | Callable[[int], TokenPairs], max_tokens: int | None, key: tuple[int, int], _: Any
) -> Examples:
    """Return pairs, which may depend on the epoch, without those that have a longer (with </s>) or empty side."""
    if callable(pairs):
        pairs = pairs(key[1])
    src, tgt = (side.lengths + 1 for side in pairs)  # with </s>
    kept = np.arange(len(src), dtype=np.int32)
    if max_tokens is not None:
        kept = kept[(src > 1) & (tgt > 1) & (np.maximum(src, tgt) <= max_tokens)]
    if not len(kept):
        raise ValueError(f"no pair of {len(src):,} has at most max_tokens={max_tokens} tokens a side: raise it")
    n_dropped, src, tgt = len(src) - len(kept), src[kept], tgt[kept]
    return Examples(
        (src, tgt),
        lambda rows, widths: batch_of(pairs, kept[rows], widths),
        lambda rows: int(tgt[rows].sum()),
        n_dropped,
    )


def batch_of(pairs: TokenPairs, rows: NDArray[np.integer], widths: Sequence[int] = (0, 0)) -> Batch:
    """Make tensors of these pairs, at least this wide; <s>, which is not predicted, comes on top."""
    sides = []
    for side, begin, width in zip(pairs, (0, 1), widths, strict=True):
        ids, lengths = side.gather(rows)
        out = np.full((len(rows), begin + max(width, int(lengths.max()) + 1)), PAD_ID, np.int64)
        out[:, :begin] = BOS_ID
        fill(out, begin, ids, lengths, lengths)
        sides.append(torch.from_numpy(out))
    return Batch(*sides)


ExamplesOf = Callable[[Any, int | None, tuple[int, int], np.random.Generator], Examples]


class BucketSampler(Sampler[Epoch]):
    """Makes epochs of batches of a text.

    Args:
        text: the text: pairs, if `examples` is not given.
        max_tokens: what is longer, special tokens included, is left out or truncated, as `examples` says; None: never.
        examples: returns those of an epoch, from the text, `max_tokens`, seed and number of the epoch, and a generator.
            The other arguments are as in `Epoch`.
    """

    def __init__(
        self,
        text: Any,
        tokens_per_batch: int,
        max_tokens: int | None = None,
        seed: int = 0,
        multiple: int = 1,
        sentences_per_batch: int | None = None,
        examples: ExamplesOf = pair_examples,
    ) -> None:
        def epoch(n: int) -> Epoch:
            key, random = (seed, n), np.random.default_rng((seed, n))
            of_epoch = examples(text, max_tokens, key, random)
            return Epoch(of_epoch, random, tokens_per_batch, multiple, sentences_per_batch)

        super().__init__(epoch)


class BothDirections(AnyEpoch):
    """The batches of an epoch of two directions, mixed: each batch is of one direction, an update may have both."""

    def __init__(self, forward: Epoch, backward: Epoch, key: tuple[int, int]) -> None:
        epochs = forward, backward
        places = [(epoch, i) for epoch in epochs for i in range(len(epoch))]
        self._places = [places[i] for i in np.random.default_rng((*key, 2)).permutation(len(places))]
        self._largest = [self._places.index((epoch, epoch.largest())) for epoch in epochs]
        self.n_dropped = forward.n_dropped + backward.n_dropped
        self.padding = sum(len(epoch) * epoch.padding for epoch in epochs) / len(places)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, i: int) -> Batch:
        epoch, place = self._places[i]
        return epoch[place]

    def target_tokens(self, i: int) -> int:
        """Return the number of tokens that batch i predicts."""
        epoch, place = self._places[i]
        return epoch.target_tokens(place)

    def largest(self) -> int:
        """Return the batch with the most positions."""
        return max(self._largest, key=lambda i: filling(self[i])[1])


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
        pin: put tensors and batches (also in tuples and lists) into pinned memory, from which a GPU copies by itself.
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
    if isinstance(item, list | tuple):
        return type(item)(map(_pinned, item))
    return item.pin_memory() if isinstance(item, Tensor | AnyBatch) else item
