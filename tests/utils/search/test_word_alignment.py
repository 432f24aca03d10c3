"""Links of words, on a vocabulary with ▁ and on one of words."""

from pathlib import Path

import pytest

from tests.tiny import TEXT, tokenizers
from utils.search.inspection import WordAligner, WordAlignment
from utils.text.tokenizer import TokenizerPair, WordTokenizer


class Pieces(WordTokenizer):
    """A vocabulary that is given, ▁ and all."""

    def save(self, path: Path) -> None:
        raise NotImplementedError


SOURCE = Pieces(["▁", "▁古い", "寺", "が", "▁old", "er", ".", "\u3000"], lowercase=False)
TARGET = Pieces(["▁the", "▁old", "er", "▁temple", "s", ".", "<x"], lowercase=False)
ALIGNER = WordAligner(TokenizerPair(SOURCE, TARGET))


@pytest.mark.parametrize(
    ("source", "target", "links", "expected"),
    [
        # pieces of a word are one, its links are there once, the full stop belongs to the word before it
        (
            ["▁古い", "寺", "が"],
            ["▁the", "▁old", "er", "▁temple", "s", "."],
            [(0, 0), (0, 1), (0, 2), (1, 3), (2, 4), (1, 5)],
            WordAlignment(["古い", "寺", "が"], ["the", "older", "temples."], [(0, 0), (0, 1), (1, 2), (2, 2)]),
        ),
        # spaces part the source's words where its script has them
        (["▁old", "er", "."], ["▁old"], [(2, 0)], WordAlignment(["older."], ["old"], [(0, 0)])),
        # a lone ▁ before a script without spaces is no word, and places are counted without it
        (
            ["▁", "寺", "が"],
            ["▁the", "▁temple"],
            [(0, 0), (2, 1)],
            WordAlignment(["寺", "が"], ["the", "temple"], [(1, 1)]),
        ),
        # nor is an ideographic space, though it is no ▁
        (
            ["寺", "\u3000", "が"],
            ["▁the", "▁temple"],
            [(0, 0), (1, 0), (2, 1)],
            WordAlignment(["寺", "が"], ["the", "temple"], [(0, 0), (1, 1)]),
        ),
        (["▁", "▁古い"], ["▁old"], [(1, 0)], WordAlignment(["古い"], ["old"], [(0, 0)])),
        (["寺"], [], [], WordAlignment(["寺"], [], [])),
    ],
)
def test_tokens_are_joined_to_words(
    source: list[str], target: list[str], links: list[tuple[int, int]], expected: WordAlignment
) -> None:
    assert ALIGNER.join(source, target, links) == expected


def test_links_are_in_the_order_of_the_target() -> None:
    found = ALIGNER.join(["寺", "が", "▁古い"], ["▁old", "▁the"], [(2, 0), (0, 0), (1, 1)])
    assert found.links == [(0, 0), (2, 0), (1, 1)]


def test_where_tokens_are_words_nothing_is_joined() -> None:
    words = WordTokenizer(["der", "tempel", "."], lowercase=True)
    found = WordAligner(TokenizerPair(words, words)).join(["der", "tempel", "."], ["tempel", "."], [(1, 0), (2, 1)])
    assert found == WordAlignment(["der", "tempel", "."], ["tempel", "."], [(1, 0), (2, 1)])


def test_the_words_are_those_of_the_text() -> None:
    src, tgt = tokenizers()
    aligner = WordAligner(tokenizers())
    for source, target in zip(TEXT.src[::20], TEXT.tgt[::20], strict=True):
        (source_ids,), (target_ids,) = src.encode([source]), tgt.encode([target])
        found = aligner.join(src.tokens(source_ids), tgt.tokens(target_ids), [])
        assert found.target == target.split()
        assert "".join(found.source) == source
