"""Accuracy: how often a network's first guess is right."""

from collections.abc import Sequence

import torch
from torch import Tensor

from const.token import PAD_ID
from models.bert import BertClassifier, BertForPreTraining
from utils.dataset.labelled import LabelledBatch
from utils.dataset.masked import MaskedBatch
from utils.text.tokenizer import Tokenizer
from utils.training.validation import Sample, Validation

_LONGEST_SAMPLE = 40  # tokens


class MaskedAccuracy:
    """Accuracy on masked tokens and next sentences, in percent, with sample sentences filled in by the network.

    Args:
        net: network, in eval mode when it is called.
        batches: text to predict.
        tokenizer: tokenizer of the batches.
        n_samples: number of sample sentences.
    """

    def __init__(
        self, net: BertForPreTraining, batches: Sequence[MaskedBatch], tokenizer: Tokenizer, n_samples: int = 3
    ) -> None:
        self._net, self._batches, self._tokenizer, self._n_samples = net, batches, tokenizer, n_samples
        self._device = next(net.parameters()).device

    @torch.inference_mode()
    def __call__(self, loss: float) -> Validation:
        """Return scores and samples, with the given loss (nats per masked token)."""
        right = hidden = pairs_right = pairs = 0
        samples: list[Sample] = []
        for batch in (batch.to(self._device) for batch in self._batches):
            x = self._net.bert(batch.ids, batch.segments)
            asked = batch.target != PAD_ID
            guess = self._net.head(x[asked]).argmax(-1)
            right += int((guess == batch.target[asked]).sum())
            hidden += len(guess)
            if batch.follows.numel():
                pairs_right += int((self._net.next_sentence(self._net.pooler(x)).argmax(-1) == batch.follows).sum())
                pairs += len(batch.follows)
            if len(samples) < self._n_samples and batch.ids.size(1) <= _LONGEST_SAMPLE:
                samples.append(self._sample(batch, batch.ids.masked_scatter(asked, guess)))
        scores = {"accuracy": 100 * right / hidden} | ({"next_sentence": 100 * pairs_right / pairs} if pairs else {})
        return Validation(loss, scores, samples=samples)

    def _sample(self, batch: MaskedBatch, filled: Tensor) -> Sample:
        """Return the first row as the network reads it, as it was written, and as the network fills it in."""
        read, row = batch.ids[0], batch.target[0]
        written = torch.where(row != PAD_ID, row, read)
        return Sample(*(self._shown(ids.tolist()) for ids in (read, written, filled[0])))

    def _shown(self, ids: list[int]) -> str:
        n = len(self._tokenizer)
        return " ".join("[MASK]" if i == n else self._tokenizer.tokens([i])[0] for i in ids if i != PAD_ID)


class ClassAccuracy:
    """Accuracy of classification, in percent.

    Args:
        net: network, in eval mode when it is called.
        batches: texts to classify.
    """

    def __init__(self, net: BertClassifier, batches: Sequence[LabelledBatch]) -> None:
        self._net, self._batches = net, batches
        self._device = next(net.parameters()).device

    @torch.inference_mode()
    def __call__(self, loss: float) -> Validation:
        """Return the score, with the given loss (nats per text)."""
        right = texts = 0
        for batch in (batch.to(self._device) for batch in self._batches):
            right += int((self._net(batch.ids).argmax(-1) == batch.label).sum())
            texts += len(batch.label)
        return Validation(loss, {"accuracy": 100 * right / texts})
