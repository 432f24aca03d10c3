"""From token ids to batches: buckets and their bounds, epochs as a function of seed and number, four kinds of batch."""

import gc
import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import chain, count, pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from config.data import BatchConfig, MaskingConfig, StreamConfig
from config.model import TransformerConfig
from const.token import BOS_ID, EOS_ID, PAD_ID, SPECIAL_TOKENS, UNK_ID
from models.transformer import Transformer
from utils.dataset.batch import (
    Batch,
    BucketSampler,
    Epoch,
    both_directions,
    filling,
    padded,
    prefetched,
    require_positions,
)
from utils.dataset.ids import TokenArray, TokenPairs
from utils.dataset.labelled import LabelledText, labelled_examples
from utils.dataset.masked import MaskedBatch, MaskedText, WholeWords, masked_examples, uniform
from utils.dataset.monolingual import NO_DOCUMENT, Document, DocumentTokens, SegmentBatch, StreamSampler
from utils.text.tokenizer import Tokenizer, WordTokenizer

Lengths = list[tuple[int, int]]


def mask_sampler(text: DocumentTokens, tokenizer: Tokenizer, config: MaskingConfig, *bounds: Any, **named: Any) -> Any:
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
    (mask_sampler(DOCUMENTS, WORDS, MaskingConfig(), 200, 40, 5).epoch, "16444a6a41d14091", "48fa30352b96300f"),
    (mask_sampler(DOCUMENTS, WORDS, RARE, 200, None, 5, 8).epoch, "a994753820186dfe", "abcf1de547a6d32f"),
    (mask_sampler(DOCUMENTS, WORDS, MaskingConfig(), 200, 30, 5, 1, 3).epoch, "c14b5ebab60794a8", "002ca423f039cad5"),
    (BucketSampler(LABELLED, 100, 20, 5, 4, 6, labelled_examples).epoch, "d1163122feae7de9", "a898a1709a5e795a"),
    (StreamSampler(DOCUMENTS, StreamConfig(3, 7, 2), 5).epoch, "d25b0d68b236be6e", "cf9128c3af79f50e"),
]


def digest(epoch: Epoch) -> str:
    content = hashlib.sha256(f"{len(epoch)} {epoch.n_dropped} {epoch.padding:.6f} {epoch.largest()}".encode())
    for i in range(len(epoch)):
        content.update(str(epoch.target_tokens(i)).encode())
        for part in epoch[i]:
            content.update(part.numpy().tobytes())
    return content.hexdigest()[:16]


@pytest.mark.parametrize(("epoch", "first", "fourth"), GOLDEN)
def test_batches_are_as_ever(epoch: Callable[[int], Any], first: str, fourth: str) -> None:
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


@pytest.mark.parametrize(
    ("config", "remedy"),
    [
        (BatchConfig(4096, 2, 128, sentences_per_batch=64), "say --batch.sentences_per_batch 32 --batch.accumulate 4"),
        (BatchConfig(128, 2, 128), "lower --batch.max_tokens (now 128)"),
        (StreamConfig(16, 64, 3), "say --batch.n_streams 8 --batch.accumulate 6"),
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


# pairs

lengths = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12)), min_size=1, max_size=40)


def pairs_of(lengths: Sequence[tuple[int, int]]) -> TokenPairs:
    """Pair i consists of the number 4 + i, as often as its lengths say."""
    src, tgt = ([[4 + i] * pair[side] for i, pair in enumerate(lengths)] for side in (0, 1))
    return TokenPairs(TokenArray.of(src, 2**16), TokenArray.of(tgt, 2**16))


def rows_of(batch: Batch) -> list[tuple[int, int, int]]:
    """Number and lengths of the pairs of a batch, whose rows must be as they should."""
    rows = []
    assert batch.src.dtype == batch.tgt.dtype == torch.int64
    for src, tgt in zip(batch.src.tolist(), batch.tgt.tolist(), strict=True):
        n_src, n_tgt, i = src.index(EOS_ID), tgt.index(EOS_ID) - 1, max(*src, *tgt) - 4
        assert src == [4 + i] * n_src + [EOS_ID] + [PAD_ID] * (len(src) - n_src - 1)
        assert tgt == [BOS_ID] + [4 + i] * n_tgt + [EOS_ID] + [PAD_ID] * (len(tgt) - n_tgt - 2)
        rows.append((i, n_src, n_tgt))
    return rows


