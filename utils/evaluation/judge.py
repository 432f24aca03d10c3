"""Scores at each validation: of a translator, of a language model, of a network that guesses or classifies."""

from collections.abc import Iterable, Sequence

import torch
from sacrebleu.metrics.bleu import BLEU

from const.token import PAD_ID
from models.bert import BertClassifier, BertForPreTraining
from utils.dataset.corpus import Corpus, Split
from utils.dataset.labelled import LabelledBatch
from utils.dataset.masked import MaskedBatch
from utils.dataset.monolingual import MonolingualCorpus, SegmentBatch
from utils.dataset.text import ParallelText, TextLines
from utils.evaluation.metric import bleu_tokenizer, corpus_metrics, measure
from utils.search.translator import Translator
from utils.text.tokenizer import Tokenizer
from utils.training.report import Sample, Validate, Validation, perplexity, spread

SCORED = {"bleu": "BLEU", "chrf": "chrF2"}  # name in logs and settings -> name in `build_metrics`

_MASKED_SAMPLES, _LONGEST_SAMPLE = 3, 40  # sentences that a BERT fills in; tokens


def translation_scores(
    translator: Translator, text: ParallelText, corpus: Corpus, n_samples: int = 0, loss: float = 0.0
) -> Validation:
    """Translate sentences and score them: decoded text, never teacher-forced tokens; `loss` is in nats per token."""
    translations, metrics = [found.text for found in translator.translate(text.src)], corpus_metrics(corpus)
    found = measure(translations, text.tgt, {name: metrics[metric] for name, metric in SCORED.items()})
    scores, signatures = ({m.name: getattr(m, of) for m in found} for of in ("score", "signature"))
    every = list(map(Sample, text.src, text.tgt, translations))
    return Validation(loss, scores, signatures, spread(every, n_samples), translations)


@torch.inference_mode()
def masked_accuracy(
    net: BertForPreTraining, batches: Sequence[MaskedBatch], tokenizer: Tokenizer, loss: float
) -> Validation:
    """Return a network's accuracy on masked tokens and next sentences, in percent, and sentences that it fills in.

    `loss` is in nats per masked token.
    """
    right = hidden = pairs_right = pairs = 0
    samples: list[Sample] = []
    device = next(net.parameters()).device
    for batch in (batch.to(device) for batch in batches):
        x = net.bert(batch.ids, batch.segments)
        asked = batch.target != PAD_ID
        guess = net.head(x[asked]).argmax(-1)
        right += int((guess == batch.target[asked]).sum())
        hidden += len(guess)
        if batch.follows.numel():
            pairs_right += int((net.next_sentence(net.pooler(x)).argmax(-1) == batch.follows).sum())
            pairs += len(batch.follows)
        if len(samples) < _MASKED_SAMPLES and batch.ids.size(1) <= _LONGEST_SAMPLE:
            # the first row as the network reads it, as it was written, and as the network fills it in
            read, filled = batch.ids[0], batch.ids.masked_scatter(asked, guess)[0]
            written = torch.where(asked[0], batch.target[0], read)
            samples.append(Sample(*(_shown(ids.tolist(), tokenizer) for ids in (read, written, filled))))
    scores = {"accuracy": 100 * right / hidden} | ({"next_sentence": 100 * pairs_right / pairs} if pairs else {})
    return Validation(loss, scores, samples=samples)


def _shown(ids: list[int], tokenizer: Tokenizer) -> str:
    n = len(tokenizer)
    return " ".join("[MASK]" if i == n else tokenizer.tokens([i])[0] for i in ids if i != PAD_ID)


@torch.inference_mode()
def class_accuracy(net: BertClassifier, batches: Sequence[LabelledBatch], loss: float) -> Validation:
    """Return the accuracy of a classifier in eval mode, in percent; `loss` is in nats per text."""
    right = texts = 0
    device = next(net.parameters()).device
    for batch in (batch.to(device) for batch in batches):
        right += int((net(batch.ids).argmax(-1) == batch.label).sum())
        texts += len(batch.label)
    return Validation(loss, {"accuracy": 100 * right / texts})


def word_perplexity(corpus: MonolingualCorpus, split: Split, batches: Iterable[SegmentBatch]) -> Validate:
    """Return what computes exp(nats of the whole text / words) from the loss in nats per token.

    It is comparable between vocabularies; words are as of BLEU, and ends of sentences.

    Args:
        batches: all batches that the network predicts in the split.
    """
    tokenize = BLEU(tokenize=bleu_tokenizer(corpus.language, corpus.pre_tokenized), force=True).tokenizer
    lines = TextLines(getattr(corpus, split))
    n_words = sum(len(tokenize(line).split()) + 1 for line in lines if line.strip())
    tokens_per_word = sum(batch.target_tokens for batch in batches) / n_words
    return lambda loss: Validation(loss, {"word_ppl": perplexity(loss * tokens_per_word)})
