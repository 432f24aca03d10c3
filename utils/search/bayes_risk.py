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
    precision, recall, orders = np.zeros((n, n)), np.zeros((n, n)), np.zeros((n, n))
    for order in range(1, _ORDER + 1):
        ngrams = [Counter(text[i : i + order] for i in range(len(text) - order + 1)) for text in characters]
        # the second "a" of a text counts as a different element from its first
        elements = [{(ngram, i) for ngram, times in of_text.items() for i in range(times)} for of_text in ngrams]
        matches = np.array([[len(one & other) for other in elements] for one in elements], float).reshape(n, n)
        counts = np.maximum(matches.diagonal(), 1)
        precision += matches / counts[:, None]
        recall += matches / counts
        orders += np.minimum.outer(matches.diagonal(), matches.diagonal()) > 0  # both texts are long enough
    precision, recall = precision / np.maximum(orders, 1), recall / np.maximum(orders, 1)
    return 100 * (1 + _BETA**2) * precision * recall / np.maximum(_BETA**2 * precision + recall, 1e-16)
