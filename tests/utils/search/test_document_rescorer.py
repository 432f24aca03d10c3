"""Candidates ordered by a hand-made language model of which the right choice is known."""

from collections.abc import Sequence

import pytest

from utils.search.document_rescorer import DocumentRescorer, Origin
from utils.search.hypothesis import SearchConfig
from utils.search.translator import Candidate, Translation

SEARCH = SearchConfig(beam_size=3, length_penalty=1.0, normalization="length")


class Letters:
    """A tokenizer of letters."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[ord(letter) for letter in text] for text in texts]


class Rhyming:
    """Likes sentences that begin with the letter that the last one ended with: log p = 0; if not: -1 a letter."""

    memory_length = 1

    def __init__(self) -> None:
        self.events: list[str] = []
        self._asked: list[str] = []
        self._last = ""

    def new_document(self) -> None:
        self.events.append("|")
        self._last = ""

    def log_probs(self, candidates: Sequence[Sequence[int]]) -> list[float]:
        self._asked = ["".join(map(chr, candidate)) for candidate in candidates]
        return [0.0 if self._last and text.startswith(self._last) else -float(len(text)) for text in self._asked]

    def choose(self, i: int) -> None:
        self.events.append(self._asked[i])
        self._last = self._asked[i][-1:]


def rescorer(weight: float, scorer: Rhyming | None = None) -> DocumentRescorer:
    return DocumentRescorer(scorer or Rhyming(), Letters(), weight, SEARCH)  # type: ignore[arg-type]  # encode is all


def translation(*candidates: tuple[str, float], n_pieces: int = 1) -> Translation:
    """Of two tokens each, so that the penalty is 3."""
    return Translation([Candidate(text, score, ["a", "b"]) for text, score in candidates], n_pieces, 0, False)


DOCUMENT = [
    translation(("cat", -1.0), ("dog", -1.5)),
    translation(("dot", -1.0), ("tea", -1.3), ("got", -1.9)),
    translation(("axe", -2.0), ("tab", -2.0), ("at", -2.5)),
]


def texts(found: DocumentRescorer, document: Sequence[Translation] = DOCUMENT) -> list[str]:
    return [rescored.translation.text for rescored in found.rescore_documents([document])]


def test_the_sum_of_both_under_the_length_penalty_decides() -> None:
    scorer = rescorer(0.3, Rhyming())
    first, second, _ = scorer.rescore_documents([DOCUMENT])
    assert first.translation.text == "cat"
    # after "cat" the language model gives "tea" 0 and the others -3; each total is (3 · score + 0.3 · log p) / 3
    assert [candidate.text for candidate in second.translation.candidates] == ["dot", "tea", "got"]
    assert [candidate.score for candidate in second.translation.candidates] == pytest.approx([-1.3, -1.3, -2.2])
    assert second.origins == [Origin(1, -1.0, -3.0), Origin(2, -1.3, 0.0), Origin(3, -1.9, -3.0)]
    second = rescorer(0.31).rescore_documents([DOCUMENT])[1]
    assert [candidate.text for candidate in second.translation.candidates] == ["tea", "dot", "got"]
    assert second.origins == [Origin(2, -1.3, 0.0), Origin(1, -1.0, -3.0), Origin(3, -1.9, -3.0)]
    assert second.translation.candidates[0].tokens == ["a", "b"]


def test_the_length_penalty_is_the_searchs_of_tokens_and_end() -> None:
    candidates = [Candidate("long", -1.0, ["x"] * 9), Candidate("shrt", -1.2, ["x"])]
    found = rescorer(1.0).rescore(Translation(candidates, 1, 0, False))
    assert [candidate.score for candidate in found.translation.candidates] == pytest.approx([-1 - 4 / 10, -1.2 - 4 / 2])
    gnmt = DocumentRescorer(Rhyming(), Letters(), 1.0, SearchConfig(length_penalty=0.6))  # type: ignore[arg-type]
    assert gnmt.rescore(Translation(candidates[:1], 1, 0, False)).translation.score == pytest.approx(
        -1 - 4 / ((5 + 10) / 6) ** 0.6
    )


def test_of_a_text_in_pieces_the_penalty_is_that_of_a_mean_piece() -> None:
    candidates = [Candidate("a b c", -3.0, ["x"] * 12)]
    found = rescorer(1.0).rescore(Translation(candidates, 3, 0, False))
    assert found.translation.score == pytest.approx(-3 - 5 / (4 + 1))


def test_without_weight_nothing_changes() -> None:
    for before, after in zip(DOCUMENT, rescorer(0.0).rescore_documents([DOCUMENT]), strict=True):
        assert after.translation == before
        assert [origin.rank for origin in after.origins] == [1, 2, 3][: len(before.candidates)]


def test_what_was_chosen_is_what_the_next_sentence_stands_behind() -> None:
    scorer = Rhyming()
    assert texts(rescorer(1.0, scorer)) == ["cat", "tea", "axe"]
    assert scorer.events == ["|", "cat", "tea", "axe"]
    assert texts(rescorer(1.0), [translation(("god", -1.0)), *DOCUMENT[1:]]) == ["god", "dot", "tab"]


def test_documents_stand_for_themselves() -> None:
    scorer, done = Rhyming(), list[int]()
    found = rescorer(1.0, scorer).rescore_documents([DOCUMENT[:1], DOCUMENT[1:]], done.append)
    assert [rescored.translation.text for rescored in found] == ["cat", "dot", "tab"]
    assert scorer.events == ["|", "cat", "|", "dot", "tab"]
    assert done == [1, 1, 1]


def test_what_was_not_translated_is_not_read() -> None:
    scorer = Rhyming()
    blank = Translation([Candidate("", 0.0, [])], 0, 0, False)
    odd = Translation([Candidate("😀", 0.0, [])], 0, 0, True)
    found = rescorer(1.0, scorer).rescore_documents([[DOCUMENT[0], blank, odd, DOCUMENT[1]]])
    assert [rescored.translation for rescored in found[1:3]] == [blank, odd]
    assert [rescored.origins for rescored in found[1:3]] == [[Origin(1, 0.0, None)]] * 2
    assert found[3].translation.text == "tea"
    assert scorer.events == ["|", "cat", "tea"]


def test_the_best_are_the_first() -> None:
    rescored = rescorer(0.31).rescore_documents([DOCUMENT])[1]
    assert [candidate.text for candidate in rescored.best(2).translation.candidates] == ["tea", "dot"]
    assert rescored.best(2).origins == rescored.origins[:2]
    assert rescored.best(9) == rescored


def test_a_mean_piece_is_rounded() -> None:
    found = rescorer(1.0).rescore(Translation([Candidate("a b c", -3.0, ["x"] * 11)], 3, 0, False))
    assert found.translation.score == pytest.approx(-3 - 5 / (4 + 1))
