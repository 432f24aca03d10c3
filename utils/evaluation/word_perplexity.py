"""Perplexity of a language model by the word: models with other vocabularies can be compared by it."""

from collections.abc import Iterable

from sacrebleu.metrics.bleu import BLEU

from utils.dataset.corpus import Split
from utils.dataset.line_cache import TextLines
from utils.dataset.monolingual import MonolingualCorpus
from utils.dataset.stream import SegmentBatch
from utils.evaluation.metric import bleu_tokenizer
from utils.training.validation import Validation, perplexity


def n_words(lines: Iterable[str], language: str, pre_tokenized: bool) -> int:
    """Words of a text as BLEU counts them, and the end of each line that is not empty."""
    tokenize = BLEU(tokenize=bleu_tokenizer(language, pre_tokenized), force=True).tokenizer
    return sum(len(tokenize(line).split()) + 1 for line in lines if line.strip())


class WordPerplexity:
    """exp(nats of the whole text / words), ends of sentences counted as words.

    Args:
        corpus: whose language says what a word is.
        split: the text.
        batches: all that the network predicts in it.
    """

    def __init__(self, corpus: MonolingualCorpus, split: Split, batches: Iterable[SegmentBatch]) -> None:
        lines = TextLines(getattr(corpus, split))
        n_tokens = sum(batch.target_tokens for batch in batches)
        self._tokens_per_word = n_tokens / n_words(lines, corpus.language, corpus.pre_tokenized)

    def __call__(self, loss: float) -> Validation:
        """The score beside a loss that is already known (nats per token)."""
        return Validation(loss, {"word_ppl": perplexity(loss * self._tokens_per_word)})
