"""Accuracy on minimal pairs: how often a translator finds the right one of two translations likelier (Sennrich 2017).

Nothing is searched for: the log-probabilities of both, given the source, are compared. By chance, half are right.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from utils.command import aligned
from utils.dataset.embedded import MinimalPair
from utils.load import Run
from utils.run import KEPT_WEIGHTS, titles
from utils.search.forced import token_log_probs
from utils.training.checkpoint import WEIGHTS_SUFFIX, read_weights, step_files, step_of
from utils.visualize.curve import sheet

CHANCE = 50.0
Accuracy = dict[str, float]  # phenomenon -> percentage of its pairs


class Course(NamedTuple):
    """The accuracies of a run with its best weights, and with those kept of each validation, by updates."""

    run: str
    accuracy: Accuracy
    by_updates: dict[int, Accuracy]


def pair_accuracy(run: Run, pairs: Mapping[str, Sequence[MinimalPair]]) -> Accuracy:
    """Return how many pairs have a right translation that the present weights find likelier than the wrong one."""
    every = [pair for of_one in pairs.values() for pair in of_one]
    sources = run.tokenizers.src.encode([pair.source for pair in every])
    right, wrong = (
        map(sum, token_log_probs(run.model, sources, run.tokenizers.tgt.encode(texts)))
        for texts in ([pair.right for pair in every], [pair.wrong for pair in every])
    )
    is_right = (one > other for one, other in zip(right, wrong, strict=True))
    return {name: 100 * sum(islice(is_right, len(of_one))) / len(of_one) for name, of_one in pairs.items()}


def pair_course(run: Run, pairs: Mapping[str, Sequence[MinimalPair]]) -> Course:
    """Score the best weights, then those kept of each validation; the network is left with the last of them."""
    best, by_updates = pair_accuracy(run, pairs), dict[int, Accuracy]()
    kept = step_files(run.folder / KEPT_WEIGHTS, WEIGHTS_SUFFIX)
    for path in tqdm(kept, unit="validation", disable=None, leave=False):
        run.model.load_state_dict(read_weights(path))
        by_updates[step_of(path)] = pair_accuracy(run, pairs)
    return Course(run.folder.resolve().name, best, by_updates)


def pair_table(courses: Sequence[Course], pairs: Mapping[str, Sequence[MinimalPair]]) -> list[str]:
    """Return a line for each phenomenon, with a column for each run."""
    rows = [
        [name, f"{len(of_one):,}", *(f"{course.accuracy[name]:.1f}" for course in courses), f"{CHANCE:.1f}"]
        for name, of_one in pairs.items()
    ]
    head = ["phenomenon", "pairs", *titles([course.run for course in courses]), "chance"]
    return aligned([head, *rows], "l" + "r" * (len(head) - 1))


def draw_pair_courses(courses: Sequence[Course], picture: Path) -> None:
    """Draw the accuracies against the updates as a PNG, with a panel for each run and a line for each phenomenon."""
    with sheet(picture, (1.5 + 4 * len(courses), 4), columns=len(courses), dpi=110) as panels:
        for axes, title, course in zip(panels, titles([course.run for course in courses]), courses, strict=True):
            for name in course.accuracy:
                heights = [accuracy[name] for accuracy in course.by_updates.values()]
                axes.plot([*course.by_updates], heights, "o-", ms=2, lw=1.2, label=name)
            axes.axhline(CHANCE, color="black", lw=0.8, ls=":")
            axes.set(title=title, xlabel="updates", ylim=(0, 103))
            axes.grid(alpha=0.3)
        panels[0].set(ylabel="pairs with the right one likelier (%)")
        panels[-1].legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
