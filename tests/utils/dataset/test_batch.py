from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from const.token import BOS_ID, EOS_ID, PAD_ID
from utils.dataset.batch import Batch, BatchConfig, BucketSampler, padded, within_budget
from utils.dataset.token_cache import TokenArray, TokenPairs

Lengths = list[tuple[int, int]]
lengths = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=40)


def pairs_of(lengths: Sequence[tuple[int, int]]) -> TokenPairs:
    """Pair i consists of the number 4 + i, as often as its lengths say."""
    src, tgt = ([[4 + i] * pair[side] for i, pair in enumerate(lengths)] for side in (0, 1))
    return TokenPairs(TokenArray.of(src, 2**16), TokenArray.of(tgt, 2**16))


def rows_of(epoch: Sequence[np.ndarray]) -> list[list[int]]:
    return [rows.tolist() for rows in epoch]


def width(lengths: Lengths, rows: Sequence[int]) -> int:
    return max(max(lengths[i]) + 1 for i in rows)


@given(lengths=lengths, budget=st.integers(1, 60), seed=st.integers(0, 5), epoch=st.integers(0, 5))
def test_an_epoch_has_each_pair_once_within_the_budget(lengths: Lengths, budget: int, seed: int, epoch: int) -> None:
    batches = rows_of(BucketSampler(pairs_of(lengths), budget, seed=seed).epoch(epoch))
    assert sorted(i for rows in batches for i in rows) == list(range(len(lengths)))
    for rows in batches:
        assert rows
        assert len(rows) == 1 or len(rows) * width(lengths, rows) <= budget


@given(lengths=lengths, budget=st.integers(1, 60), max_tokens=st.integers(1, 14))
def test_overlong_and_empty_pairs_are_left_out_and_counted(lengths: Lengths, budget: int, max_tokens: int) -> None:
    kept = [i for i, (src, tgt) in enumerate(lengths) if src and tgt and max(src, tgt) + 1 <= max_tokens]
    if not kept:
        with pytest.raises(ValueError, match=rf"^no pair of {len(lengths)} has at most max_tokens={max_tokens} tokens"):
            BucketSampler(pairs_of(lengths), budget, max_tokens)
        return
    sampler = BucketSampler(pairs_of(lengths), budget, max_tokens)
    assert sorted(i for rows in sampler.epoch(0) for i in rows) == kept
    assert sampler.n_dropped == len(lengths) - len(kept)


def test_validation_keeps_empty_and_overlong_pairs() -> None:
    sampler = BucketSampler(pairs_of([(0, 3), (3, 0), (900, 2)]), 16)
    assert sampler.n_dropped == 0
    assert sum(len(batch.src) for batch in sampler.all()) == 3


@given(lengths=lengths, budget=st.integers(1, 60))
def test_a_batch_is_full_when_the_next_pair_does_not_fit(lengths: Lengths, budget: int) -> None:
    batches = rows_of(BucketSampler(pairs_of(lengths), budget).epoch(0))

    def first(rows: list[int]) -> tuple[int, int]:
        src, tgt = lengths[rows[0]]
        return tgt, src

    batches.sort(key=lambda rows: (first(rows), [lengths[i][::-1] for i in rows]))
    by_length = sorted(batches, key=first)
    for rows, following in pairwise(by_length):
        if first(rows) < first(following):  # else which of them was first is not known
            assert (len(rows) + 1) * width(lengths, [*rows, following[0]]) > budget


def test_batches_hold_pairs_of_like_length() -> None:
    rng = np.random.default_rng(0)
    lengths = [(int(n), int(n)) for n in rng.integers(1, 100, 2000)]
    for rows in BucketSampler(pairs_of(lengths), 500).epoch(0):
        widths = [lengths[i][1] for i in rows]
        assert max(widths) - min(widths) <= 4


def test_order_depends_on_seed_and_epoch_alone() -> None:
    lengths = [(1 + i % 7, 1 + i % 5) for i in range(200)]

    def epoch(seed: int, number: int) -> list[list[int]]:
        return rows_of(BucketSampler(pairs_of(lengths), 60, 50, seed).epoch(number))

    first = epoch(1, 0)
    assert epoch(1, 0) == first
    sampler = BucketSampler(pairs_of(lengths), 60, 50, 1)
    sampler.epoch(3)
    assert rows_of(sampler.epoch(0)) == first
    for other in epoch(1, 1), epoch(2, 0):
        assert other != first
        assert {frozenset(rows) for rows in other} != {frozenset(rows) for rows in first}  # not only their order


