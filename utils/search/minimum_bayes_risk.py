"""Minimum Bayes risk: the candidate that agrees most with all others, argmax_h Σ_r u(h, r), Eikema & Aziz 2022."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_ORDER = 6  # the longest character n-grams
_BETA = 2  # recall counts twice as much as precision


def by_expected_chrf(candidates: Sequence[str]) -> list[int]:
    """Return the candidates' places, ordered by mean chrF2 against all others, highest first.

    A candidate that was found twice has two votes. Ties keep their order.
    """
    votes = Counter(candidates)
    utility = pairwise_chrf(list(votes))
    totals = utility @ np.array(list(votes.values()), float) - utility.diagonal()  # without its own vote
    # sums of the same numbers in another order differ in their last digits, which must not decide
    expected = dict(zip(votes, totals.round(9).tolist(), strict=True))
    return sorted(range(len(candidates)), key=lambda i: -expected[candidates[i]])


def pairwise_chrf(texts: Sequence[str]) -> NDArray[np.float64]:
    """Return chrF2 (0 to 100) of each text (row) against each as the reference (column), as sacreBLEU computes it."""
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
    """Count the elements that any two sequences share; the diagonal has the length of each.

    The second "a" of a sequence counts as a different element from its first, so that what two sequences share is
    the product of two rows of zeros and ones.
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
