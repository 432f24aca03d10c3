"""Whether two recipes differ by more than their seeds do: the least significant difference, Fisher 1935, §24.

Every recipe is trained with n seeds. What seeds alone do, all recipes say together, each with what it varies around its
own mean (the residual of a one-way analysis of variance, Fisher 1925, ch. VII):

    s² = Σᵢ Σⱼ (yᵢⱼ - ȳᵢ)² / Σᵢ (nᵢ - 1)

A difference of two means then has the standard error s √(1/n + 1/m); where both recipes share their weights seed by
seed, that of the mean of the n differences, s √(1/n), with the s of such differences. A difference is claimed beyond
two of them.
"""

import math
from collections.abc import Sequence
from statistics import mean
from typing import NamedTuple

CLAIMED = 2.0  # standard errors


class Spread(NamedTuple):
    """What seeds alone do.

    Args:
        deviation: s, the pooled standard deviation.
        freedom: degrees of it, how many values it was found from beyond the means.
    """

    deviation: float
    freedom: int


class Difference(NamedTuple):
    """Of a recipe to the base.

    Args:
        value: by how much its mean is above the base's.
        error: standard error of that; None: one seed tells of no spread.
    """

    value: float
    error: float | None

    @property
    def verdict(self) -> str:
        """What may be said of it."""
        if self.error is None:
            return "unknown"
        if abs(self.value) <= CLAIMED * self.error:
            return "no difference seen"
        return "better" if self.value > 0 else "worse"


def pooled(groups: Sequence[Sequence[float]]) -> Spread | None:
    """s of some recipes, the scores of each in a group; None where none of them has two."""
    freedom = sum(len(group) - 1 for group in groups if group)
    if freedom < 1:
        return None
    squares = sum((value - mean(group)) ** 2 for group in groups if group for value in group)
    return Spread(math.sqrt(squares / freedom), freedom)


def difference(ours: Sequence[float], base: Sequence[float], spread: Spread | None) -> Difference:
    """Of two means over seeds that have nothing in common, one spread for both."""
    error = None if spread is None else spread.deviation * math.sqrt(1 / len(ours) + 1 / len(base))
    return Difference(mean(ours) - mean(base), error)


def paired_difference(changes: Sequence[float], spread: Spread | None) -> Difference:
    """The mean of differences that were made on the same weights each; the spread is one of such differences."""
    return Difference(mean(changes), None if spread is None else spread.deviation / math.sqrt(len(changes)))
