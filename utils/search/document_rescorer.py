"""Rescoring of n-best lists in document context: (log p(y|x) + w · log p(y|the translations before y)) / lp(y).

Shallow fusion after the search (Gulcehre et al. 2015, eq. 7), with a language model that remembers what was chosen.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from utils.search.document_scorer import DocumentScorer
from utils.search.hypothesis import SearchConfig
from utils.search.translator import Candidate, Translation
from utils.text.tokenizer import Tokenizer


class Origin(NamedTuple):
    """Where a candidate stood before rescoring."""

    rank: int  # from 1
    score: float  # the translator's
    log_prob: float | None  # the language model's, given the document so far; None where there was nothing to read


class Rescored(NamedTuple):
    """A translation with its candidates in their new order."""

    translation: Translation  # best first; the scores combine both models
    origins: list[Origin]  # one for each candidate

    def best(self, n: int) -> "Rescored":
        """Return the first n candidates only."""
        return Rescored(self.translation._replace(candidates=self.translation.candidates[:n]), self.origins[:n])


@dataclass(frozen=True)
class DocumentRescorer:
    """Reorders the candidates of one sentence after another; the best one of each is the context of the next.

    Args:
        scorer: scorer of the language model.
        tokenizer: tokenizer of the language model, which need not be the translator's.
        weight: w, the weight of the language model's log-probabilities; 0: the order stays.
        search: settings that the candidates were found with, for their length penalty.
    """

    scorer: DocumentScorer
    tokenizer: Tokenizer
    weight: float
    search: SearchConfig

    def new_document(self) -> None:
        """Begin a document: the next sentence has no context."""
        self.scorer.new_document()

    def rescore(self, translation: Translation) -> Rescored:
        """Rescore the next sentence of the document; one that was not translated (empty or unknown) is skipped."""
        candidates = translation.candidates
        if not translation.n_pieces:
            origins = [Origin(rank, candidate.score, None) for rank, candidate in enumerate(candidates, 1)]
            return Rescored(translation, origins)
        log_probs = self.scorer.log_probs(self.tokenizer.encode([candidate.text for candidate in candidates]))
        totals = [
            candidate.score + self.weight * log_prob / self._penalty(candidate, translation.n_pieces)
            for candidate, log_prob in zip(candidates, log_probs, strict=True)
        ]
        order = sorted(range(len(candidates)), key=lambda i: -totals[i])  # among equals, the one that was ahead
        self.scorer.choose(order[0])
        return Rescored(
            translation._replace(candidates=[candidates[i]._replace(score=totals[i]) for i in order]),
            [Origin(i + 1, candidates[i].score, log_probs[i]) for i in order],
        )

    def rescore_documents(
        self, documents: Sequence[Sequence[Translation]], on_progress: Callable[[int], object] = lambda _: None
    ) -> list[Rescored]:
        """Rescore the sentences of these documents, one after another."""
        found = []
        for document in documents:
            self.new_document()
            for translation in document:
                found.append(self.rescore(translation))
                on_progress(1)
        return found

    def _penalty(self, candidate: Candidate, n_pieces: int) -> float:
        """Return what the translator's log-probability was divided by; for several pieces, that of a mean length."""
        return self.search.penalty(round(len(candidate.tokens) / n_pieces) + 1)
