"""From texts to translations: split, batch by length, search, choose, join, in the order of the input."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from config.data import primary_language
from config.search import Hypothesis, SamplingConfig, SearchConfig
from const.token import UNK_ID
from utils.search.glossary import Glossary
from utils.search.searcher import Request, Sampling, Searcher
from utils.text.language import ADDRESS, UNSPACED
from utils.text.sentence import split_long, split_sentences
from utils.text.tokenizer import TokenizerPair

_MAX_PIECES = 2**20  # no text is split into more


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
        """Whether nothing of the text is in the vocabulary, so that it is returned unchanged."""
        return bool(self.pieces) and not any(piece.ids for piece in self.pieces)

    @property
    def loop(self) -> str:
        """What was done where the model repeated itself: of a piece that was cut, if there is one; "": nothing."""
        loops = {piece.loop for piece in self.pieces}
        return next((done for done in (CUT, SEARCHED_AGAIN) if done in loops), "")

    @property
    def dropped(self) -> list[str]:
        """Addresses on the web and of e-mail that the text has and the best candidate has not."""
        addresses = [address for piece in self.pieces for address in ADDRESS.findall(piece.source)]
        return [address for address in addresses if address not in self.text]


@dataclass(eq=False)
class Translator:
    """Translates texts with what searches for translations of token ids."""

    searcher: Searcher
    tokenizers: TokenizerPair  # that its model was trained with
    tgt_lang: str  # language code of the target, which determines how sentences are joined
    search: SearchConfig
    window: int  # most source tokens at a time, </s> included
    longest: int  # most target tokens, </s> included
    minimum_bayes_risk: bool = False  # order candidates by how much they agree with each other, not by score
    glossary: Glossary | None = None  # terms that translations are to have

    @property
    def sampling(self) -> SamplingConfig | None:
        """How translations are drawn; None: they are searched for."""
        return self.searcher.sampling if isinstance(self.searcher, Sampling) else None

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
        begun = self._encode_prefixes(prefixes) if prefixes is not None else [[] for _ in texts]
        encoded = self.tokenizers.src.encode(texts)
        split = [self._pieces(ids, text) for ids, text in zip(encoded, texts, strict=True)]
        owners, requests = list[int](), list[Request]()  # the number of the text of each request
        for text, pieces in enumerate(split):
            for place, piece in enumerate(piece for piece in pieces if piece.ids):
                number = (first + text) * _MAX_PIECES + place
                requests.append(self.request(piece.ids, [] if place else begun[text], number))
                owners.append(text)
        left = Counter(owners)
        on_progress(len(texts) - len(left))

        def count_done(rows: Sequence[int]) -> None:
            done = Counter(owners[row] for row in rows)
            left.subtract(done)
            on_progress(sum(left[text] == 0 for text in done))

        n_found = None if self.minimum_bayes_risk else n_best
        hypotheses = self.find(requests, n_found, count_done)
        if (glossary := self.glossary) is not None:  # what has its terms stays as it is
            wanted = [glossary.wanted(piece.source) for pieces in split for piece in pieces if piece.ids]
            lacking = [
                i for i, best in enumerate(hypotheses) if not all(wanted[i].accepts(ids) for ids, _ in best[:n_found])
            ]
            again = self.find([requests[i]._replace(wanted=wanted[i]) for i in lacking], n_found)
            for i, with_terms in zip(lacking, again, strict=True):
                hypotheses[i] = with_terms
        candidates = self._decode(hypotheses, n_best)
        sources = [piece.source for pieces in split for piece in pieces if piece.ids]
        loops = self._end_loops(requests, sources, candidates, n_best)
        found = ({"candidates": of_piece, "loop": loops.get(i, "")} for i, of_piece in enumerate(candidates))
        return [self._translation(pieces, found) for pieces in split]

    def _end_loops(
        self, requests: Sequence[Request], sources: Sequence[str], candidates: list[list[Candidate]], n_best: int
    ) -> dict[int, str]:
        """Replace, in place, the candidates of pieces of which the best is a loop; return what was done, by place.

        They are searched for again with no n-gram twice; what is a loop then, too, or may repeat as its source does, or
        must have terms, is cut where it has repeated itself.
        """
        done = {i: SEARCHED_AGAIN for i, source in enumerate(sources) if is_loop(candidates[i][0].text, source)}
        free = [i for i in done if self.glossary is None or not self.glossary.wanted(sources[i]).n_tokens]
        again = [i for i in free if repetitions(sources[i]) <= _OFTEN]
        blocked = replace(self, search=replace(self.search, no_repeat_ngram=_BLOCKED))
        hypotheses = blocked.find([requests[i] for i in again], None if self.minimum_bayes_risk else n_best)
        for i, of_piece in zip(again, self._decode(hypotheses, n_best), strict=True):
            candidates[i] = of_piece
        for i in done:
            if is_loop(candidates[i][0].text, sources[i]):
                done[i], candidates[i][0] = CUT, self._cut(candidates[i][0], sources[i])
        return done

    def _cut(self, candidate: Candidate, source: str) -> Candidate:
        """Return the beginning of a loop, with what it repeats once, or as often as the source repeats something."""
        times = repetitions(source)
        row = next(row for row in _rows(candidate.text, _EXTRA) if _times(row) > max(_OFTEN, times))
        end = row.start() + len(row[1]) * times
        texts = self.tokenizers.tgt.decode([candidate.ids[:n] for n in range(len(candidate.ids) + 1)])
        n = max(range(len(texts)), key=lambda n: len(texts[n].rstrip()) * (len(texts[n]) <= end))
        return Candidate(texts[n], candidate.score, candidate.tokens[:n], candidate.ids[:n])

    def _translation(self, pieces: Sequence[Piece], found: Iterator[dict[str, Any]]) -> Translation:
        """Join the pieces of a text, each with what was found next; what has no ids stays as it is."""
        pieces = [
            piece._replace(**next(found) if piece.ids else {"candidates": _unchanged(piece.source)}) for piece in pieces
        ]
        unread = [zip(piece.ids, self.source_tokens(piece), strict=True) for piece in pieces if UNK_ID in piece.ids]
        best = [piece.best for piece in pieces if piece.ids]
        n_tokens = sum(len(candidate.tokens) + 1 for candidate in best)
        perplexity = math.exp(min(700.0, -sum(map(self._log_prob, best)) / max(1, n_tokens)))
        covered = [self.glossary.coverage(piece.source, piece.best.tokens) for piece in pieces] if self.glossary else []
        return Translation(
            _joined(pieces) if pieces else _unchanged(""),
            pieces,
            [token for tokens in unread for i, token in tokens if i == UNK_ID],
            perplexity,
            0 < self.search.max_perplexity < perplexity,
            [*chain(*covered)],
        )

    def _log_prob(self, candidate: Candidate) -> float:
        return self.search.log_prob(candidate.score, len(candidate.tokens) + 1)

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
        hypotheses: list[list[Hypothesis]] = [[] for _ in requests]
        width = self.sampling.n_samples if self.sampling else self.search.beam_size
        width += max((request.wanted.n_tokens for request in requests if request.wanted), default=0)
        lengths = [len(request.source) + 1 for request in requests]
        for rows in within_budget(lengths, self.searcher.tokens_per_batch // width):
            best_first = self.searcher([requests[i] for i in rows], self.search, n_best)
            for i, of_request in zip(rows, best_first, strict=True):
                hypotheses[i] = of_request
            on_progress(rows)
        return hypotheses

    def _decode(self, hypotheses: Sequence[Sequence[Hypothesis]], n_best: int) -> list[list[Candidate]]:
        """Return the candidates of each piece, best first."""
        tgt, n_kept = self.tokenizers.tgt, None if self.minimum_bayes_risk else n_best
        kept = [best_first[:n_kept] for best_first in hypotheses]
        texts = iter(tgt.decode([ids for of_piece in kept for ids, _ in of_piece]))
        pieces = [[Candidate(next(texts), score, tgt.tokens(ids), ids) for ids, score in of_piece] for of_piece in kept]
        if not self.minimum_bayes_risk:
            return pieces
        order = [by_expected_chrf([candidate.text for candidate in piece], self._votes(piece)) for piece in pieces]
        return [[piece[i] for i in places[:n_best]] for places, piece in zip(order, pieces, strict=True)]

    def _votes(self, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        """Return what each candidate counts: samples come as often as they are likely, those of a beam only once."""
        if self.sampling is not None:
            return np.ones(len(candidates))
        log_probs = np.array([*map(self._log_prob, candidates)])
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
        whole = [address.span() for address in ADDRESS.finditer(text)] if is_split else []
        whole += self.glossary.places(text) if self.glossary and is_split else []
        sentences = split_sentences(text, whole) if is_split else []
        if len(ids) < self.window and len(sentences) < 2:
            return [Piece(text, ids, "")]
        pieces, space = [], "" if primary_language(self.tgt_lang) in UNSPACED else " "
        for sentence, gap in sentences:
            parts = split_long(sentence, self._fits)
            for part, of_part in zip(parts, self.tokenizers.src.encode(parts), strict=True):
                pieces.append(Piece(part, of_part[: self.window - 1] if self._is_known(of_part) else [], space))
            pieces[-1] = pieces[-1]._replace(gap=gap if "\n" in gap else space)
        pieces[-1] = pieces[-1]._replace(gap="")
        return pieces

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
        parts = [piece.candidates[min(rank, len(piece.candidates) - 1)] for piece in pieces]
        text = "".join(part.text + piece.gap for part, piece in zip(parts, pieces, strict=True))
        tokens, ids = [*chain(*(part.tokens for part in parts))], [*chain(*(part.ids for part in parts))]
        joined.append(Candidate(text, sum(part.score for part in parts), tokens, ids))
    return joined


def _unchanged(text: str) -> list[Candidate]:
    return [Candidate(text, 0.0, [], [])]


# Loops: what a model is led into by a source unlike those that it has learned from, the same again and again.

SEARCHED_AGAIN, CUT = "searched again", "cut"
_BLOCKED = 3  # no n-gram of this many tokens occurs twice in what is searched for again
_OFTEN = 2  # what stands in a row more often, in a translation and not in its source, is a loop
_EXTRA = 8  # characters that the repetitions of a loop have at least
_LONGEST = 50  # characters of what is repeated
_REPEATED = re.compile(rf"(?s)(.{{1,{_LONGEST}}}?)\1{{2,}}")
_ZEROS = re.compile(r"[0,.]*0[0,.]*")  # of 1,000,000,000


def _rows(text: str, extra: int = 1) -> list[re.Match[str]]:
    """Return what stands in a row three times or more, whose repetitions have `extra` characters, from the left."""
    rows = (row for row in _REPEATED.finditer(text) if not _ZEROS.fullmatch(row[1]))
    return [row for row in rows if len(row[0]) - len(row[1]) >= extra]


def _times(row: re.Match[str]) -> int:
    return len(row[0]) // len(row[1])


def repetitions(text: str, extra: int = 1) -> int:
    """Return how often something stands in a row, at most; 1: nothing does three times."""
    return max(map(_times, _rows(text, extra)), default=1)


def is_loop(text: str, source: str) -> bool:
    """Return whether a translation repeats something again and again, and more often than its source does."""
    places = dict[str, int]()  # where each part was last
    for place in range(len(text) - _EXTRA + 1):  # in most texts nothing is soon there again, which is found out quickly
        part = text[place : place + _EXTRA]
        n = place - places.get(part, -_LONGEST - 1)
        if n <= _LONGEST and text.startswith(text[place - n : place + n], place):
            return (times := repetitions(text, _EXTRA)) > _OFTEN and times > repetitions(source)
        places[part] = place
    return False


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
        matches = np.array([[len(a & b) for b in elements] for a in elements], float).reshape(n, n)
        counts = np.maximum(matches.diagonal(), 1)
        precision += matches / counts[:, None]
        recall += matches / counts
        orders += np.minimum.outer(matches.diagonal(), matches.diagonal()) > 0  # both texts are long enough
    precision, recall = precision / np.maximum(orders, 1), recall / np.maximum(orders, 1)
    return 100 * (1 + _BETA**2) * precision * recall / np.maximum(_BETA**2 * precision + recall, 1e-16)
