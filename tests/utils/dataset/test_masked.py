from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from const.token import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from utils.dataset.batch import filling
from utils.dataset.ids import TokenArray
from utils.dataset.masked import MaskedBatch, MaskedEpoch, MaskedSampler, MaskingConfig
from utils.dataset.monolingual import Document, DocumentTokens
from utils.text.tokenizer import WordTokenizer

Lengths = list[list[int]]
documents = st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=5), min_size=2, max_size=8)
VOCAB = 2000
MASK_ID = VOCAB
TOKENIZER = WordTokenizer([str(i) for i in range(4, VOCAB)], lowercase=False)
SINGLE = MaskingConfig(next_sentence=False)


def text_of(lengths: Lengths) -> DocumentTokens:
    """Sentence k, counted through the text with empty ones, begins with the number 4 + 10 k and goes on from there."""
    flat = [n for document in lengths for n in document]
    lines = TokenArray.of([[4 + 10 * k + i for i in range(n)] for k, n in enumerate(flat)], VOCAB)
    return DocumentTokens.of(lines, [Document("x", len(document)) for document in lengths])


def has_pairs(text: DocumentTokens) -> bool:
    return bool((np.diff(text.bounds) > 1).any())


def unmasked(batch: MaskedBatch) -> list[list[int]]:
    """What stood there before: each row without padding."""
    ids = torch.where(batch.target == PAD_ID, batch.ids, batch.target)
    return [[i for i in row if i != PAD_ID] for row in ids.tolist()]


def parts(row: list[int]) -> list[list[int]]:
    """The sentences of an example."""
    assert row[0] == BOS_ID
    assert row[-1] == EOS_ID
    end = row.index(EOS_ID)
    return [row[1:end]] if end == len(row) - 1 else [row[1:end], row[end + 1 : -1]]


def sentences(text: DocumentTokens) -> list[list[int]]:
    return [text.lines[int(row)].tolist() for row in text.rows]


def examples(epoch: MaskedEpoch) -> list[tuple[int, list[list[int]], int]]:
    """Number of A, sentences and label of all examples."""
    found = []
    for i, batch in enumerate(epoch):
        labels = batch.follows.tolist() or [-1] * len(batch.ids)
        found += list(zip(epoch.rows(i).tolist(), map(parts, unmasked(batch)), labels, strict=True))
    return found


@settings(max_examples=40)
@given(lengths=documents, budget=st.integers(1, 80), epoch=st.integers(0, 3), seed=st.integers(0, 3))
def test_each_sentence_with_a_successor_is_once_an_a_and_labels_are_right(
    lengths: Lengths, budget: int, epoch: int, seed: int
) -> None:
    text = text_of([[1], *lengths, [1]])
    sampler = MaskedSampler(text, TOKENIZER, MaskingConfig(), budget, seed=seed)
    if not has_pairs(text):
        with pytest.raises(ValueError, match=r"^\d+ sentences in \d+ documents cannot give both pairs that follow"):
            sampler.epoch(epoch)
        return
    every, document = sentences(text), text.document.tolist()
    seen = []
    for number, (first, second), follows in examples(sampler.epoch(epoch)):
        assert first == every[number]
        assert document[number] == document[number + 1]
        other = every.index(second)
        assert (other == number + 1) == bool(follows)
        assert follows or document[other] != document[number]
        seen.append(number)
    assert sorted(seen) == [k for k in range(len(every) - 1) if document[k] == document[k + 1]]


@settings(max_examples=40)
@given(lengths=documents, budget=st.integers(1, 80), epoch=st.integers(0, 3))
def test_without_next_sentence_prediction_each_sentence_stands_alone_once(
    lengths: Lengths, budget: int, epoch: int
) -> None:
    text = text_of([[1], *lengths])
    made = MaskedSampler(text, TOKENIZER, SINGLE, budget).epoch(epoch)
    found = sorted(examples(made))
    assert found == [(k, [sentence], -1) for k, sentence in enumerate(sentences(text))]
    assert all(batch.follows.shape == (0,) and not batch.segments.any() for batch in made)


