"""What is known of a translated text: the pieces that it was translated in, their candidates, and remarks on it."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from utils.text.language import has_words
from utils.text.protected import Masked, Span

SEARCHED_AGAIN, CUT = "searched again", "cut"  # what is done with loops


def perplexity(log_prob: float, n_tokens: int) -> float:
    """Return exp of the mean negative log-probability of tokens: 1 where there are none; finite, however bad they are.

    JSON has no infinity.
    """
    return math.exp(min(700.0, -log_prob / max(1, n_tokens)))


class Candidate(NamedTuple):
    """One way to translate a text."""

    text: str
    score: float  # log-probability over penalty, summed over the pieces of a long text
    tokens: list[str]
    ids: list[int]  # of the tokens


class Piece(NamedTuple):
    """What is translated at a time: a text, a sentence of it, or a part of a sentence that the model cannot hold."""

    source: str  # empty before a gap at the beginning, such as the marker of a list
    ids: list[int]  # none where it has no word, or the vocabulary has nothing of it: it stays as it is
    gap: str  # what stands behind its translation: nothing, a space, or what parts the cells and lines of the text
    candidates: Sequence[Candidate] = ()  # best first; none before it is translated
    masked: Masked = Masked("")  # what the ids are of
    lost: Sequence[Span] = ()  # of the best candidate
    loop: str = ""  # what was done as the model repeated itself: SEARCHED_AGAIN or CUT

    @property
    def best(self) -> Candidate:
        """Its best translation."""
        return self.candidates[0]


class Translation(NamedTuple):
    """A translated text."""

    candidates: list[Candidate]  # best first; as many as were requested and found, at least one
    pieces: list[Piece]  # none for an empty text
    unknown_tokens: list[str]  # of the source, not in the vocabulary: the model reads <unk> in their place
    perplexity: float = 1.0  # of the best candidate by the model's own probabilities, per token
    is_far: bool = False  # from what the model has learned from: its perplexity is above what the search allows
    terms: Sequence[tuple[str, bool]] = ()  # of a glossary, for the source; whether the best candidate has each

    @property
    def text(self) -> str:
        """Text of the best candidate."""
        return self.candidates[0].text

    @property
    def unknown(self) -> bool:
        """Whether it has words, but none in the vocabulary, so that it is returned unchanged."""
        return not any(piece.ids for piece in self.pieces) and any(has_words(piece.source) for piece in self.pieces)

    @property
    def wordless(self) -> list[str]:
        """The sentences of which the best candidate has no word."""
        translated = [piece for piece in self.pieces if piece.ids and has_words(piece.source)]
        return [piece.source for piece in translated if not has_words(piece.best.text)]

    @property
    def loop(self) -> str:
        """What was done where the model repeated itself: of a piece that was cut, if there is one; "": nothing."""
        loops = {piece.loop for piece in self.pieces}
        return next((done for done in (CUT, SEARCHED_AGAIN) if done in loops), "")

    @property
    def dropped(self) -> list[str]:
        """Numbers, addresses and the like that the text has and the best candidate has not."""
        return [span.text for piece in self.pieces for span in piece.lost]

    @property
    def remarks(self) -> dict[str, Any]:
        """What its reader should know, by fields of JSON: a truth value, or words; false or empty where all is well."""
        return {
            "unknown": self.unknown,
            "unknown_tokens": self.unknown_tokens,
            "far": self.is_far,
            "loop": self.loop,
            "wordless": self.wordless,
            "dropped": self.dropped,
        }
