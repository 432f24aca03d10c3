"""From texts to translations: what is cut, batched, begun, joined and told of."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from const.token import EOS_ID, PAD_ID, UNK_ID
from models.transformer import Transformer, TransformerState
from tests.tiny import MODEL, TEXT, tokenizers, translating
from utils.search import translator as module
from utils.search.beam import beam_search
from utils.search.constraint import Bounds, Hypothesis, Searchable, SearchConfig
from utils.search.sampling import SamplingConfig, greedy_search
from utils.search.translator import Translator, by_expected_chrf

CPU = torch.device("cpu")
GREEDY, BEAM = SearchConfig(beam_size=1, max_length=8), SearchConfig(beam_size=3, max_length=8)
LINE = TEXT.src[0]
WORD = 4  # what Echo says for what it does not know

either = pytest.mark.parametrize("search", [GREEDY, BEAM], ids=["greedy", "beam"])


def translator(
    search: SearchConfig = GREEDY, window: int = 48, model: Transformer | None = None, longest: int = 48
) -> Translator:
    return Translator(model or translating(), tokenizers(), "en", search, window, longest, CPU)


def n_tokens(text: str) -> int:
    return len(tokenizers().src.encode([text])[0])


def watch_sources(monkeypatch: pytest.MonkeyPatch, model: Searchable[Any]) -> list[Tensor]:
    """Grows by each batch that the model reads."""
    read: list[Tensor] = []
    start = model.start

    def watched(src: Tensor) -> TransformerState:
        read.append(src)
        return start(src)

    monkeypatch.setattr(model, "start", watched)
    return read


# order


@either
def test_every_text_gets_its_own_translation_in_any_company(
    search: SearchConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [*TEXT.src[:2], TEXT.src[3] + TEXT.src[40], "寺", *TEXT.src[90:92]]
    ours = translator(search)
    alone = [ours.translate([text])[0] for text in texts]
    together = ours.translate(texts)
    monkeypatch.setattr(Translator, "tokens_per_batch", 60)
    in_small_batches = ours.translate(texts[::-1])[::-1]
    for found in (together, in_small_batches):
        assert [t.text for t in found] == [t.text for t in alone]
        assert [t.score for t in found] == pytest.approx([t.score for t in alone], abs=1e-3)
    assert len({round(t.score, 2) for t in alone}) == len(texts)  # none could stand in another's place


class EchoState(NamedTuple):
    src: Tensor
    t: int

    def select(self, rows: Tensor) -> "EchoState":
        return self._replace(src=self.src[rows.flatten()])


class Echo:
    """Searchable: says the ids that it reads."""

    def start(self, src: Tensor) -> EchoState:
        return EchoState(src.masked_fill(src == UNK_ID, WORD), 0)

    def step(self, _tokens: Tensor, state: EchoState) -> tuple[Tensor, EchoState]:
        return 9.0 * F.one_hot(state.src[:, state.t], len(tokenizers().tgt)), state._replace(t=state.t + 1)


@settings(max_examples=40)
@given(
    texts=st.lists(st.text("京都に古い寺がある。 \u3000😀", max_size=12), max_size=9),
    width=st.integers(1, 3),
    budget=st.sampled_from([1, 30, 8192]),
)
def test_any_list_of_texts_keeps_its_order_and_each_is_told_of_once(texts: list[str], width: int, budget: int) -> None:
    progress: list[int] = []
    ours = Translator(Echo(), tokenizers(), "en", SearchConfig(width, 0.0), 99, 99, CPU)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Translator, "tokens_per_batch", budget)
        found = ours.translate(texts, progress.append)
    assert sum(progress) == len(found) == len(texts)
    for text, translation in zip(texts, found, strict=True):
        if translation.n_pieces:
            ids = [i if i != UNK_ID else WORD for i in tokenizers().src.encode([text])[0]]
            assert translation.candidates[0].tokens == tokenizers().tgt.tokens(ids)
        else:
            assert not text.replace("😀", "").strip()
            assert translation.text == (text if text.strip() else "")
        assert translation.unknown == (not translation.n_pieces and bool(text.strip()))


def test_blank_texts_stay_empty_and_what_is_unknown_comes_back() -> None:
    found = translator().translate(["", LINE, "   ", "😀", "\u3000", " 😀😀 ", "😀寺"])
    assert [t.text for t in found if not t.n_pieces] == ["", "", "😀", "", " 😀😀 "]
    assert [t.unknown for t in found] == [False, False, False, True, False, True, False]
    assert [t.n_pieces for t in found] == [0, 1, 0, 0, 0, 0, 1]
    assert [t.n_unknown for t in found] == [0, 0, 0, 1, 0, 1, 1]
    assert all(t.score == 0 for t in found if not t.n_pieces)
    assert found[1].text == translator().translate([LINE])[0].text
    assert translator().translate([]) == []


def test_a_space_that_is_a_piece_of_its_own_is_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in KFTT, whose titles are set with ideographic spaces."""
    ours = translator()
    spaces = tokenizers().src.encode(["寺"])[0]
    monkeypatch.setattr(ours.tokenizers.src, "tokens", lambda ids: ["\u3000" if i in spaces else "a" for i in ids])
    found = ours.translate(["寺", LINE])
    assert [t.n_pieces for t in found] == [0, 1]


