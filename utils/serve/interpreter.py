"""A translator that is asked by several at once: how wide to search is said with each lot of texts."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from const.token import EOS
from models.transformer import Transformer
from utils.search.alignment import mean_cross_attention
from utils.search.translator import Translation, Translator
from utils.text.tokenizer import id_of_each

_DIGITS = 3  # of a weight: a thousandth is nothing to see
_MOST_WEIGHTS = 500_000  # that are told of a lot: some MB of JSON, for which everybody waits


class Asked(NamedTuple):
    """How to translate.

    Args:
        beam: hypotheses kept; None: as the run has it, and as many as are asked for.
        n_best: candidates wanted.
        attention: whether to tell where the model looked.
    """

    beam: int | None = None
    n_best: int = 1
    attention: bool = False


class Line(NamedTuple):
    """A translated line.

    Args:
        translation: its candidates.
        source_tokens: what was translated, </s> behind it; nothing where no attention is shown.
        attention: for each candidate the weights of each of its tokens over the source tokens; nothing where it was
            not asked for, where the line was not translated in one piece, or the lines before it have so many.
    """

    translation: Translation
    source_tokens: list[str]
    attention: list[list[list[float]]]


class Interpreter:
    """Translates lots of lines; to be used by one thread.

    Args:
        translator: its beam changes with what is asked.
        model: what it translates with, in single precision; not shared with the translator.
    """

    def __init__(self, translator: Translator, model: Transformer) -> None:
        self._translator = translator
        self._own = translator.search
        self._model = model
        tgt = translator.tokenizers.tgt
        self._tgt_ids = id_of_each(tgt)

    def translate(self, lines: Sequence[str], asked: Asked) -> list[Line]:
        """Each line, all in the way that is asked for."""
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
