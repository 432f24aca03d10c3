"""Batches of about equal work and little padding: sentences of similar length, within a budget of tokens or pairs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from const.token import BOS_ID, EOS_ID, PAD_ID
from models.size import require_at_least


@dataclass(frozen=True)
class BatchConfig:
    """How training pairs become batches.

    Args:
        tokens_per_batch: most tokens of a batch on either side, padding and </s> included, unless a single pair has
            more; one update sees `accumulate` such batches.
        accumulate: batches whose gradients are added before an update.
        max_tokens: pairs with a longer side are left out of training; monolingual texts are truncated.
        length_multiple: lengths are padded up to a multiple of it, and the sentences of a batch are a multiple of it
            where there are that many: 8 gives torch.compile and CUDA graphs few shapes; 1 pads least.
        sentences_per_batch: most pairs of a batch, which ends at whichever bound comes first; null: bounded by
            tokens_per_batch alone.
    """

    tokens_per_batch: int = 4096
    accumulate: int = 1
    max_tokens: int = 128
    length_multiple: int = 1
    sentences_per_batch: int | None = None

    def __post_init__(self) -> None:
        """Refuse sizes that are too small."""
        require_at_least(self, tokens_per_batch=1, accumulate=1, max_tokens=1, length_multiple=1)
        if self.sentences_per_batch is not None and self.sentences_per_batch < 1:
            raise ValueError(f"sentences_per_batch={self.sentences_per_batch}: give at least 1, or null for no bound")

    def remedy(self) -> str:
        """Return what to change where a batch does not fit in memory: half the batch, an update as large as before."""
        if self.sentences_per_batch is not None and self.sentences_per_batch > 1:
            name, value = "sentences_per_batch", self.sentences_per_batch
        elif self.tokens_per_batch > self.max_tokens:
            name, value = "tokens_per_batch", self.tokens_per_batch
        else:
            return f"a single pair fills it, so lower --batch.max_tokens (now {self.max_tokens})"
        return (
            f"lower --batch.{name} (now {value}) and raise --batch.accumulate (now {self.accumulate}) to keep the size "
            f"of an update, say --batch.{name} {value // 2} --batch.accumulate {2 * self.accumulate}"
        )

    def require_positions(self, positions: int, option: str = "model.max_length") -> None:
        """Refuse settings whose batches may be longer than a learned table of positions.

        Args:
            positions: rows of the table.
            option: the option that sets the size of the table.

        Raises:
            ValueError: a batch may be longer.
        """
        longest = -(-self.max_tokens // self.length_multiple) * self.length_multiple
        if longest > positions:
            raise ValueError(
                f"max_tokens={self.max_tokens} allows sentences of {longest} positions, padding included, and the "
                f"learned table has {option}={positions}: give --{option} {longest}, or lower --batch.max_tokens"
            )


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

    Args:
        lengths: lengths of the sequences.
        budget: most positions of a batch, padding included; a longer sequence is a batch by itself.
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
