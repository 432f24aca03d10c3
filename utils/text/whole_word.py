"""Which pieces make up a word, for whole-word masking (Devlin et al.'s later release)."""

import re

import numpy as np
from numpy.typing import NDArray

from const.token import SPECIAL_TOKENS
from utils.text.script import HAN, KANA
from utils.text.tokenizer import Tokenizer, every_token

_MARK = "▁"
# kana and kanji, their punctuation and full-width letters are written without spaces between words
_UNSPACED = re.compile(f"[{KANA}{HAN}\u3000-\u303f\uff00-\uffef]")


class WholeWords:
    """Finds words among ids: words begin at a ▁; special tokens and pieces of unspaced scripts are words by themselves.

    Where no piece of the vocabulary has a ▁, the tokens are already words.

    Args:
        tokenizer: the tokenizer of the ids.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        pieces = every_token(tokenizer)
        self._marked = np.array([piece.startswith(_MARK) for piece in pieces])
        self._alone = np.array([_UNSPACED.search(piece) is not None for piece in pieces]) | (not self._marked.any())
        self._alone[: len(SPECIAL_TOKENS)] = True

    def numbers(self, ids: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the number of each id's word in a sequence, counted from 0."""
        alone = self._alone[ids]
        begins = self._marked[ids] | alone
        begins[1:] |= alone[:-1]
        begins[:1] = False  # the first id belongs to word 0, whatever it is
        return begins.cumsum()
