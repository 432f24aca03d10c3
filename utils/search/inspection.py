"""What models think of translations, their own and others: probabilities, alignments, alternatives."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from const.token import EOS, UNK_ID
from models.transformer import Transformer
from utils.search.alignment import Links, align
from utils.search.forced import alternatives, token_log_probs
from utils.search.translator import Translation, Translator
from utils.text.tokenizer import id_of_each


class Judgement(NamedTuple):
    """How likely a translation is found."""

    tokens: list[str]  # of the target, </s> behind them
    log_probs: list[float]  # of each
    lost_tokens: int  # of source and target, beyond what the model can hold
    n_unknown: int  # target tokens that are not in the vocabulary

    @property
    def log_prob(self) -> float:
        """Of the whole."""
        return sum(self.log_probs)

    @property
    def perplexity(self) -> float:
        """exp of the mean over its tokens."""
        return perplexity(self.log_prob, len(self.tokens))


class Position(NamedTuple):
    """A place in a translation: what was said there, and what might have been."""

    number: int  # from 1
    token: str  # what was said
    likeliest: list[tuple[str, float]]  # tokens and their log-probabilities, likeliest first


def perplexity(log_prob: float, n_tokens: int) -> float:
    """exp(-log p / n); 1 of nothing."""
    return math.exp(-log_prob / n_tokens) if n_tokens else 1.0


class Inspector:
    """Asks the models of a translator.

    Args:
        translator: what translates.
        models: what it translates with, in single precision; several are an ensemble.
    """

    def __init__(self, translator: Translator, models: Sequence[Transformer]) -> None:
        self.translator = translator
        self.models = models
        self._src, self._tgt = translator.tokenizers
        self._tgt_ids = id_of_each(self._tgt)

    def source_tokens(self, texts: Sequence[str]) -> list[list[str]]:
        """What is translated of each text, where that is one piece."""
        return [self._src.tokens(ids) for ids in self._source_ids(texts)]

    def log_probs(self, texts: Sequence[str], translations: Sequence[Translation]) -> list[list[float] | None]:
        """Of each token of the best translations, </s> included; None where there is not one piece."""
        found = iter(self._log_probs(*self._pairs(texts, translations)))
        return [next(found) if translation.n_pieces == 1 else None for translation in translations]

    def alignments(self, texts: Sequence[str], translations: Sequence[Translation]) -> list[Links | None]:
        """Of the best translations; None where there is not one piece."""
        found = iter(align(self.models, *self._pairs(texts, translations)))
        return [next(found) if translation.n_pieces == 1 else None for translation in translations]

    def judge(self, texts: Sequence[str], given: Sequence[str]) -> list[Judgement]:
        """How likely translations that others have given are; nothing for nothing has no tokens."""
        room = self.translator.longest - 1
        sources, targets = self._src.encode(texts), self._tgt.encode(given)
        held = [source[: self.translator.window - 1] for source in sources]
        said = [target[:room] for target in targets]
        lost = [
            len(source) - len(a) + len(target) - len(b)
            for source, a, target, b in zip(sources, held, targets, said, strict=True)
        ]
        return [
            Judgement([*self._tgt.tokens(ids), EOS], log_probs, n_lost, ids.count(UNK_ID))
            if source or ids
            else Judgement([], [], 0, 0)
            for source, ids, log_probs, n_lost in zip(held, said, self._log_probs(held, said), lost, strict=True)
        ]

    def positions(self, text: str, translation: Translation, k: int, prefix: str = "") -> list[Position]:
        """The k likeliest tokens at each position of a translation, or only at the one behind a prefix.

        Raises:
            ValueError: the text was translated in pieces, or not at all.
        """
        if translation.n_pieces != 1:
            raise ValueError(f"translated in {translation.n_pieces} pieces: give one sentence to see its alternatives")
        (source,) = self._source_ids([text])
        said = [self._tgt_ids[token] for token in translation.candidates[0].tokens]
        tokens = [*translation.candidates[0].tokens, EOS]
        begin, end = 0, len(tokens)
        if prefix:
            begin = len(self._tgt.encode([prefix])[0])
            end = begin + 1
        found = alternatives(self.translator.model, source, said[: end - 1], k, self.translator.device)
        likeliest = [
            [(token, log_prob) for token, (_, log_prob) in zip(self._tgt.tokens([i for i, _ in one]), one, strict=True)]
            for one in found
        ]
        return [Position(t + 1, tokens[t], likeliest[t]) for t in range(begin, end)]

    def _source_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Without what does not fit the window."""
        return [ids[: self.translator.window - 1] for ids in self._src.encode(texts)]

    def _pairs(
        self, texts: Sequence[str], translations: Sequence[Translation]
    ) -> tuple[list[list[int]], list[list[int]]]:
        """Source and target ids of those that are one piece."""
        whole = [i for i, translation in enumerate(translations) if translation.n_pieces == 1]
        targets = [[self._tgt_ids[token] for token in translations[i].candidates[0].tokens] for i in whole]
        return self._source_ids([texts[i] for i in whole]), targets

    def _log_probs(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """Of each target token; of several models, log of the mean probability."""
        by_model = [token_log_probs(model, sources, targets) for model in self.models]
        if len(by_model) == 1:
            return by_model[0]
        return [
            (torch.tensor(rows).logsumexp(0) - math.log(len(rows))).tolist() for rows in zip(*by_model, strict=True)
        ]
