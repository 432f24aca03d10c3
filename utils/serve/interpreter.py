"""A translator shared by many requests: each chunk of lines brings its own beam size."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from const.token import EOS
from models.transformer import Transformer
from utils.search.alignment import mean_cross_attention
from utils.search.translator import Translation, Translator
from utils.text.tokenizer import id_of_each

_DIGITS = 3  # digits of a weight: less than a thousandth is invisible
_MOST_WEIGHTS = 500_000  # most weights returned for a chunk: some MB of JSON, for which all requests wait


class Asked(NamedTuple):
    """How to translate.

    Args:
        beam: beam size; None: the run's own, or `n_best` if that is larger.
        n_best: candidates to return.
        attention: whether to return attention weights.
    """

    beam: int | None = None
    n_best: int = 1
    attention: bool = False


class Line(NamedTuple):
    """A translated line.

    Args:
        translation: its candidates.
        source_tokens: source tokens with a final </s>; empty without attention.
        attention: for each candidate, the weights of each of its tokens over the source tokens; empty if not
            requested, if the line was not translated in one piece, or if the chunk has too many weights already.
    """

    translation: Translation
    source_tokens: list[str]
    attention: list[list[list[float]]]


class Interpreter:
    """Translates chunks of lines; use it from a single thread.

    Args:
        translator: the translator, whose beam size changes with each request.
        model: its model in single precision, not shared with the translator.
    """

    def __init__(self, translator: Translator, model: Transformer) -> None:
        self._translator = translator
        self._own = translator.search
        self._model = model
        tgt = translator.tokenizers.tgt
        self._tgt_ids = id_of_each(tgt)

    def translate(self, lines: Sequence[str], asked: Asked) -> list[Line]:
        """Translate lines, all with the same options."""
        beam = asked.beam or max(self._own.beam_size, asked.n_best)
        self._translator.search = replace(self._own, beam_size=beam)
        translations = self._translator.translate(lines, n_best=asked.n_best)
        if not asked.attention:
            return [Line(translation, [], []) for translation in translations]
        return self._with_attention(lines, translations)

    def _with_attention(self, lines: Sequence[str], translations: Sequence[Translation]) -> list[Line]:
        whole = [i for i, translation in enumerate(translations) if translation.n_pieces == 1]
        room, src = self._translator.window - 1, self._translator.tokenizers.src
        sources = {i: ids[:room] for i, ids in zip(whole, src.encode([lines[i] for i in whole]), strict=True)}
        sizes = accumulate(
            (len(sources[i]) + 1) * sum(len(candidate.tokens) for candidate in translations[i].candidates)
            for i in whole
        )
        whole = [i for i, size in zip(whole, sizes, strict=True) if size <= _MOST_WEIGHTS]
        pairs = [(i, candidate.tokens) for i in whole for candidate in translations[i].candidates]
        targets = [[self._tgt_ids[token] for token in tokens] for _, tokens in pairs]
        weights = mean_cross_attention([self._model], [sources[i] for i, _ in pairs], targets)
        attention: list[list[list[list[float]]]] = [[] for _ in lines]
        for (i, _), weight in zip(pairs, weights, strict=True):
            attention[i].append([[round(value, _DIGITS) for value in row] for row in weight.tolist()])
        return [
            Line(translation, [*src.tokens(sources[i]), EOS] if attention[i] else [], attention[i])
            for i, translation in enumerate(translations)
        ]
