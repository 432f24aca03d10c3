"""From texts to translations: cut, batch by length, search, join, in the order of the input."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from const.token import UNK_ID
from models.transformer import Transformer
from utils.dataset.batch import padded
from utils.device import Precision, autocast
from utils.search.beam import beam_search
from utils.search.greedy import greedy_search
from utils.search.hypothesis import Hypothesis, SearchConfig
from utils.text.pair import TokenizerPair
from utils.text.sentence import join_sentences, split_sentences

_TOKENS_PER_BATCH = 4096  # source positions, padding included, times beams


class Translation(NamedTuple):
    """A translated text."""

    text: str
    score: float  # log-probability over length penalty, summed over the pieces that a long text was cut into
    n_pieces: int  # pieces that the text was translated in; 0 for an empty one
    lost_tokens: int  # source tokens that no piece could hold
    unknown: bool  # the vocabulary has nothing of the text, which is handed back as it came


class Translator:
    """Translates with a trained model.

    Args:
        model: put into eval mode; stays on its device.
        tokenizers: those it was trained with.
        tgt_lang: language code of the target, which says how sentences are joined.
        search: beam, penalty and limits.
        window: most source tokens at a time, </s> included; longer texts are cut at sentence ends.
        precision: of the matrix products.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizers: TokenizerPair,
        tgt_lang: str,
        search: SearchConfig,
        window: int,
        precision: Precision = "auto",
    ) -> None:
        self.model = model
        self.tokenizers = tokenizers
        self.tgt_lang = tgt_lang
        self.search = search
        self.window = window
        self.precision = precision

    def translate(
        self, texts: Sequence[str], on_progress: Callable[[int], object] = lambda _: None
    ) -> list[Translation]:
        """Translate texts; an empty one (or one of spaces) stays empty, one of unknown characters alone as it is.

        Args:
            texts: one a line.
            on_progress: is told how many more pieces are done.
        """
        pieces: list[list[int]] = []
        places: list[range] = []
        lost: list[int] = []
        for ids, text in zip(self.tokenizers.src.encode(texts), texts, strict=True):
            cut, n_lost = self._cut(ids, text) if self._is_known(ids) else ([], 0)
            places.append(range(len(pieces), len(pieces) + len(cut)))
            pieces += cut
            lost.append(n_lost)
        found = self.search_ids(pieces, on_progress)
        decoded = self.tokenizers.tgt.decode([hypothesis.ids for hypothesis in found])
        translations = []
        for text, place, n_lost in zip(texts, places, lost, strict=True):
            joined = join_sentences([decoded[i] for i in place], self.tgt_lang)
            unknown = not place and bool(text.strip())
            score = sum(found[i].score for i in place)
            translations.append(Translation(text if unknown else joined, score, len(place), n_lost, unknown))
        return translations

    def search_ids(
        self, sources: Sequence[Sequence[int]], on_progress: Callable[[int], object] = lambda _: None
    ) -> list[Hypothesis]:
        """The best hypothesis for each sequence of source ids (without </s>), longest first in batches."""
        self.model.eval()
        device = next(self.model.parameters()).device
        found: list[Hypothesis] = [Hypothesis([], 0.0)] * len(sources)
        order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
        while order:
            budget = _TOKENS_PER_BATCH // self.search.beam_size
            size = max(1, budget // (len(sources[order[0]]) + 1))
            rows, order = order[:size], order[size:]
            src = padded([sources[i] for i in rows]).to(device)
            limits = [min(self.search.limit(len(sources[i]) + 1), self.model.config.max_length) for i in rows]
            with autocast(device, self.precision):
                if self.search.beam_size == 1:
                    best = greedy_search(self.model, src, limits, self.search)
                else:
                    best = [n_best[0] for n_best in beam_search(self.model, src, limits, self.search)]
            for i, hypothesis in zip(rows, best, strict=True):
                found[i] = hypothesis
            on_progress(len(rows))
        return found

    def _is_known(self, ids: list[int]) -> bool:
        """Whether anything but spaces and unknown characters is in it."""
        return any(
            i != UNK_ID and token.strip("▁") for i, token in zip(ids, self.tokenizers.src.tokens(ids), strict=True)
        )

    def _cut(self, ids: list[int], text: str) -> tuple[list[list[int]], int]:
        """A text that fits the window, or else its sentences, since models learn from those; and what fits nowhere."""
        room = self.window - 1
        if len(ids) <= room:
            return ([ids] if ids else []), 0
        sentences = self.tokenizers.src.encode(split_sentences(text))
        return [ids[:room] for ids in sentences], sum(max(0, len(ids) - room) for ids in sentences)
