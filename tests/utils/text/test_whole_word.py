from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest

from const.token import SPECIAL_TOKENS
from utils.dataset.masked import WholeWords
from utils.text.tokenizer import SentencePieceTokenizer, Tokenizer, WordTokenizer


class Pieces:
    """A tokenizer of which nothing but the pieces is known."""

    def __init__(self, pieces: list[str]) -> None:
        self._pieces = [*SPECIAL_TOKENS, *pieces]

    def __len__(self) -> int:
        return len(self._pieces)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [self._pieces[i] for i in ids]


def grouped(text: str) -> str:
    """The pieces of a text, which spaces divide, with bars where words end."""
    pieces = text.split()
    others = [*sorted(set(pieces) - set(SPECIAL_TOKENS)), "▁some"]
    tokenizer = Pieces(others)
    ids = [tokenizer._pieces.index(piece) for piece in pieces]
    numbers = WholeWords(cast(Tokenizer, tokenizer)).numbers(np.array(ids)).tolist()
    words = [
        [piece for piece, number in zip(pieces, numbers, strict=True) if number == n] for n in range(numbers[-1] + 1)
    ]
    return " | ".join(" ".join(word) for word in words)


@pytest.mark.parametrize(
    "words",
    [
        "▁The | ▁re vol ution ary | ▁painter .",
        "vol ution | ▁end",  # cut from the middle of a word
        "▁雪 | 舟 | は | 画家",
        "▁ | 雪",
        "▁in | 京都 | s | ▁old",
        "▁ 14 20 | 年 | （ | 応永 | 27 | 年 | ） | 、 | 19 8 | 、 | a b",
        "<s> | ▁The | </s> | ▁re vol | </s>",
        "<s> | vol | <unk> | ution | </s>",
        "カタ | ｶﾅ | ▁ー",
    ],
)
def test_words_end_where_the_next_begins(words: str) -> None:
    assert grouped(words.replace("|", "")) == words


def test_pieces_of_a_real_model_make_its_words() -> None:
    lines = ["the old capital and the capitals of the old provinces"] * 9
    tokenizer = SentencePieceTokenizer.train(lines, "bpe", 30, 1.0, "identity")
    (ids,) = tokenizer.encode(lines[:1])
    numbers = WholeWords(tokenizer).numbers(np.array(ids))
    words = [tokenizer.decode([np.array(ids)[numbers == n].tolist()])[0] for n in range(numbers[-1] + 1)]
    assert len(ids) > len(words)
    assert words == lines[0].split()


def test_whole_words_are_words_already() -> None:
    words = WholeWords(WordTokenizer(["old", "capital", "."], lowercase=False))
    assert words.numbers(np.array([4, 5, 6, 1, 5])).tolist() == [0, 1, 2, 3, 4]
    assert words.numbers(np.array([], np.int64)).tolist() == []
