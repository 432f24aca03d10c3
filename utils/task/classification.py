"""Classification: texts with labels, a BERT with a classification head, cross-entropy of the class, accuracy."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from models.bert import BertClassifier
from utils.config import ClassificationConfig
from utils.dataset.labelled import LabelledBatch, LabelledSampler, LabelledText, LabelNames
from utils.dataset.line_cache import cached_tokenizer
from utils.evaluation.accuracy import ClassAccuracy
from utils.task.conclusion import Trained, score_best
from utils.task.task import Say
from utils.text.pair import load_tokenizers
from utils.trained import Labelling, load_bert, pretrained_shape
from utils.training.classification_objective import ClassificationObjective
from utils.training.validation import Judge


def _vocabulary_of(config: ClassificationConfig, say: Say) -> Labelling:
    """Return the tokenizer (that of the BERT to fine-tune, if there is one) and the labels for a new training."""
    data, encoder = config.data, config.model.init_encoder
    if encoder is not None:
        tokenizer = load_tokenizers(encoder).src
    else:
        tokenizer = cached_tokenizer(f"labelled-{data.text.stem}", data.text, config.tokenizer, say)
    return Labelling(tokenizer, LabelNames.of(data.labels))


class ClassificationTask:
    """Texts and labels to train and score on.

    Args:
        config: all settings.
        source: a run whose vocabulary is used, when training resumes or starts from one.
        say: called with a line about what takes time.
    """

    objective = ClassificationObjective()
    unit = "texts"

    def __init__(self, config: ClassificationConfig, source: Path | None, say: Say) -> None:
        config.training.require_score("accuracy")
        # a run to start from has the settings, vocabulary and weights of its BERT already
        self._pretrained = encoder = config.model.init_encoder if source is None else None
        if encoder is not None:
            config = replace(config, model=replace(config.model, **pretrained_shape(encoder, config.model)))
        self.config = config
        batch = config.batch
        batch.require_positions(config.model.max_length)
        files = config.data.pairs()
        self.vocabulary = _vocabulary_of(config, say) if source is None else Labelling.load(source)
        self.fingerprint = config.data.fingerprint()
        self.sizes = {"source": len(self.vocabulary.tokenizer), "labels": len(self.vocabulary.labels)}
        self.sampler, self._dev, self._test = (
            LabelledSampler(
                LabelledText.cached(text, labels, self.vocabulary.labels, self.vocabulary.tokenizer, say),
                batch.tokens_per_batch,
                batch.max_tokens,
                config.training.seed,
                batch.length_multiple,
                batch.sentences_per_batch,
            )
            for text, labels in files
        )

    def build(self) -> BertClassifier:
        """Build a BERT, initialised from another run if requested, with a classification head."""
        model, (tokenizer, labels) = self.config.model, self.vocabulary
        net = BertClassifier(model, len(tokenizer) + 1, len(labels))
        if self._pretrained is not None:
            pretrained = load_bert(self._pretrained).net
            net.bert.load_state_dict(pretrained.bert.state_dict())
            net.pooler.load_state_dict(pretrained.pooler.state_dict())
        return net

    def validation(self, net: BertClassifier) -> tuple[Sequence[LabelledBatch], Judge]:
        """Return the dev text, and what scores a network on it by accuracy."""
        dev = self._dev.all()
        return dev, ClassAccuracy(net, dev)

    def conclude(self, trained: Trained, folder: Path, say: Say) -> None:
        """Score the best weights on the test text by accuracy."""
        test = self._test.all()
        text = f"{self.config.data.text.parent.name}, {len(self.vocabulary.labels)} labels"
        about = {"task": self.config.task, "text": text}
        score_best(trained, folder, self.config, about, test, ClassAccuracy(trained.net, test), say)
        say(f'\nClassify with it: python -m utils.task.classify --run {folder} "TEXT"')
