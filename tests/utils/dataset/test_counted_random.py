import numpy as np
import pytest

from utils.dataset.masked import uniform


def test_a_number_depends_on_key_and_counters_and_on_nothing_drawn_beside_it() -> None:
    rows, columns = np.arange(50)[:, None], np.arange(40)
    table = uniform((1, 2, "x"), rows, columns)
    assert table.shape == (50, 40)
    assert np.array_equal(uniform((1, 2, "x"), rows[::-1], columns), table[::-1])
    assert uniform((1, 2, "x"), np.array([7]), np.array([9])) == table[7, 9]
    assert np.array_equal(uniform((np.int64(1), 2, "x"), rows.astype(np.int32), columns), table)  # type: ignore[arg-type]
    others = [uniform(key, rows, columns) for key in ((1, 3, "x"), (2, 2, "x"), (1, 2, "y"), (12, "x"))]
    everything = np.stack([table, *others])
    assert len(np.unique(everything)) == everything.size


def test_numbers_are_uniform_and_tell_nothing_of_their_neighbours() -> None:
    table = uniform((0,), np.arange(1000)[:, None], np.arange(1000))
    assert table.min() >= 0
    assert table.max() < 1
    counts, _ = np.histogram(table, bins=100, range=(0, 1))
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 160  # chi squared of 99 degrees: more in one of 10,000 draws
    for one, other in ((table[1:], table[:-1]), (table[:, 1:], table[:, :-1]), (table, table.T)):
        off = one != other
        assert np.corrcoef(one[off], other[off])[0, 1] == pytest.approx(0, abs=0.004)
