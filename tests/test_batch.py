"""From token ids to batches: buckets and their bounds, epochs as a function of seed and number, four kinds of batch."""

import gc
import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import chain, count, pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from config.data import BatchConfig, MaskingConfig, StreamConfig, TokenizerConfig
from config.model import TransformerConfig
from const.token import BOS_ID, EOS_ID, PAD_ID, SPECIAL_TOKENS, UNK_ID
from models.transformer import Transformer
from utils.dataset.batch import (
    Batch,
    BucketSampler,
    Epoch,
    Sampler,
    both_directions,
    fill,
    filling,
    padded,
    prefetched,
    require_positions,
    within_budget,
)
from utils.dataset.ids import TokenArray, TokenPairs
from utils.dataset.labelled import LabelledBatch, LabelledText, labelled_examples
from utils.dataset.masked import MaskedBatch, MaskedText, WholeWords, masked_examples, uniform
from utils.dataset.monolingual import Document, DocumentTokens
from utils.dataset.stream import NO_DOCUMENT, SegmentBatch, StreamSampler
from utils.text.tokenizer import SentencePieceTokenizer, Tokenizer, WordTokenizer

Lengths = list[tuple[int, int]]


def masked(text: DocumentTokens, tokenizer: Tokenizer, config: MaskingConfig, *bounds: Any, **named: Any) -> Any:
    sampler: Any = BucketSampler
    return sampler(MaskedText(text, tokenizer, config), *bounds, examples=masked_examples, **named)


multiples = st.sampled_from([1, 2, 8])
bounds = st.none() | st.integers(1, 50)  # of sentences

# Batches of an epoch are what they were, bit for bit: an interrupted training goes on as if it had not been.


def drawn(n: int, seed: int) -> TokenArray:
    draw = np.random.default_rng(seed)
    return TokenArray.of([draw.integers(4, 60, size).tolist() for size in draw.integers(0, 30, n)], 60)


WORDS = WordTokenizer([f"{'▁' * (i % 3 == 0)}{'w寺'[i % 7 == 0]}{i}" for i in range(56)], lowercase=False)
PAIRS = TokenPairs(drawn(300, 1), drawn(300, 2))
DOCUMENTS = DocumentTokens.of(drawn(200, 3), [Document("a", 50), Document("b", 1), Document("c", 149)])
LABELLED = LabelledText(drawn(150, 4), np.arange(150) % 7)
RARE = MaskingConfig(0.3, whole_words=True, next_sentence=False)


def mixed(n: int) -> Epoch:
    forward, backward = BucketSampler(PAIRS, 200, 24, 5), BucketSampler(TokenPairs(PAIRS.tgt, PAIRS.src), 200, 24, 5)
    return both_directions(forward.epoch(n), backward.epoch(n), (5, n))


GOLDEN: list[tuple[Callable[[int], Any], str, str]] = [  # epochs 0 and 3
    (BucketSampler(PAIRS, 200, 24, 5).epoch, "5037782de9d82a03", "59798013d1638453"),
    (BucketSampler(PAIRS, 200).epoch, "4bc79f429860be67", "034591afe6e7ec8d"),
    (BucketSampler(PAIRS, 200, 24, 5, 8).epoch, "260914f8cb37d522", "81b5584781289703"),
    (BucketSampler(PAIRS, 200, 24, 5, 4, 7).epoch, "d312cd63dd7ff9bd", "f08b2b7ed52c01c0"),
    (mixed, "a829f00a2ec35ca3", "718fcfe62bdc0590"),
    (masked(DOCUMENTS, WORDS, MaskingConfig(), 200, 40, 5).epoch, "16444a6a41d14091", "48fa30352b96300f"),
    (masked(DOCUMENTS, WORDS, RARE, 200, None, 5, 8).epoch, "a994753820186dfe", "abcf1de547a6d32f"),
    (masked(DOCUMENTS, WORDS, MaskingConfig(), 200, 30, 5, 1, 3).epoch, "c14b5ebab60794a8", "002ca423f039cad5"),
    (BucketSampler(LABELLED, 100, 20, 5, 4, 6, labelled_examples).epoch, "d1163122feae7de9", "a898a1709a5e795a"),
    (StreamSampler(DOCUMENTS, StreamConfig(3, 7, 2), 5).epoch, "d25b0d68b236be6e", "cf9128c3af79f50e"),
]


def digest(epoch: Epoch) -> str:
    found = hashlib.sha256(f"{len(epoch)} {epoch.n_dropped} {epoch.padding:.6f} {epoch.largest()}".encode())
    for i in range(len(epoch)):
        found.update(str(epoch.target_tokens(i)).encode())
        for part in epoch[i]:
            found.update(part.numpy().tobytes())
    return found.hexdigest()[:16]