@settings(max_examples=40)
@given(
    lengths=documents,
    budget=st.integers(1, 80),
    multiple=st.sampled_from([1, 8]),
    config=st.builds(MaskingConfig, st.floats(0.01, 0.99), st.booleans(), st.booleans()),
    max_tokens=st.one_of(st.none(), st.integers(5, 15)),
)
def test_what_is_said_of_an_epoch_is_what_its_tensors_hold(
    lengths: Lengths, budget: int, multiple: int, config: MaskingConfig, max_tokens: int | None
) -> None:
    text = text_of([[3, 4], [2], *lengths])
    epoch = MaskedSampler(text, TOKENIZER, config, budget, max_tokens, multiple=multiple).epoch(1)
    positions = [batch.ids.numel() for batch in epoch]
    assert epoch.padding == pytest.approx(sum(int((b.ids == PAD_ID).sum()) for b in epoch) / sum(positions))
    assert positions[epoch.largest()] == max(positions)
    assert [epoch.target_tokens(i) for i in range(len(epoch))] == [batch.target_tokens for batch in epoch]
    assert epoch.n_dropped == 0
    for batch in epoch:
        assert len(batch.ids) == 1 or batch.ids.numel() <= budget
        assert batch.ids.shape == batch.segments.shape == batch.target.shape
        assert batch.ids.shape[1] % multiple == 0
        for row, segment, target in zip(
            batch.ids.tolist(), batch.segments.tolist(), batch.target.tolist(), strict=True
        ):
            n = sum(i != PAD_ID for i in row)
            assert max_tokens is None or n <= max_tokens
            assert row[n:] == segment[n:] == target[n:] == [PAD_ID] * (len(row) - n)
            end = row.index(EOS_ID)
            assert segment[: end + 1] == [0] * (end + 1)
            assert segment[end + 1 : n] == [1] * (n - end - 1)
            hidden = [(i, right) for i, right in zip(row, target, strict=True) if right != PAD_ID]
            assert hidden  # at least one
            assert all(right not in (BOS_ID, EOS_ID) and i > EOS_ID for i, right in hidden)
            real = n - row.count(EOS_ID) - 1
            assert len(hidden) == max(1, round(config.rate * real))


def test_long_examples_are_cut_at_the_end_of_their_longer_sentence() -> None:
    text = text_of([[9, 3], [2, 9], [9, 9], [1]])
    for max_tokens, expected in ((11, [(5, 3), (2, 6), (4, 4)]), (10, [(4, 3), (2, 5), (4, 3)]), (5, [(1, 1)] * 3)):
        found = {}
        for epoch in range(30):  # until each has followed
            for number, pair, follows in examples(
                MaskedSampler(text, TOKENIZER, MaskingConfig(), 99, max_tokens).epoch(epoch)
            ):
                every = sentences(text)
                assert all(any(whole[: len(part)] == part for whole in every) for part in pair)
                if follows:
                    found[number] = len(pair[0]), len(pair[1])
        assert [found[number] for number in (0, 2, 4)] == expected
    (example,) = examples(MaskedSampler(text_of([[9]]), TOKENIZER, SINGLE, 99, 6).epoch(0))
    assert example[1] == [[4, 5, 6, 7]]
    for config, least in ((MaskingConfig(), 5), (SINGLE, 3)):
        with pytest.raises(ValueError, match=rf"^max_tokens={least - 1} leaves no room .*: give at least {least}$"):
            MaskedSampler(text, TOKENIZER, config, 99, least - 1).epoch(0)


def table(epoch: MaskedEpoch) -> dict[int, tuple[list[int], list[int], list[int]]]:
    """Of each A, what is read and predicted without padding, and what follows."""
    found = {}
    for i, batch in enumerate(epoch):
        for number, ids, target, follows in zip(
            epoch.rows(i).tolist(), batch.ids.tolist(), batch.target.tolist(), batch.follows.tolist(), strict=True
        ):
            n = sum(i != PAD_ID for i in ids)
            found[number] = ids[:n], target[:n], [follows]
    return found