def test_short_and_long_batches_alternate() -> None:
    batches = BucketSampler(pairs_of([(n, n) for n in range(1, 101)]), 200).epoch(0)
    longest = [int(rows.max()) for rows in batches]
    assert longest != sorted(longest)
    assert longest != sorted(longest, reverse=True)


@given(lengths=lengths, budget=st.integers(1, 60), seed=st.integers(0, 3))
def test_tensors_hold_the_pairs_and_padding_behind_them(lengths: Lengths, budget: int, seed: int) -> None:
    sampler = BucketSampler(pairs_of(lengths), budget, seed=seed)
    batches = sampler.all()
    assert len(batches) == len(sampler.epoch(0))
    for rows, batch in zip(sampler.epoch(0), batches, strict=True):
        assert batch.src.dtype == batch.tgt.dtype == torch.int64
        for i, src, tgt in zip(rows.tolist(), batch.src.tolist(), batch.tgt.tolist(), strict=True):
            n_src, n_tgt = lengths[i]
            assert src == [4 + i] * n_src + [EOS_ID] + [PAD_ID] * (len(src) - n_src - 1)
            assert tgt == [BOS_ID] + [4 + i] * n_tgt + [EOS_ID] + [PAD_ID] * (len(tgt) - n_tgt - 2)
        assert (batch.src[:, -1] != PAD_ID).any()  # and no more of it than needed
        assert (batch.tgt[:, -1] != PAD_ID).any()


@given(lengths=lengths, budget=st.integers(1, 60))
def test_padding_is_what_the_tensors_hold(lengths: Lengths, budget: int) -> None:
    sampler = BucketSampler(pairs_of(lengths), budget)
    read = [side for batch in sampler.all() for side in (batch.src, batch.tgt[:, 1:])]  # <s> is said, not predicted
    share = sum(int((side == PAD_ID).sum()) for side in read) / sum(side.numel() for side in read)
    assert sampler.padding() == pytest.approx(share)


def test_padding_is_little_on_lengths_as_they_are() -> None:
    """KFTT's lengths in tokens are about log-normal, and so are the ratios of source to target."""
    rng = np.random.default_rng(0)
    log_tgt = rng.normal(3.4, 0.74, 200_000)
    log_src = log_tgt + rng.normal(-0.28, 0.34, 200_000)
    offsets = [np.concatenate([[0], np.exp(side).astype(np.int64).cumsum()]) for side in (log_src, log_tgt)]
    pairs = TokenPairs(*(TokenArray(np.empty(0, np.uint16), ends) for ends in offsets))
    assert 0 < BucketSampler(pairs, 2048, 128).padding() < 0.03
    assert 0 < BucketSampler(pairs, 8192, 128).padding() < 0.08


def test_sequences_of_any_kind_become_one_tensor() -> None:
    assert padded([[5, 6], np.array([7], np.uint16), []]).tolist() == [[5, 6, 3], [7, 3, 0], [3, 0, 0]]
    assert padded([[5, 6], []], bos=True).tolist() == [[2, 5, 6, 3], [2, 3, 0, 0]]


def test_moving_a_batch_keeps_it() -> None:
    batch = Batch(padded([[5]]), padded([[6]], bos=True))
    moved = batch.to(torch.device("meta"))
    assert {side.device.type for side in moved} == {"meta"}
    assert [side.tolist() for side in batch.to(torch.device("cpu"))] == [[[5, 3]], [[2, 6, 3]]]


@pytest.mark.parametrize("name", ["tokens_per_batch", "accumulate", "max_tokens"])
def test_a_batch_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=0: give at least 1"):
        BatchConfig(**{name: 0})


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 100))
def test_batches_within_a_budget_hold_each_sequence_once_longest_first(lengths: list[int], budget: int) -> None:
    batches = list(within_budget(lengths, budget))
    assert sorted(i for rows in batches for i in rows) == list(range(len(lengths)))
    assert all(len(rows) == 1 or len(rows) * max(lengths[i] for i in rows) <= budget for rows in batches)
    found = [lengths[i] for rows in batches for i in rows]
    assert found == sorted(found, reverse=True)
