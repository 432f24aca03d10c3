"""What search looks through, what it is asked for, and what it finds."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, Self, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from const.token import BOS_ID, EOS_ID

SPARE_TOKENS = 10  # a short source may need a translation much longer than itself
_WIDEST_BEAM = 1000  # more helps nobody, and a slip of the finger would take all memory


class Bounds(NamedTuple):
    """How long a translation may be, in tokens."""

    least: int  # before </s>
    most: int  # with </s>


@dataclass(frozen=True)
class SearchConfig:
    """How a translation is looked for.

    Args:
        beam_size: hypotheses kept a sentence; 1 is greedy search.
        length_penalty: α; log-probabilities are divided by a power α of the length, so that larger prefers longer
            translations.
        normalization: gnmt divides by ((5 + length) / 6)^α (Wu et al. 2016, eq. 14), length by length^α.
        coverage_penalty: β of Wu et al. 2016, eq. 14: how much it costs to leave parts of the source unattended;
            greedy search and sampling, which have nothing to rank, pass over it.
        min_length: fewest tokens of a translation, as far as `max_length`, `max_ratio` and the model allow.
        min_ratio: fewest tokens for each token of the source.
        max_length: most tokens of a translation.
        max_ratio: most tokens for each token of the source, to which ten are added.
        no_repeat_ngram: no sequence of so many tokens is said twice in a translation; 0 allows all.

    Raises:
        ValueError: a setting with which nothing can be found.
    """

    beam_size: int = 4
    length_penalty: float = 0.6
    normalization: Literal["gnmt", "length"] = "gnmt"
    coverage_penalty: float = 0.0
    min_length: int = 0
    min_ratio: float = 0.0
    max_length: int = 1024
    max_ratio: float = 2.0
    no_repeat_ngram: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.beam_size <= _WIDEST_BEAM:
            raise ValueError(f"beam_size={self.beam_size}: give 1 (greedy) to {_WIDEST_BEAM}")
        if not -10 <= self.length_penalty <= 10:
            raise ValueError(f"length_penalty={self.length_penalty}: give -10 to 10")
        if not 0 <= self.coverage_penalty <= 100:
            raise ValueError(f"coverage_penalty={self.coverage_penalty}: give 0 to 100 (less would reward gaps)")
        if self.no_repeat_ngram < 0:
            raise ValueError(f"no_repeat_ngram={self.no_repeat_ngram}: give 0 (repeat freely) or more")
        if not 0 <= self.min_length <= self.max_length:
            raise ValueError(f"min_length={self.min_length}: give 0 to max_length={self.max_length}")
        if not 0 <= self.min_ratio <= self.max_ratio:
            raise ValueError(f"min_ratio={self.min_ratio}: give 0 to max_ratio={self.max_ratio}")

    def bounds(self, src_length: int, window: int) -> Bounds:
        """For a source of so many tokens (</s> included) and a model that holds `window` target tokens."""
        most = min(self.max_ratio * src_length + SPARE_TOKENS, self.max_length + 1, window)
        least = max(self.min_ratio * src_length, self.min_length)
        return Bounds(int(min(least, most - 1)), int(most))

    def penalty(self, length: int) -> float:
        """What the log-probability of a translation of so many tokens (</s> included) is divided by."""
        base = (5 + length) / 6 if self.normalization == "gnmt" else length
        return base**self.length_penalty


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


NO_NUMBERS = "the network gives probabilities that are no numbers: compute with precision fp32, or train it anew"


def next_log_probs(logits: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
    """Log-probabilities of the next token in single precision; what no translation contains is ruled out."""
    log_probs = logits.float().log_softmax(-1)
    log_probs[:, :EOS_ID] = float("-inf")  # <pad>, <unk> and <s> come first
    return log_probs


def bos_rows(n: int, device: torch.device) -> Int[Tensor, " N"]:
    """What every translation begins with."""
    return torch.full((n,), BOS_ID, device=device)
