"""Words in capitals: networks hardly know these, so they read them as they are usually written."""

import re
from collections.abc import Callable, Sequence

from const.token import UNK_ID
from utils.text.language import HAN, KANA, LETTER

Encode = Callable[[Sequence[str]], list[list[int]]]

_CAPITAL = "A-ZÀ-ÖØ-ÞΑ-ΩА-Я"  # inside the brackets of a regular expression
_SUSPECT = re.compile(f"[{_CAPITAL}]{{2}}[^a-z{KANA}{HAN}]+[{_CAPITAL}]{{2}}")  # what has no such needs no closer look
_WORDS, _LONG, _LONG_WORDS = 3, 4, 2  # how many, or how many letters: NHK and JR EAST are so in any text
_LETTERS, _FIRST = re.compile(f"[{LETTER}]+"), re.compile(rf"\A[\W\d_]*[{LETTER}]")
_WORD = re.compile(rf"[{LETTER}][\w'’-]+|\bA\b(?!\.)")
# what may be emphasis: no name of Japanese syllables, which are often so (DATE Masamune), nor what is before another
_EMPHASIS = re.compile(
    r"\b(?:(?:DO )?NOT|(?!(?:(?:[KSTNHMRGZDBPJ]?Y?|SH|CH|TS|W|F)[AIUEO]|N(?![AIUEO]))+\b)[A-Z]{4,})\b(?! [A-Z][a-z])"
)


def is_in_capitals(text: str) -> bool:
    """Return whether a text has several words, and no small letter."""
    if not _SUSPECT.search(text):
        return False
    words = _LETTERS.findall(text)
    n_words, n_long = (sum(len(word) >= least for word in words) for least in (2, _LONG))
    return (n_words >= _WORDS or n_long >= _LONG_WORDS) and all(map(str.isupper, "".join(words)))


def usual_case(text: str, encode: Encode) -> str:
    """Write each word in capitals as the vocabulary spells it in the fewest tokens, and the first with a capital."""

    def cost(form: str) -> tuple[int, bool, int]:
        (ids,) = encode([form])
        return ids.count(UNK_ID), UNK_ID in ids and not form.isupper(), len(ids)

    def usual(word: re.Match[str]) -> str:  # of those that cost the same, the first
        return min((word[0].lower(), word[0].capitalize(), word[0]), key=cost) if word[0].isupper() else word[0]

    return _FIRST.sub(lambda first: first[0].upper(), _WORD.sub(usual, text))


def without_emphasis(text: str, encode: Encode) -> str:
    """Write words in capitals of other text, as VERY or DO NOT, as usual where that is less than half of the tokens."""

    def usual(word: re.Match[str]) -> str:
        small = word[0].lower() if word.start() else word[0].capitalize()
        n_small, n_own = map(len, encode([small, word[0]]))
        return small if 2 * n_small < n_own else word[0]

    return _EMPHASIS.sub(usual, text)
