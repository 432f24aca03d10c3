"""From texts to translations: split, batch by length, search, choose, join, in the order of the input."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from config.data import primary_language
from config.search import Hypothesis, SamplingConfig, SearchConfig
from const.token import UNK_ID
from utils.search.expected_chrf import by_expected_chrf
from utils.search.glossary import Glossary
from utils.search.searcher import BeamSearch, Request, Sampling, Searcher, within_budget
from utils.search.translation import CUT, SEARCHED_AGAIN, Candidate, Piece, Translation, perplexity
from utils.text import loop
from utils.text.capitals import is_in_capitals, usual_case, without_emphasis
from utils.text.language import SCRIPTS, UNSPACED, has_words
from utils.text.protected import LEARNED, WORDS, Masked, StandIns, lost, masked, shown, spans, written
from utils.text.sentence import split_long, split_sentences
from utils.text.structure import split_cells
from utils.text.tokenizer import TokenizerPair

_BLOCKED = 3  # no n-gram of this many tokens occurs twice in what is searched for again
_LONG = 40  # tokens
_WORSE = 1.25  # times the perplexity, years and the like are where they do not belong, and were left out rightly
_MAX_PIECES = 2**20  # no text is split into more


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
    src_lang: str = ""  # language code of the source, by which its numbers are read; without it, nothing is protected

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
        """Translate texts, cell by cell and sentence by sentence, with what `split_cells` finds around them as it is.

        A text or a sentence without known letters or digits stays as it is, too. Where the best translation of others
        is empty or of signs alone, the best longer one with words takes its place, if there is one. Sentences in
        capitals are read as those are usually written; their translations are in capitals.

        Args:
            texts: the texts.
            on_progress: called with the number of texts that have just been finished.
            n_best: most candidates per text.
            prefixes: what each translation (of a long text, its first piece) must begin with.
            first: number of the first text, where the texts are part of a longer input; sampling depends on it.
        """
        begun = self._encode_prefixes(prefixes) if prefixes is not None else [[] for _ in texts]
        of_texts = [[(self._masked(cell.text), *cell) for cell in split_cells(text)] for text in texts]
        encoded = iter(self.tokenizers.src.encode([whole.text for cells in of_texts for whole, *_ in cells]))
        split = [[*chain(*(self._pieces(next(encoded), *cell) for cell in cells))] for cells in of_texts]
        owners, pieces, requests = list[int](), list[Piece](), list[Request]()  # owner: the number of the text
        for text, of_text in enumerate(split):
            for place, piece in enumerate(piece for piece in of_text if piece.ids):
                number = (first + text) * _MAX_PIECES + place
                requests.append(self.request(piece.ids, [] if place else begun[text], number))
                owners.append(text)
                pieces.append(piece)
        left = Counter(owners)
        on_progress(len(texts) - len(left))

        def count_done(rows: Sequence[int]) -> None:
            done = Counter(owners[row] for row in rows)
            left.subtract(done)
            on_progress(sum(left[text] == 0 for text in done))

        n_found = None if self.minimum_bayes_risk else n_best
        hypotheses = self.find(requests, n_found, count_done)
        if (glossary := self.glossary) is not None:  # what has its terms stays as it is
            wanted = [glossary.wanted(piece.source) for piece in pieces]
            lacking = [
                i for i, best in enumerate(hypotheses) if not all(wanted[i].accepts(ids) for ids, _ in best[:n_found])
            ]
            again = self.find([requests[i]._replace(wanted=wanted[i]) for i in lacking], n_found)
            for i, with_terms in zip(lacking, again, strict=True):
                hypotheses[i] = with_terms
        done = [*map(self._chosen, pieces, self._decode(hypotheses, n_best), requests)]
        for mend in (self._end_loops, self._search_words, self._search_lost):
            mend(done, requests, n_best)
        rest = iter(done)
        return [self._translation([next(rest) if piece.ids else piece for piece in of_text]) for of_text in split]

    def _end_loops(self, pieces: list[Piece], requests: Sequence[Request], n_best: int) -> None:
        """Search for loops again with no n-gram twice, in a beam no wider than needed, which takes half as long.

        What is a loop then, too, or may repeat as its source does, or must have terms, is cut where it repeats itself.
        """
        if not (loops := [i for i, piece in enumerate(pieces) if loop.is_loop(piece.best.text, piece.source)]):
            return
        free = [i for i in loops if self.glossary is None or not self.glossary.wanted(pieces[i].source).n_tokens]
        again = [i for i in free if loop.repetitions(pieces[i].source) <= loop.OFTEN]
        width = self.search.beam_size if self.minimum_bayes_risk else min(n_best, self.search.beam_size)
        blocked = replace(self, search=replace(self.search, no_repeat_ngram=_BLOCKED, beam_size=width))
        hypotheses = blocked.find([requests[i] for i in again], None if self.minimum_bayes_risk else n_best)
        for i, candidates in zip(again, self._decode(hypotheses, n_best), strict=True):
            pieces[i] = self._chosen(pieces[i], candidates, requests[i])._replace(loop=SEARCHED_AGAIN)
        for i in loops:
            first, *others = pieces[i].candidates
            cut = self._chosen(pieces[i], [self._cut(first, pieces[i].source)], requests[i])
            if cut.best.ids != first.ids:
                pieces[i] = cut._replace(candidates=[cut.best, *others], loop=CUT)

    def _cut(self, candidate: Candidate, source: str) -> Candidate:
        """Return the beginning of a loop, as far as it has not repeated itself; what is none, whole."""
        texts = self.tokenizers.tgt.decode([candidate.ids[:n] for n in range(len(candidate.ids) + 1)])
        if (end := loop.end_of_first(texts[-1], source)) is None:
            return candidate
        n = max(range(len(texts)), key=lambda n: len(texts[n].rstrip()) * (len(texts[n]) <= end))
        return Candidate(texts[n], candidate.score, candidate.tokens[:n], candidate.ids[:n])

    def _search_words(self, pieces: list[Piece], requests: Sequence[Request], n_best: int) -> None:
        """Search for longer translations of what has become empty or signs alone, and keep those with words."""
        if not (wordless := [i for i, piece in enumerate(pieces) if not has_words(piece.best.text)]):
            return
        longer = self.find([_longer(requests[i], len(pieces[i].best.ids)) for i in wordless], None)
        for i, candidates in zip(wordless, self._decode(longer, None), strict=True):
            others = self._chosen(pieces[i], candidates, requests[i]).candidates
            if with_words := [other for other in others if has_words(other.text)][:n_best]:
                pieces[i] = pieces[i]._replace(candidates=with_words)

    def _search_lost(self, pieces: list[Piece], requests: Sequence[Request], n_best: int) -> None:
        """Translate again, with stand-ins for all numbers, what has lost one of them; keep what has lost less.

        Not a long sentence that has lost a year or the like: it may do without, and seldom gains.
        """
        lacking = [
            (i, piece)
            for i, piece in enumerate(pieces)
            if any(span.is_hard for span in piece.lost) or (piece.lost and len(piece.ids) < _LONG)
        ]
        masks = [
            (i, self._masked(piece.source, everything=True, in_capitals=piece.masked.in_capitals))
            for i, piece in lacking
        ]
        if not (masks := [(i, text) for i, text in masks if text.spans]):
            return
        encoded = self.tokenizers.src.encode([text.text for _, text in masks])
        read = [
            pieces[i]._replace(ids=ids[: self.window - 1], masked=text, loop="")
            for (i, text), ids in zip(masks, encoded, strict=True)
        ]
        terms = {word: word for words in self._stand_ins for word in words}
        forced = Glossary(
            {**(self.glossary.terms if self.glossary else {}), **terms}, self.tokenizers.tgt, self.src_lang
        )
        again = []
        for (i, text), piece in zip(masks, read, strict=True):
            wanted = forced.wanted(text.text) if isinstance(self.searcher, BeamSearch) else None
            again.append(self.request(piece.ids, requests[i].prefix, requests[i].number)._replace(wanted=wanted))
        found = self._decode(self.find(again, None if self.minimum_bayes_risk else n_best), n_best)
        for (i, _), piece, candidates in zip(masks, read, found, strict=True):
            chosen = self._chosen(piece, candidates, requests[i])
            is_likely = self._perplexity([chosen.best]) < _WORSE * self._perplexity([pieces[i].best])
            is_hard = any(span.is_hard for span in pieces[i].lost)
            is_better = len(chosen.lost) < len(pieces[i].lost) and not loop.is_loop(chosen.best.text, piece.source)
            if is_better and (is_hard or is_likely):
                pieces[i] = chosen

    def _chosen(self, piece: Piece, candidates: Sequence[Candidate], request: Request) -> Piece:
        """Return a piece with its candidates, without stand-ins, and what the best of them has lost."""
        written_as = {word: written(span, self.tgt_lang) for word, span in piece.masked.spans.items()}
        if not self.src_lang and not piece.masked.in_capitals:
            return piece._replace(candidates=candidates)
        # with a prefix, as that is written
        is_upper = piece.masked.in_capitals and not request.prefix and primary_language(self.tgt_lang) not in SCRIPTS
        write = str.upper if is_upper else str
        candidates = [
            candidate._replace(
                text=piece.masked.unmasked(write(candidate.text), self.tgt_lang),
                tokens=shown(candidate.tokens, written_as),
            )
            for candidate in candidates
        ]
        is_lost = lost(piece.source, candidates[0].text, (self.src_lang, self.tgt_lang))
        return piece._replace(candidates=candidates, lost=is_lost)

    def _translation(self, pieces: Sequence[Piece]) -> Translation:
        """Join the translated pieces of a text; what has no ids stays as it is."""
        pieces = [piece if piece.ids else piece._replace(candidates=_unchanged(piece.source)) for piece in pieces]
        unread = [zip(piece.ids, self.source_tokens(piece), strict=True) for piece in pieces if UNK_ID in piece.ids]
        of_all = self._perplexity([piece.best for piece in pieces if piece.ids])
        covered = [self.glossary.coverage(piece.source, piece.best.ids) for piece in pieces] if self.glossary else []
        return Translation(
            _joined(pieces) if pieces else _unchanged(""),
            pieces,
            [token for tokens in unread for i, token in tokens if i == UNK_ID],
            of_all,
            0 < self.search.max_perplexity < of_all,
            [*chain(*covered)],
        )

    def _perplexity(self, candidates: Sequence[Candidate]) -> float:
        n_tokens = sum(len(candidate.tokens) + 1 for candidate in candidates)
        return perplexity(sum(map(self._log_prob, candidates)), n_tokens)

    def _log_prob(self, candidate: Candidate) -> float:
        return self.search.log_prob(candidate.score, len(candidate.tokens) + 1)

    def source_tokens(self, piece: Piece) -> list[str]:
        """Return the tokens that are read; unknown ones, and those that are protected, as they stand in the text."""
        if UNK_ID not in piece.ids:
            tokens = self.tokenizers.src.tokens(piece.ids)
        else:
            tokens = self.tokenizers.src.split([piece.masked.text])[0][: len(piece.ids)]
        return shown(tokens, {word: span.text for word, span in piece.masked.spans.items()})

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

    def _decode(self, hypotheses: Sequence[Sequence[Hypothesis]], n_best: int | None) -> list[list[Candidate]]:
        """Return the candidates of each piece, best first; `n_best` as for `find`."""
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

    def _is_known(self, ids: list[int], text: str) -> bool:
        """Return whether a text has words, and its ids are more than tags, spaces and unknown characters."""
        if not has_words(text):
            return False
        ids = ids[len(self.tokenizers.tags) :]
        tokens = self.tokenizers.src.tokens(ids)
        return any(i != UNK_ID and token.strip("▁").strip() for i, token in zip(ids, tokens, strict=True))

    @cached_property
    def _stand_ins(self) -> StandIns:
        """What stands for protected spans: what the vocabulary was learned with, or else words that it knows."""
        src, tgt = self.tokenizers

        def known(words: Sequence[str]) -> list[str]:
            return [word for word in words if UNK_ID not in [*src.encode([word])[0], *tgt.encode([word])[0]]]

        return LEARNED if known(LEARNED.names) else StandIns(*map(known, WORDS))

    def _masked(self, text: str, everything: bool = False, in_capitals: bool = False) -> Masked:
        found = masked(text, self.src_lang, self._stand_ins, everything) if self.src_lang else Masked(text)
        if in_capitals or is_in_capitals(found.text):
            return found._replace(text=usual_case(found.text, self._untagged), in_capitals=True)
        if primary_language(self.src_lang) in SCRIPTS:  # a word in capitals is a name there
            return found
        return found._replace(text=without_emphasis(found.text, self._untagged))

    def _untagged(self, texts: Sequence[str]) -> list[list[int]]:
        return [ids[len(self.tokenizers.tags) :] for ids in self.tokenizers.src.encode(texts)]

    def _pieces(self, ids: list[int], whole: Masked, text: str, gap: str) -> list[Piece]:
        """Split a cell into sentences, since that is what models learn from, and those that are too long into parts."""
        if not self._is_known(ids, text):
            return [Piece(text, [], gap)]
        is_split = self.search.by_sentence or len(ids) >= self.window
        kept = [(span.begin, span.end) for span in spans(text, self.src_lang)] if is_split and self.src_lang else []
        kept += self.glossary.places(text) if self.glossary and is_split else []
        sentences = split_sentences(text, kept) if is_split else []
        if len(ids) < self.window and len(sentences) < 2:
            return [Piece(text, ids, gap, masked=whole)]
        pieces, space = [], "" if primary_language(self.tgt_lang) in UNSPACED else " "
        for sentence, _ in sentences:
            parts = split_long(sentence, self._fits)
            of_parts = [self._masked(part, in_capitals=whole.in_capitals) for part in parts]
            encoded = self.tokenizers.src.encode([part.text for part in of_parts])
            for part, of_part, of_ids in zip(parts, of_parts, encoded, strict=True):
                known = of_ids[: self.window - 1] if self._is_known(of_ids, part) else []
                pieces.append(Piece(part, known, space, masked=of_part))
        pieces[-1] = pieces[-1]._replace(gap=gap)
        return pieces

    def _fits(self, text: str) -> bool:
        return len(self.tokenizers.src.encode([self._masked(text).text])[0]) < self.window


def _joined(pieces: Sequence[Piece]) -> list[Candidate]:
    """Join the candidates of a text: the best of every piece, then the second best of those that have one, etc."""
    joined = []
    for rank in range(max(len(piece.candidates) for piece in pieces)):
        parts = [piece.candidates[min(rank, len(piece.candidates) - 1)] for piece in pieces]
        text = "".join(part.text + piece.gap for part, piece in zip(parts, pieces, strict=True))
        tokens, ids = [*chain(*(part.tokens for part in parts))], [*chain(*(part.ids for part in parts))]
        joined.append(Candidate(text, sum(part.score for part in parts), tokens, ids))
    return joined


def _longer(request: Request, length: int) -> Request:
    """Return a request for translations of more tokens than `length`, as far as its limit allows."""
    min_length = min(length + 1, request.max_length - 1)
    return request._replace(bounds=request.bounds._replace(min_length=min_length))


def _unchanged(text: str) -> list[Candidate]:
    return [Candidate(text, 0.0, [], [])]
