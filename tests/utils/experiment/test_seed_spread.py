import math

import pytest

from utils.experiment.seed_spread import Difference, Spread, difference, paired_difference, pooled


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


def test_the_error_of_a_difference_grows_with_few_seeds_on_either_side() -> None:
    found = difference([3.0, 5.0], [1.0, 2.0, 3.0, 2.0], Spread(0.6, 9))
    assert found.value == 2.0
    assert found.error == pytest.approx(0.6 * math.sqrt(1 / 2 + 1 / 4))


def test_on_the_same_weights_the_error_is_that_of_the_mean_of_the_differences() -> None:
    found = paired_difference([0.5, 0.3, 0.4, 0.4], Spread(0.2, 3))
    assert found.value == pytest.approx(0.4)
    assert found.error == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("value", "verdict"),
    [(0.41, "better"), (-0.41, "worse"), (0.4, "no difference seen"), (-0.4, "no difference seen")],
)
def test_a_difference_is_claimed_beyond_two_standard_errors(value: float, verdict: str) -> None:
    assert Difference(value, 0.2).verdict == verdict


def test_without_a_spread_nothing_is_claimed() -> None:
    assert difference([9.0], [1.0], None) == Difference(8.0, None)
    assert paired_difference([9.0], None).verdict == "unknown"


def test_equal_scores_without_any_spread_are_no_difference() -> None:
    assert Difference(0.0, 0.0).verdict == "no difference seen"
