"""Whether two recipes differ by more than their seeds do: the least significant difference, Fisher 1935, §24.

Every recipe is trained with n seeds. What seeds alone do, all recipes say together, each with what it varies around its
own mean (the residual of a one-way analysis of variance, Fisher 1925, ch. VII):

    s² = Σᵢ Σⱼ (yᵢⱼ - ȳᵢ)² / Σᵢ (nᵢ - 1)

A difference of two means then has the standard error s √(1/n + 1/m). Recipes that share their weights seed by seed
share what a seed does to these, too; each seed is a block then (Fisher 1935, ch. IV), and s is what k recipes vary by
beyond their own means and those of their n seeds:

    s² = Σᵢ Σⱼ (yᵢⱼ - ȳᵢ - ȳⱼ + ȳ)² / (k - 1) (n - 1)

A difference is claimed beyond t standard errors, Student's at the degrees of freedom of s: so is one of twenty where
there is none.
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


def beyond_blocks(recipes: Sequence[Sequence[float]]) -> list[list[float]]:
    """What each value is beyond the means of its recipe and its seed.

    Args:
        recipes: the scores of each, one for each seed, all with the same seeds.
    """
    seeds, whole = [mean(scores) for scores in zip(*recipes, strict=True)], mean(map(mean, recipes))
    return [[score - mean(own) - seed + whole for score, seed in zip(own, seeds, strict=True)] for own in recipes]


def blocked(recipes: Sequence[Sequence[float]]) -> Spread | None:
    """s of recipes that share their weights seed by seed; None for one recipe or one seed."""
    freedom = (len(recipes) - 1) * (len(recipes[0]) - 1)
    if freedom < 1:
        return None
    return Spread(math.sqrt(sum(x * x for own in beyond_blocks(recipes) for x in own) / freedom), freedom)


def loudest(groups: Sequence[Sequence[float]]) -> int | None:
    """Which of three or more that vary has over half of all squares, and so hides the differences of the others."""
    squares = [_squares(group) for group in groups]
    if sum(len(group) > 1 for group in groups) < 3:  # of two, one has more than half
        return None
    return next((i for i, own in enumerate(squares) if own > sum(squares) / 2), None)


def _squares(group: Sequence[float]) -> float:
    return sum((value - mean(group)) ** 2 for value in group)


def difference(ours: Sequence[float], base: Sequence[float], spread: Spread | None) -> Difference:
    """Of two means over seeds, one spread for both."""
    error = math.sqrt(1 / len(ours) + 1 / len(base))
    return Difference(mean(ours) - mean(base), spread and claimed(spread.freedom) * spread.deviation * error)
