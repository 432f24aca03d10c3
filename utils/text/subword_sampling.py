"""Cutting words into pieces at random: Kudo 2018 (unigram) and BPE-dropout (Provilkov et al. 2020).

SentencePiece samples too, but its generator cannot be seeded so that two processes draw the same.
"""

import math
from bisect import bisect
from collections.abc import Callable, Mapping
from functools import lru_cache
from heapq import heappop, heappush
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
    """Merges as BPE does, but leaves out each merge with probability `rate` when its turn comes.

    As in SentencePiece, what was left out comes back only when a neighbour grows. The paper draws anew for all merges
    at each step and ends when none is left, which drops hardly anything where a whole sentence is one word (Japanese).

    Args:
        pieces: all but the special tokens.
        rate: share of merges that are left out.
    """

    def __init__(self, pieces: Mapping[str, Piece], rate: float) -> None:
        self._pieces = pieces
        self._rate = rate

    def __call__(self, word: str, draw: Callable[[], float]) -> list[int]:
        """Ids of the pieces."""
        end = len(word)
        parts = list(word)  # a part that was merged into the one before it is empty
        before, after = list(range(-1, end - 1)), list(range(1, end + 1))
        agenda: list[tuple[float, int, str]] = []  # merges: the first to be made, the leftmost of equals

        def offer(left: int) -> None:
            if left >= 0 and after[left] < end:
                merged = parts[left] + parts[after[left]]
                if merged in self._pieces:
                    heappush(agenda, (-self._pieces[merged].score, left, merged))

        for left in range(end - 1):
            offer(left)
        while agenda:
            _, left, merged = heappop(agenda)
            right = after[left]
            if right == end or parts[left] + parts[right] != merged or draw() < self._rate:
                continue  # one of the two has become part of another, or chance leaves it out
            parts[left], parts[right] = merged, ""
            after[left], after[right] = after[right], end
            if after[left] < end:
                before[after[left]] = left
            offer(before[left])
            offer(left)
        return [self._pieces[part].id if part in self._pieces else UNK_ID for part in parts if part]
