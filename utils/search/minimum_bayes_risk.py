"""The candidate that agrees most with all others: argmax_h Σ_r u(h, r), Eikema & Aziz 2022."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_ORDER = 6  # of the longest n-grams of characters
_BETA = 2  # recall counts twice as much as precision


def by_expected_chrf(candidates: Sequence[str]) -> list[int]:
    """Places of the candidates, the one with the highest mean chrF2 against all others first.

    One that was found twice has two votes. Equal ones keep their order.
    """
    votes = Counter(candidates)
    utility = pairwise_chrf(list(votes))
    totals = utility @ np.array(list(votes.values()), float) - utility.diagonal()  # without its own vote
    # what sums the same numbers in another order is no better for its last digits
    expected = dict(zip(votes, totals.round(9).tolist(), strict=True))
    return sorted(range(len(candidates)), key=lambda i: -expected[candidates[i]])


def pairwise_chrf(texts: Sequence[str]) -> NDArray[np.float64]:
    """chrF2 (0 to 100) of each text (row) against each as the reference (column), as sacreBLEU gives it."""
    n = len(texts)
    characters = ["".join(text.split()) for text in texts]
    precision, recall, effective = np.zeros((n, n)), np.zeros((n, n)), np.zeros((n, n))
    for order in range(1, _ORDER + 1):
        matches = _matches([[text[i : i + order] for i in range(len(text) - order + 1)] for text in characters])
        counts = matches.diagonal()
        both = (counts[:, None] > 0) & (counts > 0)
        precision += matches / np.maximum(counts, 1)[:, None] * both
        recall += matches / np.maximum(counts, 1) * both
        effective += both
    precision, recall = precision / np.maximum(effective, 1), recall / np.maximum(effective, 1)
    return 100 * (1 + _BETA**2) * precision * recall / np.maximum(_BETA**2 * precision + recall, 1e-16)


def _matches(sequences: Sequence[Sequence[str]]) -> NDArray[np.float64]:
    """How many elements each two sequences share; each with itself: all of its own.

    The second "a" of a sequence is another element than its first, so that what two sequences share is the
    product of two rows of zeros and ones.
    """
    columns: dict[tuple[str, int], int] = {}
    rows: list[int] = []
    places: list[int] = []
    for row, sequence in enumerate(sequences):
        for element, count in Counter(sequence).items():
            for again in range(count):
                places.append(columns.setdefault((element, again), len(columns)))
                rows.append(row)
    members = np.zeros((len(sequences), len(columns)), np.float32)
    members[rows, places] = 1
    return (members @ members.T).astype(np.float64)
