"""Whether two recipes differ by more than their seeds do: the least significant difference, Fisher 1935, §24.

Every recipe is trained with n seeds. What seeds alone do, all recipes say together, each with what it varies around its
own mean (the residual of a one-way analysis of variance, Fisher 1925, ch. VII):

    s² = Σᵢ Σⱼ (yᵢⱼ - ȳᵢ)² / Σᵢ (nᵢ - 1)

A difference of two means then has the standard error s √(1/n + 1/m); where both recipes share their weights seed by
seed, that of the mean of the n differences, s √(1/n), with the s of such differences. A difference is claimed beyond
t of them, Student's at the degrees of freedom of s: so is one of twenty where there is none.
"""

import math
from collections.abc import Sequence
from statistics import mean
from typing import NamedTuple

# P(|t| > point) = 5 %, by degrees of freedom
_POINTS = {
    **dict(enumerate((12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23), 1)),
    **{20: 2.09, 30: 2.04, 60: 2.00, 120: 1.98},
}


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
        margin: beyond which that is claimed; None: one seed tells of no spread.
    """

    value: float
    margin: float | None

    @property
    def verdict(self) -> str:
        """What may be said of it."""
        if self.margin is None:
            return "unknown"
        if abs(self.value) <= self.margin:
            return "no difference seen"
        return "better" if self.value > 0 else "worse"


def claimed(freedom: int) -> float:
    """Beyond how many standard errors a difference is claimed: t, or a little more between the degrees of its table."""
    return _POINTS[max(listed for listed in _POINTS if listed <= freedom)]


def pooled(groups: Sequence[Sequence[float]]) -> Spread | None:
    """s of some recipes, the scores of each in a group; None where none of them has two."""
    freedom = sum(len(group) - 1 for group in groups if group)
    if freedom < 1:
        return None
    return Spread(math.sqrt(sum(map(_squares, groups)) / freedom), freedom)


def loudest(groups: Sequence[Sequence[float]]) -> int | None:
    """Which of several has more than half of all squares, and so hides the differences of the others."""
    squares = [_squares(group) for group in groups]
    return next((i for i, own in enumerate(squares) if own > sum(squares) / 2), None) if len(groups) > 1 else None


def _squares(group: Sequence[float]) -> float:
    return sum((value - mean(group)) ** 2 for value in group)


def difference(ours: Sequence[float], base: Sequence[float], spread: Spread | None) -> Difference:
    """Of two means over seeds that have nothing in common, one spread for both."""
    return _difference(mean(ours) - mean(base), 1 / len(ours) + 1 / len(base), spread)


def paired_difference(changes: Sequence[float], spread: Spread | None) -> Difference:
    """The mean of differences that were made on the same weights each; the spread is one of such differences."""
    return _difference(mean(changes), 1 / len(changes), spread)


def _difference(value: float, share: float, spread: Spread | None) -> Difference:
    """With the share of s² that is its error's square."""
    return Difference(value, spread and claimed(spread.freedom) * spread.deviation * math.sqrt(share))
