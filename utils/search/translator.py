"""From texts to translations: split, batch by length, search, join, in the order of the input."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from config.search import Bounds, SamplingConfig, SearchConfig
from const.token import UNK_ID
from utils.dataset.batch import padded, within_budget
from utils.search.beam import beam_search
from utils.search.constraint import Hypothesis, Searchable
from utils.search.sampling import greedy_search, sample
from utils.text.language import join_sentences, split_sentences
from utils.text.tokenizer import TokenizerPair

_MOST_PIECES = 2**20  # no text is split into more


class Candidate(NamedTuple):
    """One way to translate a text."""

    text: str
    score: float  # log-probability over penalty, summed over the pieces of a long text
    tokens: list[str]


class Translation(NamedTuple):
    """A translated text."""

    candidates: list[Candidate]  # best first; as many as were requested and found, at least one
    n_pieces: int  # how many pieces the text was translated in; 0 for an empty or an unknown one
    lost_tokens: int  # source tokens that did not fit into a piece
    unknown: bool  # nothing of the text is in the vocabulary, and it is returned unchanged
    n_unknown: int = 0  # source tokens that are not in the vocabulary; the model reads <unk> in their place

    @property
    def text(self) -> str:
        """Text of the best candidate."""
        return self.candidates[0].text

    @property
    def score(self) -> float:
        """Score of the best candidate."""
        return self.candidates[0].score


class _Piece(NamedTuple):
    """What is translated at a time: a text or a sentence of it."""

    text: str
    ids: list[int]  # as many as fit the window; none where the vocabulary has nothing of it: it stays as it is


class Translator:
    """Translates with a trained model.

    Args:
        model: the model to search, ready for inference.
        tokenizers: the tokenizers that it was trained with.
        tgt_lang: language code of the target, which determines how sentences are joined.
        search: beam size, penalties and limits.
        window: most source tokens at a time, </s> included; longer texts are split at sentence ends.
        longest: most target tokens, </s> included.
        device: where the model is.
        sampling: draw translations instead of searching for the likeliest.
        minimum_bayes_risk: order candidates by how much they agree with each other, not by score.
    """

    tokens_per_batch = 16384  # source positions, padding included, times rows per sentence

    def __init__(
        self,
        model: Searchable[Any],
        tokenizers: TokenizerPair,
        tgt_lang: str,
        search: SearchConfig,
        window: int,
        longest: int,
        device: torch.device,
        sampling: SamplingConfig | None = None,
        minimum_bayes_risk: bool = False,
    ) -> None:
        self.model = model
        self.tokenizers = tokenizers
        self.tgt_lang = tgt_lang
        self.search = search
        self.window = window
        self.longest = longest
        self.device = device
        self.sampling = sampling
        self.minimum_bayes_risk = minimum_bayes_risk

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
        known = [[piece.ids for piece in pieces if piece.ids] for pieces, _ in split]
        sources = [ids for of_text in known for ids in of_text]
        starts = [[] if i else start for of_text, start in zip(known, forced, strict=True) for i in range(len(of_text))]
        numbers = [line * _MOST_PIECES + i for line, of_text in enumerate(known, first) for i in range(len(of_text))]
        owner = [place for place, of_text in enumerate(known) for _ in of_text]
        left = Counter(owner)
        on_progress(len(texts) - len(left))

        def count_done(rows: Sequence[int]) -> None:
            left.subtract(owner[row] for row in rows)
            on_progress(sum(left[place] == 0 for place in {owner[row] for row in rows}))

        n_wanted = None if self.minimum_bayes_risk else n_best
        found = self.search_ids(sources, starts, count_done, n_wanted, numbers)
        candidates = iter(self._decode(found, n_best))
        return [
            Translation(
                self._join([next(candidates) if piece.ids else _unchanged(piece.text) for piece in pieces])
                if pieces
                else _unchanged(text.strip() and text),
                len(pieces),
                lost_tokens,
                unknown=not pieces and bool(text.strip()),
                n_unknown=ids.count(UNK_ID) if text.strip() else 0,
            )
            for text, ids, (pieces, lost_tokens) in zip(texts, encoded, split, strict=True)
        ]

    def search_ids(
        self,
        sources: Sequence[Sequence[int]],
        prefixes: Sequence[Sequence[int]] | None = None,
        on_progress: Callable[[Sequence[int]], object] = lambda _: None,
        n_best: int | None = 1,
        numbers: Sequence[int] | None = None,
    ) -> list[list[Hypothesis]]:
        """Return hypotheses, best first, for each sequence of source ids (without </s>); batched, longest first.

        Args:
            sources: what to translate.
            prefixes: ids that each translation must begin with.
            on_progress: called with the places of the sources that have just been finished.
            n_best: as in `beam_search`.
            numbers: as in `sample`; by default the places of the sources.
        """
        found: list[list[Hypothesis]] = [[] for _ in sources]
        width = self.sampling.n_samples if self.sampling else self.search.beam_size
        for rows in within_budget([len(source) + 1 for source in sources], self.tokens_per_batch // width):
            batch = [sources[i] for i in rows]
            bounds = [self.search.bounds(len(source) + 1, self.longest) for source in batch]
            starts = [prefixes[i] for i in rows] if prefixes is not None else None
            drawn = [numbers[i] for i in rows] if numbers is not None else rows
            for i, best_first in zip(rows, self._search(batch, bounds, starts, n_best, drawn), strict=True):
                found[i] = best_first
            on_progress(rows)
        return found

    def _search(
        self,
        sources: Sequence[Sequence[int]],
        bounds: Sequence[Bounds],
        starts: Sequence[Sequence[int]] | None,
        n_best: int | None,
        numbers: Sequence[int],
    ) -> list[list[Hypothesis]]:
        """Return hypotheses for each sequence of a batch; arguments as in `search_ids`."""
        src = padded(sources).to(self.device)
        if self.sampling is not None:
            return sample(self.model, src, bounds, self.search, self.sampling, numbers, starts)
        if self.search.beam_size == 1:
            return [[best] for best in greedy_search(self.model, src, bounds, self.search, starts)]
        return beam_search(self.model, src, bounds, self.search, starts, n_best)

    def _decode(self, found: list[list[Hypothesis]], n_best: int) -> list[list[Candidate]]:
        """Return the candidates of each piece, best first."""
        tgt = self.tokenizers.tgt
        n_decoded = None if self.minimum_bayes_risk else n_best
        kept = [hypotheses[:n_decoded] for hypotheses in found]
        texts = iter(tgt.decode([hypothesis.ids for hypotheses in kept for hypothesis in hypotheses]))
        candidates = [
            [Candidate(next(texts), score, tgt.tokens(ids)) for ids, score in hypotheses] for hypotheses in kept
        ]
        if self.minimum_bayes_risk:
            candidates = [
                [piece[i] for i in by_expected_chrf([candidate.text for candidate in piece])] for piece in candidates
            ]
        return [piece[:n_best] for piece in candidates]

    def _join(self, pieces: list[list[Candidate]]) -> list[Candidate]:
        """Join the candidates of a text: the best of every piece, then the second best of those that have one, etc."""
        joined = []
        for rank in range(max(len(piece) for piece in pieces)):
            row = [piece[min(rank, len(piece) - 1)] for piece in pieces]
            text = join_sentences([candidate.text for candidate in row], self.tgt_lang)
            tokens = [token for candidate in row for token in candidate.tokens]
            joined.append(Candidate(text, sum(candidate.score for candidate in row), tokens))
        return joined

    def _encode_prefixes(self, prefixes: Sequence[str]) -> list[list[int]]:
        encoded = self.tokenizers.tgt.encode(prefixes)
        for ids, prefix in zip(encoded, prefixes, strict=True):
            if UNK_ID in ids:
                raise ValueError(f"the prefix {prefix!r} has characters outside the vocabulary: remove them")
            if len(ids) >= self.longest:
                raise ValueError(f"the prefix has {len(ids)} tokens, the model holds {self.longest - 1}: shorten it")
        return encoded

    def _is_known(self, ids: list[int]) -> bool:
        """Return whether the ids are more than spaces and unknown characters."""
        return any(
            i != UNK_ID and token.strip("▁").strip()
            for i, token in zip(ids, self.tokenizers.src.tokens(ids), strict=True)
        )

    def _pieces(self, ids: list[int], text: str) -> tuple[list[_Piece], int]:
        """Return a text whole if it fits the window, or else its sentences; and the number of tokens beyond a window.

        Sentences, since that is what models learn from. No pieces where the vocabulary has nothing of the text.
        """
        room = self.window - 1
        if not self._is_known(ids):
            return [], 0
        if len(ids) <= room:
            return [_Piece(text, ids)], 0
        sentences = split_sentences(text)
        encoded = [ids if self._is_known(ids) else [] for ids in self.tokenizers.src.encode(sentences)]
        lost = sum(max(0, len(ids) - room) for ids in encoded)
        return [_Piece(sentence, ids[:room]) for sentence, ids in zip(sentences, encoded, strict=True)], lost


def _unchanged(text: str) -> list[Candidate]:
    return [Candidate(text, 0.0, [])]


# Minimum Bayes risk: the candidate that agrees most with all others, argmax_h Σ_r u(h, r), Eikema & Aziz 2022.

_ORDER = 6  # the longest character n-grams
_BETA = 2  # recall counts twice as much as precision


def by_expected_chrf(candidates: Sequence[str]) -> list[int]:
    """Return the candidates' places, ordered by mean chrF2 against all others, highest first.

    A candidate that was found twice has two votes. Ties keep their order.
    """
    votes = Counter(candidates)
    utility = pairwise_chrf(list(votes))
    totals = utility @ np.array(list(votes.values()), float) - utility.diagonal()  # without its own vote
    # sums of the same numbers in another order differ in their last digits, which must not decide
    expected = dict(zip(votes, totals.round(9).tolist(), strict=True))
    return sorted(range(len(candidates)), key=lambda i: -expected[candidates[i]])


def pairwise_chrf(texts: Sequence[str]) -> NDArray[np.float64]:
    """Return chrF2 (0 to 100) of each text (row) against each as the reference (column), as sacreBLEU computes it."""
    n = len(texts)
    characters = ["".join(text.split()) for text in texts]
    precision, recall, effective = np.zeros((n, n)), np.zeros((n, n)), np.zeros((n, n))
    for order in range(1, _ORDER + 1):
        matches = _matches([[text[i : i + order] for i in range(len(text) - order + 1)] for text in characters])
        counts = matches.diagonal()
        both = (counts[:, None] > 0) & (counts > 0)
        precision += matches / np.maximum(counts, 1)[:, None] * both
        recall += matches / np.maximum(counts, 1) * both
        effective += both
    precision, recall = precision / np.maximum(effective, 1), recall / np.maximum(effective, 1)
    return 100 * (1 + _BETA**2) * precision * recall / np.maximum(_BETA**2 * precision + recall, 1e-16)


def _matches(sequences: Sequence[Sequence[str]]) -> NDArray[np.float64]:
    """Count the elements that any two sequences share; the diagonal has the length of each.

    The second "a" of a sequence counts as a different element from its first, so that what two sequences share is
    the product of two rows of zeros and ones.
    """
    numbered = [{(x, i) for x, n in Counter(sequence).items() for i in range(n)} for sequence in sequences]
    columns = {element: place for place, element in enumerate(set[tuple[str, int]]().union(*numbered))}
    members = np.zeros((len(sequences), len(columns)), np.float32)
    for row, elements in zip(members, numbered, strict=True):
        row[[columns[element] for element in elements]] = 1
    return (members @ members.T).astype(np.float64)
