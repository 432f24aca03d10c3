"""Translations drawn at random, by how likely they are."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

from utils.search.hypothesis import Bounds, Hypothesis, Searchable, SearchConfig, StateT


@dataclass(frozen=True)
class SamplingConfig:
    """How translations are drawn.

    Args:
        n_samples: how many a source.
        temperature: log-probabilities are divided by it: below 1 the likely gets likelier.
        top_k: draw among so many likeliest tokens (Fan et al. 2018); 0: among all.
        top_p: draw among the likeliest tokens that together have this probability (Holtzman et al. 2020).
        seed: the same one draws the same, in whatever company a sentence is translated.
    """

    n_samples: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1


def sample(
    model: Searchable[StateT],
    src: Int[Tensor, "N S"],
    bounds: Sequence[Bounds],
    config: SearchConfig,
    sampling: SamplingConfig,
    numbers: Sequence[int],
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    """Placeholder."""
    raise NotImplementedError
