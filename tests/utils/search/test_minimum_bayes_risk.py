import random

import pytest
from sacrebleu.metrics.chrf import CHRF

from utils.search.translator import by_expected_chrf, pairwise_chrf

ODD = ["", " ", "a", "ab", "aaaaaaaa", "aaaa aaaa", "京都の古い寺", "京都 の 寺", "the old temple", "The old temple."]


def drawn(n: int, seed: int) -> list[str]:
    """Like samples of one sentence: words of it, some of them changed, some of them left out."""
    draw = random.Random(seed)
    words = ["the", "old", "temple", "by", "the", "river", "in", "the", "east", "of", "Kyoto", "was", "built"]
    kept = [[word for word in words if draw.random() < 0.8] for _ in range(n)]
    return [" ".join(draw.choice(words) if draw.random() < 0.2 else word for word in sentence) for sentence in kept]


def expected(candidates: list[str]) -> list[float]:
    """Sum of the chrF2 of each against all others, one pair after the other, by sacreBLEU."""
    metric = CHRF()
    return [
        sum(metric.sentence_score(one, [other]).score for j, other in enumerate(candidates) if j != i)
        for i, one in enumerate(candidates)
    ]


@pytest.mark.parametrize("texts", [ODD, drawn(12, 0)], ids=["odd", "drawn"])
def test_chrf_is_that_of_sacrebleu(texts: list[str]) -> None:
    metric, ours = CHRF(), pairwise_chrf(texts)
    for i, hypothesis in enumerate(texts):
        for j, reference in enumerate(texts):
            assert ours[i, j] == pytest.approx(metric.sentence_score(hypothesis, [reference]).score, abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_the_order_is_that_of_the_mean_chrf_against_all_others(seed: int) -> None:
    candidates = [*drawn(14, seed), *ODD[:3], *drawn(3, seed)]  # the last ones for the second time
    scores = expected(candidates)
    assert by_expected_chrf(candidates) == sorted(range(20), key=lambda i: -round(scores[i], 9))


def test_what_was_drawn_often_outvotes_what_is_like_it() -> None:
    one, other, third = "the old temple", "the new temple", "a river"
    assert by_expected_chrf([one, other, third])[2] == 2
    assert by_expected_chrf([one, other, third, third, third])[:3] == [2, 3, 4]


@pytest.mark.parametrize(
    ("candidates", "order"),
    [
        ([], []),
        (["a"], [0]),
        ([""], [0]),
        (["", ""], [0, 1]),
        (["b", "a", "b", "a"], [0, 1, 2, 3]),
        (["xyz", "uvw", "rst"], [0, 1, 2]),
        (["", "abcdef", "uvw", "abcdef"], [1, 3, 0, 2]),
    ],
)
def test_equal_ones_keep_their_order(candidates: list[str], order: list[int]) -> None:
    assert by_expected_chrf(candidates) == order


def test_rounding_decides_nothing() -> None:
    """Each differs from the next in the same way, so that all are equally good, in whatever order they are summed."""
    letters = "abcdefghijk"
    around = ["".join(letters[(i + k) % 11] for k in range(7)) for i in range(11)]
    assert by_expected_chrf(around) == [*range(11)]