@settings(max_examples=60)
@given(
    lengths=lengths,
    budget=st.integers(1, 60),
    max_tokens=st.none() | st.integers(1, 14),
    multiple=multiples,
    max_rows=bounds,
    seed=st.integers(0, 5),
)
def test_an_epoch_has_each_pair_once_within_the_bounds(
    lengths: Lengths, budget: int, max_tokens: int | None, multiple: int, max_rows: int | None, seed: int
) -> None:
    short = {i: pair for i, pair in enumerate(lengths) if max_tokens is None or (all(pair) and max(pair) < max_tokens)}
    sampler = BucketSampler(pairs_of(lengths), budget, max_tokens, seed, multiple, max_rows)
    if not short:
        with pytest.raises(ValueError, match=rf"^no pair of {len(lengths)} has at most max_tokens={max_tokens} "):
            sampler.epoch(0)
        return
    epoch = sampler.epoch(seed)
    batches = [*map(rows_of, epoch)]
    assert sorted(chain.from_iterable(batches)) == [(i, *pair) for i, pair in short.items()]
    assert epoch.n_dropped == len(lengths) - len(short)
    assert max_rows is None or max(map(len, batches)) <= max_rows
    consistent(epoch, budget, multiple)
    for batch in epoch:
        assert (batch.src[:, -multiple:] != PAD_ID).any()  # no more padding than needed
        assert (batch.tgt[:, -multiple:] != PAD_ID).any()
    # few batches are not full: only where one more would not be a multiple, or nothing is left
    width = max(-(-(n + 1) // multiple) * multiple for pair in short.values() for n in pair)
    room = min(max_rows or len(lengths), budget // width)
    assert sum(len(rows) + multiple <= room for rows in batches) <= (1 if multiple == 1 else 2)


def test_padding_is_little_on_lengths_as_they_are() -> None:
    """KFTT's lengths in tokens are about log-normal, and so are the ratios of source to target."""
    rng = np.random.default_rng(0)
    log_tgt = rng.normal(3.4, 0.74, 200_000)
    log_src = log_tgt + rng.normal(-0.28, 0.34, 200_000)
    offsets = [np.concatenate([[0], np.exp(side).astype(np.int64).cumsum()]) for side in (log_src, log_tgt)]
    pairs = TokenPairs(*(TokenArray(np.empty(0, np.uint16), ends) for ends in offsets))
    for budget, padding in (2048, 0.015), (4096, 0.03), (8192, 0.05):
        assert 0 < BucketSampler(pairs, budget, 128).epoch(0).padding < padding


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
    consistent(both, 60)
    apart, mixed, mixed_otherwise = (
        [batch.src.tolist() for batch in epoch] for epoch in (chain(forward, backward), both, other)
    )
    assert sorted(mixed) == sorted(apart)
    assert mixed not in (apart, mixed_otherwise)


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


class Example(NamedTuple):
    """An example without padding, its masks filled in: as it is read, its numbers of segments, what is predicted."""

    a: list[int]
    b: list[int]
    read: list[int]
    segments: list[int]
    target: list[int]
    follows: int


def examples(epoch: Epoch) -> Iterator[Example]:
    for batch in epoch:
        follows = batch.follows.tolist() or [-1] * len(batch.ids)
        for row, read, segments, target, label in zip(
            unmasked(batch).tolist(), *(part.tolist() for part in list(batch)[:3]), follows, strict=True
        ):
            n = sum(i != PAD_ID for i in row)
            assert row[n:] == read[n:] == segments[n:] == target[n:] == [PAD_ID] * (len(row) - n)
            assert (row[0], row[n - 1]) == (BOS_ID, EOS_ID)
            end = row.index(EOS_ID)
            yield Example(row[1:end], row[end + 1 : n - 1], read[:n], segments[:n], target[:n], label)


def truncated(n_first: int, n_second: int, room: int) -> tuple[int, int]:
    while n_first + n_second > room:
        n_first, n_second = (n_first - 1, n_second) if n_first > n_second else (n_first, n_second - 1)
    return n_first, n_second


@settings(max_examples=60)
@given(
    lengths=documents,
    budget=st.integers(1, 80),
    multiple=st.sampled_from([1, 8]),
    config=st.builds(MaskingConfig, st.floats(0.01, 0.99), st.booleans(), st.booleans()),
    max_tokens=st.none() | st.integers(5, 15),
    number=st.integers(0, 3),
)
def test_each_sentence_is_once_an_a_with_a_right_label_and_its_share_masked(
    lengths: Documents, budget: int, multiple: int, config: MaskingConfig, max_tokens: int | None, number: int
) -> None:
    text = text_of([[3, 4], [2], *lengths])
    every, document = sentences(text), text.document.tolist()
    place = {sentence[0]: k for k, sentence in enumerate(every)}
    epoch = mask_sampler(text, TOKENIZER, config, budget, max_tokens, multiple=multiple).epoch(number)
    consistent(epoch, budget, multiple)
    seen = []
    for a, b, read, segments, target, follows in examples(epoch):
        k = place[a[0]]
        seen.append(k)
        n_second, n_special = 0, 2
        if config.next_sentence:
            other = place[b[0]]
            assert (other == k + 1) == bool(follows)
            assert follows or document[other] != document[k]
            assert b == every[other][: len(b)]
            n_second, n_special = len(every[other]), 3
        assert a == every[k][: len(a)]
        room = 99 if max_tokens is None else max_tokens - n_special
        assert (len(a), len(b)) == truncated(len(every[k]), n_second, room)
        assert segments == [0] * (len(a) + 2) + [1] * (len(read) - len(a) - 2)
        masked = [(i, right) for i, right in zip(read, target, strict=True) if right != PAD_ID]
        assert all(right not in (BOS_ID, EOS_ID) and i > EOS_ID for i, right in masked)
        assert len(masked) == max(1, round(config.rate * (len(a) + len(b))))
    followed = (k for k in range(len(every) - 1) if document[k] == document[k + 1])
    assert sorted(seen) == list(followed if config.next_sentence else range(len(every)))


def test_texts_and_bounds_that_give_no_examples_are_refused() -> None:
    for config, shortest in ((MaskingConfig(), 5), (SINGLE, 3)):
        with pytest.raises(
            ValueError, match=rf"^max_tokens={shortest - 1} leaves no room .*: give at least {shortest}$"
        ):
            mask_sampler(text_of([[9, 3], [2, 9]]), TOKENIZER, config, 99, shortest - 1).epoch(0)
    for lengths in [[1, 2]], [[1], [2]]:
        with pytest.raises(ValueError, match=r"^2 sentences in . documents cannot give both pairs .*next_sentence"):
            mask_sampler(text_of(lengths), TOKENIZER, MaskingConfig(), 99).epoch(0)


@pytest.mark.parametrize("whole_words", [False, True])
def test_an_example_is_a_function_of_seed_and_epoch_whatever_stands_beside_it(whole_words: bool) -> None:
    def table(budget: int = 60, seed: int = 1, epoch: int = 2, multiple: int = 1) -> dict[int, Example]:
        sampler = mask_sampler(text, TOKENIZER, MaskingConfig(0.3, whole_words), budget, seed=seed, multiple=multiple)
        return {example.a[0]: example for example in examples(sampler.epoch(epoch))}

    text = text_of([[5, 8, 7, 9], [9, 6, 8, 9, 9]])
    assert table() == table(budget=1) == table(budget=1000, multiple=8)
    for other in table(epoch=1), table(seed=2):
        assert all(example != table()[first] for first, example in other.items())


def near(share: float, expected: float, n: int) -> bool:
    """Within four standard deviations."""
    return abs(share - expected) < 4 * (expected * (1 - expected) / n) ** 0.5


def test_shares_are_those_of_the_paper_at_every_place_and_anew_each_epoch() -> None:
    """Of 6,000 sentences of 20 tokens, all of the first 500 numbers, in 60 documents."""
    tokens = np.random.default_rng(0).integers(4, 500, 120_000).astype(np.uint16)
    text = DocumentTokens.of(TokenArray(tokens, np.arange(6001) * 20), [Document("x", 100)] * 60)
    epoch = mask_sampler(text, TOKENIZER, MaskingConfig(), 4000).epoch(0)
    ids, target = (torch.cat([getattr(batch, part).flatten() for batch in epoch]) for part in ("ids", "target"))
    masked = target != PAD_ID
    read, right, n = ids[masked], target[masked], int(masked.sum())
    assert n == 5940 * 6  # 15 % of 40
    assert near(float((read == MASK_ID).float().mean()), 0.8, n)
    assert near(float((read == right).float().mean()), 0.1, n)
    replaced = read[(read != MASK_ID) & (read != right)]
    assert near(len(replaced) / n, 0.1, n)
    assert (int(replaced.min()), int(replaced.max())) == (UNK_ID + 3, VOCAB - 1)  # any token but the special ones
    follows = torch.cat([batch.follows for batch in epoch]).float()
    assert near(float(follows.mean()), 0.5, len(follows))

    sampler, places = mask_sampler(text, TOKENIZER, SINGLE, 4400), []
    for number in (0, 1):
        batches = list(sampler.epoch(number))
        order = np.lexsort(torch.cat([unmasked(batch)[:, 1:21] for batch in batches]).numpy().T)  # no two are equal
        places.append(torch.cat([batch.target[:, 1:21] != PAD_ID for batch in batches])[order])
    assert all(near(float(share), 0.15, 6000) for share in places[0].float().mean(0))
    assert near(float((places[0] & places[1]).sum() / places[0].sum()), 0.15, 3 * 6000)


def test_a_wrong_successor_is_of_another_document_or_any_sentence_of_the_only_one() -> None:
    def wrong(text: DocumentTokens, n_epochs: int) -> Counter[tuple[int, int]]:
        every, sampler = sentences(text), mask_sampler(text, TOKENIZER, MaskingConfig(), 999)
        drawn = chain.from_iterable(examples(sampler.epoch(n)) for n in range(n_epochs))
        return Counter((every.index(pair.a), every.index(pair.b)) for pair in drawn if not pair.follows)

    counts = wrong(text_of([[1, 2], [3, 4, 5], [6, 7]]), 200)
    others = {0: (2, 3, 4, 5, 6), 2: (0, 1, 5, 6), 3: (0, 1, 5, 6), 5: (0, 1, 2, 3, 4)}
    assert set(counts) == {(a, k) for a, after in others.items() for k in after}
    assert all(near(counts[0, k] / 100, 0.2, 100) for k in others[0])
    assert set(wrong(text_of([[1, 2, 3, 4]]), 60)) == {(0, 2), (0, 3), (1, 0), (1, 3), (2, 0), (2, 1)}


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


@pytest.mark.parametrize("next_sentence", [False, True])
def test_whole_words_are_masked_together_or_not_at_all(next_sentence: bool) -> None:
    lines = [list(range(4, 4 + n)) for n in range(24, 48)] * 10  # words of four pieces, the last shorter
    text = DocumentTokens.of(TokenArray.of(lines, VOCAB), [Document("x", len(lines))])
    epoch = mask_sampler(text, FOURS, MaskingConfig(0.2, whole_words=True, next_sentence=next_sentence), 600).epoch(0)
    consistent(epoch, 600)
    shares = []
    for a, b, _, _, target, _ in examples(epoch):
        masked = [right != PAD_ID for right in target]
        for side in masked[1 : 1 + len(a)], masked[2 + len(a) : -1]:
            assert all(len({*side[i : i + 4]}) == 1 for i in range(0, len(side), 4))
        assert 0 < sum(masked) <= max(4, round(0.2 * len(a + b)))
        shares.append(sum(masked) / len(a + b))
    assert 0.16 < np.mean(shares) <= 0.2
    # too long for its share, where there is no other
    text = DocumentTokens.of(TokenArray.of([[4, 5, 6, 7]], VOCAB), [Document("x", 1)])
    (batch,) = mask_sampler(text, FOURS, MaskingConfig(0.15, True, False), 99).all()
    assert batch.target.tolist() == [[0, 4, 5, 6, 7, 0]]


@pytest.mark.parametrize(
    "words",
    [
        "vol ution | ▁end",  # from the middle of a word
        "▁ 14 20 | 年 | （ | 応永 | 27 | 年 | ） | 、 | 19 8 | 、 | a b",
        "<s> | vol | <unk> | ution | </s>",
    ],
)
def test_words_end_where_the_next_begins(words: str) -> None:
    pieces = words.replace("|", "").split()
    tokenizer = Pieces([*sorted(set(pieces) - set(SPECIAL_TOKENS)), "▁some"])
    ids = np.array([tokenizer.pieces.index(piece) for piece in pieces])
    numbers = WholeWords(cast(Tokenizer, tokenizer)).numbers(ids)
    assert " | ".join(" ".join(np.array(pieces)[numbers == n]) for n in range(numbers[-1] + 1)) == words


def test_counted_random_numbers_are_uniform_and_depend_on_key_and_counters_alone() -> None:
    rows, columns = np.arange(1000)[:, None], np.arange(1000)
    numbers = uniform((1, 2, "x"), rows, columns)
    assert uniform((1, 2, "x"), np.array([7], np.int32), np.array([9])) == numbers[7, 9]
    together = np.stack(
        [uniform(key, rows, columns[:40]) for key in ((1, 2, "x"), (1, 3, "x"), (1, 2, "y"), (12, "x"))]
    )
    assert len(np.unique(together)) == together.size
    counts, _ = np.histogram(numbers, bins=100, range=(0, 1))
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 160  # chi squared of 99 degrees: more in one of 10,000 draws
    for some, others in ((numbers[1:], numbers[:-1]), (numbers[:, 1:], numbers[:, :-1])):
        assert np.corrcoef(some.ravel(), others.ravel())[0, 1] == pytest.approx(0, abs=0.004)


# segments

configs = st.builds(StreamConfig, st.integers(1, 4), st.integers(1, 9), st.integers(1, 3))


def streams_of(batches: list[SegmentBatch], n_groups: int) -> list[list[list[int]]]:
    """What is predicted of each document of each stream: a document begins with <s>, and is read as it is predicted."""
    streams = []
    for group in range(n_groups):
        parts = [torch.cat(part, 1) for part in zip(*batches[group::n_groups], strict=True)]
        for ids, target, document in zip(*(part.numpy() for part in parts), strict=True):
            n = int((document != NO_DOCUMENT).sum())
            assert (ids[n:] == PAD_ID).all()
            assert (target[n:] == PAD_ID).all()
            assert (document[n:] == NO_DOCUMENT).all()
            begins = np.flatnonzero(np.diff(document[:n], prepend=NO_DOCUMENT))
            assert (ids[begins] == BOS_ID).all()
            inner = np.setdiff1d(np.arange(n), begins)
            assert (ids[inner] == target[inner - 1]).all()
            assert len(set(document[:n].tolist())) == len(begins)  # none comes back
            streams.append([part.tolist() for part in np.split(target[:n], begins)[1:]])
    return streams


@settings(max_examples=40)
@given(lengths=documents, config=configs, number=st.integers(0, 2))
def test_segments_give_whole_documents_back(lengths: Documents, config: StreamConfig, number: int) -> None:
    text = text_of([[2], *lengths])
    tokens = [[*sentence, EOS_ID] for sentence in sentences(text)]
    whole = [list(chain(*tokens[begin:end])) for begin, end in pairwise(text.bounds.tolist())]
    sampler = StreamSampler(text, config)
    batches = list(sampler.epoch(number))
    consistent(sampler.epoch(number), config.n_streams * config.segment_length)
    assert {batch.ids.shape for batch in batches} == {(config.n_streams, config.segment_length)}
    assert any(batch.target_tokens for batch in batches[-config.accumulate :])  # no segment too many
    streams = streams_of(batches, config.accumulate)
    assert len(streams) == config.n_streams * config.accumulate
    parts = sorted(chain(*streams))  # in the order of the text
    fair = sum(map(len, whole)) / len(streams)
    assert list(chain(*parts)) == list(chain(*whole))
    assert all(document in parts for document in whole if len(document) <= fair)
    ends, starts = (set(np.cumsum([*map(len, text)]).tolist()) for text in (parts, whole))
    assert ends >= starts  # no part reaches into the next document
    assert all(part[-1] == EOS_ID for part in parts)
    (stream,) = streams_of(sampler.all(), 1)
    assert stream == whole  # for scoring, in its order


def test_documents_are_dealt_to_streams_of_about_equal_length() -> None:
    rng = np.random.default_rng(0)
    text = text_of([rng.integers(1, 7, n).tolist() for n in (1 + rng.pareto(1.2, 400)).astype(int)])
    assert StreamSampler(text, StreamConfig(4, 16, 2)).epoch(0).padding < 0.02


# labelled texts


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=30),
    budget=st.integers(1, 60),
    multiple=multiples,
    max_tokens=st.none() | st.integers(3, 12),
)
def test_each_text_comes_with_its_label(lengths: list[int], budget: int, multiple: int, max_tokens: int | None) -> None:
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


# prefetching


def threads() -> int:
    return sum(thread.name.startswith("prefetch") for thread in threading.enumerate())


def test_items_are_made_by_another_thread_ahead_but_not_far_until_they_are_abandoned() -> None:
    makers, is_made = list[threading.Thread](), threading.Semaphore(0)

    def making() -> Iterator[int]:
        for n in count():
            makers.append(threading.current_thread())
            is_made.release()
            yield n

    items = prefetched(making())
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    assert all(is_made.acquire(timeout=60) for _ in range(3 + 4))
    assert not is_made.acquire(timeout=0.05)
    assert threading.current_thread() not in makers
    del items
    gc.collect()
    assert threads() == 0


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
