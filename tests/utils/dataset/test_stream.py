from itertools import chain, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from const.token import BOS_ID, EOS_ID, PAD_ID
from utils.dataset.batch import filling
from utils.dataset.ids import TokenArray
from utils.dataset.monolingual import Document, DocumentTokens
from utils.dataset.stream import NO_DOCUMENT, SegmentBatch, StreamConfig, StreamSampler

Lengths = list[list[int]]
documents = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=6), min_size=1, max_size=12)
configs = st.builds(StreamConfig, st.integers(1, 4), st.integers(1, 9), st.integers(1, 3))


def text_of(lengths: Lengths) -> DocumentTokens:
    """Sentence k, counted through the text with empty ones, begins with the number 4 + 10 k and goes on from there."""
    flat = [n for document in lengths for n in document]
    lines = TokenArray.of([[4 + 10 * k + i for i in range(n)] for k, n in enumerate(flat)], 2**16)
    return DocumentTokens.of(lines, [Document("x", len(document)) for document in lengths])


def joined(parts: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(parts))


def whole(lengths: Lengths) -> list[list[int]]:
    """The tokens of each document with </s>, documents without any left out."""
    text = text_of(lengths)
    sentences = [[*text.lines[int(row)].tolist(), EOS_ID] for row in text.rows]
    bounds = text.bounds.tolist()
    return [joined(sentences[begin:end]) for begin, end in pairwise(bounds)]


def rows_read(batches: list[SegmentBatch], n_groups: int) -> list[list[tuple[int, int, int]]]:
    """Token, next token and document, as each stream has them; padding must follow its end."""
    streams = []
    for group in range(n_groups):
        parts = batches[group::n_groups]
        for row in zip(
            *(zip(*(getattr(b, name).tolist() for name in b._fields), strict=True) for b in parts), strict=True
        ):
            said = [place for segment in row for place in zip(*segment, strict=True)]
            n = sum(place != (PAD_ID, PAD_ID, NO_DOCUMENT) for place in said)
            assert all(place == (PAD_ID, PAD_ID, NO_DOCUMENT) for place in said[n:])
            assert all(PAD_ID not in place[:2] and place[2] >= 0 for place in said[:n])
            streams.append(said[:n])
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
    numbers = [number for _, _, number in stream]
    assert len(set(numbers)) == len(found)  # none comes back
    return found


@settings(max_examples=40)
@given(lengths=documents, config=configs, epoch=st.integers(0, 2))
def test_the_segments_of_a_row_give_whole_documents_back_and_every_token_once(
    lengths: Lengths, config: StreamConfig, epoch: int
) -> None:
    lengths = [[2], *lengths]
    made = StreamSampler(text_of(lengths), config).epoch(epoch)
    batches = list(made)
    streams = rows_read(batches, config.accumulate)
    assert len(streams) == config.n_streams * config.accumulate
    parts = [document for stream in streams for document in documents_read(stream)]
    everything = whole(lengths)
    # put together in the order of the text, the parts of overlong documents are whole again
    assert joined(sorted(parts)) == joined(everything)
    fair = sum(map(len, everything)) / len(streams)
    for document in everything:
        if len(document) <= fair:
            assert document in parts
    assert all(part[-1] == EOS_ID for part in parts)
    starts = {sum(map(len, everything[:i])) for i in range(len(everything))}
    ends = np.cumsum([len(part) for part in sorted(parts)]).tolist()
    assert starts <= {0, *ends}  # none reaches into the next document
    numbers = [{number for _, _, number in stream} for stream in streams]
    assert len(set[int]().union(*numbers)) == sum(map(len, numbers))  # nor do two streams share one


@settings(max_examples=40)
@given(lengths=documents, config=configs)
def test_what_is_said_of_an_epoch_is_what_its_tensors_hold(lengths: Lengths, config: StreamConfig) -> None:
    epoch = StreamSampler(text_of([[2], *lengths]), config).epoch(0)
    batches = list(epoch)
    assert len(epoch) % config.accumulate == 0
    assert {batch.ids.shape for batch in batches} == {(config.n_streams, config.segment_length)}
    assert [epoch.target_tokens(i) for i in range(len(epoch))] == [batch.target_tokens for batch in batches]
    n_pads = sum(int((batch.ids == PAD_ID).sum()) for batch in batches)
    assert epoch.padding == pytest.approx(n_pads / sum(batch.ids.numel() for batch in batches))
    assert any(batch.target_tokens for batch in batches[-config.accumulate :])  # no segment too many
    largest = epoch[epoch.largest()]
    assert largest.ids.numel() == max(batch.ids.numel() for batch in batches)
    for i in (-1, len(epoch)):
        with pytest.raises(IndexError, match=rf"^batch {i} of {len(epoch)}$"):
            epoch[i]


