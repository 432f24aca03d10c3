"""From texts to translations: split, batch by length, search, choose, join, in the order of the input."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from config.data import primary_language
from config.search import Hypothesis, SamplingConfig, SearchConfig
from const.token import UNK_ID
from utils.search.glossary import Glossary
from utils.search.request import Request
from utils.text.language import ADDRESS, UNSPACED
from utils.text.sentence import split_long, split_sentences
from utils.text.tokenizer import TokenizerPair

if TYPE_CHECKING:
    import torch

    from utils.search.beam import BeamStep
    from utils.search.constraint import Searchable

_ON_A_GPU = 8  # times as many tokens in a batch: the launches of a step take as long for a small one
_MOST_PIECES = 2**20  # no text is split into more


class Candidate(NamedTuple):
    """One way to translate a text."""

    text: str
    score: float  # log-probability over penalty, summed over the pieces of a long text
    tokens: list[str]
    ids: list[int]  # of the tokens


class Piece(NamedTuple):
    """What is translated at a time: a text, a sentence of it, or a part of a sentence that the model cannot hold."""

    source: str
    ids: list[int]  # none where the vocabulary has nothing of it: it stays as it is
    gap: str  # what stands behind its translation: nothing, a space, or the line breaks of the text
    candidates: Sequence[Candidate] = ()  # best first; none before it is translated

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
        """Whether nothing of the text is in the vocabulary, so that it is returned unchanged."""
        return bool(self.pieces) and not any(piece.ids for piece in self.pieces)

    @property
    def dropped(self) -> list[str]:
        """Addresses on the web and of e-mail that the text has and the best candidate has not."""
        return [found for piece in self.pieces for found in ADDRESS.findall(piece.source) if found not in self.text]


@dataclass(eq=False)
class Translator:
    """Translates with a trained model."""

    model: "Searchable[Any]"  # ready for inference
    tokenizers: TokenizerPair  # that it was trained with
    tgt_lang: str  # language code of the target, which determines how sentences are joined
    search: SearchConfig
    window: int  # most source tokens at a time, </s> included
    longest: int  # most target tokens, </s> included
    device: "torch.device"  # of the model
    sampling: SamplingConfig | None = None  # draw translations instead of searching for the likeliest
    minimum_bayes_risk: bool = False  # order candidates by how much they agree with each other, not by score
    on_step: "Callable[[BeamStep], object] | None" = None  # watches each step of the beam search
    glossary: Glossary | None = None  # terms that translations are to have

    tokens_per_batch: ClassVar[int] = 16384  # source positions, padding included, times rows per sentence

    def translate(
        self,
        texts: Sequence[str],
        on_progress: Callable[[int], object] = lambda _: None,
        n_best: int = 1,
        prefixes: Sequence[str] | None = None,
        first: int = 0,
    ) -> list[Translation]:
        """Translate texts; an empty one (or only spaces) stays empty, one of only unknown characters stays as it is.

        So does a sentence of only unknown characters in a text that is translated sentence by sentence.

        Args:
            texts: the texts, each a single line.
            on_progress: called with the number of texts that have just been finished.
            n_best: most candidates per text.
            prefixes: what each translation (of a long text, its first piece) must begin with.
            first: number of the first text, where the texts are part of a longer input; sampling depends on it.
        """
        forced = self._encode_prefixes(prefixes) if prefixes is not None else [[] for _ in texts]
        encoded = self.tokenizers.src.encode(texts)
        split = [self._pieces(ids, text) for ids, text in zip(encoded, texts, strict=True)]
        known = [
            (text, place, piece)
            for text, pieces in enumerate(split)
            for place, piece in enumerate(piece for piece in pieces if piece.ids)
        ]
        left = Counter(text for text, *_ in known)
        on_progress(len(texts) - len(left))

        def count_done(rows: Sequence[int]) -> None:
            done = Counter(known[row][0] for row in rows)
            left.subtract(done)
            on_progress(sum(left[text] == 0 for text in done))

        requests = [
            self.request(piece.ids, [] if place else forced[text], (first + text) * _MOST_PIECES + place)
            for text, place, piece in known
        ]
        n_found = None if self.minimum_bayes_risk else n_best
        found = self.find(requests, n_found, count_done)
        if (glossary := self.glossary) is not None:  # what has its terms stays as it is
            read = [glossary.wanted(piece.source) for *_, piece in known]
            lacking = [i for i, each in enumerate(found) if not all(read[i].accepts(ids) for ids, _ in each[:n_found])]
            again = self.find([requests[i]._replace(wanted=read[i]) for i in lacking], n_found)
            for i, with_terms in zip(lacking, again, strict=True):
                found[i] = with_terms
        candidates = iter(self._decode(found, n_best))
        translations = []
        for of_text in split:
            pieces = [
                one._replace(candidates=next(candidates) if one.ids else _unchanged(one.source)) for one in of_text
            ]
            joined = _joined(pieces) if pieces else _unchanged("")
            unread = [zip(piece.ids, self.source_tokens(piece), strict=True) for piece in pieces if UNK_ID in piece.ids]
            unknown = [token for piece in unread for i, token in piece if i == UNK_ID]
            perplexity = self._perplexity([piece.best for piece in pieces if piece.ids])
            is_far = 0 < self.search.max_perplexity < perplexity
            covered = [glossary.coverage(piece.source, piece.best.tokens) for piece in pieces] if glossary else []
            translations.append(Translation(joined, pieces, unknown, perplexity, is_far, [*chain(*covered)]))
        return translations

    def _perplexity(self, found: Sequence[Candidate]) -> float:
        lengths = [len(one.tokens) + 1 for one in found]
        log_probs = [self.search.log_prob(one.score, length) for one, length in zip(found, lengths, strict=True)]
        return math.exp(min(700.0, -sum(log_probs) / max(1, sum(lengths))))

    def source_tokens(self, piece: Piece) -> list[str]:
        """Return the tokens that are read; unknown ones as they stand in the text."""
        if UNK_ID not in piece.ids:
            return self.tokenizers.src.tokens(piece.ids)
        return self.tokenizers.src.split([piece.source])[0][: len(piece.ids)]

    def request(self, source: Sequence[int], prefix: Sequence[int] = (), number: int = 0) -> Request:
        """Return a request for source ids, with the bounds that the settings and the model set."""
        return Request(source, self.search.bounds(len(source) + 1, self.longest), prefix, number)

    def find(
        self,
        requests: Sequence[Request],
        n_best: int | None = 1,
        on_progress: Callable[[Sequence[int]], object] = lambda _: None,
    ) -> list[list[Hypothesis]]:
        """Return hypotheses, best first, for each request; batched, longest first.

        Arguments as for `beam_search`; `on_progress` is called with the places of those that have just been finished.
        """
        found: list[list[Hypothesis]] = [[] for _ in requests]
        width = self.sampling.n_samples if self.sampling else self.search.beam_size
        width += max((one.wanted.n_tokens for one in requests if one.wanted), default=0)
        budget = self.tokens_per_batch * (_ON_A_GPU if str(self.device).startswith("cuda") else 1) // width
        for rows in within_budget([len(one.source) + 1 for one in requests], budget):
            for i, best_first in zip(rows, self._search([requests[i] for i in rows], n_best), strict=True):
                found[i] = best_first
            on_progress(rows)
        return found

    def _search(self, requests: Sequence[Request], n_best: int | None) -> list[list[Hypothesis]]:
        """Return hypotheses for each request of a batch."""
        # only now: CTranslate2 searches without torch, which takes seconds to import
        from utils.search.beam import beam_search
        from utils.search.sampling import greedy_search, sample

        if self.sampling is not None:
            return sample(self.model, requests, self.search, self.sampling, self.device)
        # a beam of one finds the same, step by step
        if self.search.beam_size == 1 and self.on_step is None and requests[0].wanted is None:
            return [[best] for best in greedy_search(self.model, requests, self.search, self.device)]
        return beam_search(self.model, requests, self.search, self.device, n_best, self.on_step)

    def _decode(self, found: list[list[Hypothesis]], n_best: int) -> list[list[Candidate]]:
        """Return the candidates of each piece, best first."""
        tgt = self.tokenizers.tgt
        if not self.minimum_bayes_risk:
            found = [hypotheses[:n_best] for hypotheses in found]
        texts = iter(tgt.decode([hypothesis.ids for hypotheses in found for hypothesis in hypotheses]))
        pieces = [[Candidate(next(texts), score, tgt.tokens(ids), ids) for ids, score in each] for each in found]
        if not self.minimum_bayes_risk:
            return pieces
        order = [by_expected_chrf([one.text for one in piece], self._votes(piece)) for piece in pieces]
        return [[piece[i] for i in best[:n_best]] for best, piece in zip(order, pieces, strict=True)]

    def _votes(self, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        """Return what each candidate counts: samples come as often as they are likely, those of a beam only once."""
        if self.sampling is not None:
            return np.ones(len(candidates))
        log_probs = np.array([self.search.log_prob(one.score, len(one.tokens) + 1) for one in candidates])
        return np.exp(log_probs - log_probs.max())

    def _encode_prefixes(self, prefixes: Sequence[str]) -> list[list[int]]:
        encoded = self.tokenizers.tgt.encode(prefixes)
        for ids, prefix in zip(encoded, prefixes, strict=True):
            if UNK_ID in ids:
                raise ValueError(f"the prefix {prefix!r} has characters outside the vocabulary: remove them")
            if len(ids) >= self.longest:
                raise ValueError(f"the prefix has {len(ids)} tokens, the model holds {self.longest - 1}: shorten it")
        return encoded

    def _is_known(self, ids: list[int]) -> bool:
        """Return whether the ids are more than tags, spaces and unknown characters."""
        ids = ids[len(self.tokenizers.tags) :]
        tokens = self.tokenizers.src.tokens(ids)
        return any(i != UNK_ID and token.strip("▁").strip() for i, token in zip(ids, tokens, strict=True))

    def _pieces(self, ids: list[int], text: str) -> list[Piece]:
        """Split a text into sentences, since that is what models learn from, and those that are too long into parts."""
        if not text.strip() or not self._is_known(ids):
            return [Piece(text, [], "")] if text.strip() else []
        is_split = self.search.by_sentence or len(ids) >= self.window
        whole = [found.span() for found in ADDRESS.finditer(text)] if is_split else []
        whole += self.glossary.places(text) if self.glossary and is_split else []
        sentences = split_sentences(text, whole) if is_split else []
        if len(ids) < self.window and len(sentences) < 2:
            return [Piece(text, ids, "")]
        found, space = [], "" if primary_language(self.tgt_lang) in UNSPACED else " "
        for sentence, gap in sentences:
            parts = split_long(sentence, self._fits)
            for part, of_part in zip(parts, self.tokenizers.src.encode(parts), strict=True):
                known = of_part[: self.window - 1] if self._is_known(of_part) else []
                found.append(Piece(part, known, space))
            found[-1] = found[-1]._replace(gap=gap if "\n" in gap else space)
        found[-1] = found[-1]._replace(gap="")
        return found

    def _fits(self, text: str) -> bool:
        return len(self.tokenizers.src.encode([text])[0]) < self.window


_ENOUGH, _MUCH = 128, 0.7  # sequences in a batch, and of the longest: both measured in translating on CPUs


def within_budget(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Yield the places of sequences, batch by batch, longest first, so that running out of memory shows at once.

    A batch has at most `budget` positions, padding included; a longer sequence is a batch by itself. Where it has
    enough to keep a processor busy, it ends at the first that is much shorter, which would be mostly padding.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    while order:
        longest = lengths[order[0]]
        n = max(1, budget // longest)
        shorter = (place for place in range(_ENOUGH, min(n, len(order))) if lengths[order[place]] < _MUCH * longest)
        n = next(shorter, n)
        rows, order = order[:n], order[n:]
        yield rows


def _joined(pieces: Sequence[Piece]) -> list[Candidate]:
    """Join the candidates of a text: the best of every piece, then the second best of those that have one, etc."""
    joined = []
    for rank in range(max(len(piece.candidates) for piece in pieces)):
        row = [piece.candidates[min(rank, len(piece.candidates) - 1)] for piece in pieces]
        text = "".join(one.text + piece.gap for one, piece in zip(row, pieces, strict=True))
        tokens, ids = ([*chain(*parts)] for parts in ([one.tokens for one in row], [one.ids for one in row]))
        joined.append(Candidate(text, sum(one.score for one in row), tokens, ids))
    return joined


def _unchanged(text: str) -> list[Candidate]:
    return [Candidate(text, 0.0, [], [])]


# Minimum Bayes risk: the candidate of the highest expected utility, argmax_h Σ_r p(r) u(h, r), Kumar & Byrne 2004 with
# the candidates of a beam, Eikema & Aziz 2022 with samples.

_ORDER = 6  # the longest character n-grams
_BETA = 2  # recall counts twice as much as precision


def by_expected_chrf(candidates: Sequence[str], votes: Sequence[float] | NDArray[np.float64]) -> list[int]:
    """Return the candidates' places, ordered by mean chrF2 against all of them, highest first.

    Each counts as a reference by its votes; those of the same text add up. Ties keep their order.
    """
    by_text = dict.fromkeys(candidates, 0.0)
    for text, vote in zip(candidates, votes, strict=True):
        by_text[text] += vote
    mean = pairwise_chrf(list(by_text)) @ np.array(list(by_text.values())) / sum(by_text.values())
    # sums of the same numbers in another order differ in their last digits, which must not decide
    expected = dict(zip(by_text, mean.round(9).tolist(), strict=True))
    return sorted(range(len(candidates)), key=lambda i: -expected[candidates[i]])


def pairwise_chrf(texts: Sequence[str]) -> NDArray[np.float64]:
    """Return chrF2 (0 to 100) of each text (row) against each as the reference (column), as sacreBLEU computes it."""
    n = len(texts)
    characters = ["".join(text.split()) for text in texts]
    precision, recall, orders = np.zeros((n, n)), np.zeros((n, n)), np.zeros((n, n))
    for order in range(1, _ORDER + 1):
        ngrams = [Counter(text[i : i + order] for i in range(len(text) - order + 1)) for text in characters]
        # the second "a" of a text counts as a different element from its first
        elements = [{(ngram, i) for ngram, times in of_text.items() for i in range(times)} for of_text in ngrams]
        matches = np.array([[len(one & other) for other in elements] for one in elements], float).reshape(n, n)
        counts = np.maximum(matches.diagonal(), 1)
        precision += matches / counts[:, None]
        recall += matches / counts
        orders += np.minimum.outer(matches.diagonal(), matches.diagonal()) > 0  # both texts are long enough
    precision, recall = precision / np.maximum(orders, 1), recall / np.maximum(orders, 1)
    return 100 * (1 + _BETA**2) * precision * recall / np.maximum(_BETA**2 * precision + recall, 1e-16)
