"""Minimum Bayes risk: the candidate of the highest expected utility, argmax_h Σ_r p(r) u(h, r), which is chrF2 here.

Kumar & Byrne 2004 with the candidates of a beam, Eikema & Aziz 2022 with samples. In linear time: the expected n-gram
matches with all references are had at once, as in DeNero et al. 2009, and precision and recall are made of these.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_ORDER = 6  # the longest character n-grams
_BETA = 2  # recall counts twice as much as precision


def by_expected_chrf(candidates: Sequence[str], votes: Sequence[float] | NDArray[np.float64]) -> list[int]:
    """Return the candidates' places, ordered by expected chrF2 against all of them, highest first.

    Each counts as a reference by its votes; those of the same text add up. Ties keep their order.
    """
    by_text = dict.fromkeys(candidates, 0.0)
    for text, vote in zip(candidates, votes, strict=True):
        by_text[text] += vote
    # sums of the same numbers in another order differ in their last digits, which must not decide
    scores = expected_chrf([*by_text], [*by_text.values()]).round(9).tolist()
    expected = dict(zip(by_text, scores, strict=True))
    return sorted(range(len(candidates)), key=lambda i: -expected[candidates[i]])


def expected_chrf(texts: Sequence[str], votes: Sequence[float]) -> NDArray[np.float64]:
    """Return chrF2 (0 to 100), as sacreBLEU computes it, of each text's mean precision and recall against all."""
    n, shares = len(texts), np.array(votes) / sum(votes)
    characters = ["".join(text.split()) for text in texts]
    precision, recall = np.zeros((2, n))
    for order in range(1, _ORDER + 1):
        ngrams = [Counter(text[i : i + order] for i in range(len(text) - order + 1)) for text in characters]
        # the second "a" of a text counts as a different element from its first
        elements = [{(ngram, i) for ngram, times in of_text.items() for i in range(times)} for of_text in ngrams]
        columns = {element: i for i, element in enumerate(set().union(*elements))}
        places = [np.fromiter((columns[element] for element in of_text), int) for of_text in elements]
        matched, recalled = np.zeros((2, len(columns)))  # what an element adds to the expected matches, and to recall
        for of_text, share in zip(places, shares, strict=True):
            matched[of_text] += share
            recalled[of_text] += share / max(1, len(of_text))
        precision += [matched[of_text].sum() / max(1, len(of_text)) for of_text in places]
        recall += [recalled[of_text].sum() for of_text in places]
    orders = np.array([min(len(text), _ORDER) for text in characters])  # for which a text is long enough
    with_orders = np.bincount(orders, shares, _ORDER + 1)
    per_order = (with_orders / np.minimum.outer(orders, range(_ORDER + 1)).clip(1)).sum(1)  # those that both have
    precision, recall = precision * per_order, recall * per_order
    return 100 * (1 + _BETA**2) * precision * recall / np.maximum(_BETA**2 * precision + recall, 1e-16)
