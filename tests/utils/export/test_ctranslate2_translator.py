"""Whole texts by CTranslate2 as by our own search: split, left unchanged, prefixed and scored alike."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from export import export_ctranslate2
from tests.tiny import TEXT
from tests.utils.export.learned import learned_run
from utils.export.ctranslate2 import CTranslate2Inspector, CTranslate2Translator, load_exported
from utils.run import load_run
from utils.search.constraint import SearchConfig
from utils.search.inspection import Inspector
from utils.search.translator import Translator

CPU = torch.device("cpu")
GREEDY = SearchConfig(beam_size=1)
TEXTS = ["", "".join(TEXT.src[:8]), "寺", "😀", "  ", "京都に古い寺" * 20, *TEXT.src]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run, and its export."""
    root = tmp_path_factory.mktemp("pickles")
    folder = learned_run(root)
    export_ctranslate2(folder, root / "exported")
    return folder, root / "exported"


def both(folders: tuple[Path, Path], search: SearchConfig) -> tuple[Translator, CTranslate2Translator]:
    return load_run(folders[0], CPU).translator(search), load_exported(folders[1], CPU, search)


def test_texts_are_cut_left_alone_and_put_in_order_as_ours(folders: tuple[Path, Path]) -> None:
    ours, theirs = both(folders, GREEDY)
    done: list[int] = []
    expected, found = ours.translate(TEXTS), theirs.translate(TEXTS, done.append)
    for a, b in zip(expected, found, strict=True):
        assert (a.text, a.n_pieces, a.lost_tokens, a.unknown) == (b.text, b.n_pieces, b.lost_tokens, b.unknown)
        assert a.candidates[0].tokens == b.candidates[0].tokens
    assert sum(done) == len(TEXTS)
    assert {a.n_pieces for a in found} >= {0, 1}
    assert max(a.n_pieces for a in found) > 1


def test_batches_do_not_matter(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    _, theirs = both(folders, SearchConfig(beam_size=2))
    expected = [found.text for found in theirs.translate(TEXTS)]
    monkeypatch.setattr(CTranslate2Translator, "tokens_per_batch", 100)
    assert [found.text for found in theirs.translate(TEXTS)] == expected


def test_the_search_is_that_of_the_run_until_told_otherwise(folders: tuple[Path, Path]) -> None:
    assert load_exported(folders[1], CPU).search == SearchConfig(beam_size=2)
    wide, narrow = load_exported(folders[1], CPU), load_exported(folders[1], CPU, GREEDY)
    assert [t.text for t in wide.translate(TEXT.src)] != [t.text for t in narrow.translate(TEXT.src)]
    shortest = load_exported(folders[1], CPU, replace(GREEDY, max_length=3)).translate(TEXT.src[:9])
    assert max(len(found.candidates[0].tokens) for found in shortest) == 3


def test_translations_begin_as_they_are_told(folders: tuple[Path, Path]) -> None:
    ours, theirs = both(folders, GREEDY)
    prefixes = [("There", "old temple")[i % 2] for i in range(len(TEXTS))]
    expected, found = (translator.translate(TEXTS, prefixes=prefixes) for translator in (ours, theirs))
    assert [a.text for a in found] == [a.text for a in expected]
    with pytest.raises(ValueError, match="characters outside the vocabulary"):
        theirs.translate(["寺"], prefixes=["寺"])
    with pytest.raises(ValueError, match=r"the prefix has \d+ tokens, the model holds 47: shorten it"):
        theirs.translate(["寺"], prefixes=["There is a new temple in Kyoto." * 20])


def test_the_best_of_each_text_come_in_order(folders: tuple[Path, Path]) -> None:
    _, theirs = both(folders, SearchConfig(beam_size=4))
    for translation in theirs.translate(TEXT.src[:20], n_best=3):
        scores = [candidate.score for candidate in translation.candidates]
        assert len(scores) == 3
        assert scores == sorted(scores, reverse=True)


def test_candidates_may_be_chosen_by_their_agreement(folders: tuple[Path, Path]) -> None:
    search = SearchConfig(beam_size=6)
    by_score = load_exported(folders[1], CPU, search).translate(TEXT.src)
    by_risk = load_exported(folders[1], CPU, search, minimum_bayes_risk=True).translate(TEXT.src)
    assert [found.text for found in by_risk] != [found.text for found in by_score]


def test_tokens_and_given_translations_are_as_likely(folders: tuple[Path, Path]) -> None:
    ours, theirs = both(folders, GREEDY)
    inspectors = Inspector(ours, [load_run(folders[0], CPU).model]), CTranslate2Inspector(theirs)
    expected, found = (i.log_probs(TEXTS, i.translator.translate(TEXTS)) for i in inspectors)
    for row, other in zip(expected, found, strict=True):
        assert other == (row and pytest.approx(row, abs=1e-3))
    assert any(found)
    given = [*TEXT.tgt[:20], "", "寺"]
    judged = [inspector.judge([*TEXT.src[:20], "", "寺"], given) for inspector in inspectors]
    for a, b in zip(*judged, strict=True):
        assert (a.tokens, a.lost_tokens, a.n_unknown) == (b.tokens, b.lost_tokens, b.n_unknown)
        assert b.log_probs == pytest.approx(a.log_probs, abs=1e-3)


def test_what_ctranslate2_does_not_tell_is_refused(folders: tuple[Path, Path]) -> None:
    _, theirs = both(folders, GREEDY)
    inspector, found = CTranslate2Inspector(theirs), theirs.translate(["寺"])
    with pytest.raises(ValueError, match="gives no attention weights"):
        inspector.alignments(["寺"], found)
    with pytest.raises(ValueError, match="offers no single steps"):
        inspector.positions("寺", found[0], 2)
