"""Sentences in capitals: networks hardly know such words, so they read them as those are usually written."""

import re
from collections.abc import Callable, Sequence

from const.token import UNK_ID
from utils.text.language import ADDRESS, HAN, KANA, LETTER
from utils.text.sentence import split_sentences

Encode = Callable[[Sequence[str]], list[list[int]]]

_CAPITAL = "A-ZÀ-ÖØ-ÞΑ-ΩА-Я"  # inside the brackets of a regular expression
_SUSPECT = re.compile(f"[{_CAPITAL}]{{2}}[^a-z{KANA}{HAN}]+[{_CAPITAL}]{{2}}")  # what has no such needs no closer look
_WORDS, _LONG, _LONG_WORDS = 3, 4, 2  # how many, or how many letters: NHK and JR EAST are so in any text
_WORD = rf"[{LETTER}][\w'’-]+|\bA\b(?!\.)"


def usual_case(text: str, encode: Encode) -> str:
    """Return a text whose sentences in capitals are as usually written: all of them, or those that are so in a text."""
    if not _SUSPECT.search(text):
        return text
    whole, begin = _is_in_capitals(text), text[: len(text) - len(text.lstrip())]
    sentences = split_sentences(text)
    read = {each: _in_usual_case(each, encode) for each, _ in sentences if whole or _is_in_capitals(each)}
    return begin + "".join(read.get(sentence, sentence) + gap for sentence, gap in sentences) if read else text


def _is_in_capitals(text: str) -> bool:
    words = re.findall(f"[{LETTER}]+", ADDRESS.sub(" ", text))
    n_words, n_long = (sum(len(word) >= least for word in words) for least in (2, _LONG))
    return (n_words >= _WORDS or n_long >= _LONG_WORDS) and all(map(str.isupper, "".join(words)))


def _in_usual_case(text: str, encode: Encode) -> str:
    """Write each word in capitals as the vocabulary spells it in the fewest tokens, and the first with a capital."""

    def cost(form: str) -> tuple[int, bool, int]:
        (ids,) = encode([form])
        return ids.count(UNK_ID), UNK_ID in ids and not form.isupper(), len(ids)

    def usual(word: re.Match[str]) -> str:  # of those that cost the same, the first
        return min((word[0].lower(), word[0].capitalize(), word[0]), key=cost) if word[0].isupper() else word[0]

    text = _outside_addresses(_WORD, usual, text)
    return re.sub(rf"\A[\W\d_]*(?!http)[{LETTER}]", lambda first: first[0].upper(), text)


def in_capitals(text: str) -> str:
    """Write a text in capitals, but for addresses."""
    return _outside_addresses(f"[{LETTER}]", lambda letter: letter[0].upper(), text)


def _outside_addresses(pattern: str, change: Callable[[re.Match[str]], str], text: str) -> str:
    return re.sub(f"({ADDRESS.pattern})|{pattern}", lambda found: found[1] or change(found), text)
