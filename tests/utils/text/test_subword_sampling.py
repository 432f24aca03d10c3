import math
import random
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from const.token import UNK_ID
from utils.text.sampling import BpeSampler, Piece, UnigramSampler

TEXTS = ["a", "b", "c", "ab", "bc", "abc", "▁", "▁a", "qa"]  # no q by itself
UNIGRAM = {text: Piece(4 + i, -1.5 - 0.37 * i) for i, text in enumerate(TEXTS)}
UNKNOWN = min(piece.score for piece in UNIGRAM.values()) - 10
# the merges of BPE in their order; characters come behind them
MERGES = ["bc", "ab", "abc", "▁a", "▁abc", "cc", "bcbc"]
BPE = {text: Piece(4 + i, float(-i)) for i, text in enumerate([*MERGES, "a", "b", "c", "▁"])}


def cuts(word: str) -> Iterator[tuple[list[int], float]]:
    """All cuts of a word with their log probability, by trying each."""
    if not word:
        yield [], 0.0
    for n in range(1, len(word) + 1):
        first = UNIGRAM.get(word[:n])
        if first is None and n == 1:
            first = Piece(UNK_ID, UNKNOWN)
        if first is not None:
            for ids, score in cuts(word[n:]):
                yield [first.id, *ids], first.score + score


@pytest.mark.parametrize("rate", [0.2, 1.0])
@pytest.mark.parametrize("word", ["▁abcab", "aXbc", "c", "▁abcabcabc", "qab"])
def test_a_unigram_cut_comes_as_often_as_its_probability_to_the_rate_says(word: str, rate: float) -> None:
    weights = {tuple(ids): math.exp(rate * score) for ids, score in cuts(word)}
    draw, sampler, n = random.Random(0).random, UnigramSampler(UNIGRAM, rate), 10_000
    found = Counter(tuple(sampler(word, draw)) for _ in range(n))
    assert set(found) <= set(weights)
    total = sum(weights.values())
    for ids, weight in weights.items():
        p = weight / total
        if n * p > 5 or ids in found:
            assert found[ids] == pytest.approx(n * p, abs=5 * math.sqrt(n * p * (1 - p)) + 4)


def test_a_cut_of_a_very_long_word_has_no_underflow() -> None:
    ids = UnigramSampler(UNIGRAM, 1.0)("abc" * 1000, random.Random(0).random)
    lengths = {piece.id: len(text) for text, piece in UNIGRAM.items()}
    assert sum(lengths[i] for i in ids) == 3000
    assert len(set(ids)) > 3


def bpe(word: str, rate: float, seed: int = 0) -> list[int]:
    return BpeSampler(BPE, rate)(word, random.Random(seed).random)


def test_bpe_merges_in_its_order_and_from_the_left() -> None:
    ids = {text: piece.id for text, piece in BPE.items()}
    assert bpe("abc", 0.0) == [ids["abc"]]  # a bc, though ab would go as well
    assert bpe("▁ab", 0.0) == [ids["▁"], ids["ab"]]
    assert bpe("aab", 0.0) == [ids["a"], ids["ab"]]
    assert bpe("bcbc", 0.0) == [ids["bcbc"]]  # the second grows and meets the first
    assert bpe("ccc", 0.0) == [ids["cc"], ids["c"]]
    assert bpe("aXX", 0.0) == [ids["a"], UNK_ID, UNK_ID]


def test_a_long_word_loses_as_many_merges_as_short_ones() -> None:
    """A Japanese sentence is one word."""
    n, rate = 4000, 0.3
    together = len(bpe("bcX" * n, rate))
    assert together / (2 * n) == pytest.approx(1 + rate / 2, rel=0.02)


@given(word=st.text("abc▁X", max_size=12), seed=st.integers(0, 9))
def test_bpe_without_any_merge_is_characters(word: str, seed: int) -> None:
    assert bpe(word, 1.0, seed) == [BPE[c].id if c in BPE else UNK_ID for c in word]


def test_a_merge_is_left_out_at_the_rate() -> None:
    """Of `bc` alone one merge is possible; `abc` can be made of `a bc` and, where `bc` was left out, of `ab c`."""
    n, rate = 20_000, 0.3
    alone = Counter(len(bpe("bc", rate, seed)) for seed in range(n))
    assert alone[2] == pytest.approx(n * rate, rel=0.05)
    both = Counter(tuple(bpe("abc", rate, seed)) for seed in range(n))
    one = {text: piece.id for text, piece in BPE.items()}
    assert both[one["a"], one["b"], one["c"]] == pytest.approx(n * rate**2, rel=0.1)
    assert both[one["a"], one["bc"]] == pytest.approx(n * (1 - rate) * rate, rel=0.05)
    assert both[one["ab"], one["c"]] == pytest.approx(n * rate * (1 - rate) * rate, rel=0.1)