# batches


@pytest.mark.parametrize("sampling", [None, SamplingConfig(n_samples=3)], ids=["beam", "sampling"])
def test_the_batches_keep_to_their_budget_longest_first(
    sampling: SamplingConfig | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Translator, "tokens_per_batch", 120)
    search = BEAM if sampling is None else GREEDY  # three rows a sentence, either way
    ours = Translator(translating(), tokenizers(), "en", search, 48, 48, CPU, sampling)
    read = watch_sources(monkeypatch, ours.model)
    texts = [LINE, "寺", LINE + LINE, "橋", *TEXT.src[:9]]
    ours.translate(texts)
    assert all(3 * src.numel() <= 120 or len(src) == 1 for src in read)
    assert all(3 * (src.numel() + src.size(1)) > 120 for src in read[:-1])  # and there is no room for one more
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


def test_what_is_drawn_for_a_text_does_not_depend_on_its_company(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [*TEXT.src[:6], "寺"]
    ours = Translator(translating(), tokenizers(), "en", GREEDY, 48, 48, CPU, SamplingConfig(n_samples=3))
    together = ours.translate(texts, n_best=3)
    monkeypatch.setattr(Translator, "tokens_per_batch", 60)
    apart = ours.translate(texts, n_best=3)
    for a, b in zip(together, apart, strict=True):
        assert sorted(c.text for c in a.candidates) == sorted(c.text for c in b.candidates)


def test_each_sentence_of_a_long_text_has_draws_of_its_own() -> None:
    sampling = SamplingConfig(n_samples=1)
    ours = Translator(translating(), tokenizers(), "en", GREEDY, n_tokens(LINE) + 1, 48, CPU, sampling)
    (found,) = ours.translate([LINE + LINE])
    (alone,) = ours.translate([LINE])
    assert found.n_pieces == 2
    assert found.text != " ".join([alone.text, alone.text])


# long texts


def test_of_a_long_text_each_sentence_is_translated_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    sentences = TEXT.src[:9]
    window = 2 * max(n_tokens(sentence) for sentence in sentences) + 1
    ours = translator(window=window)
    read = watch_sources(monkeypatch, ours.model)
    (found,) = ours.translate(["".join(sentences)])
    assert found.lost_tokens == 0
    assert found.n_pieces == sum(len(src) for src in read) == len(sentences)
    assert max(src.size(1) for src in read) <= window

    by_hand = [best for (best,) in ours.search_ids(tokenizers().src.encode(sentences))]
    assert found.text == " ".join(tokenizers().tgt.decode([ids for ids, _ in by_hand]))
    assert found.score == pytest.approx(sum(score for _, score in by_hand), abs=1e-3)


def test_pieces_are_joined_as_the_target_language_joins_sentences() -> None:
    spaced, unspaced = (
        Translator(translating(), tokenizers(), lang, GREEDY, n_tokens(LINE) + 1, 48, CPU).translate([LINE * 2])[0].text
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


def test_a_sentence_of_which_nothing_is_known_stays_where_it_was() -> None:
    ours = translator(window=n_tokens(LINE) + 1)
    first, last = (found.text for found in ours.translate([LINE, TEXT.src[50]]))
    (found,) = ours.translate([f"{LINE}😀😀！{TEXT.src[50]}"])
    assert found.text == f"{first} 😀😀！ {last}"
    assert (found.n_pieces, found.lost_tokens, found.unknown, found.n_unknown) == (3, 0, False, 1)
    (emoji,) = ours.translate(["😀！" * 30])
    assert (emoji.text, emoji.n_pieces, emoji.unknown) == ("😀！" * 30, 0, True)


def test_a_prefix_longer_than_the_model_holds_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the prefix has \d+ tokens, the model holds 7: shorten it"):
        translator(longest=8).translate([LINE], prefixes=["old temple " * 8])


def test_a_prefix_leaves_room_for_the_end() -> None:
    n = len(tokenizers().tgt.encode(["There is"])[0])
    with pytest.raises(ValueError, match=f"the prefix has {n} tokens, the model holds {n - 1}: shorten it"):
        translator(longest=n).translate([LINE], prefixes=["There is"])
    assert translator(longest=n + 1).translate([LINE], prefixes=["There is"])[0].text == "There is"


def test_each_text_is_told_of_once_however_many_pieces_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Translator, "tokens_per_batch", 60)
    progress: list[int] = []
    texts = [*TEXT.src[:10], "", "😀", "".join(TEXT.src[:5])]
    found = translator(window=16).translate(texts, progress.append)
    assert found[-1].n_pieces > 2
    assert progress[0] == 2  # what there is nothing to search for
    assert sum(progress) == len(texts)
    assert len(progress) > 3


@pytest.mark.parametrize("pieces", [(LINE, "寺。"), ("寺。", LINE)], ids=["long first", "short first"])
def test_a_long_text_is_done_when_its_last_piece_is(pieces: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever that is: the longest is searched first."""
    ours = Translator(Echo(), tokenizers(), "en", SearchConfig(1, 0.0), n_tokens(LINE) + 1, 99, CPU)
    between = "奈良。"
    assert n_tokens(LINE) > n_tokens(between) > n_tokens("寺。")

    def told() -> list[int]:
        progress: list[int] = []
        found = ours.translate(["".join(pieces), between], progress.append)
        assert [translation.n_pieces for translation in found] == [2, 1]
        return progress

    assert told() == [0, 2]  # all in a batch
    monkeypatch.setattr(Translator, "tokens_per_batch", 1)
    assert told() == [0, 0, 1, 1]  # each in its own


# candidates


@pytest.mark.parametrize("n_best", [1, 2, 3, 9])
def test_the_best_candidates_come_first_as_many_as_the_beam_has(n_best: int) -> None:
    texts = TEXT.src[:5]
    one = translator(BEAM).translate(texts)
    for best, found in zip(one, translator(BEAM).translate(texts, n_best=n_best), strict=True):
        assert len(found.candidates) == min(n_best, 3)
        assert all(a.score >= b.score for a, b in pairwise(found.candidates))
        assert (found.text, found.score) == (found.candidates[0].text, found.candidates[0].score)
        assert found.text == best.text
        assert found.score == pytest.approx(best.score, abs=1e-4)
        assert len({tuple(candidate.tokens) for candidate in found.candidates}) == len(found.candidates)
        for candidate in found.candidates:
            assert "".join(candidate.tokens).replace("▁", " ").strip() == candidate.text


def test_as_many_candidates_are_looked_for_as_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []

    def watched(*arguments):  # type: ignore[no-untyped-def]
        asked.append(arguments[-1])
        return beam_search(*arguments)

    monkeypatch.setattr(module, "beam_search", watched)
    ours = translator(BEAM)
    ours.translate([LINE])
    ours.translate([LINE], n_best=2)
    ours.minimum_bayes_risk = True
    ours.translate([LINE])
    assert asked == [1, 2, None]


def test_the_candidates_of_a_long_text_join_those_of_equal_rank() -> None:
    ours = translator(BEAM, window=16)
    (found,) = ours.translate(["".join(TEXT.src[:3])], n_best=2)
    pieces = ours.translate(TEXT.src[:3], n_best=2)
    assert found.n_pieces == 3
    assert len(found.candidates) == 2
    for rank, joined in enumerate(found.candidates):
        parts = [piece.candidates[rank] for piece in pieces]
        assert joined.text == " ".join(part.text for part in parts)
        assert joined.tokens == [token for part in parts for token in part.tokens]
        assert joined.score == pytest.approx(sum(part.score for part in parts), abs=1e-3)


def test_where_a_piece_has_fewer_candidates_its_last_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = translator(BEAM, window=n_tokens(LINE) + 1)
    found = [[Hypothesis([18], -1.0), Hypothesis([19], -2.0), Hypothesis([20], -4.0)], [Hypothesis([21], -8.0)]]
    monkeypatch.setattr(ours, "search_ids", lambda *_: found)
    (joined,) = ours.translate([LINE * 2], n_best=3)
    assert [(c.text, c.score) for c in joined.candidates] == [("e r", -9.0), ("i r", -10.0), ("a r", -12.0)]


def test_candidates_may_be_ordered_by_how_much_they_agree() -> None:
    texts, wide = TEXT.src[:3], replace(BEAM, beam_size=6)
    ours = Translator(translating(), tokenizers(), "en", wide, 48, 48, CPU, minimum_bayes_risk=True)
    changed = 0
    for found, by_score in zip(
        ours.translate(texts, n_best=4), translator(wide).translate(texts, n_best=6), strict=True
    ):
        order = by_expected_chrf([candidate.text for candidate in by_score.candidates])
        assert [c.text for c in found.candidates] == [by_score.candidates[i].text for i in order[:4]]
        changed += order[0] != 0
    assert changed > 0


# prefixes


@either
def test_a_translation_begins_as_it_is_told_to(search: SearchConfig) -> None:
    texts, prefixes = [LINE, "寺", "", TEXT.src[5]], ["There is", "", "There", "in Kyoto"]
    found = translator(search).translate(texts, prefixes=prefixes)
    for prefix, translation in zip(prefixes, found, strict=True):
        assert translation.text.startswith(prefix) or not translation.n_pieces
    free = translator(search).translate(texts)
    assert found[1] == free[1]
    assert found[2].text == ""
    assert [a.text == b.text for a, b in zip(found, free, strict=True)] == [False, True, True, False]


def test_the_prefix_of_a_long_text_is_that_of_its_first_piece() -> None:
    ours = translator(window=16)
    long = "".join(TEXT.src[:3])
    other, found = ours.translate([TEXT.src[7], long], prefixes=["", "in Kyoto"])
    assert found.n_pieces == 3
    first = ours.translate([TEXT.src[0]], prefixes=["in Kyoto"])[0].text
    rest = [t.text for t in ours.translate([*TEXT.src[1:3], TEXT.src[7]])]
    assert found.text == " ".join([first, *rest[:2]])
    assert other.text == rest[2]


def test_a_prefix_that_the_vocabulary_cannot_say_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^the prefix 'There 😀' has characters outside the vocabulary: [^\n]+$"):
        translator().translate([LINE, LINE], prefixes=["There", "There 😀"])


# bounds


@either
def test_a_table_of_positions_is_never_left(search: SearchConfig) -> None:
    model = translating(replace(MODEL, positions="learned", max_length=12))
    ours = translator(replace(search, max_length=99), 12, model, longest=12)
    found = ours.search_ids([[5, *range(20, 30)], [6], [7, 8]])
    assert max(len(n_best[0].ids) for n_best in found) == 11
    assert all(t.text for t in ours.translate(["".join(TEXT.src[:4])]))


def test_the_bounds_are_those_of_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds: list[Sequence[Bounds]] = []

    def watched(model, src, bound, *rest):  # type: ignore[no-untyped-def]
        bounds.append(bound)
        return greedy_search(model, src, bound, *rest)

    monkeypatch.setattr(module, "greedy_search", watched)
    translator(SearchConfig(1, max_ratio=1.0, min_ratio=0.5)).search_ids([[5, 6, 7], [5]])
    translator(SearchConfig(1, max_ratio=90.0), longest=40).search_ids([[5, 6, 7]])
    assert bounds == [[(2, 14), (1, 12)], [(0, 40)]]


@either
def test_the_settings_of_the_search_reach_it(search: SearchConfig) -> None:
    sources = tokenizers().src.encode(TEXT.src[:4])
    for (ids, _), *_ in translator(replace(search, no_repeat_ngram=1, max_length=30)).search_ids(sources):
        assert len(ids) == len(set(ids))
    for (ids, _), *_ in translator(replace(search, min_length=9, max_length=9)).search_ids(sources):
        assert len(ids) == 9


def test_what_is_drawn_of_a_line_depends_on_its_number_in_the_whole_input() -> None:
    ours = translator(model=translating())
    ours.sampling = SamplingConfig(2, seed=5)
    texts = [LINE, TEXT.src[7], LINE, TEXT.src[40]]
    whole = ours.translate(texts, first=1)
    in_chunks = ours.translate(texts[:1], first=1) + ours.translate(texts[1:], first=2)
    assert [[c.text for c in found.candidates] for found in in_chunks] == [
        [c.text for c in found.candidates] for found in whole
    ]
    assert whole[0].text != whole[2].text
