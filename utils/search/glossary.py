"""A glossary: terms of the source, and those that the translation must then have; an automaton looks for these.

A term is not found inside a word. In Japanese, MeCab knows the words; in other scripts without spaces, nobody does.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import pairwise
from operator import mul, sub
from pathlib import Path
from typing import NamedTuple

from config.data import primary_language
from const.token import BOS_ID, EOS_ID, UNK_ID
from utils.dataset.text import lines_of
from utils.text.form import composed
from utils.text.language import HAN, KANA, SCRIPTS
from utils.text.tokenizer import Tokenizer, id_of_each

Spelling = tuple[int, ...]  # ids of a term

# a letter or digit of a word between spaces; Hangul has spaces, but particles stand directly behind a noun
_LETTER = rf"[^\W{''.join(letters for _, letters in SCRIPTS.values())}]"
_GLUED = re.compile(_LETTER * 2)
_BOUNDARY = re.compile(rf"(?!(?<={_LETTER}){_LETTER})")
_JAPANESE = re.compile(f"[{KANA}{HAN}]")


def read_terms(path: Path) -> dict[str, str]:
    """Read lines of a source term, a tab and its target term; empty lines are left out."""
    terms: dict[str, str] = {}
    for number, line in enumerate(lines_of(path), start=1):
        source, *targets = [composed(term).strip() for term in line.split("\t")]
        if not any([source, *targets]):
            continue
        if not source or len(targets) != 1 or not targets[0]:
            raise ValueError(f"{path}, line {number}, {line!r}: give a source term, one tab and its target term")
        if terms.setdefault(source, targets[0]) != targets[0]:
            raise ValueError(f"{path}, line {number}: {source!r} is {terms[source]!r} above; keep one of the two")
    return terms


class Progress(NamedTuple):
    """How far a prefix of a translation has come."""

    counts: tuple[int, ...]  # how often it has each term
    begun: frozenset[tuple[int, Spelling]]  # terms that it may end with a part of, and the rest of each


class Wanted:
    """The terms that the translation of a text must have, as an automaton that reads it token by token.

    Each has one or more spellings in tokens; a token is glued to the one before it if it goes on with its last word.
    """

    def __init__(
        self, terms: Sequence[str], spell: Callable[[str], set[Spelling]], is_glued: Callable[[int, int], bool]
    ) -> None:
        self._is_glued = is_glued
        spellings = {term: spell(term) for term in terms}
        self._spellings = [(i, ids) for i, of_term in enumerate(spellings.values()) for ids in of_term]
        self._lengths = [min(map(len, of_term)) for of_term in spellings.values()]
        self.tokens = sorted({token for _, ids in self._spellings for token in ids})
        self.start = Progress((0,) * len(spellings), frozenset())
        # a term that is a part of another one is found there, too
        counts = [self.read(min(spellings[term])).counts for term in terms]
        self._times = [sum(times) for times in zip(*counts, strict=True)]
        self.n_tokens = self.left(self.start)

    def after(self, progress: Progress, last: int, token: int) -> Progress:
        """Return how far a prefix that ends with the token `last` has come with another token behind it.

        A term is found when the token behind it is not glued to it.
        """
        if not progress.begun and token not in self.tokens:
            return progress
        counts = [*progress.counts]
        begun = {(i, rest[1:]) for i, rest in progress.begun if rest[:1] == (token,)}
        if not self._is_glued(last, token):
            for i, rest in progress.begun:
                counts[i] += not rest
            begun |= {(i, ids[1:]) for i, ids in self._spellings if ids[0] == token}
        return Progress(tuple(counts), frozenset(begun))

    def accepts(self, translation: Sequence[int]) -> bool:
        """Return whether a translation has all terms."""
        return not any(self.missing(self.read(translation)))

    def read(self, translation: Sequence[int]) -> Progress:
        """Return how far a whole translation has come."""
        progress = self.start
        for last, token in pairwise([BOS_ID, *translation, EOS_ID]):
            progress = self.after(progress, last, token)
        return progress

    def missing(self, progress: Progress) -> list[int]:
        """Return how often each term is missing."""
        return [max(0, n) for n in map(sub, self._times, progress.counts)]

    def left(self, progress: Progress) -> int:
        """Return how many tokens of terms are missing; of what is begun, only the term that is furthest counts."""
        missing = self.missing(progress)
        said = [self._lengths[i] - len(rest) for i, rest in progress.begun if missing[i]]
        return sum(map(mul, self._lengths, missing)) - max([0, *said])


@cache
def _mecab() -> Callable[[str], str] | None:
    """Return what separates the words of a Japanese text by spaces; its dictionary is large. None: not installed."""
    from sacrebleu.tokenizers.tokenizer_ja_mecab import TokenizerJaMecab

    with suppress(RuntimeError):
        return TokenizerJaMecab()  # type: ignore[no-untyped-call]
    return None


class Glossary:
    """Target terms by source terms, for translations in the vocabulary of a tokenizer, from texts of a language."""

    def __init__(self, terms: Mapping[str, str], tokenizer: Tokenizer, src_lang: str = "") -> None:
        self.terms, self._encode, self._ids = terms, tokenizer.encode, id_of_each(tokenizer)
        self._spell = cache(self._spellings)  # once for each term, not for each text that has it
        encoded = zip(terms.values(), tokenizer.encode([*terms.values()]), strict=True)
        if unknown := [term for term, ids in encoded if UNK_ID in ids]:
            raise ValueError(f"target terms with characters outside the vocabulary: {', '.join(unknown)}; remove them")
        # of alternatives at the same place, the first that fits is taken
        sources = "|".join(map(re.escape, sorted(terms, key=len, reverse=True)))
        self._sources = re.compile(f"{_BOUNDARY.pattern}(?:{sources}){_BOUNDARY.pattern}")
        self._words: Callable[[str], str] | None = None  # separates the words of a text by spaces
        if primary_language(src_lang) == "ja" and _JAPANESE.search(sources):
            self._words = _mecab()
        has_marks = any(token.startswith("▁") for token in self._ids)  # else each token is a word
        self._tokens = [token if has_marks else f"▁{token}" for token in self._ids]

    def wanted(self, text: str) -> Wanted:
        """Return what the translation of a text must have: for each term, of those that overlap the longest."""
        return self._wanted(self._targets(text))

    def places(self, text: str) -> list[tuple[int, int]]:
        """Return where terms begin and end in a text, which no sentence is to end within."""
        return [term.span() for term in self._found(text)]

    def coverage(self, text: str, translation: Sequence[int]) -> list[tuple[str, bool]]:
        """Return the target terms for a text, each with whether the ids of its translation have it."""
        wanted = self._wanted(targets := self._targets(text))
        missing = wanted.missing(wanted.read(translation))
        lacks = dict(zip(dict.fromkeys(targets), missing, strict=True))
        return [(term, targets[i:].count(term) > lacks[term]) for i, term in enumerate(targets)]

    def _wanted(self, targets: Sequence[str]) -> Wanted:
        return Wanted(targets, self._spell, self._is_glued)

    def _targets(self, text: str) -> list[str]:
        return [self.terms[term[0]] for term in self._found(composed(text))]

    def _found(self, text: str) -> Iterator[re.Match[str]]:
        """Yield the terms of a text; one in Japanese begins where a word does, and is no part of a single word.

        A name that MeCab does not know may end inside what it takes for a word: 渉成|園内.
        """
        ends, place = dict[int, int](), 0  # where words begin and end
        for word in self._words(text).split() if self._words else ():
            begin = text.index(word, place)
            ends[begin] = place = begin + len(word)
        place = 0
        while term := self._sources.search(text, place):
            is_word = not ends or not _JAPANESE.match(term[0]) or ends.get(term.start(), len(text) + 1) <= term.end()
            place = term.end() if is_word else term.start() + 1
            if is_word:
                yield term

    def _spellings(self, term: str) -> set[Spelling]:
        """The tokens of a term behind a space, and directly behind something else."""
        ids, bracket, behind = self._encode([term, "(", f"({term}"])
        n = len(bracket) if behind[: len(bracket)] == bracket else len(behind)
        return {tuple(ids), tuple(behind[n:])} - {()}

    def _is_glued(self, before: int, token: int) -> bool:
        return _GLUED.fullmatch(self._tokens[before][-1] + self._tokens[token][0]) is not None
