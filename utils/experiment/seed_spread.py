"""Whether two recipes differ by more than their seeds do: the least significant difference, Fisher 1935, §24.

Every recipe is trained with n seeds. The effect of seeds alone is estimated from all recipes together, from how each
varies around its own mean (the residual of a one-way analysis of variance, Fisher 1925, ch. VII):

    s² = Σᵢ Σⱼ (yᵢⱼ - ȳᵢ)² / Σᵢ (nᵢ - 1)

The difference of two means then has the standard error s √(1/n + 1/m). Recipes that share their weights seed by seed
also share the effect of a seed on these; each seed is then a block (Fisher 1935, ch. IV), and s is how much k recipes
vary beyond their own means and those of their n seeds:

    s² = Σᵢ Σⱼ (yᵢⱼ - ȳᵢ - ȳⱼ + ȳ)² / (k - 1) (n - 1)

A difference is claimed beyond t standard errors, Student's t at the degrees of freedom of s: where there is none, one
in twenty is claimed nevertheless.
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
    """Spread of scores over seeds.

    Args:
        deviation: s, the pooled standard deviation.
        freedom: its degrees of freedom: the number of values minus that of estimated means.
    """

    deviation: float
    freedom: int


class Difference(NamedTuple):
    """Difference of a recipe from the base.

    Args:
        value: the recipe's mean minus the base's.
        margin: beyond which a difference is claimed; None: unknown, for a single seed shows no spread.
    """

    value: float
    margin: float | None

    @property
    def verdict(self) -> str:
        """What can be claimed: better, worse, no difference seen, or unknown."""
        if self.margin is None:
            return "unknown"
        if abs(self.value) <= self.margin:
            return "no difference seen"
        return "better" if self.value > 0 else "worse"


def claimed(freedom: int) -> float:
    """Return how many standard errors a claim takes: t, or slightly more between the degrees in the table."""
    return _POINTS[max(listed for listed in _POINTS if listed <= freedom)]


def pooled(groups: Sequence[Sequence[float]]) -> Spread | None:
    """Return the pooled spread of recipes, the scores of each in a group; None if no group has two."""
    freedom = sum(len(group) - 1 for group in groups if group)
    if freedom < 1:
        return None
    return Spread(math.sqrt(sum(map(_squares, groups)) / freedom), freedom)


def beyond_blocks(recipes: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the residual of each value from the means of its recipe and its seed.

    Args:
        recipes: the scores of each recipe, one per seed, all with the same seeds.
    """
    seeds, whole = [mean(scores) for scores in zip(*recipes, strict=True)], mean(map(mean, recipes))
    return [[score - mean(own) - seed + whole for score, seed in zip(own, seeds, strict=True)] for own in recipes]


def blocked(recipes: Sequence[Sequence[float]]) -> Spread | None:
    """Return the spread of recipes that share their weights seed by seed; None for one recipe or one seed."""
    freedom = (len(recipes) - 1) * (len(recipes[0]) - 1)
    if freedom < 1:
        return None
    return Spread(math.sqrt(sum(x * x for own in beyond_blocks(recipes) for x in own) / freedom), freedom)


def loudest(groups: Sequence[Sequence[float]]) -> int | None:
    """Return which of three or more varying groups has over half of all squares, and so hides others' differences."""
    squares = [_squares(group) for group in groups]
    if sum(len(group) > 1 for group in groups) < 3:  # of two, one has more than half
        return None
    return next((i for i, own in enumerate(squares) if own > sum(squares) / 2), None)


def _squares(group: Sequence[float]) -> float:
    return sum((value - mean(group)) ** 2 for value in group)


def difference(ours: Sequence[float], base: Sequence[float], spread: Spread | None) -> Difference:
    """Return the difference of two means over seeds, with a common spread."""
    error = math.sqrt(1 / len(ours) + 1 / len(base))
    return Difference(mean(ours) - mean(base), spread and claimed(spread.freedom) * spread.deviation * error)
