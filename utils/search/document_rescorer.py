"""(log p(y|x) + w · log p(y|the translations before y)) / lp(y): of n-best candidates the one that fits its document.

Shallow fusion after the search (Gulcehre et al. 2015, eq. 7), by a language model that remembers what was chosen.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from utils.search.hypothesis import SearchConfig
from utils.search.translator import Candidate, Translation
from utils.text.tokenizer import Tokenizer


class SentenceScorer(Protocol):
    """What reads a document sentence by sentence; see `DocumentScorer`."""

    memory_length: int

    def new_document(self) -> None:
        """Forget everything."""

    def log_probs(self, candidates: Sequence[Sequence[int]]) -> list[float]:
        """Of each candidate as the next sentence."""

    def choose(self, i: int) -> None:
        """Go on behind candidate i of those that were last asked about."""


class Origin(NamedTuple):
    """What a candidate was before."""

    rank: int  # from 1
    score: float  # of the translator
    log_prob: float | None  # of the language model, given the document so far; None where there was nothing to read


class Rescored(NamedTuple):
    """A translation whose candidates are in another order."""

    translation: Translation  # best first; the scores are of both models
    origins: list[Origin]  # of each candidate

    def best(self, n: int) -> "Rescored":
        """The first n candidates alone."""
        return Rescored(self.translation._replace(candidates=self.translation.candidates[:n]), self.origins[:n])


@dataclass
class DocumentRescorer:
    """Orders the candidates of sentence after sentence; the best one of each is what the next ones stand behind.

    Args:
        scorer: of the language model.
        tokenizer: of the language model, which need not be the translator's.
        weight: w, of the language model's log-probabilities; 0: the order stays.
        search: what the candidates were found with, for its length penalty.
    """

    scorer: SentenceScorer
    tokenizer: Tokenizer
    weight: float
    search: SearchConfig

    def new_document(self) -> None:
        """What comes next stands behind nothing."""
        self.scorer.new_document()

    def rescore(self, translation: Translation) -> Rescored:
        """The next sentence of the document; what was not translated (it is empty, or unknown) is not read either."""
        candidates = translation.candidates
        if not translation.n_pieces:
            origins = [Origin(rank, candidate.score, None) for rank, candidate in enumerate(candidates, 1)]
            return Rescored(translation, origins)
        log_probs = self.scorer.log_probs(self.tokenizer.encode([candidate.text for candidate in candidates]))
        totals = [
            candidate.score + self.weight * log_prob / self._penalty(candidate, translation.n_pieces)
            for candidate, log_prob in zip(candidates, log_probs, strict=True)
        ]
        order = sorted(range(len(candidates)), key=lambda i: -totals[i])  # of equals the one that was ahead
        self.scorer.choose(order[0])
        return Rescored(
            translation._replace(candidates=[candidates[i]._replace(score=totals[i]) for i in order]),
            [Origin(i + 1, candidates[i].score, log_probs[i]) for i in order],
        )

    def rescore_documents(
        self, documents: Sequence[Sequence[Translation]], on_progress: Callable[[int], object] = lambda _: None
    ) -> list[Rescored]:
        """The sentences of these documents, one after the other."""
        found = []
        for document in documents:
            self.new_document()
            for translation in document:
                found.append(self.rescore(translation))
                on_progress(1)
        return found

    def _penalty(self, candidate: Candidate, n_pieces: int) -> float:
        """What the translator's log-probability was divided by; of several pieces, that of one of mean length."""
        return self.search.penalty(round(len(candidate.tokens) / n_pieces) + 1)
