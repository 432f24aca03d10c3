"""Batches of about equal work and little padding: a budget of tokens, sentences of like length together."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from const.token import BOS_ID, EOS_ID, PAD_ID
from utils.dataset.token_cache import TokenPairs


@dataclass(frozen=True)
class BatchConfig:
    """How training pairs become batches.

    Args:
        tokens_per_batch: most tokens of a batch on either side, padding and </s> included; one update sees
            `accumulate` such batches.
        accumulate: batches whose gradients are added before an update.
        max_tokens: pairs with a longer side are left out of training.
    """

    tokens_per_batch: int = 4096
    accumulate: int = 1
    max_tokens: int = 128

    def __post_init__(self) -> None:
        """Refuse what makes no batch."""
        for name in ("tokens_per_batch", "accumulate", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: give at least 1")


class Batch(NamedTuple):
    """B pairs, padded behind."""

    src: Int[Tensor, "B S"]  # ... </s>
    tgt: Int[Tensor, "B T"]  # <s> ... </s>: read up to the last, predict from the second

    def to(self, device: torch.device) -> "Batch":
        """The same on a device; from pinned memory without waiting."""
        return Batch(self.src.to(device, non_blocking=True), self.tgt.to(device, non_blocking=True))


def within_budget(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Places of sequences, batch by batch, the longest first, so that what the memory cannot hold is known at once.

    Args:
        lengths: of the sequences.
        budget: most positions of a batch, padding included; a longer sequence is a batch by itself.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    while order:
        size = max(1, budget // lengths[order[0]])
        rows, order = order[:size], order[size:]
        yield rows


def padded(sequences: Sequence[NDArray[np.integer] | Sequence[int]], bos: bool = False) -> Int[Tensor, "B L"]:
    """One tensor of sequences of different length, each with </s> behind it and perhaps <s> before it."""
    longest = max(len(sequence) for sequence in sequences)
    out = np.full((len(sequences), longest + 1 + bos), PAD_ID, np.int64)
    if bos:
        out[:, 0] = BOS_ID
    for row, sequence in zip(out, sequences, strict=True):
        end = len(sequence) + bos
        row[int(bos) : end] = sequence
        row[end] = EOS_ID
    return torch.from_numpy(out)


class BucketSampler:
    """Cuts a split into batches, anew each epoch, as a function of seed and epoch alone.

    Pairs are sorted by target and then source length, equal ones in random order, and cut where the budget is
    full; the batches are then shuffled.

    Args:
        pairs: the split.
        tokens_per_batch: most padded tokens of a batch on either side; a longer pair is a batch by itself.
        max_tokens: pairs with a longer side (</s> included), and pairs with an empty one, are left out;
            None keeps all.
        seed: of the order.

    Raises:
        ValueError: no pair is left.
    """

    def __init__(self, pairs: TokenPairs, tokens_per_batch: int, max_tokens: int | None = None, seed: int = 0) -> None:
        self._pairs = pairs
        self._src, self._tgt = pairs.src.lengths + 1, pairs.tgt.lengths + 1
        kept = np.ones(len(pairs.src), bool)
        if max_tokens is not None:
            kept = (self._src > 1) & (self._tgt > 1) & (np.maximum(self._src, self._tgt) <= max_tokens)
        self._kept = np.flatnonzero(kept)
        if not len(self._kept):
            raise ValueError(f"no pair of {len(kept):,} has at most max_tokens={max_tokens} tokens a side: raise it")
        self._budget, self._seed = tokens_per_batch, seed

    @property
    def n_dropped(self) -> int:
        """Pairs left out for their length."""
        return len(self._src) - len(self._kept)

    def epoch(self, epoch: int) -> list[NDArray[np.int64]]:
        """The pairs of each batch of an epoch, in training order."""
        rng = np.random.default_rng((self._seed, epoch))
        order = rng.permutation(self._kept)
        order = order[np.lexsort((self._src[order], self._tgt[order]))]
        batches, begin, widest = [], 0, 0
        for end, width in enumerate(np.maximum(self._src, self._tgt)[order].tolist()):
            widest = max(widest, width)
            if end > begin and widest * (end + 1 - begin) > self._budget:
                batches.append(order[begin:end])
                begin, widest = end, width
        batches.append(order[begin:])
        rng.shuffle(batches)
        return batches

    def batch(self, rows: NDArray[np.int64]) -> Batch:
        """These pairs as tensors."""
        src, tgt = self._pairs
        return Batch(padded([src[i] for i in rows]), padded([tgt[i] for i in rows], bos=True))

    def all(self) -> list[Batch]:
        """Every pair once, as tensors, for validating and testing."""
        return [self.batch(rows) for rows in self.epoch(0)]

    def padding(self) -> float:
        """Share of padding in all positions of the first epoch, both sides together."""
        real = padded_ = 0
        for rows in self.epoch(0):
            real += int(self._src[rows].sum() + self._tgt[rows].sum())
            padded_ += len(rows) * int(self._src[rows].max() + self._tgt[rows].max())
        return 1 - real / padded_
