"""Word alignment: which source word each word of a translation comes from, from links between tokens."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from utils.search.alignment import Links
from utils.text.pair import TokenizerPair
from utils.text.tokenizer import Tokenizer, id_of_each
from utils.text.whole_word import WholeWords


class WordAlignment(NamedTuple):
    """The words of a pair, and links between them: (source, target) places, counted from 0."""

    source: list[str]
    target: list[str]
    links: Links


class WordAligner:
    """Joins tokens, and the links between them, to words.

    Words are separated by spaces; in scripts without spaces each token is a word, since the text marks no others. A
    space that is a token by itself (SentencePiece's lone ▁) is not a word, and links to it are dropped.

    Args:
        tokenizers: the tokenizers that the tokens come from.
    """

    def __init__(self, tokenizers: TokenizerPair) -> None:
        self._source, self._target = (_Words(tokenizer) for tokenizer in tokenizers)

    def join(self, source: Sequence[str], target: Sequence[str], links: Links) -> WordAlignment:
        """Link two words where any of their tokens are linked; sorted by target word, then by source word."""
        (of_source, source_words), (of_target, target_words) = self._source.find(source), self._target.find(target)
        pairs = {(of_source[i], of_target[j]) for i, j in links}
        linked = [(i, j) for i, j in pairs if i is not None and j is not None]
        return WordAlignment(source_words, target_words, sorted(linked, key=lambda link: (link[1], link[0])))


class _Words:
    """Finds the words of one language."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._whole_words = WholeWords(tokenizer)
        self._ids = id_of_each(tokenizer)

    def find(self, tokens: Sequence[str]) -> tuple[list[int | None], list[str]]:
        """Return the place of the word that each token belongs to, None for a lone space; and the words."""
        numbers = self._whole_words.numbers(np.array([self._ids[token] for token in tokens], np.int64)).tolist()
        words = [""] * (max(numbers, default=-1) + 1)
        for number, token in zip(numbers, tokens, strict=True):
            words[number] += "".join(token.replace("▁", "").split())  # an ideographic space is a token, not a word
        places = {number: place for place, number in enumerate(n for n, word in enumerate(words) if word)}
        return [places.get(number) for number in numbers], [word for word in words if word]
