"""Validation of a translator on held-out text."""

from collections.abc import Callable, Sequence

from utils.dataset.corpus import Corpus
from utils.dataset.parallel_text import ParallelText
from utils.evaluation.metric import corpus_metrics, measure
from utils.search.translator import Translator
from utils.training.validation import Sample, Validation

SCORED = {"bleu": "BLEU", "chrf": "chrF2"}  # name in logs and settings -> name in `build_metrics`


class Validator:
    """Translates sentences and scores them: decoded text, never teacher-forced tokens.

    Args:
        translator: returns a translator with the network's current weights.
        text: sentences to translate, with references.
        corpus: corpus of the text, with its languages and tokenization.
        n_samples: number of sample translations.
    """

    def __init__(
        self, translator: Callable[[], Translator], text: ParallelText, corpus: Corpus, n_samples: int
    ) -> None:
        self._translator = translator
        self._text = text
        self._corpus = corpus
        self._n_samples = n_samples
        self.translations: Sequence[str] = []

    def __call__(self, loss: float) -> Validation:
        """Return scores and samples, with the given loss (nats per token)."""
        self.translations = [found.text for found in self._translator().translate(self._text.src)]
        metrics = corpus_metrics(self._corpus)
        scored = {name: metrics[metric] for name, metric in SCORED.items()}
        found = measure(self.translations, self._text.tgt, scored)
        stride = max(1, len(self._text) // max(1, self._n_samples))
        samples = [
            Sample(self._text.src[i], self._text.tgt[i], self.translations[i])
            for i in range(0, len(self._text), stride)
        ]
        scores = {metric.name: metric.score for metric in found}
        signatures = {metric.name: metric.signature for metric in found}
        return Validation(loss, scores, signatures, samples[: self._n_samples])
