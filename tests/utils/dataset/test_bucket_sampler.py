import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from const.token import BOS_ID, EOS_ID, PAD_ID
from models.transformer import Transformer, TransformerConfig
from utils.dataset.batch import BothDirections, BucketSampler, Epoch, batch_of, require_positions
from utils.dataset.ids import TokenArray, TokenPairs

Lengths = list[tuple[int, int]]
lengths = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=40)
multiples = st.sampled_from([1, 2, 8])
bounds = st.none() | st.integers(1, 50)  # of sentences


def pairs_of(lengths: Sequence[tuple[int, int]]) -> TokenPairs:
    """Pair i consists of the number 4 + i, as often as its lengths say."""
    src, tgt = ([[4 + i] * pair[side] for i, pair in enumerate(lengths)] for side in (0, 1))
    return TokenPairs(TokenArray.of(src, 2**16), TokenArray.of(tgt, 2**16))


def rows_of(epoch: Epoch) -> list[list[int]]:
    return [epoch.rows(i).tolist() for i in range(len(epoch))]


def width(lengths: Lengths, rows: Sequence[int], multiple: int = 1) -> int:
    return max(-(-(n + 1) // multiple) * multiple for i in rows for n in lengths[i])


@given(
    lengths=lengths,
    budget=st.integers(1, 60),
    multiple=multiples,
    most=bounds,
    seed=st.integers(0, 5),
    epoch=st.integers(0, 5),
)
def test_an_epoch_has_each_pair_once_within_the_bounds(
    lengths: Lengths, budget: int, multiple: int, most: int | None, seed: int, epoch: int
) -> None:
    sampler = BucketSampler(pairs_of(lengths), budget, None, seed, multiple, most)
    batches = rows_of(sampler.epoch(epoch))
    assert sorted(i for rows in batches for i in rows) == list(range(len(lengths)))
    for rows in batches:
        assert rows
        assert len(rows) == 1 or len(rows) * width(lengths, rows, multiple) <= budget
        assert most is None or len(rows) <= most


@given(lengths=lengths, budget=st.integers(1, 60), max_tokens=st.integers(1, 14))
def test_overlong_and_empty_pairs_are_left_out_and_counted(lengths: Lengths, budget: int, max_tokens: int) -> None:
    kept = [i for i, (src, tgt) in enumerate(lengths) if src and tgt and max(src, tgt) + 1 <= max_tokens]
    sampler = BucketSampler(pairs_of(lengths), budget, max_tokens)
    if not kept:
        with pytest.raises(ValueError, match=rf"^no pair of {len(lengths)} has at most max_tokens={max_tokens} tokens"):
            sampler.epoch(0)
        return
    assert sorted(i for rows in rows_of(sampler.epoch(0)) for i in rows) == kept
    assert sampler.epoch(0).n_dropped == len(lengths) - len(kept)


def test_validation_keeps_empty_and_overlong_pairs() -> None:
    sampler = BucketSampler(pairs_of([(0, 3), (3, 0), (900, 2)]), 16)
    assert sampler.epoch(0).n_dropped == 0
    assert sum(len(batch.src) for batch in sampler.all()) == 3


@given(lengths=lengths, budget=st.integers(8, 200), multiple=multiples, most=bounds)
def test_few_batches_are_not_full(lengths: Lengths, budget: int, multiple: int, most: int | None) -> None:
    """Room for one more of the longest: only where that would not be a multiple, or nothing is left."""
    batches = rows_of(BucketSampler(pairs_of(lengths), budget, multiple=multiple, sentences_per_batch=most).epoch(0))
    longest = width(lengths, range(len(lengths)), multiple)
    room = [most or len(lengths), budget // longest]
    loose = [rows for rows in batches if len(rows) + multiple <= min(room)]
    assert len(loose) <= (1 if multiple == 1 else 2)  # the end, which may be a multiple and a rest


@given(lengths=lengths, most=st.integers(1, 50), seed=st.integers(0, 3))
def test_with_many_tokens_all_batches_but_the_longest_have_so_many_sentences(
    lengths: Lengths, most: int, seed: int
) -> None:
    epoch = BucketSampler(pairs_of(lengths), 50 * 13, seed=seed, sentences_per_batch=most).epoch(0)
    by_length = sorted(rows_of(epoch), key=lambda rows: max(lengths[i][1] for i in rows))
    assert sorted(len(rows) for rows in by_length if len(rows) != most) == [len(lengths) % most] * (
        len(lengths) % most > 0
    )
    assert len(by_length) == -(-len(lengths) // most)
    targets = [sorted(lengths[i][1] for i in rows) for rows in by_length]
    assert all(shorter[-1] <= longer[0] for shorter, longer in pairwise(targets))


def test_batches_hold_pairs_of_like_length() -> None:
    rng = np.random.default_rng(0)
    lengths = [(int(n), int(n)) for n in rng.integers(1, 100, 2000)]
    for rows in rows_of(BucketSampler(pairs_of(lengths), 500).epoch(0)):
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
    batches = rows_of(BucketSampler(pairs_of([(n, n) for n in range(1, 101)]), 200).epoch(0))
    longest = [max(rows) for rows in batches]
    changes = [longer > shorter for shorter, longer in pairwise(longest)]
    assert 0.3 < sum(changes) / len(changes) < 0.7


@given(lengths=lengths, budget=st.integers(1, 60), multiple=multiples, seed=st.integers(0, 3))
def test_tensors_hold_the_pairs_and_padding_behind_them(
    lengths: Lengths, budget: int, multiple: int, seed: int
) -> None:
    epoch = BucketSampler(pairs_of(lengths), budget, seed=seed, multiple=multiple).epoch(0)
    for rows, batch in zip(rows_of(epoch), epoch, strict=True):
        assert batch.src.dtype == batch.tgt.dtype == torch.int64
        for i, src, tgt in zip(rows, batch.src.tolist(), batch.tgt.tolist(), strict=True):
            n_src, n_tgt = lengths[i]
            assert src == [4 + i] * n_src + [EOS_ID] + [PAD_ID] * (len(src) - n_src - 1)
            assert tgt == [BOS_ID] + [4 + i] * n_tgt + [EOS_ID] + [PAD_ID] * (len(tgt) - n_tgt - 2)
        assert batch.src.shape[1] % multiple == (batch.tgt.shape[1] - 1) % multiple == 0
        assert (batch.src[:, -multiple:] != PAD_ID).any()  # and no more of it than needed
        assert (batch.tgt[:, -multiple:] != PAD_ID).any()


def test_rows_are_a_multiple_where_there_are_that_many() -> None:
    rng = np.random.default_rng(0)
    lengths = [(int(a), int(b)) for a, b in rng.integers(1, 30, (2000, 2))]
    epoch = BucketSampler(pairs_of(lengths), 1000, multiple=8).epoch(0)
    sizes = [len(rows) for rows in rows_of(epoch)]
    assert sum(size % 8 != 0 for size in sizes) <= 1  # what is left at the end
    assert len({(tuple(batch.src.shape), tuple(batch.tgt.shape)) for batch in epoch}) < 30  # 4 x 4 lengths


@given(lengths=lengths, budget=st.integers(1, 60), multiple=multiples, most=bounds)
def test_what_is_said_of_an_epoch_is_what_its_tensors_hold(
    lengths: Lengths, budget: int, multiple: int, most: int | None
) -> None:
    epoch = BucketSampler(pairs_of(lengths), budget, multiple=multiple, sentences_per_batch=most).epoch(0)
    sides = [(batch.src, batch.tgt[:, 1:]) for batch in epoch]  # <s> is said, not predicted
    positions = [src.numel() + tgt.numel() for src, tgt in sides]
    pads = sum(int((side == PAD_ID).sum()) for both in sides for side in both)
    assert epoch.padding == pytest.approx(pads / sum(positions))
    assert positions[epoch.largest()] == max(positions)
    assert [epoch.target_tokens(i) for i in range(len(epoch))] == [batch.target_tokens for batch in epoch]


def test_a_batch_that_is_not_there_is_refused() -> None:
    epoch = BucketSampler(pairs_of([(1, 1)]), 10).epoch(0)
    for i in (-1, 1):
        with pytest.raises(IndexError, match=f"^batch {i} of 1$"):
            epoch[i]


def test_each_epoch_may_have_other_ids_and_is_made_once() -> None:
    asked = []

    def ids(epoch: int) -> TokenPairs:
        asked.append(epoch)
        return pairs_of([(epoch + 1, 2)])

    sampler = BucketSampler(ids, 20, 10)
    assert [sampler.epoch(n)[0].src.shape[1] for n in (0, 0, 3, 3, 0)] == [2, 2, 5, 5, 2]
    assert asked == [0, 3, 0]


def test_padding_is_little_on_lengths_as_they_are() -> None:
    """KFTT's lengths in tokens are about log-normal, and so are the ratios of source to target."""
    rng = np.random.default_rng(0)
    log_tgt = rng.normal(3.4, 0.74, 200_000)
    log_src = log_tgt + rng.normal(-0.28, 0.34, 200_000)
    offsets = [np.concatenate([[0], np.exp(side).astype(np.int64).cumsum()]) for side in (log_src, log_tgt)]
    pairs = TokenPairs(*(TokenArray(np.empty(0, np.uint16), ends) for ends in offsets))
    for budget, most in (2048, 0.015), (4096, 0.03), (8192, 0.05):
        assert 0 < BucketSampler(pairs, budget, 128).epoch(0).padding < most


def test_any_rows_make_a_batch() -> None:
    batch = batch_of(pairs_of([(1, 2), (0, 0), (3, 1)]), np.array([2, 1, 0]))
    assert batch.src.tolist() == [[6, 6, 6, 3], [3, 0, 0, 0], [4, 3, 0, 0]]
    assert batch.tgt.tolist() == [[2, 6, 3, 0], [2, 3, 0, 0], [2, 4, 4, 3]]


OPTION = "model.max_length"


def lines_of(*lengths: int) -> TokenArray:
    return pairs_of([(length, 1) for length in lengths]).src


def test_a_text_that_a_learned_table_can_number_is_taken() -> None:
    require_positions(lines_of(3, 9), Path("dev.de"), 10, OPTION)
    require_positions(lines_of(), Path("dev.de"), 1, OPTION)


def test_the_longest_line_that_a_learned_table_cannot_number_is_named() -> None:
    message = (
        "dev.de, line 2 takes 12 positions, </s> included, and the learned table has model.max_length=10: "
        "give --model.max_length 12, or shorten the line"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        require_positions(lines_of(1, 11, 10), Path("dev.de"), 10, OPTION)


@pytest.mark.parametrize("pair", [(9, 1), (1, 9)])
@pytest.mark.parametrize(
    ("positions", "outcome"), [(10, nullcontext()), (9, pytest.raises(ValueError, match="learned"))]
)
def test_what_is_refused_is_what_a_network_cannot_read(
    pair: tuple[int, int], positions: int, outcome: AbstractContextManager[object]
) -> None:
    config = TransformerConfig(8, 1, 8, 1, 1, positions="learned", max_length=positions, tie="none")
    (batch,) = BucketSampler(pairs_of([pair]), 99).all()
    with outcome:
        for side in pairs_of([pair]):
            require_positions(side, Path("dev"), positions, OPTION)
    with outcome:
        Transformer(config, 5, 5)(batch.src, batch.tgt[:, :-1])


def test_both_directions_are_all_batches_of_each_mixed_by_seed_and_epoch() -> None:
    forward = BucketSampler(pairs_of([(n % 7 + 1, n % 5 + 1) for n in range(40)]), 30).epoch(0)
    backward = BucketSampler(pairs_of([(n % 5 + 1, n % 9 + 1) for n in range(30)]), 30).epoch(0)
    both = BothDirections(forward, backward, (1, 0))
    tensors = [batch.src.tolist() for batch in (*forward, *backward)]
    mixed = [both[i].src.tolist() for i in range(len(both))]
    assert sorted(mixed) == sorted(tensors)
    assert mixed != tensors
    assert mixed == [both[i].src.tolist() for i in range(len(both))]
    assert mixed != [BothDirections(forward, backward, (1, 1))[i].src.tolist() for i in range(len(both))]
    for i in range(len(both)):
        assert both.target_tokens(i) == int((both[i].tgt[:, 1:] != PAD_ID).sum())
    assert both[both.largest()].src.numel() + both[both.largest()].tgt.numel() == max(
        both[i].src.numel() + both[i].tgt.numel() for i in range(len(both))
    )