@pytest.mark.parametrize(("epoch", "first", "fourth"), GOLDEN)
def test_batches_are_the_same_function_of_lengths_seed_and_epoch_as_ever(
    epoch: Callable[[int], Any], first: str, fourth: str
) -> None:
    assert [digest(epoch(n)) for n in (0, 3, 0)] == [first, fourth, first]


# what holds for every kind of batch


def consistent(epoch: Any, budget: int, multiple: int = 1) -> None:
    """What an epoch says of itself is what its tensors hold, and its batches keep their bounds."""
    batches = list(epoch)
    positions = [filling(batch)[1] for batch in batches]
    assert epoch.padding == pytest.approx(1 - sum(filling(batch)[0] for batch in batches) / sum(positions))
    assert positions[epoch.largest()] == max(positions)
    assert [epoch.target_tokens(i) for i in range(len(epoch))] == [
        getattr(batch, "target_tokens", len(next(iter(batch)))) for batch in batches
    ]
    for ids in chain.from_iterable(batch.sides.values() for batch in batches):
        assert len(ids) == 1 or ids.numel() <= budget
        assert ids.shape[1] % multiple == 0


@pytest.mark.parametrize(("kind", "parts"), [(Batch, 2), (MaskedBatch, 4), (SegmentBatch, 3), (LabelledBatch, 2)])
def test_a_batch_goes_to_a_device_whole_and_padding_fills_nothing(kind: Any, parts: int) -> None:
    batch = kind(*[padded([[5], [6, 7]])] * parts)
    assert {part.device.type for part in batch.to(torch.device("meta"))} == {"meta"}
    assert all(part.equal(moved) for part, moved in zip(batch, batch.to(torch.device("cpu")), strict=True))
    assert filling(batch) == ((5 + 3, 6 + 4) if kind is Batch else (5, 6))  # <s> of the target is not predicted


@pytest.mark.parametrize(
    ("config", "remedy"),
    [
        (BatchConfig(4096, 2, 128, sentences_per_batch=64), "say --batch.sentences_per_batch 32 --batch.accumulate 4"),
        (BatchConfig(4096, 2, 128), "say --batch.tokens_per_batch 2048 --batch.accumulate 4"),
        (BatchConfig(128, 2, 128), "lower --batch.max_tokens (now 128)"),
        (StreamConfig(16, 64, 3), "say --batch.n_streams 8 --batch.accumulate 6"),
        (StreamConfig(1, 64), "lower --batch.segment_length (now 64)"),
    ],
)
def test_the_remedy_is_half_a_batch_at_once_or_shorter_rows(config: Any, remedy: str) -> None:
    assert config.remedy().endswith(remedy)


@pytest.mark.parametrize("pair", [(9, 1), (1, 9)])
def test_what_is_refused_is_what_a_network_with_learned_positions_cannot_read(pair: tuple[int, int]) -> None:
    (batch,) = BucketSampler(pairs_of([pair]), 99).all()
    side, bounds = pairs_of([(3, 3), pair])[pair.index(9)], BatchConfig(max_tokens=9, length_multiple=5)  # padded to 10
    for positions, refusal in (10, nullcontext()), (9, pytest.raises(ValueError, match=r"learned|--L 10|takes 10 pos")):
        net = Transformer(TransformerConfig(8, 1, 8, 1, 1, positions="learned", tie="none", max_length=positions), 5, 5)
        with refusal:
            net(batch.src, batch.tgt[:, :-1])
        with refusal:
            bounds.require_positions(positions, "L")
        with refusal:
            require_positions(side, Path("x"), positions, "L")


def test_sequences_of_any_kind_become_one_tensor() -> None:
    assert padded([[5, 6], np.array([7], np.uint16), []]).tolist() == [[5, 6, 3], [7, 3, 0], [3, 0, 0]]
    assert padded([[5, 6], []], bos=True).tolist() == [[2, 5, 6, 3], [2, 3, 0, 0]]
    out = np.zeros((3, 7), np.int64)
    fill(out, np.array([0, 2, 1]), np.array([4, 5, 6, 7, 8, 9]), np.array([3, 2, 1]), np.array([2, 2, 0]))
    assert out.tolist() == [[4, 5, EOS_ID, 0, 0, 0, 0], [0, 0, 7, 8, EOS_ID, 0, 0], [0, EOS_ID, 0, 0, 0, 0, 0]]


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 100))
def test_batches_within_a_budget_hold_each_sequence_once_longest_first(lengths: list[int], budget: int) -> None:
    batches = list(within_budget(lengths, budget))
    assert sorted(i for rows in batches for i in rows) == list(range(len(lengths)))
    assert all(len(rows) == 1 or len(rows) * max(lengths[i] for i in rows) <= budget for rows in batches)
    found = [lengths[i] for rows in batches for i in rows]
    assert found == sorted(found, reverse=True)


# pairs

lengths = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=40)


