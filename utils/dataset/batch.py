"""Batches of about equal work and little padding: buckets of similar length, epochs drawn by seed, prefetching.

For a training on pairs, read `BucketSampler`, then `pair_examples`, `_bucketed` and `batch_of`.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from itertools import chain, islice
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
BatchT = TypeVar("BatchT", bound="AnyBatch")
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


def framed(
    ids: NDArray[np.integer], lengths: NDArray[np.integer], kept: NDArray[np.integer], bos: bool, width: int = 0
) -> NDArray[np.int64]:
    """Return rows of at least this width: <s> where `bos` is set, the first `kept` ids of each sequence, </s>."""
    out = np.full((len(lengths), max(width, int(kept.max()) + 1 + bos)), PAD_ID, np.int64)
    out[:, :bos] = BOS_ID
    fill(out, int(bos), ids, lengths, kept)
    return out


def padded(sequences: Sequence[NDArray[np.integer] | Sequence[int]], bos: bool = False) -> Int[Tensor, "B L"]:
    """Make one tensor of sequences of different lengths, each followed by </s> and optionally preceded by <s>."""
    ids = np.fromiter(chain.from_iterable(sequences), np.int64)
    lengths = np.fromiter(map(len, sequences), np.int64)
    return torch.from_numpy(framed(ids, lengths, lengths, bos))


@dataclass(frozen=True, eq=False)
class Epoch:
    """The batches of an epoch, in training order; each is made on demand."""

    positions: NDArray[np.int64]  # of each batch, padding included
    n_tokens: int  # in all positions that are not padding
    make: Callable[[int], Any]
    target_tokens: Callable[[int], int]  # how many batch i predicts, without making it where that is possible
    n_dropped: int = 0  # examples left out for their length

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, i: int) -> Any:
        return self.make(i)

    def __iter__(self) -> Iterator[Any]:
        return map(self.make, range(len(self)))

    @property
    def padding(self) -> float:
        """Share of all positions."""
        return 1 - self.n_tokens / int(self.positions.sum())

    def largest(self) -> int:
        """Return the batch with the most positions, which memory must be able to hold."""
        return int(self.positions.argmax())


class Sampler(Generic[BatchT]):
    """Makes epochs of batches by their numbers; the last one requested is remembered."""

    def __init__(self, make: Callable[[int], Epoch]) -> None:
        self._make = make
        self._last: tuple[int, Epoch] | None = None

    def epoch(self, epoch: int) -> Epoch:
        """Return the batches of an epoch, from 0: the same at every call."""
        if self._last is None or self._last[0] != epoch:
            self._last = None  # frees it before the next one is made
            self._last = epoch, self._make(epoch)
        return self._last[1]

    def all(self) -> list[BatchT]:
        """Return the batches of the first epoch, for validation and testing."""
        return list(self.epoch(0))


class Examples(NamedTuple):
    """What an epoch is made of."""

    sides: Sequence[NDArray[np.integer]]  # lengths of the one or two sequences of each example, special tokens included
    make: Callable[[NDArray[np.integer], list[int]], AnyBatch]  # of some examples, given the width of each side
    target_tokens: Callable[[NDArray[np.integer]], int]  # how many some examples predict
    n_dropped: int = 0  # examples left out for their length


def _bucketed(
    examples: Examples, random: np.random.Generator, budget: int, multiple: int, max_rows: int | None
) -> Epoch:
    """Return batches as a function of lengths, bounds and generator alone; the bounds are as in `BucketSampler`.

    Examples are sorted by length; of two sides, by the second and, among equals, by the first: ascending for one length
    of the second, descending for the next, so that no batch has the longest beside the shortest. Examples of equal
    lengths are in random order. The sequence is split wherever a bound is reached, and the batches are then shuffled.
    """
    sides, make, target_tokens, n_dropped = examples
    n = len(sides[0])
    wide = [-(-side // multiple) * multiple for side in sides]
    # a stable sort of a random order leaves equals in random order
    order = random.permutation(np.arange(n, dtype=np.int32))
    order = order[np.argsort(_by_length(*wide)[order], kind="stable")]
    wide = [side[order] for side in wide]
    bounds = _bounds(np.maximum.reduce(wide), budget, max_rows or n, multiple)
    shuffled = random.permutation(len(bounds) - 1)
    begins, ends = bounds[:-1][shuffled], bounds[1:][shuffled]
    widths = np.stack([np.maximum.reduceat(side, bounds[:-1])[shuffled] for side in wide], axis=1)
    return Epoch(
        (ends - begins) * widths.sum(axis=1, dtype=np.int64),
        sum(int(side.sum(dtype=np.int64)) for side in sides),
        lambda i: make(order[begins[i] : ends[i]], widths[i].tolist()),
        lambda i: target_tokens(order[begins[i] : ends[i]]),
        n_dropped,
    )


def _by_length(first: NDArray[np.integer], second: NDArray[np.integer] | None = None) -> NDArray[np.integer]:
    """Return sort keys: by the second length, then by the first, ascending and descending in turn."""
    widest = int(first.max()) + 1
    if second is None:
        keys, n_keys = first, widest
    else:
        # rank · widest + first; for every other rank, rank · widest + (widest - 1 - first), which descends
        rank = (np.bincount(second) > 0).cumsum() - 1  # of each second length among those that occur
        base, sign = rank * widest, np.where(rank % 2, 1, -1)
        base += np.where(rank % 2, 0, widest - 1)
        keys, n_keys = base[second] + sign[second] * first, len(rank) * widest
    # two-byte numbers are radix-sorted, ten times as fast as by comparison
    return keys.astype(np.min_scalar_type(n_keys))


def _bounds(widths: NDArray[np.integer], budget: int, max_rows: int, multiple: int) -> NDArray[np.int64]:
    """Return where batches begin, and the end: each takes as many consecutive rows as are allowed."""
    bounds = [0]
    while (begin := bounds[-1]) < len(widths):
        room = min(max_rows, max(1, budget // int(widths[begin])))
        widest = np.maximum.accumulate(widths[begin : begin + room])
        n = max(1, int(np.count_nonzero(widest * np.arange(1, len(widest) + 1) <= budget)))
        bounds.append(begin + (n - n % multiple or n))
    return np.array(bounds)


def pair_examples(
    pairs: TokenPairs | Callable[[int], TokenPairs], max_tokens: int | None, key: tuple[int, int], _: Any
) -> Examples:
    """Return pairs without those that have an empty side, or one longer (with </s>) than `max_tokens`.

    `key` is the seed and the number of the epoch, on which the pairs may depend.
    """
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
    for side, bos, width in zip(pairs, (False, True), widths, strict=True):
        ids, lengths = side.gather(rows)
        sides.append(torch.from_numpy(framed(ids, lengths, lengths, bos, width + bos)))
    return Batch(*sides)


ExamplesOf = Callable[[Any, int | None, tuple[int, int], np.random.Generator], Examples]


class BucketSampler(Sampler[Any]):
    """Makes epochs of batches of a text.

    Args:
        text: the text: pairs, if `examples` is not given.
        tokens_per_batch: how many positions a batch may have on either side, padding included; a longer row is a batch
            by itself.
        max_tokens: what is longer, special tokens included, is left out or truncated, as `examples` says; None: never.
        multiple: widths are padded up to a multiple of it, and the rows of a batch are a multiple of it where there
            are that many.
        sentences_per_batch: how many rows a batch may have; None: as many as fit.
        examples: returns those of an epoch, from the text, `max_tokens`, seed and number of the epoch, and a generator.
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
            random = np.random.default_rng((seed, n))
            of_epoch = examples(text, max_tokens, (seed, n), random)
            return _bucketed(of_epoch, random, tokens_per_batch, multiple, sentences_per_batch)

        super().__init__(epoch)


def both_directions(forward: Epoch, backward: Epoch, key: tuple[int, int]) -> Epoch:
    """Mix the batches of two directions, by seed and number of the epoch; an update may have batches of both."""
    both = forward, backward
    places = [(epoch, i) for epoch in both for i in range(len(epoch))]
    places = [places[i] for i in np.random.default_rng((*key, 2)).permutation(len(places))]
    return Epoch(
        np.array([epoch.positions[i] for epoch, i in places]),
        sum(epoch.n_tokens for epoch in both),
        lambda i: places[i][0][places[i][1]],
        lambda i: places[i][0].target_tokens(places[i][1]),
        sum(epoch.n_dropped for epoch in both),
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
    iterator is closed or discarded half-way. With `pin`, tensors and batches (also in tuples and lists) are put into
    pinned memory, from which a GPU copies by itself.
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
