"""Random segmentation of words: sub-word regularisation (Kudo 2018) and BPE-dropout (Provilkov et al. 2020).

SentencePiece samples too, but its generator cannot be seeded so that two processes draw the same.
"""

import math
from bisect import bisect
from collections.abc import Callable, Mapping
from functools import lru_cache
from heapq import heappop, heappush
from itertools import accumulate
from typing import NamedTuple

from const.token import UNK_ID

_UNKNOWN_PENALTY = 10.0  # as in SentencePiece: log-probability of its rarest piece minus that of an unknown character
_LONGEST_REMEMBERED = 16  # characters: words of a language with spaces recur, sentences of unspaced ones do not
_MAX_REMEMBERED = 2**15


class ScoredPiece(NamedTuple):
    """A piece's id and its score in the model: a log-probability, or (BPE) minus the number of its merge."""

    id: int
    score: float


class _Ends(NamedTuple):
    """The pieces that may end at some place of a word: where they begin, their ids, and their cumulative chances."""

    begins: list[int]
    ids: list[int]
    chances: list[float]


class UnigramSampler:
    """Draws a segmentation x by P(x)^rate / Σ P(x')^rate (Kudo 2018, eq. 7 with l -> infinity): forward, then backward.

    The pieces are all but the special tokens.
    """

    def __init__(self, pieces: Mapping[str, ScoredPiece], rate: float) -> None:
        self._weights = {text: (piece.id, rate * piece.score) for text, piece in pieces.items()}
        self._longest = max(map(len, pieces))
        self._unknown = rate * (min(piece.score for piece in pieces.values()) - _UNKNOWN_PENALTY)
        self._remembered = lru_cache(_MAX_REMEMBERED)(self._lattice)

    def __call__(self, word: str, draw: Callable[[], float]) -> list[int]:
        """Return the ids of the pieces of a word, <unk> where there is none; `draw` gives numbers in [0, 1)."""
        lattice = (self._remembered if len(word) <= _LONGEST_REMEMBERED else self._lattice)(word)
        ids, end = [], len(word)
        while end:
            ends = lattice[end]
            chosen = bisect(ends.chances, draw())
            ids.append(ends.ids[chosen])
            end = ends.begins[chosen]
        return ids[::-1]

    def _lattice(self, word: str) -> list[_Ends]:
        """For each place of a word, find the pieces that end there and their chances to be last in a segmentation."""
        totals, lattice = [0.0], [_Ends([], [], [])]  # log of the summed weights of all segmentations up to a place
        for end in range(1, len(word) + 1):
            begins, ids, weights = [], [], []
            for begin in range(max(0, end - self._longest), end):
                if (piece := self._weights.get(word[begin:end])) is not None:
                    begins.append(begin)
                    ids.append(piece[0])
                    weights.append(totals[begin] + piece[1])
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
    """Merges as BPE does, but skips each merge with probability `rate` when its turn comes.

    As in SentencePiece, a skipped merge comes back only when a neighbour grows. The paper draws again for all merges at
    each step and ends when none is left, which drops hardly anything where a whole sentence is one word (Japanese).
    """

    def __init__(self, pieces: Mapping[str, ScoredPiece], rate: float) -> None:
        self._pieces, self._rate = pieces, rate

    def __call__(self, word: str, draw: Callable[[], float]) -> list[int]:
        """Return the ids of the pieces of a word, <unk> where there is none; `draw` gives numbers in [0, 1)."""
        end = len(word)
        parts = list(word)  # a part that has been merged into the one before it is empty
        before, after = list(range(-1, end - 1)), list(range(1, end + 1))
        agenda: list[tuple[float, int, str]] = []  # merges, in order of their number, then from left to right

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
                continue  # one of the two has been merged with another part, or the merge is skipped
            parts[left], parts[right] = merged, ""
            after[left], after[right] = after[right], end
            if after[left] < end:
                before[after[left]] = left
            offer(before[left])
            offer(left)
        return [self._pieces[part].id if part in self._pieces else UNK_ID for part in parts if part]
