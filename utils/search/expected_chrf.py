"""Minimum Bayes risk: the candidate of the highest expected utility, argmax_h Σ_r p(r) u(h, r), which is chrF2 here.

Kumar & Byrne 2004 with the candidates of a beam, Eikema & Aziz 2022 with samples.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_ORDER = 6  # the longest character n-grams
_COLUMNS = 16384  # of a table in memory
_BETA = 2  # recall counts twice as much as precision


def by_expected_chrf(candidates: Sequence[str], votes: Sequence[float] | NDArray[np.float64]) -> list[int]:
    """Return the candidates' places, ordered by mean chrF2 against all of them, highest first.

    Each counts as a reference by its votes; those of the same text add up. Ties keep their order.
    """
    by_text = dict.fromkeys(candidates, 0.0)
    for text, vote in zip(candidates, votes, strict=True):
        by_text[text] += vote
    mean = pairwise_chrf(list(by_text)) @ np.array(list(by_text.values())) / sum(by_text.values())
    # sums of the same numbers in another order differ in their last digits, which must not decide
    expected = dict(zip(by_text, mean.round(9).tolist(), strict=True))
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
        columns = {element: i for i, element in enumerate(set().union(*elements))}
        places = [np.fromiter((columns[element] for element in of_text), int) for of_text in elements]
        matches = np.zeros((n, n))
        for first in range(0, len(columns), _COLUMNS):  # which texts have which elements, some at a time
            has = np.zeros((n, _COLUMNS), np.float32)
            for row, of_text in enumerate(places):
                has[row, of_text[(of_text >= first) & (of_text < first + _COLUMNS)] - first] = 1
            matches += has @ has.T
        counts = np.maximum(matches.diagonal(), 1)
        precision += matches / counts[:, None]
        recall += matches / counts
        orders += np.minimum.outer(matches.diagonal(), matches.diagonal()) > 0  # both texts are long enough
    precision, recall = precision / np.maximum(orders, 1), recall / np.maximum(orders, 1)
    return 100 * (1 + _BETA**2) * precision * recall / np.maximum(_BETA**2 * precision + recall, 1e-16)
