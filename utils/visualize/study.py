"""A picture of a hyperparameter search: its trials, their learning curves, and the importance of each setting."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from utils.visualize.sheet import sheet

_BEST, _OTHER, _PRUNED = "C3", "C0", "0.6"


class DrawnTrial(NamedTuple):
    """A trial as shown in the picture."""

    number: int
    state: Literal["complete", "pruned"]
    score: float  # best score of a complete trial, last score of a pruned one
    curve: Mapping[int, float]  # score by update


def draw_study(
    trials: Sequence[DrawnTrial],
    score: str,
    minimised: bool,
    importance: Mapping[str, float],
    picture: Path,
) -> None:
    """Draw scores over trials, scores over updates and, if known, the importance of each setting, as a PNG.

    Args:
        trials: trials in order.
        score: name of the score, for labels.
        minimised: whether the lowest score is the best.
        importance: share of each setting; empty: unknown.
        picture: file to write.
    """
    pick = min if minimised else max
    complete = [trial for trial in trials if trial.state == "complete"]
    best = pick(complete, key=lambda trial: trial.score, default=None)
    widths = (1.1, 1.1, 0.8)[: 3 if importance else 2]
    with sheet(picture, (14 if importance else 10, 4), columns=len(widths), widths=widths) as axes:
        _draw_history(axes[0], trials, best, minimised)
        _draw_curves(axes[1], trials, best)
        axes[0].set(title="Trials", xlabel="trial", ylabel=f"dev {score}")
        axes[1].set(title="Learning curves", xlabel="updates", ylabel=f"dev {score}")
        for ax in axes[:2]:
            ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
            ax.grid(alpha=0.3)
        axes[0].legend(frameon=False)
        if importance:
            _draw_importance(axes[2], importance)


def _draw_history(ax: Axes, trials: Sequence[DrawnTrial], best: DrawnTrial | None, minimised: bool) -> None:
    complete = [trial for trial in trials if trial.state == "complete"]
    pruned = [trial for trial in trials if trial.state == "pruned"]
    if complete:
        scores = accumulate((trial.score for trial in complete), min if minimised else max)
        steps = [*zip((trial.number for trial in complete), scores, strict=True)]
        steps.append((max(trial.number for trial in trials), steps[-1][1]))
        ax.step(*zip(*steps, strict=True), where="post", color=_BEST, lw=1.2, label="best so far")
        ax.plot([t.number for t in complete], [t.score for t in complete], "o", color=_OTHER, ms=6, label="complete")
    if pruned:
        ax.plot(
            [t.number for t in pruned], [t.score for t in pruned], "x", color=_PRUNED, ms=6, mew=1.5, label="pruned"
        )
    if best is not None:
        ax.plot(best.number, best.score, "o", color=_BEST, ms=9, label=f"best, trial {best.number}")


def _draw_curves(ax: Axes, trials: Sequence[DrawnTrial], best: DrawnTrial | None) -> None:
    for trial in trials:
        points = sorted(trial.curve.items())
        if not points:
            continue
        style: dict[str, Any] = {"marker": "o", "color": _OTHER, "lw": 0.9, "ms": 3}
        if trial.state == "pruned":
            style = {"marker": "x", "color": _PRUNED, "lw": 0.9, "ms": 6, "mew": 1.5}
        elif trial is best:
            style = {"marker": "o", "color": _BEST, "lw": 1.8, "ms": 5, "zorder": 3}
        ax.plot(*zip(*points, strict=True), markevery=[-1], **style)


def _draw_importance(ax: Axes, importance: Mapping[str, float]) -> None:
    names = sorted(importance, key=lambda name: importance[name])
    shares = [importance[name] for name in names]
    bars = ax.barh(names, shares, color=_OTHER, height=0.6)
    ax.bar_label(bars, [f"{share:.0%}" for share in shares], padding=3)
    ax.set(title="Importance", xlim=(0, 1.15 * max(shares)), xlabel="for being among the best")
    ax.xaxis.set_major_formatter(PercentFormatter(1))
    ax.xaxis.set_major_locator(MaxNLocator(nbins=4))
    ax.grid(axis="x", alpha=0.3)
    ax.set_axisbelow(True)
