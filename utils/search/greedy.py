"""Greedy search: the likeliest next token at every step."""

from collections.abc import Sequence

from jaxtyping import Float, Int
from torch import Tensor

from utils.search.hypothesis import Bounds, Hypothesis, Searchable, SearchConfig, StateT
from utils.search.largest import largest
from utils.search.walk import walk


def greedy_search(
    model: Searchable[StateT],
    src: Int[Tensor, "N S"],
    bounds: Sequence[Bounds],
    config: SearchConfig,
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[Hypothesis]:
    """Translate N sources.

    Args:
        model: in eval mode.
        src: source ids, each sequence followed by </s>, then padding.
        bounds: length limits of each translation.
        config: the length penalty (which only affects the score) and what may not be repeated.
        prefixes: tokens that each translation must begin with.

    Returns:
        One hypothesis per source, in order.
    """

    def likeliest(log_probs: Float[Tensor, "N 1 V"], _sentences: Tensor, _t: int) -> Int[Tensor, "N 1"]:
        return largest(log_probs[:, 0], 1)[1]

    return [found for (found,) in walk(model, src, bounds, config, likeliest, prefixes=prefixes)]