def test_batches_are_a_function_of_seed_and_epoch_in_any_order() -> None:
    rng = np.random.default_rng(0)
    text = text_of([rng.integers(1, 7, n).tolist() for n in rng.integers(1, 9, 40)])

    def epoch(seed: int, number: int) -> list[list[list[int]]]:
        made = StreamSampler(text, StreamConfig(3, 8, 2), seed).epoch(number)
        backwards = [made[i] for i in reversed(range(len(made)))]
        return [batch.ids.tolist() for batch in reversed(backwards)]

    sampler = StreamSampler(text, StreamConfig(3, 8, 2), 1)
    sampler.epoch(4)
    assert [batch.ids.tolist() for batch in sampler.epoch(2)] == epoch(1, 2)
    for other in (epoch(1, 0), epoch(2, 2)):
        assert other != epoch(1, 2)
    # documents meet others at the same time, and have others before them
    first, second = ([documents_read(stream) for stream in rows_read(list(sampler.epoch(n)), 2)] for n in (0, 1))
    assert {tuple(stream[0]) for stream in first} != {tuple(stream[0]) for stream in second}


def test_documents_are_read_in_another_order_each_epoch() -> None:
    text = text_of([[6] * n for n in range(1, 30)])  # of which no two are equally long
    sampler = StreamSampler(text, StreamConfig(2, 16))
    first, second = ([documents_read(stream) for stream in rows_read(list(sampler.epoch(n)), 1)] for n in (0, 1))
    assert sorted(map(sorted, first)) == sorted(map(sorted, second))
    assert sorted(first) != sorted(second)


def test_streams_are_about_equally_long() -> None:
    rng = np.random.default_rng(0)
    text = text_of([rng.integers(1, 7, n).tolist() for n in (1 + rng.pareto(1.2, 400)).astype(int)])
    lengths = [len(stream) for stream in rows_read(list(StreamSampler(text, StreamConfig(4, 16, 2)).epoch(0)), 2)]
    assert max(lengths) - min(lengths) <= 7  # a sentence
    assert StreamSampler(text, StreamConfig(4, 16, 2)).epoch(0).padding < 0.02


def test_a_single_document_is_cut_at_the_ends_of_sentences_for_the_streams() -> None:
    lengths = [[5, 1, 3, 4, 6, 2, 2, 5, 3, 4, 1, 1]]  # 49 tokens with </s>
    streams = rows_read(list(StreamSampler(text_of(lengths), StreamConfig(2, 8, 2)).epoch(0)), 2)
    parts = [documents_read(stream) for stream in streams]
    assert all(len(part) == 1 for part in parts)
    sizes = sorted(len(part[0]) for part in parts)
    assert sum(sizes) == 49
    assert sizes[-1] <= 49 / 4 + 7  # a fair share and a sentence


@settings(max_examples=40)
@given(lengths=documents, config=configs)
def test_for_scoring_the_text_is_read_once_in_its_order(lengths: Lengths, config: StreamConfig) -> None:
    lengths = [[2], *lengths]
    batches = StreamSampler(text_of(lengths), config).all()
    (stream,) = rows_read(batches, 1)
    assert documents_read(stream) == whole(lengths)


def test_a_batch_looks_at_its_own_sentences_alone() -> None:
    class Watched(TokenArray):
        most = 0

        def gather(self, rows):  # type: ignore[no-untyped-def]
            ids, lengths = super().gather(rows)
            Watched.most = max(Watched.most, len(ids))
            return ids, lengths

    ids, offsets = np.full(400_000, 9, np.uint16), np.arange(40_001) * 10
    text = DocumentTokens.of(Watched(ids, offsets), [Document("x", 40)] * 1000)
    epoch = StreamSampler(text, StreamConfig(4, 16)).epoch(0)
    for i in (0, 5, len(epoch) - 1):
        assert torch.isin(epoch[i].target, torch.tensor([9, EOS_ID, PAD_ID])).all()
    assert 0 < Watched.most <= 4 * 4 * 10


@pytest.mark.parametrize("name", ["n_streams", "segment_length"])
def test_what_makes_no_batch_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}=0: give at least 1$"):
        StreamConfig(**{name: 0})


def test_the_remedy_is_half_of_the_streams_at_once_or_shorter_segments() -> None:
    assert StreamConfig(16, 64, 3).remedy().endswith("say --batch.n_streams 8 --batch.accumulate 6")
    assert StreamConfig(1, 64).remedy() == "a single stream fills it, so lower --batch.segment_length (now 64)"


def test_padding_fills_nothing() -> None:
    ids = torch.tensor([[BOS_ID, 4, EOS_ID], [BOS_ID, PAD_ID, PAD_ID]])
    assert filling(SegmentBatch(ids, ids, ids)) == (4, 6)
