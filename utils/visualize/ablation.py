"""The effect of each switch of an ablation, as dots beside the base."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from statistics import mean, quantiles
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from utils.visualize.sheet import sheet

_COLOURS = {"better": "tab:green", "worse": "tab:red", "no difference seen": "black", "unknown": "black"}
_BASE, _BAND = "tab:blue", "#dbe6f2"
_ROW = 0.27  # inches


class Recipe(NamedTuple):
    """A row of the picture.

    Args:
        switch: heading of its group.
        label: label of the row.
        scores: one per seed.
        margin: distance of its mean from the base's above which a difference is claimed; None: unknown.
        verdict: better, worse, no difference seen, or unknown.
    """

    switch: str
    label: str
    scores: Sequence[float]
    margin: float | None
    verdict: str


def draw_ablation(base: Sequence[float], recipes: Sequence[Recipe], title: str, score: str, picture: Path) -> None:
    """Draw the base as a line, and each alternative as a dot per seed with a mark for the mean, as a PNG.

    Args:
        base: scores of the base.
        recipes: the alternatives in order, grouped by switch.
        title: title of the picture.
        score: axis label: the score and the text it is computed on.
        picture: file to write.
    """
    lines: list[tuple[str, Recipe | None]] = [("base", Recipe("", "base", base, None, "base"))]
    for switch, group in groupby(recipes, key=lambda recipe: recipe.switch):
        lines += [(switch, None), *(("", recipe) for recipe in group)]
    centre = mean(base)
    low, high = _limits(base, recipes)
    with sheet(picture, (8.5, 1.6 + _ROW * len(lines))) as (axes,):
        axes.set(xlim=(low, high), ylim=(len(lines) - 0.4, -0.6), title=title, xlabel=score)
        axes.axvline(centre, color=_BASE, lw=1)
        for y, (_, recipe) in enumerate(lines):
            if recipe is not None:
                _draw_recipe(axes, y, recipe, centre)
        axes.set_yticks(range(len(lines)), [recipe.label if recipe else switch for switch, recipe in lines])
        for tick, (_, recipe) in zip(axes.get_yticklabels(), lines, strict=True):
            if recipe is None:  # in the only font available in bold
                tick.set(weight="bold", family="DejaVu Sans")
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", alpha=0.3)
        axes.set_axisbelow(True)
        axes.figure.legend(handles=_legend(recipes), loc="outside lower center", ncols=3, frameon=False)


def _draw_recipe(axes: Axes, y: int, recipe: Recipe, centre: float) -> None:
    colour = _COLOURS.get(recipe.verdict, _BASE)
    if recipe.margin is not None:
        axes.barh(y, 2 * recipe.margin, left=centre - recipe.margin, height=1.0, color=_BAND, zorder=0)
    low, high = axes.get_xlim()
    middle = mean(recipe.scores)
    number = f"{middle:.2f}" if recipe.verdict == "base" else f"{middle - centre:+z.2f}"
    axes.text(1.01, y, number, color=colour, va="center", fontsize=8, transform=axes.get_yaxis_transform())
    if middle < low or middle > high:  # an arrow in its direction
        inset = 0.012 * (high - low)
        edge, marker = (low + inset, "<") if middle < low else (high - inset, ">")
        axes.plot([edge], [y], marker, color=colour, ms=7, zorder=4)
        return
    axes.plot(recipe.scores, [y] * len(recipe.scores), "o", mfc="none", mec=colour, ms=5, zorder=3)
    axes.plot([middle], [y], "|", color=colour, ms=13, mew=2.5, zorder=4)


def _limits(base: Sequence[float], recipes: Sequence[Recipe]) -> tuple[float, float]:
    """Return the limits of the scale: wide enough for nearly all; far outliers would leave the rest no room."""
    centre = mean(base)
    margins = [recipe.margin for recipe in recipes if recipe.margin is not None]
    distances = [abs(mean(recipe.scores) - centre) for recipe in recipes]
    usual = quantiles(distances, n=4, method="inclusive")[2] if len(distances) > 1 else max(distances, default=0.0)
    reach = max(4 * usual, *margins, 0.0)
    near = [recipe for recipe, distance in zip(recipes, distances, strict=True) if distance <= reach]
    ends = [*base, *(score for recipe in near for score in recipe.scores)]
    ends += [centre + sign * margin for margin in margins for sign in (-1, 1)]
    room = 0.04 * (max(ends) - min(ends)) or 1.0
    return min(ends) - room, max(ends) + room


def _legend(recipes: Sequence[Recipe]) -> list[Line2D | Patch]:
    seen = [verdict for verdict in _COLOURS if any(recipe.verdict == verdict for recipe in recipes)]
    return [
        Line2D([], [], ls="", marker="o", mfc="none", mec="black", ms=5, label="a seed"),
        Line2D([], [], color=_BASE, lw=1, label="the base"),
        Patch(color=_BAND, label="no difference is claimed"),
        *(Line2D([], [], ls="", marker="|", ms=13, mew=2.5, color=_COLOURS[v], label=f"mean: {v}") for v in seen),
    ]