def pairs_of(lengths: Sequence[tuple[int, int]]) -> TokenPairs:
    """Pair i consists of the number 4 + i, as often as its lengths say."""
    src, tgt = ([[4 + i] * pair[side] for i, pair in enumerate(lengths)] for side in (0, 1))
    return TokenPairs(TokenArray.of(src, 2**16), TokenArray.of(tgt, 2**16))


def rows_of(epoch: Epoch) -> list[list[tuple[int, int, int]]]:
    """Number and lengths of the pairs of each batch, whose rows must be as they should; an empty pair has no number."""
    found: list[list[tuple[int, int, int]]] = []
    for batch in epoch:
        assert batch.src.dtype == batch.tgt.dtype == torch.int64
        found.append([])
        for src, tgt in zip(batch.src.tolist(), batch.tgt.tolist(), strict=True):
            n_src, n_tgt, i = src.index(EOS_ID), tgt.index(EOS_ID) - 1, max(*src, *tgt) - 4
            assert src == [4 + i] * n_src + [EOS_ID] + [PAD_ID] * (len(src) - n_src - 1)
            assert tgt == [BOS_ID] + [4 + i] * n_tgt + [EOS_ID] + [PAD_ID] * (len(tgt) - n_tgt - 2)
            found[-1].append((i, n_src, n_tgt))
    return found