@pytest.mark.parametrize("whole_words", [False, True])
def test_an_example_is_a_function_of_seed_and_epoch_whatever_stands_beside_it(whole_words: bool) -> None:
    text, config = text_of([[5, 8, 7, 9], [9, 6, 8, 9, 9]]), MaskingConfig(0.3, whole_words)
    sampler = MaskedSampler(text, TOKENIZER, config, 60, seed=1)
    expected = table(sampler.epoch(2))
    batches = list(sampler.epoch(2))
    assert any(len(batch.ids) > 1 for batch in batches)
    last = sampler.epoch(2)[len(batches) - 1]  # any batch in any order
    assert all(torch.equal(a, b) for a, b in zip(last, batches[-1], strict=True))
    for budget, multiple in ((1, 1), (1000, 8)):
        assert table(MaskedSampler(text, TOKENIZER, config, budget, seed=1, multiple=multiple).epoch(2)) == expected
    for other in (sampler.epoch(1), MaskedSampler(text, TOKENIZER, config, 60, seed=2).epoch(2)):
        assert all(row != expected[number] for number, row in table(other).items())
    assert table(sampler.epoch(2)) == expected
    always = sampler.all()
    sampler.epoch(5)
    for before, after in zip(always, sampler.all(), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def large() -> DocumentTokens:
    """6,000 sentences of 20 tokens, all of the first 500 numbers, and 60 documents."""
    ids = np.random.default_rng(0).integers(4, 500, 120_000).astype(np.uint16)
    return DocumentTokens.of(TokenArray(ids, np.arange(6001) * 20), [Document("x", 100)] * 60)


def near(share: float, expected: float, n: int) -> bool:
    """Within four standard deviations."""
    return abs(share - expected) < 4 * (expected * (1 - expected) / n) ** 0.5


def test_shares_are_those_of_the_paper() -> None:
    epoch = MaskedSampler(large(), TOKENIZER, MaskingConfig(), 4000).epoch(0)
    ids, target = (torch.cat([getattr(batch, part).flatten() for batch in epoch]) for part in ("ids", "target"))
    hidden = target != PAD_ID
    read, right = ids[hidden], target[hidden]
    n = len(right)
    assert n == 5940 * 6  # 15 % of 40
    assert near(float((read == MASK_ID).float().mean()), 0.8, n)
    assert near(float((read == right).float().mean()), 0.1, n)
    replaced = read[(read != MASK_ID) & (read != right)]
    assert near(len(replaced) / n, 0.1, n)
    assert replaced.min() == UNK_ID + 3  # any token but the special ones
    assert replaced.max() == VOCAB - 1
    counts = np.histogram(replaced.numpy(), bins=10, range=(4, VOCAB))[0]
    assert all(near(count / len(replaced), 0.1, len(replaced)) for count in counts)
    assert (ids[~hidden] != MASK_ID).all()
    follows = torch.cat([batch.follows for batch in epoch]).float()
    assert near(float(follows.mean()), 0.5, len(follows))


def test_every_place_is_predicted_as_often_as_any_other_and_anew_each_epoch() -> None:
    sampler = MaskedSampler(large(), TOKENIZER, SINGLE, 4400)
    epochs = [torch.cat([b.target[:, 1:21] != PAD_ID for b in sampler.epoch(n)]).float() for n in (0, 1)]
    assert all(near(float(share), 0.15, 6000) for share in epochs[0].mean(0))

    def places(n: int) -> dict[int, frozenset[int]]:
        found = {}
        for i, batch in enumerate(sampler.epoch(n)):
            for number, row in zip(sampler.epoch(n).rows(i).tolist(), batch.target, strict=True):
                found[number] = frozenset(row.nonzero().flatten().tolist())
        return found

    first, second = places(0), places(1)
    again = sum(len(first[number] & second[number]) for number in first) / (3 * len(first))
    assert near(again, 0.15, 3 * len(first))


def test_a_wrong_successor_may_be_any_sentence_of_another_document() -> None:
    text = text_of([[1, 2], [3, 4, 5], [6, 7]])
    every, found = sentences(text), Counter[tuple[int, int]]()
    for epoch in range(400):
        for number, (_, second), follows in examples(MaskedSampler(text, TOKENIZER, MaskingConfig(), 999).epoch(epoch)):
            if not follows:
                found[number, every.index(second)] += 1
    assert set(found) == {
        *((0, k) for k in (2, 3, 4, 5, 6)),
        *((a, k) for a in (2, 3) for k in (0, 1, 5, 6)),
        *((5, k) for k in (0, 1, 2, 3, 4)),
    }
    assert all(near(found[0, k] / 200, 0.2, 200) for k in (2, 3, 4, 5, 6))


def test_of_a_single_document_any_sentence_but_the_successor_and_a_itself() -> None:
    text = text_of([[1, 2, 3, 4]])
    every, found = sentences(text), set()
    for epoch in range(60):
        for number, (_, second), follows in examples(MaskedSampler(text, TOKENIZER, MaskingConfig(), 999).epoch(epoch)):
            if not follows:
                found.add((number, every.index(second)))
    assert found == {(0, 2), (0, 3), (1, 0), (1, 3), (2, 0), (2, 1)}
    with pytest.raises(
        ValueError, match=r"^2 sentences in 1 documents cannot give both pairs .*, or set next_sentence to false$"
    ):
        MaskedSampler(text_of([[1, 2]]), TOKENIZER, MaskingConfig(), 999).epoch(0)


class Pieces(WordTokenizer):
    """Every fourth token begins a word."""

    def tokens(self, ids: object) -> list[str]:
        return [f"▁{i}" if i % 4 == 0 else str(i) for i in ids]  # type: ignore[attr-defined]


def test_whole_words_are_hidden_together_or_not_at_all() -> None:
    rng = np.random.default_rng(0)
    lines = [list(range(4, 4 + int(n))) for n in rng.integers(24, 48, 400)]  # words of four pieces, the last shorter
    text = DocumentTokens.of(TokenArray.of(lines, VOCAB), [Document("x", 400)])
    tokenizer = Pieces([str(i) for i in range(4, VOCAB)], lowercase=False)
    for next_sentence in (False, True):
        config = MaskingConfig(0.2, whole_words=True, next_sentence=next_sentence)
        epoch = MaskedSampler(text, tokenizer, config, 600).epoch(0)
        n_hidden = n_tokens = 0
        for i, batch in enumerate(epoch):
            assert epoch.target_tokens(i) == batch.target_tokens
            for row, target in zip(unmasked(batch), batch.target.tolist(), strict=True):
                flags = [bool(target[k]) for k in range(1, len(row))]
                words: list[list[bool]] = []
                for token, flag in zip(row[1:], flags, strict=True):
                    if token % 4 == 0 or token == EOS_ID:
                        words.append([])
                    words[-1].append(flag)
                assert all(len(set(word)) == 1 for word in words)
                assert 0 < sum(flags) <= max(4, round(0.2 * sum(token > EOS_ID for token in row)))
                n_hidden, n_tokens = n_hidden + sum(flags), n_tokens + sum(token > EOS_ID for token in row)
        assert 0.16 < n_hidden / n_tokens <= 0.2


def test_a_word_that_is_too_long_for_its_share_is_hidden_where_there_is_no_other() -> None:
    tokenizer = Pieces([str(i) for i in range(4, VOCAB)], lowercase=False)
    text = DocumentTokens.of(TokenArray.of([[4, 5, 6, 7]], VOCAB), [Document("x", 1)])
    (batch,) = MaskedSampler(text, tokenizer, MaskingConfig(0.15, True, False), 99).all()
    assert batch.target.tolist() == [[0, 4, 5, 6, 7, 0]]


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, float("nan")])
def test_a_rate_that_is_no_share_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match=rf"^rate={rate} is not a share of tokens to predict: give one such as 0\.15$"):
        MaskingConfig(rate)


def test_padding_fills_nothing() -> None:
    ids = torch.tensor([[BOS_ID, 4, EOS_ID], [BOS_ID, PAD_ID, PAD_ID]])
    assert filling(MaskedBatch(ids, torch.zeros_like(ids), torch.zeros_like(ids), torch.tensor([]))) == (4, 6)
