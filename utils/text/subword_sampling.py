"""Cutting words into pieces at random: Kudo 2018 (unigram) and BPE-dropout (Provilkov et al. 2020).

SentencePiece samples too, but its generator cannot be seeded so that two processes draw the same.
"""

import math
from bisect import bisect
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple, Protocol

from const.token import UNK_ID

_UNKNOWN_PENALTY = 10.0  # SentencePiece's: how much less likely than its rarest piece an unknown character is
_LONGEST_REMEMBERED = 16  # characters: words of a language with spaces come again, sentences of others do not
_MOST_REMEMBERED = 2**15


class Piece(NamedTuple):
    """A piece's id and what the model thinks of it: a log probability, or (BPE) minus the number of its merge."""

    id: int
    score: float


class Cut(Protocol):
    """Cuts a word, which begins with ▁, at random."""

    def __call__(self, word: str, draw: Callable[[], float]) -> list[int]:
        """Ids of the pieces; `draw` gives numbers in [0, 1). A character without a piece is <unk>."""


class _Ends(NamedTuple):
    """The pieces that may end at some place of a word: where they begin, their ids, and their chances added up."""

    begins: list[int]
    ids: list[int]
    chances: list[float]


class UnigramSampler:
    """Draws a cut x with P(x)^rate / sum over all cuts (Kudo 2018, eq. 7 with l -> infinity): forward, then backward.

    Args:
        pieces: all but the special tokens.
        rate: the exponent.
    """

    def __init__(self, pieces: Mapping[str, Piece], rate: float) -> None:
        self._weights = {text: (piece.id, rate * piece.score) for text, piece in pieces.items()}
        self._longest = max(map(len, pieces))
        self._unknown = rate * (min(piece.score for piece in pieces.values()) - _UNKNOWN_PENALTY)
        self._remembered = lru_cache(_MOST_REMEMBERED)(self._lattice)

    def __call__(self, word: str, draw: Callable[[], float]) -> list[int]:
        """Ids of the pieces."""
        lattice = (self._remembered if len(word) <= _LONGEST_REMEMBERED else self._lattice)(word)
        ids, end = [], len(word)
        while end:
            ends = lattice[end]
            chosen = bisect(ends.chances, draw())
            ids.append(ends.ids[chosen])
            end = ends.begins[chosen]
        return ids[::-1]

    def _lattice(self, word: str) -> list[_Ends]:
        """For each place of a word, which pieces end there, and how likely each is the last of a cut up to it."""
        totals, lattice = [0.0], [_Ends([], [], [])]  # log of the summed weights of all cuts up to a place
        for end in range(1, len(word) + 1):
            begins, ids, weights = [], [], []
            for begin in range(max(0, end - self._longest), end):
                if (found := self._weights.get(word[begin:end])) is not None:
                    begins.append(begin)
                    ids.append(found[0])
                    weights.append(totals[begin] + found[1])
            if not begins or begins[-1] != end - 1:
                begins.append(end - 1)
                ids.append(UNK_ID)
                weights.append(totals[end - 1] + self._unknown)
            likeliest = max(weights)
            sums = list(accumulate(math.exp(weight - likeliest) for weight in weights))
            totals.append(likeliest + math.log(sums[-1]))
            lattice.append(_Ends(begins, ids, [part / sums[-1] for part in sums]))  # the last is 1 and above any draw
        return lattice


class BpeSampler:
    """Merges as BPE does, but at each step leaves out each possible merge with probability `rate`.

    Args:
        pieces: all but the special tokens.
        rate: share of merges that are left out.
    """

    def __init__(self, pieces: Mapping[str, Piece], rate: float) -> None:
        self._pieces = pieces
        self._rate = rate

    def __call__(self, word: str, draw: Callable[[], float]) -> list[int]:
        """Ids of the pieces."""
        parts = list(word)
        while True:
            best, place = -math.inf, None
            for i in range(len(parts) - 1):
                merged = self._pieces.get(parts[i] + parts[i + 1])
                if merged is not None and draw() >= self._rate and merged.score > best:
                    best, place = merged.score, i
            if place is None:
                return [self._pieces[part].id if part in self._pieces else UNK_ID for part in parts]
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