@given(
    lengths=lengths,
    budget=st.integers(1, 60),
    max_tokens=st.none() | st.integers(1, 14),
    multiple=multiples,
    most=bounds,
    seed=st.integers(0, 5),
)
def test_an_epoch_has_each_pair_once_within_the_bounds(
    lengths: Lengths, budget: int, max_tokens: int | None, multiple: int, most: int | None, seed: int
) -> None:
    kept = [(a, b) if max_tokens is None or (a and b and max(a, b) < max_tokens) else None for a, b in lengths]
    sampler = BucketSampler(pairs_of(lengths), budget, max_tokens, seed, multiple, most)
    if not any(kept):
        with pytest.raises(ValueError, match=rf"^no pair of {len(lengths)} has at most max_tokens={max_tokens} "):
            sampler.epoch(0)
        return
    epoch = sampler.epoch(seed)
    batches = rows_of(epoch)
    expected = [(i, *pair) for i, pair in enumerate(kept) if pair and any(pair)]
    found = sorted(chain.from_iterable(batches))
    assert [row for row in found if row[0] >= 0] == expected
    assert len(found) == len(lengths) - epoch.n_dropped == sum(pair is not None for pair in kept)
    assert most is None or max(map(len, batches)) <= most
    consistent(epoch, budget)
    for batch in epoch:
        assert batch.src.shape[1] % multiple == (batch.tgt.shape[1] - 1) % multiple == 0
        assert (batch.src[:, -multiple:] != PAD_ID).any()  # and no more of it than needed
        assert (batch.tgt[:, -multiple:] != PAD_ID).any()
    # few batches are not full: only where one more would not be a multiple, or nothing is left
    width = max(-(-(n + 1) // multiple) * multiple for pair in kept if pair for n in pair)
    room = min(most or len(lengths), budget // width)
    assert sum(len(rows) + multiple <= room for rows in batches) <= (1 if multiple == 1 else 2)


def test_pairs_of_like_length_stand_together_in_random_order() -> None:
    lengths: Lengths = [(n, n) for n in np.random.default_rng(0).integers(1, 100, 2000).tolist()]
    widths = [[n for _, _, n in rows] for rows in rows_of(BucketSampler(pairs_of(lengths), 500).epoch(0))]
    assert all(max(row) - min(row) <= 4 for row in widths)
    assert 0.3 < np.mean([max(later) > max(earlier) for earlier, later in pairwise(widths)]) < 0.7


def test_padding_is_little_on_lengths_as_they_are() -> None:
    """KFTT's lengths in tokens are about log-normal, and so are the ratios of source to target."""
    rng = np.random.default_rng(0)
    log_tgt = rng.normal(3.4, 0.74, 200_000)
    log_src = log_tgt + rng.normal(-0.28, 0.34, 200_000)
    offsets = [np.concatenate([[0], np.exp(side).astype(np.int64).cumsum()]) for side in (log_src, log_tgt)]
    pairs = TokenPairs(*(TokenArray(np.empty(0, np.uint16), ends) for ends in offsets))
    for budget, most in (2048, 0.015), (4096, 0.03), (8192, 0.05):
        assert 0 < BucketSampler(pairs, budget, 128).epoch(0).padding < most


def test_each_epoch_may_have_other_ids_and_the_last_is_remembered() -> None:
    made = []

    def ids(epoch: int) -> TokenPairs:
        made.append(epoch)
        return pairs_of([(epoch + 1, 2)])

    sampler = BucketSampler(ids, 20, 10)
    assert [sampler.epoch(n)[0].src.shape[1] for n in (0, 0, 3, 3, 0)] == [2, 2, 5, 5, 2]
    assert made == [0, 3, 0]


def test_both_directions_are_all_batches_of_each_mixed_by_seed_and_epoch() -> None:
    forward, backward = (BucketSampler(pairs, 60).epoch(0) for pairs in (PAIRS, TokenPairs(PAIRS.tgt, PAIRS.src)))
    both, other = (both_directions(forward, backward, (1, n)) for n in (0, 1))
    apart, mixed, mixed_otherwise = (
        [batch.src.tolist() for batch in epoch] for epoch in (chain(forward, backward), both, other)
    )
    assert sorted(mixed) == sorted(apart)
    assert mixed not in (apart, mixed_otherwise)
    positions = [filling(batch)[1] for batch in both]
    assert positions[both.largest()] == max(positions)
    assert [both.target_tokens(i) for i in range(len(both))] == [batch.target_tokens for batch in both]


# masked examples

Documents = list[list[int]]
documents = st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=5), min_size=2, max_size=8)
VOCAB = 2000
MASK_ID = VOCAB
TOKENIZER = WordTokenizer([str(i) for i in range(4, VOCAB)], lowercase=False)
SINGLE = MaskingConfig(next_sentence=False)


def text_of(lengths: Documents) -> DocumentTokens:
    """Sentence k, counted through the text with empty ones, begins with the number 4 + 10 k and goes on from there."""
    flat = [n for document in lengths for n in document]
    array = TokenArray.of([[4 + 10 * k + i for i in range(n)] for k, n in enumerate(flat)], 2**16)
    return DocumentTokens.of(array, [Document("x", len(document)) for document in lengths])


def sentences(text: DocumentTokens) -> list[list[int]]:
    return [text.lines[int(row)].tolist() for row in text.rows]


def unmasked(batch: MaskedBatch) -> torch.Tensor:
    return torch.where(batch.target == PAD_ID, batch.ids, batch.target)


def examples(epoch: Epoch, text: DocumentTokens) -> list[tuple[int, list[list[int]], int]]:
    """Number of A, which its first token tells, sentences and label of all examples, unmasked."""
    number, found = {sentence[0]: i for i, sentence in enumerate(sentences(text))}, []
    for batch in epoch:
        ids = unmasked(batch)
        for row, label in zip(ids.tolist(), batch.follows.tolist() or [-1] * len(ids), strict=True):
            row = [i for i in row if i != PAD_ID]
            assert (row[0], row[-1]) == (BOS_ID, EOS_ID)
            end = row.index(EOS_ID)
            parts = [row[1:end], *([row[end + 1 : -1]] if end < len(row) - 1 else [])]
            found.append((number[row[1]], parts, label))
    return found


@settings(max_examples=40)
@given(lengths=documents, budget=st.integers(1, 80), epoch=st.integers(0, 3))
def test_each_sentence_with_a_successor_is_once_an_a_and_labels_are_right(
    lengths: Documents, budget: int, epoch: int
) -> None:
    text = text_of([[1], *lengths, [1]])
    every, document = sentences(text), text.document.tolist()
    single = masked(text, TOKENIZER, SINGLE, budget).epoch(epoch)
    assert sorted(examples(single, text)) == [(k, [sentence], -1) for k, sentence in enumerate(every)]
    assert all(batch.follows.shape == (0,) and not batch.segments.any() for batch in single)
    sampler = masked(text, TOKENIZER, MaskingConfig(), budget, seed=budget)
    expected = [k for k in range(len(every) - 1) if document[k] == document[k + 1]]
    if not expected:
        with pytest.raises(ValueError, match=r"^\d+ sentences in \d+ documents cannot give both pairs that follow"):
            sampler.epoch(epoch)
        return
    seen = []
    for number, (first, second), follows in examples(sampler.epoch(epoch), text):
        assert first == every[number]
        other = every.index(second)
        assert (other == number + 1) == bool(follows)
        assert follows or document[other] != document[number]
        seen.append(number)
    assert sorted(seen) == expected


@settings(max_examples=40)
@given(
    lengths=documents,
    budget=st.integers(1, 80),
    multiple=st.sampled_from([1, 8]),
    config=st.builds(MaskingConfig, st.floats(0.01, 0.99), st.booleans(), st.booleans()),
    max_tokens=st.one_of(st.none(), st.integers(5, 15)),
)
def test_masked_examples_hide_their_share_of_the_text_and_nothing_else(
    lengths: Documents, budget: int, multiple: int, config: MaskingConfig, max_tokens: int | None
) -> None:
    text = text_of([[3, 4], [2], *lengths])
    epoch = masked(text, TOKENIZER, config, budget, max_tokens, multiple=multiple).epoch(1)
    consistent(epoch, budget, multiple)
    assert epoch.n_dropped == 0
    for batch in epoch:
        parts = (batch.ids.tolist(), batch.segments.tolist(), batch.target.tolist())
        for row, segment, target in zip(*parts, strict=True):
            n = sum(i != PAD_ID for i in row)
            assert max_tokens is None or n <= max_tokens
            assert row[n:] == segment[n:] == target[n:] == [PAD_ID] * (len(row) - n)
            end = row.index(EOS_ID)
            assert segment[:n] == [0] * (end + 1) + [1] * (n - end - 1)
            hidden = [(i, right) for i, right in zip(row, target, strict=True) if right != PAD_ID]
            assert all(right not in (BOS_ID, EOS_ID) and i > EOS_ID for i, right in hidden)
            assert len(hidden) == max(1, round(config.rate * (n - row.count(EOS_ID) - 1)))


def test_long_examples_are_truncated_at_the_end_of_their_longer_sentence() -> None:
    text = text_of([[9, 3], [2, 9], [9, 9], [1]])
    every = sentences(text)
    for max_tokens, expected in ((11, [(5, 3), (2, 6), (4, 4)]), (10, [(4, 3), (2, 5), (4, 3)]), (5, [(1, 1)] * 3)):
        found = {}
        sampler = masked(text, TOKENIZER, MaskingConfig(), 99, max_tokens)
        for number, pair, follows in chain.from_iterable(examples(sampler.epoch(n), text) for n in range(30)):
            assert all(any(whole[: len(part)] == part for whole in every) for part in pair)
            if follows:
                found[number] = len(pair[0]), len(pair[1])
        assert [found[number] for number in (0, 2, 4)] == expected
    ((_, single, _),) = examples(masked(text_of([[9]]), TOKENIZER, SINGLE, 99, 6).epoch(0), text_of([[9]]))
    assert single == [[4, 5, 6, 7]]
    for config, least in ((MaskingConfig(), 5), (SINGLE, 3)):
        with pytest.raises(ValueError, match=rf"^max_tokens={least - 1} leaves no room .*: give at least {least}$"):
            masked(text, TOKENIZER, config, 99, least - 1).epoch(0)


@pytest.mark.parametrize("whole_words", [False, True])
def test_an_example_is_a_function_of_seed_and_epoch_whatever_stands_beside_it(whole_words: bool) -> None:
    def table(budget: int = 60, seed: int = 1, epoch: int = 2, multiple: int = 1) -> dict[int, Any]:
        """By the first token of each A: what is read and predicted without padding, and what follows."""
        config = MaskingConfig(0.3, whole_words)
        found = {}
        for batch in masked(text, TOKENIZER, config, budget, seed=seed, multiple=multiple).epoch(epoch):
            rows = (unmasked(batch).tolist(), batch.ids.tolist(), batch.target.tolist(), batch.follows.tolist())
            for right, ids, target, follows in zip(*rows, strict=True):
                n = sum(i != PAD_ID for i in ids)
                found[right[1]] = ids[:n], target[:n], follows
        return found

    text = text_of([[5, 8, 7, 9], [9, 6, 8, 9, 9]])
    assert table() == table(budget=1) == table(budget=1000, multiple=8)
    for other in table(epoch=1), table(seed=2):
        assert all(row != table()[number] for number, row in other.items())


def near(share: float, expected: float, n: int) -> bool:
    """Within four standard deviations."""
    return abs(share - expected) < 4 * (expected * (1 - expected) / n) ** 0.5


def large() -> DocumentTokens:
    """6,000 sentences of 20 tokens, all of the first 500 numbers, and 60 documents."""
    ids = np.random.default_rng(0).integers(4, 500, 120_000).astype(np.uint16)
    return DocumentTokens.of(TokenArray(ids, np.arange(6001) * 20), [Document("x", 100)] * 60)


def test_shares_are_those_of_the_paper_at_every_place_and_anew_each_epoch() -> None:
    epoch = masked(large(), TOKENIZER, MaskingConfig(), 4000).epoch(0)
    ids, target = (torch.cat([getattr(batch, part).flatten() for batch in epoch]) for part in ("ids", "target"))
    hidden = target != PAD_ID
    read, right = ids[hidden], target[hidden]
    n = len(right)
    assert n == 5940 * 6  # 15 % of 40
    assert near(float((read == MASK_ID).float().mean()), 0.8, n)
    assert near(float((read == right).float().mean()), 0.1, n)
    replaced = read[(read != MASK_ID) & (read != right)]
    assert near(len(replaced) / n, 0.1, n)
    assert (int(replaced.min()), int(replaced.max())) == (UNK_ID + 3, VOCAB - 1)  # any token but the special ones
    counts = np.histogram(replaced.numpy(), bins=10, range=(4, VOCAB))[0]
    assert all(near(count / len(replaced), 0.1, len(replaced)) for count in counts)
    assert (ids[~hidden] != MASK_ID).all()
    follows = torch.cat([batch.follows for batch in epoch]).float()
    assert near(float(follows.mean()), 0.5, len(follows))

    sampler, places = masked(large(), TOKENIZER, SINGLE, 4400), []
    for number in (0, 1):
        batches = list(sampler.epoch(number))
        order = np.lexsort(torch.cat([unmasked(batch)[:, 1:21] for batch in batches]).numpy().T)  # no two are equal
        places.append(torch.cat([batch.target[:, 1:21] != PAD_ID for batch in batches])[order])
    assert all(near(float(share), 0.15, 6000) for share in places[0].float().mean(0))
    assert near(float((places[0] & places[1]).sum() / places[0].sum()), 0.15, 3 * 6000)


def test_a_wrong_successor_is_of_another_document_or_any_sentence_of_the_only_one() -> None:
    def wrong(text: DocumentTokens, n_epochs: int) -> Counter[tuple[int, int]]:
        every, sampler = sentences(text), masked(text, TOKENIZER, MaskingConfig(), 999)
        found = chain.from_iterable(examples(sampler.epoch(n), text) for n in range(n_epochs))
        return Counter((number, every.index(pair[1])) for number, pair, follows in found if not follows)

    found = wrong(text_of([[1, 2], [3, 4, 5], [6, 7]]), 400)
    others = {0: (2, 3, 4, 5, 6), 2: (0, 1, 5, 6), 3: (0, 1, 5, 6), 5: (0, 1, 2, 3, 4)}
    assert set(found) == {(a, k) for a, after in others.items() for k in after}
    assert all(near(found[0, k] / 200, 0.2, 200) for k in others[0])
    assert set(wrong(text_of([[1, 2, 3, 4]]), 60)) == {(0, 2), (0, 3), (1, 0), (1, 3), (2, 0), (2, 1)}
    with pytest.raises(
        ValueError, match=r"^2 sentences in 1 documents cannot give both pairs .*next_sentence to false"
    ):
        wrong(text_of([[1, 2]]), 1)


class Pieces:
    """A tokenizer of which nothing but the pieces is known."""

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = [*SPECIAL_TOKENS, *pieces]

    def __len__(self) -> int:
        return len(self.pieces)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [self.pieces[i] for i in ids]


# every fourth token begins a word
FOURS = cast(Tokenizer, Pieces([f"▁{i}" if i % 4 == 0 else str(i) for i in range(4, VOCAB)]))


def test_whole_words_are_hidden_together_or_not_at_all() -> None:
    rng = np.random.default_rng(0)
    lines = [list(range(4, 4 + int(n))) for n in rng.integers(24, 48, 400)]  # words of four pieces, the last shorter
    text = DocumentTokens.of(TokenArray.of(lines, VOCAB), [Document("x", 400)])
    for next_sentence in (False, True):
        config = MaskingConfig(0.2, whole_words=True, next_sentence=next_sentence)
        epoch = masked(text, FOURS, config, 600).epoch(0)
        n_hidden = n_tokens = 0
        consistent(epoch, 600)
        for batch in epoch:
            for row, target in zip(unmasked(batch).tolist(), batch.target.tolist(), strict=True):
                words: list[list[bool]] = []
                for token, right in zip(row[1:], target[1:], strict=True):
                    if token % 4 == 0 or token == EOS_ID:
                        words.append([])
                    words[-1].append(right != PAD_ID)
                assert all(len(set(word)) == 1 for word in words)
                n = sum(token > EOS_ID for token in row)
                assert 0 < sum(map(sum, words)) <= max(4, round(0.2 * n))
                n_hidden, n_tokens = n_hidden + sum(map(sum, words)), n_tokens + n
        assert 0.16 < n_hidden / n_tokens <= 0.2
    # a word that is too long for its share is hidden where there is no other
    text = DocumentTokens.of(TokenArray.of([[4, 5, 6, 7]], VOCAB), [Document("x", 1)])
    (batch,) = masked(text, FOURS, MaskingConfig(0.15, True, False), 99).all()
    assert batch.target.tolist() == [[0, 4, 5, 6, 7, 0]]


@pytest.mark.parametrize(
    "words",
    [
        "vol ution | ▁end",  # cut from the middle of a word
        "▁in | 京都 | s | ▁old",
        "▁ 14 20 | 年 | （ | 応永 | 27 | 年 | ） | 、 | 19 8 | 、 | a b",
        "<s> | vol | <unk> | ution | </s>",
        "カタ | ｶﾅ | ▁ー",
    ],
)
def test_words_end_where_the_next_begins(words: str) -> None:
    pieces = words.replace("|", "").split()
    tokenizer = Pieces([*sorted(set(pieces) - set(SPECIAL_TOKENS)), "▁some"])
    ids = np.array([tokenizer.pieces.index(piece) for piece in pieces])
    numbers = WholeWords(cast(Tokenizer, tokenizer)).numbers(ids)
    assert " | ".join(" ".join(np.array(pieces)[numbers == n]) for n in range(numbers[-1] + 1)) == words


def test_words_of_a_real_model_and_of_a_vocabulary_of_words() -> None:
    lines = ["the old capital and the capitals of the old provinces"] * 9
    tokenizer = SentencePieceTokenizer.train(TokenizerConfig("bpe", 30, character_coverage=1.0), [lines])
    ids = np.array(tokenizer.encode(lines[:1])[0])
    numbers = WholeWords(tokenizer).numbers(ids)
    assert [tokenizer.decode([ids[numbers == n].tolist()])[0] for n in range(numbers[-1] + 1)] == lines[0].split()
    words = WholeWords(WordTokenizer(["old", "capital", "."], lowercase=False))
    assert words.numbers(np.array([4, 5, 6, 1, 5])).tolist() == [0, 1, 2, 3, 4]


def test_counted_random_numbers_are_uniform_and_depend_on_key_and_counters_alone() -> None:
    rows, columns = np.arange(1000)[:, None], np.arange(1000)
    numbers = uniform((1, 2, "x"), rows, columns)
    assert uniform((1, 2, "x"), np.array([7], np.int32), np.array([9])) == numbers[7, 9]
    others = [uniform(key, rows[:50], columns[:40]) for key in ((1, 3, "x"), (2, 2, "x"), (1, 2, "y"), (12, "x"))]
    together = np.stack([numbers[:50, :40], *others])
    assert len(np.unique(together)) == together.size
    assert 0 <= numbers.min() < numbers.max() < 1
    counts, _ = np.histogram(numbers, bins=100, range=(0, 1))
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 160  # chi squared of 99 degrees: more in one of 10,000 draws
    for one, other in ((numbers[1:], numbers[:-1]), (numbers[:, 1:], numbers[:, :-1])):
        assert np.corrcoef(one.ravel(), other.ravel())[0, 1] == pytest.approx(0, abs=0.004)


# segments

configs = st.builds(StreamConfig, st.integers(1, 4), st.integers(1, 9), st.integers(1, 3))


def joined(parts: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(parts))


def whole(text: DocumentTokens) -> list[list[int]]:
    """The tokens of each document with </s>, documents without any left out."""
    every = [[*sentence, EOS_ID] for sentence in sentences(text)]
    return [joined(every[begin:end]) for begin, end in pairwise(text.bounds.tolist())]


def rows_read(batches: list[SegmentBatch], n_groups: int) -> list[list[tuple[int, int, int]]]:
    """Token, next token and document, as each stream has them; padding must follow its end."""
    streams = []
    for group in range(n_groups):
        parts = [torch.cat([[*batch][k] for batch in batches[group::n_groups]], 1).tolist() for k in range(3)]
        for row in zip(*parts, strict=True):
            places = list(zip(*row, strict=True))
            n = sum(place != (PAD_ID, PAD_ID, NO_DOCUMENT) for place in places)
            assert all(place == (PAD_ID, PAD_ID, NO_DOCUMENT) for place in places[n:])
            assert all(PAD_ID not in place[:2] and place[2] >= 0 for place in places[:n])
            streams.append(places[:n])
    return streams


def documents_read(stream: list[tuple[int, int, int]]) -> list[list[int]]:
    """The documents of a stream, one after the other: each begins with <s>, and what is predicted is read next."""
    found: list[list[int]] = []
    last = None
    for token, following, number in stream:
        if number != last:
            assert token == BOS_ID
            found.append([])
        else:
            assert token == found[-1][-1]
        found[-1].append(following)
        last = number
    assert len({number for _, _, number in stream}) == len(found)  # none comes back
    return found


@settings(max_examples=40)
@given(lengths=documents, config=configs, number=st.integers(0, 2))
def test_the_segments_of_a_row_give_whole_documents_back_and_every_token_once(
    lengths: Documents, config: StreamConfig, number: int
) -> None:
    text = text_of([[2], *lengths])
    sampler = StreamSampler(text, config)
    epoch = sampler.epoch(number)
    consistent(epoch, config.n_streams * config.segment_length)
    batches = list(epoch)
    assert {batch.ids.shape for batch in batches} == {(config.n_streams, config.segment_length)}
    assert any(batch.target_tokens for batch in batches[-config.accumulate :])  # no segment too many
    streams = rows_read(batches, config.accumulate)
    assert len(streams) == config.n_streams * config.accumulate
    parts = [document for stream in streams for document in documents_read(stream)]
    everything = whole(text)
    # put together in the order of the text, the parts of overlong documents are whole again
    assert joined(sorted(parts)) == joined(everything)
    fair = sum(map(len, everything)) / len(streams)
    assert all(document in parts for document in everything if len(document) <= fair)
    assert all(part[-1] == EOS_ID for part in parts)
    starts = {sum(map(len, everything[:i])) for i in range(len(everything))}
    assert starts <= {0, *np.cumsum([len(part) for part in sorted(parts)]).tolist()}  # none reaches into the next
    numbers = [{number for _, _, number in stream} for stream in streams]
    assert len(set[int]().union(*numbers)) == sum(map(len, numbers))  # nor do two streams share one
    (stream,) = rows_read(sampler.all(), 1)
    assert documents_read(stream) == everything  # for scoring, in its order


def test_documents_are_dealt_to_streams_of_about_equal_length() -> None:
    rng = np.random.default_rng(0)
    text = text_of([rng.integers(1, 7, n).tolist() for n in (1 + rng.pareto(1.2, 400)).astype(int)])
    one = text_of([[5, 1, 3, 4, 6, 2, 2, 5, 3, 4, 1, 1]])  # 49 tokens with </s>
    for each, config in ((text, StreamConfig(4, 16, 2)), (one, StreamConfig(2, 8, 2))):
        lengths = list(map(len, rows_read(list(StreamSampler(each, config).epoch(0)), 2)))
        assert max(lengths) - sum(lengths) / len(lengths) <= 7  # a sentence
    assert StreamSampler(text, StreamConfig(4, 16, 2)).epoch(0).padding < 0.02


# labelled texts


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=30),
    budget=st.integers(1, 60),
    multiple=multiples,
    max_tokens=st.none() | st.integers(3, 12),
)
def test_an_epoch_has_each_text_once_with_its_label(
    lengths: list[int], budget: int, multiple: int, max_tokens: int | None
) -> None:
    """Text i consists of the number 4 + i, as often as its length says, and has the label i."""
    text = LabelledText(pairs_of([(n, 0) for n in lengths]).src, np.arange(len(lengths)))
    epoch = BucketSampler(text, budget, max_tokens, multiple=multiple, examples=labelled_examples).epoch(budget)
    consistent(epoch, budget, multiple)
    rows = [
        (label, row) for batch in epoch for label, row in zip(batch.label.tolist(), batch.ids.tolist(), strict=True)
    ]
    for (label, row), (i, length) in zip(sorted(rows), enumerate(lengths), strict=True):
        n = length if max_tokens is None else min(length, max_tokens - 2)
        assert (label, row) == (i, [BOS_ID, *[4 + i] * n, EOS_ID, *[PAD_ID] * (len(row) - n - 2)])
    with pytest.raises(ValueError, match=r"^max_tokens=2 leaves no room for a text: give at least 3$"):
        labelled_examples(text, 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: BucketSampler(PAIRS, 60, 50, seed),
        lambda seed: masked(DOCUMENTS, WORDS, MaskingConfig(), 60, seed=seed),
        lambda seed: StreamSampler(DOCUMENTS, StreamConfig(4, 16, 2), seed),
        lambda seed: BucketSampler(LABELLED, 30, seed=seed, examples=labelled_examples),
    ],
)
def test_another_seed_or_epoch_has_other_batches(make: Callable[[int], Sampler[Any]]) -> None:
    def rows(seed: int, epoch: int) -> list[str]:  # batches, in any order
        return sorted(str([part.tolist() for part in batch]) for batch in make(seed).epoch(epoch))

    assert rows(1, 0) not in (rows(1, 1), rows(2, 0))


