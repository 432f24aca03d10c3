import math

import numpy as np
import pytest

from utils.experiment.ablation import Difference, Spread, beyond_blocks, blocked, claimed, difference, loudest, pooled


def test_the_spread_is_pooled_from_what_each_varies_around_its_own_mean() -> None:
    """By hand: squares 1 + 1, 4 + 4 and 0 + 1 + 1, of 7 values around 3 means."""
    groups = [[10.0, 12.0], [20.0, 24.0], [30.0, 29.0, 31.0]]
    spread = pooled(groups)
    assert spread is not None
    assert spread.freedom == 4
    assert spread.deviation == pytest.approx(math.sqrt((2 + 8 + 2) / 4))


def test_means_that_lie_apart_are_no_spread() -> None:
    assert pooled([[1.0, 1.0], [100.0, 100.0]]) == Spread(0.0, 2)


def test_one_seed_or_none_tells_nothing_but_does_no_harm() -> None:
    assert pooled([[1.0], [5.0], []]) is None
    assert pooled([[1.0], [4.0, 6.0], []]) == Spread(math.sqrt(2), 1)


def error_rate(t: float, freedom: int) -> float:
    """P(|t| > t) for Student's density, summed over small steps of its angle."""
    angles = np.linspace(0, math.pi / 2, 200_001)  # t = √ν tan, which turns the density into a power of the cosine
    density = np.cos(angles) ** (freedom - 1)
    return float(density[angles > math.atan(t / math.sqrt(freedom))].sum() / density.sum())


@pytest.mark.parametrize("freedom", [*range(1, 11), 20, 30, 60, 120])
def test_no_difference_is_claimed_for_one_in_twenty(freedom: int) -> None:
    assert error_rate(claimed(freedom), freedom) == pytest.approx(0.05, abs=0.0005)


def test_between_the_degrees_of_the_table_rather_less_is_claimed() -> None:
    assert (claimed(19), claimed(29), claimed(59), claimed(1000)) == (2.23, 2.09, 2.04, 1.98)
    for freedom in (11, 19, 29, 59, 119, 1000):
        assert 0.03 < error_rate(claimed(freedom), freedom) < 0.0502


def test_the_error_of_a_difference_grows_with_few_seeds_on_either_side() -> None:
    found = difference([3.0, 5.0], [1.0, 2.0, 3.0, 2.0], Spread(0.6, 9))
    assert found.value == 2.0
    assert found.margin == pytest.approx(2.26 * 0.6 * math.sqrt(1 / 2 + 1 / 4))


def test_blocks_leave_out_what_a_seed_does_to_all() -> None:
    """By hand: the second recipe gains 1, and 3 with the second seed, whatever that does to both."""
    for by_seed in (0.0, 100.0):
        recipes = [[10.0, 12.0 + by_seed], [11.0, 15.0 + by_seed]]
        np.testing.assert_allclose(beyond_blocks(recipes), [[0.5, -0.5], [-0.5, 0.5]])
        spread = blocked(recipes)
        assert spread is not None
        assert spread.freedom == 1
        assert spread.deviation == pytest.approx(1.0)
    assert blocked([[1.0, 2.0]]) is None
    assert blocked([[1.0], [2.0]]) is None


def test_of_blocks_where_nothing_differs_one_in_twenty_is_claimed() -> None:
    """Also where seeds do much to all that translates with their weights, and one noisy base is compared with all."""
    random, claims, n = np.random.default_rng(1), 0, 1500
    for _ in range(n):
        recipes = (random.normal(size=(8, 2)) + 5 * random.normal(size=(1, 2))).tolist()
        claims += difference(recipes[1], recipes[0], blocked(recipes)).verdict != "no difference seen"
    assert 0.035 < claims / n < 0.065


@pytest.mark.parametrize(
    ("value", "verdict"),
    [(0.41, "better"), (-0.41, "worse"), (0.4, "no difference seen"), (-0.4, "no difference seen")],
)
def test_a_difference_is_claimed_beyond_its_margin(value: float, verdict: str) -> None:
    assert Difference(value, 0.4).verdict == verdict


def test_without_a_spread_nothing_is_claimed() -> None:
    assert difference([9.0], [1.0], None) == Difference(8.0, None)
    assert Difference(8.0, None).verdict == "unknown"


def test_equal_scores_without_any_spread_are_no_difference() -> None:
    assert difference([2.0], [2.0], Spread(0.0, 2)).verdict == "no difference seen"


@pytest.mark.parametrize(
    ("groups", "which"),
    [
        ([[1.0, 2.0], [1.0, 1.5], [5.0, 9.0]], 2),
        ([[1.0, 2.0], [5.0, 6.0], [3.0, 3.0]], None),  # half of it is not more than half
        ([[5.0], [1.0, 3.0], [1.0, 1.5], [], [2.0, 2.0]], 1),
        ([[1.0, 3.0], [1.0, 1.5], [5.0]], None),  # one of two always has more
        ([[1.0, 2.0]], None),
        ([], None),
    ],
)
def test_the_loudest_of_three_has_more_than_half_of_all_squares(groups: list[list[float]], which: int | None) -> None:
    assert loudest(groups) == which
