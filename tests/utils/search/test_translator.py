from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from const.token import EOS_ID, PAD_ID
from models.transformer import Transformer, TransformerState
from tests.tiny import MODEL, TEXT, tokenizers, translating
from utils.search import translator as module
from utils.search.greedy import greedy_search
from utils.search.hypothesis import SearchConfig
from utils.search.translator import Translator

GREEDY, BEAM = SearchConfig(beam_size=1, max_ratio=0.5), SearchConfig(beam_size=3, max_ratio=0.5)
LINE = TEXT.src[0]


def translator(search: SearchConfig = GREEDY, window: int = 48, model: Transformer | None = None) -> Translator:
    return Translator(model or translating(), tokenizers(), "en", search, window, "fp32")


def n_tokens(text: str) -> int:
    return len(tokenizers().src.encode([text])[0])


def watch_sources(monkeypatch: pytest.MonkeyPatch, model: Transformer) -> list[Tensor]:
    """Grows by each batch that the model reads."""
    read: list[Tensor] = []
    start = model.start

    def watched(src: Tensor) -> TransformerState:
        read.append(src)
        return start(src)

    monkeypatch.setattr(model, "start", watched)
    return read


@pytest.mark.parametrize("search", [GREEDY, BEAM], ids=["greedy", "beam"])
def test_every_text_gets_its_own_translation_in_any_company(
    search: SearchConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [*TEXT.src[:4], TEXT.src[3] + TEXT.src[40], "寺", *TEXT.src[90:92]]
    ours = translator(search)
    alone = [ours.translate([text])[0] for text in texts]
    together = ours.translate(texts)
    monkeypatch.setattr(module, "_TOKENS_PER_BATCH", 60)
    in_small_batches = ours.translate(texts)
    for found in (together, in_small_batches):
        assert [t.text for t in found] == [t.text for t in alone]
        assert [t.score for t in found] == pytest.approx([t.score for t in alone], abs=1e-3)
    assert len({t.text for t in alone}) > 4
    assert [t.text for t in ours.translate(texts[::-1])] == [t.text for t in alone[::-1]]


def test_the_batches_keep_to_their_budget_longest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TOKENS_PER_BATCH", 120)
    ours = translator(BEAM)
    read = watch_sources(monkeypatch, ours.model)
    texts = [LINE, "寺", LINE + LINE, "橋", *TEXT.src[:9]]
    ours.translate(texts)
    assert all(3 * src.numel() <= 120 or len(src) == 1 for src in read)
    assert [src.size(1) for src in read] == sorted((src.size(1) for src in read), reverse=True)
    assert sum(len(src) for src in read) == len(texts)
    assert len(read) < len(texts)


def test_what_is_read_is_the_source_with_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = translator()
    read = watch_sources(monkeypatch, ours.model)
    ours.translate(["寺", LINE])
    (src,) = read
    for row, text in zip(src.tolist(), [LINE, "寺"], strict=True):
        assert [i for i in row if i != PAD_ID] == [*tokenizers().src.encode([text])[0], EOS_ID]


def test_blank_texts_stay_empty_and_what_is_unknown_comes_back() -> None:
    found = translator().translate(["", LINE, "   ", "😀", "\u3000", " 😀😀 ", "😀寺"])
    assert [t.text for t in found if not t.n_pieces] == ["", "", "😀", "", " 😀😀 "]
    assert [t.unknown for t in found] == [False, False, False, True, False, True, False]
    assert [t.n_pieces for t in found] == [0, 1, 0, 0, 0, 0, 1]
    assert all(t.score == 0 for t in found if not t.n_pieces)
    assert found[1].text == translator().translate([LINE])[0].text
    assert translator().translate([]) == []


def test_of_a_long_text_each_sentence_is_translated_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    sentences = TEXT.src[:9]
    window = 2 * max(n_tokens(sentence) for sentence in sentences) + 1
    ours = translator(window=window)
    read = watch_sources(monkeypatch, ours.model)
    progress: list[int] = []
    (found,) = ours.translate(["".join(sentences)], progress.append)
    assert found.lost_tokens == 0
    assert found.n_pieces == sum(progress) == sum(len(src) for src in read) == len(sentences)
    assert max(src.size(1) for src in read) <= window

    by_hand = ours.search_ids(tokenizers().src.encode(sentences))
    assert found.text == " ".join(tokenizers().tgt.decode([ids for ids, _ in by_hand]))
    assert found.score == pytest.approx(sum(score for _, score in by_hand), abs=1e-3)


def test_pieces_are_joined_as_the_target_language_joins_sentences() -> None:
    texts = [LINE * 2]
    spaced, unspaced = (
        Translator(translating(), tokenizers(), lang, GREEDY, n_tokens(LINE) + 1, "fp32").translate(texts)[0].text
        for lang in ("en", "ja")
    )
    half = translator().translate([LINE])[0].text
    assert spaced == f"{half} {half}"
    assert unspaced == half + half


def test_a_text_that_just_fits_is_not_cut() -> None:
    text = LINE + TEXT.src[50]
    window = n_tokens(text) + 1
    assert translator(window=window).translate([text])[0].n_pieces == 1
    shortest = n_tokens(LINE) + n_tokens(TEXT.src[50])  # each with a beginning of its own
    assert translator(window=min(window - 1, shortest)).translate([text])[0].n_pieces == 2


def test_a_sentence_longer_than_the_window_says_what_it_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = "京都に古い寺" * 20
    ours = translator(window=16)
    read = watch_sources(monkeypatch, ours.model)
    found = ours.translate([endless + "。" + LINE, LINE])
    assert found[0].lost_tokens == n_tokens(endless + "。") - 15
    assert found[1].lost_tokens == 0
    assert max(src.size(1) for src in read) == 16


def test_progress_is_told_of_every_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TOKENS_PER_BATCH", 60)
    progress: list[int] = []
    found = translator(window=16).translate([*TEXT.src[:10], "", "".join(TEXT.src[:5])], progress.append)
    assert sum(progress) == sum(t.n_pieces for t in found) == 10 + found[-1].n_pieces > 11
    assert len(progress) > 2


@pytest.mark.parametrize("search", [GREEDY, BEAM], ids=["greedy", "beam"])
def test_a_table_of_positions_is_never_left(search: SearchConfig) -> None:
    model = translating(replace(MODEL, positions="learned", max_length=12))
    ours = translator(search, 12, model)
    found = ours.search_ids([[5, *range(20, 30)], [6], [7, 8]])
    assert max(len(ids) for ids, _ in found) == 12
    assert all(t.text for t in ours.translate(["".join(TEXT.src[:4])]))


def test_the_limit_is_that_of_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[Sequence[int]] = []

    def watched(model, src, limit, config):  # type: ignore[no-untyped-def]
        limits.append(limit)
        return greedy_search(model, src, limit, config)

    monkeypatch.setattr(module, "greedy_search", watched)
    translator(replace(GREEDY, max_ratio=1.0)).search_ids([[5, 6, 7], [5]])
    translator(replace(GREEDY, max_ratio=90.0)).search_ids([[5, 6, 7]])
    assert limits == [[14, 12], [48]]


def test_translating_uses_the_network_as_it_is_after_training() -> None:
    model = translating(replace(MODEL, dropout=0.5))
    texts = TEXT.src[:5]
    first = translator(model=model).translate(texts)
    model.train()
    assert translator(model=model).translate(texts) == first
    assert not model.training


def test_precision_is_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: list[torch.dtype] = []
    model = translating()
    step = model.step

    def watched(tokens, state):  # type: ignore[no-untyped-def]
        logits, state = step(tokens, state)
        kinds.append(logits.dtype)
        return logits, state

    monkeypatch.setattr(model, "step", watched)
    Translator(model, tokenizers(), "en", GREEDY, 48, "bf16").translate(["寺"])
    assert set(kinds) == {torch.bfloat16}
    kinds.clear()
    translator(model=model).translate(["寺"])
    assert set(kinds) == {torch.float32}