# prefetching


def threads() -> int:
    return sum(thread.name.startswith("prefetch") for thread in threading.enumerate())


@pytest.mark.parametrize("taken", [1, 3])
def test_items_are_made_by_another_thread_ahead_but_not_far_until_they_are_abandoned(taken: int) -> None:
    makers: list[threading.Thread] = []
    items = prefetched(n for n in count() if makers.append(threading.current_thread()) is None)  # type: ignore[func-returns-value]
    assert [next(items) for _ in range(taken)] == list(range(taken))
    end = time.monotonic() + 60
    while len(makers) < taken + 4 and time.monotonic() < end:
        time.sleep(0.001)
    time.sleep(0.05)
    assert taken + 4 <= len(makers) <= taken + 7
    assert threading.current_thread() not in makers
    del items
    gc.collect()
    assert threads() == 0
    made = len(makers)
    time.sleep(0.02)
    assert len(makers) == made < 20


def test_all_items_come_in_order_and_a_failure_after_those_before_it() -> None:
    def failing() -> Iterator[int]:
        yield from range(9)
        raise OSError("the disk is gone")

    assert list(prefetched(range(9))) == list(range(9))
    items = prefetched(failing())
    assert [next(items) for _ in range(9)] == list(range(9))
    with pytest.raises(OSError, match="the disk is gone"):
        next(items)
    assert threads() == 0


@pytest.mark.gpu
@pytest.mark.parametrize("pin", [True, False])
def test_pinned_batches_are_the_same_in_memory_that_a_gpu_can_fetch(pin: bool) -> None:
    batch = Batch(padded([[5, 6]]), padded([[7]], bos=True))
    (((got, number),),) = prefetched(cast(Any, [[(batch, 3)]]), pin)
    assert number == 3
    assert [side.is_pinned() for side in got] == [pin, pin]
    assert all(ours.equal(theirs) for ours, theirs in zip(got, batch, strict=True))
    assert torch.equal(got.to(torch.device("cuda")).src.cpu(), batch.src)
