"""Splits into batches of sentences of similar length, drawn again each epoch as a function of seed and epoch alone."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from const.token import BOS_ID, EOS_ID, PAD_ID
from utils.dataset.batch import Batch
from utils.dataset.buckets import Buckets
from utils.dataset.sampler import Sampler
from utils.dataset.token_array import TokenArray, TokenPairs


class Epoch:
    """The batches of an epoch, in training order (see `Buckets`); each is made on demand.

    Args:
        pairs: the split.
        tokens_per_batch: most positions of a batch on either side, padding included; a longer pair is a batch by
            itself.
        max_tokens: pairs with a longer side (</s> included), and pairs with an empty one, are left out; None keeps all.
        multiple: lengths are padded up to a multiple of it, rows are a multiple of it where there are that many.
        key: seed of the order, and number of the epoch.
        sentences_per_batch: most pairs of a batch; None: as many as the tokens allow.

    Raises:
        ValueError: no pair is left.
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
        self.n_dropped = n - len(kept)  # pairs left out for their length
        if not len(kept):
            raise ValueError(f"no pair of {n:,} has at most max_tokens={max_tokens} tokens a side: raise it")
        random = np.random.default_rng(key)
        self._buckets = Buckets((src, tgt), tokens_per_batch, multiple, random, sentences_per_batch)
        self.padding = self._buckets.padding  # share of all positions, both sides
        self.largest = self._buckets.largest

    def __len__(self) -> int:
        """Number of batches."""
        return len(self._buckets)

    def rows(self, i: int) -> NDArray[np.int32]:
        """Return the pairs of batch i."""
        return self._kept[self._buckets.rows(i)]

    def target_tokens(self, i: int) -> int:
        """Return the number of tokens that batch i predicts, </s> included, without making the batch."""
        return int(self._tgt_lengths[self._buckets.rows(i)].sum())

    def __getitem__(self, i: int) -> Batch:
        return batch_of(self._pairs, self.rows(i), self._multiple)

    def __iter__(self) -> Iterator[Batch]:
        return (self[i] for i in range(len(self)))


class BothDirections:
    """The batches of an epoch of two directions, mixed: each batch is of one direction, an update may have both.

    Args:
        forward: one direction.
        backward: the other.
        key: seed of the order, and number of the epoch.
    """

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


def batch_of(pairs: TokenPairs, rows: NDArray[np.integer], multiple: int = 1) -> Batch:
    """Make tensors of these pairs, lengths padded up to a multiple; <s>, which is not predicted, comes on top."""
    (src_ids, src_lengths), (tgt_ids, tgt_lengths) = (side.gather(rows) for side in pairs)
    src = _filled(src_ids, src_lengths, multiple, 0)
    tgt = _filled(tgt_ids, tgt_lengths, multiple, 1)
    tgt[:, 0] = BOS_ID
    return Batch(torch.from_numpy(src), torch.from_numpy(tgt))


def _filled(ids: NDArray[np.integer], lengths: NDArray[np.int64], multiple: int, begin: int) -> NDArray[np.int64]:
    """Turn concatenated sequences into rows, with `begin` places left free before each and </s> after it."""
    width = -(-(int(lengths.max()) + 1) // multiple) * multiple
    out = np.full((len(lengths), begin + width), PAD_ID, np.int64)
    out[:, begin:][np.arange(width) < lengths[:, None]] = ids
    out[np.arange(len(lengths)), begin + lengths] = EOS_ID
    return out


class BucketSampler(Sampler[Epoch]):
    """Makes epochs of batches of a split.

    Args:
        pairs: the split, or a function that gives it for each epoch.
        tokens_per_batch: see `Epoch`.
        max_tokens: see `Epoch`.
        seed: seed of the order.
        multiple: see `Epoch`.
        sentences_per_batch: see `Epoch`.
    """

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


def require_positions(lines: TokenArray, file: Path, positions: int, option: str) -> None:
    """Refuse a text with lines longer than a learned table of positions; lines are scored whole.

    Args:
        lines: ids of the text.
        file: where it was read from.
        positions: rows of the table.
        option: the option that sets the size of the table.

    Raises:
        ValueError: a line is too long; the longest is named.
    """
    # a decoder reads <s> and all tokens, which are as many as all tokens and </s>
    lengths = lines.lengths + 1
    if lengths.max(initial=0) > positions:
        line, longest = int(lengths.argmax()), int(lengths.max())
        raise ValueError(
            f"{file}, line {line + 1} takes {longest} positions, </s> included, and the learned table has "
            f"{option}={positions}: give --{option} {longest}, or shorten the line"
        )
