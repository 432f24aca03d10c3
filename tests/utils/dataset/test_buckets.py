import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from const.token import EOS_ID
from utils.dataset.batch import Buckets, fill

lengths = st.lists(st.integers(1, 12), min_size=1, max_size=40)
multiples = st.sampled_from([1, 2, 8])


def buckets(lengths: list[int], budget: int, multiple: int = 1, seed: int = 0, most: int | None = None) -> Buckets:
    return Buckets([np.array(lengths)], budget, multiple, np.random.default_rng(seed), most)


def rows_of(found: Buckets) -> list[list[int]]:
    return [found.rows(i).tolist() for i in range(len(found))]


@given(lengths=lengths, budget=st.integers(1, 60), multiple=multiples, seed=st.integers(0, 5))
def test_each_row_is_there_once_within_the_budget(lengths: list[int], budget: int, multiple: int, seed: int) -> None:
    found = buckets(lengths, budget, multiple, seed)
    assert sorted(i for rows in rows_of(found) for i in rows) == list(range(len(lengths)))
    for i, rows in enumerate(rows_of(found)):
        assert found.width(i) == -(-max(lengths[row] for row in rows) // multiple) * multiple
        assert len(rows) == 1 or len(rows) * found.width(i) <= budget


@given(lengths=lengths, budget=st.integers(1, 60), most=st.integers(1, 9))
def test_a_batch_has_no_more_rows_than_it_may(lengths: list[int], budget: int, most: int) -> None:
    found = rows_of(buckets(lengths, budget, most=most))
    assert max(map(len, found)) <= most
    assert sorted(i for rows in found for i in rows) == list(range(len(lengths)))


@given(lengths=lengths, budget=st.integers(8, 200), multiple=multiples)
def test_few_batches_are_not_full(lengths: list[int], budget: int, multiple: int) -> None:
    widest = -(-max(lengths) // multiple) * multiple
    loose = [rows for rows in rows_of(buckets(lengths, budget, multiple)) if (len(rows) + multiple) * widest <= budget]
    assert len(loose) <= (1 if multiple == 1 else 2)  # the end, which may be a multiple and a rest


@given(lengths=lengths, budget=st.integers(1, 60), multiple=multiples)
def test_what_is_said_of_padding_and_of_the_largest_is_so(lengths: list[int], budget: int, multiple: int) -> None:
    found = buckets(lengths, budget, multiple)
    positions = [len(found.rows(i)) * found.width(i) for i in range(len(found))]
    assert found.padding == pytest.approx(1 - sum(lengths) / sum(positions))
    assert positions[found.largest()] == max(positions)


def test_rows_of_like_length_stand_together_otherwise_each_time() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 2000).tolist()
    first, other = (rows_of(buckets(lengths, 500, seed=seed)) for seed in (0, 1))
    for rows in first:
        assert max(lengths[i] for i in rows) - min(lengths[i] for i in rows) <= 4
    assert {frozenset(rows) for rows in first} != {frozenset(rows) for rows in other}
    longer = np.diff([max(lengths[i] for i in rows) for rows in first]) > 0
    assert 0.3 < longer.mean() < 0.7  # short and long batches alternate


def test_rows_are_a_multiple_where_there_are_that_many() -> None:
    found = buckets(np.random.default_rng(0).integers(1, 30, 2000).tolist(), 1000, 8)
    assert sum(len(rows) % 8 != 0 for rows in rows_of(found)) <= 1  # what is left at the end


def test_a_batch_that_is_not_there_is_refused() -> None:
    for i in (-1, 1):
        with pytest.raises(IndexError, match=f"^batch {i} of 1$"):
            buckets([1], 10).rows(i)


def test_rows_are_filled_from_their_columns_and_cut_and_ended() -> None:
    out = np.zeros((3, 7), np.int64)
    fill(out, np.array([0, 2, 1]), np.array([4, 5, 6, 7, 8, 9]), np.array([3, 2, 1]), np.array([2, 2, 0]))
    assert out.tolist() == [[4, 5, EOS_ID, 0, 0, 0, 0], [0, 0, 7, 8, EOS_ID, 0, 0], [0, EOS_ID, 0, 0, 0, 0, 0]]
    fill(out, 5, np.array([7, 8]), np.array([1, 0, 1]), np.array([1, 0, 1]))
    assert out[:, 5:].tolist() == [[7, EOS_ID], [EOS_ID, 0], [8, EOS_ID]]
