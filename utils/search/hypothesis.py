"""What search looks through and what it finds."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from const.token import BOS_ID, PAD_ID, UNK_ID


@dataclass(frozen=True)
class SearchConfig:
    """How a translation is looked for.

    Args:
        beam_size: hypotheses kept a sentence; 1 is greedy search.
        length_penalty: α of the GNMT length penalty (Wu et al. 2016, eq. 14); larger prefers longer translations.
        max_ratio: a translation may be this many times as long as its source in tokens, and ten tokens more.
    """

    beam_size: int = 4
    length_penalty: float = 0.6
    max_ratio: float = 2.0

    def __post_init__(self) -> None:
        """Refuse what finds nothing."""
        if self.beam_size < 1:
            raise ValueError(f"beam_size={self.beam_size}: give 1 (greedy) or more")

    def limit(self, src_length: int) -> int:
        """Most tokens of a translation, </s> included."""
        return int(self.max_ratio * src_length) + 10


class State(Protocol):
    """What decoding knows so far: a value."""

    def select(self, rows: Int[Tensor, "N W"]) -> Self:
        """Go on with these W rows of each sentence that stays."""


StateT = TypeVar("StateT", bound=State)


class Searchable(Protocol[StateT]):
    """A model that can be searched."""

    def start(self, src: Int[Tensor, "N S"]) -> StateT:
        """Read the sources."""

    def step(self, tokens: Int[Tensor, " R"], state: StateT) -> tuple[Float[Tensor, "R V"], StateT]:
        """Say a token in each row; logits of the next."""


class Hypothesis(NamedTuple):
    """A translation: ids without <s> and </s>, and its score, higher is better."""

    ids: list[int]
    score: float


def next_log_probs(logits: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
    """Log-probabilities of the next token in single precision; what no translation contains is ruled out."""
    log_probs = logits.float().log_softmax(-1)
    log_probs[:, [PAD_ID, UNK_ID, BOS_ID]] = float("-inf")
    return log_probs


def length_penalty(length: int, alpha: float) -> float:
    """((5 + length) / 6)^α, Wu et al. 2016, eq. 14."""
    return ((5 + length) / 6) ** alpha


def bos_rows(n: int, device: torch.device) -> Int[Tensor, " N"]:
    """What every translation begins with."""
    return torch.full((n,), BOS_ID, device=device)
