"""What models make of translations, their own and given ones: probabilities, alignments, alternatives."""

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
    """The probability that the models assign to a translation."""

    tokens: list[str]  # of the target, with </s>
    log_probs: list[float]  # one for each token
    lost_tokens: int  # of source and target, beyond what the model can hold
    n_unknown: int  # target tokens that are not in the vocabulary

    @property
    def log_prob(self) -> float:
        """Log-probability of the whole translation."""
        return sum(self.log_probs)

    @property
    def perplexity(self) -> float:
        """Perplexity: exp of the mean negative log-probability of its tokens."""
        return perplexity(self.log_prob, len(self.tokens))


class Position(NamedTuple):
    """A position in a translation: the token that was generated there, and its alternatives."""

    number: int  # from 1
    token: str  # what was generated
    likeliest: list[tuple[str, float]]  # tokens and their log-probabilities, likeliest first


def perplexity(log_prob: float, n_tokens: int) -> float:
    """Return exp(-log p / n); 1 where there are no tokens."""
    return math.exp(-log_prob / n_tokens) if n_tokens else 1.0


class Inspector:
    """Inspects the translations of a translator with its models.

    Args:
        translator: the translator.
        models: the models that it translates with, in single precision; several are an ensemble.
    """

    def __init__(self, translator: Translator, models: Sequence[Transformer]) -> None:
        self.translator = translator
        self.models = models
        self._src, self._tgt = translator.tokenizers
        self._tgt_ids = id_of_each(self._tgt)

    def source_tokens(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the tokens of each text that are translated, for texts that are translated in one piece."""
        return [self._src.tokens(ids) for ids in self._source_ids(texts)]

    def log_probs(self, texts: Sequence[str], translations: Sequence[Translation]) -> list[list[float] | None]:
        """Return the log-probability of each token of the best translations, with </s>; None if not in one piece."""
        found = iter(self._log_probs(*self._pairs(texts, translations)))
        return [next(found) if translation.n_pieces == 1 else None for translation in translations]

    def alignments(self, texts: Sequence[str], translations: Sequence[Translation]) -> list[Links | None]:
        """Return the alignments of the best translations; None for one that was not translated in one piece."""
        found = iter(align(self.models, *self._pairs(texts, translations)))
        return [next(found) if translation.n_pieces == 1 else None for translation in translations]

    def judge(self, texts: Sequence[str], given: Sequence[str]) -> list[Judgement]:
        """Score given translations by forced decoding; an empty translation of an empty text has no tokens."""
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
        """Return the k likeliest tokens at each position of a translation, or only at the one after a prefix.

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
        """Return the ids of each source, truncated to the window."""
        return [ids[: self.translator.window - 1] for ids in self._src.encode(texts)]

    def _pairs(
        self, texts: Sequence[str], translations: Sequence[Translation]
    ) -> tuple[list[list[int]], list[list[int]]]:
        """Return source and target ids of those that were translated in one piece."""
        whole = [i for i, translation in enumerate(translations) if translation.n_pieces == 1]
        targets = [[self._tgt_ids[token] for token in translations[i].candidates[0].tokens] for i in whole]
        return self._source_ids([texts[i] for i in whole]), targets

    def _log_probs(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the log-probability of each target token; with several models, the log of the mean probability."""
        by_model = [token_log_probs(model, sources, targets) for model in self.models]
        if len(by_model) == 1:
            return by_model[0]
        return [
            (torch.tensor(rows).logsumexp(0) - math.log(len(rows))).tolist() for rows in zip(*by_model, strict=True)
        ]
