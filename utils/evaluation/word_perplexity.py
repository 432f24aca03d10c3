"""Perplexity of a language model per word, which is comparable between vocabularies."""

from collections.abc import Iterable

from sacrebleu.metrics.bleu import BLEU

from utils.dataset.corpus import Split
from utils.dataset.line_cache import TextLines
from utils.dataset.monolingual import MonolingualCorpus
from utils.dataset.stream import SegmentBatch
from utils.evaluation.metric import bleu_tokenizer
from utils.training.validation import Validation, perplexity


def n_words(lines: Iterable[str], language: str, pre_tokenized: bool) -> int:
    """Count the words of a text as BLEU does, plus one for the end of each non-blank line."""
    tokenize = BLEU(tokenize=bleu_tokenizer(language, pre_tokenized), force=True).tokenizer
    return sum(len(tokenize(line).split()) + 1 for line in lines if line.strip())


class WordPerplexity:
    """exp(nats of the whole text / words), ends of sentences counted as words.

    Args:
        corpus: corpus, whose language decides what a word is.
        split: split of the corpus.
        batches: all batches that the network predicts in it.
    """

    def __init__(self, corpus: MonolingualCorpus, split: Split, batches: Iterable[SegmentBatch]) -> None:
        lines = TextLines(getattr(corpus, split))
        n_tokens = sum(batch.target_tokens for batch in batches)
        self._tokens_per_word = n_tokens / n_words(lines, corpus.language, corpus.pre_tokenized)

    def __call__(self, loss: float) -> Validation:
        """Return the score, with the given loss (nats per token)."""
        return Validation(loss, {"word_ppl": perplexity(loss * self._tokens_per_word)})
