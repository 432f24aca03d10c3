"""Classification: texts with labels, a BERT with a classification head, cross-entropy of the class, accuracy."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from const.token import BOS_ID, EOS_ID
from models.bert import BertClassifier
from utils.command import Log
from utils.config import ClassificationConfig
from utils.dataset.batch import BucketSampler
from utils.dataset.ids import TokenArray, cached_tokenizer
from utils.dataset.labelled import LabelledBatch, LabelledText, LabelNames, fingerprint, labelled_examples, text_pairs
from utils.dataset.text import read_lines
from utils.evaluation.validation import class_accuracy
from utils.load import Labelling, TrainedClassifier, load_bert, pretrained_shape
from utils.task.task import HeldOut, Task
from utils.text.tokenizer import load_tokenizers
from utils.training.loss import classification_loss
from utils.training.report import Validate


class ClassificationTask(Task):
    """Texts and labels to train and score on."""

    objective = staticmethod(classification_loss)
    unit = "texts"
    next_step = 'Classify with it: python predict.py classify --run {} "TEXT"'
    vocabulary: Labelling

    def __init__(self, config: ClassificationConfig, source: Path | None, log: Log) -> None:
        config.training.require_score("accuracy")
        # a run to start from has the settings, vocabulary and weights of its BERT already
        self._pretrained = encoder = config.model.init_encoder if source is None else None
        if encoder is not None:
            config = replace(config, model=replace(config.model, **pretrained_shape(encoder, config.model)))
        self.config = config
        data = config.data
        config.batch.require_positions(config.model.max_length)
        files = text_pairs(data)
        if source is not None:
            self.vocabulary = Labelling.load(source)
        elif encoder is not None:
            self.vocabulary = Labelling(load_tokenizers(encoder).src, LabelNames.of(data.labels))
        else:
            tokenizer = cached_tokenizer(f"labelled-{data.text.stem}", data.text, config.tokenizer, log)
            self.vocabulary = Labelling(tokenizer, LabelNames.of(data.labels))
        tokenizer, labels = self.vocabulary
        self.fingerprint, self.dev = fingerprint(data), files[1]
        self.reads = {"text": (tokenizer, data.text)}
        self.sizes = {"source": len(tokenizer), "labels": len(labels)}
        text = f"{data.text.parent.name}, {len(labels)} labels"
        self.identity = {"task": config.task, "text": text, "fingerprint": self.fingerprint}
        texts = (LabelledText.cached(*pair, labels, tokenizer, log) for pair in files)
        self.learn_from(*(self.bucket_sampler(text, config.training.seed, labelled_examples) for text in texts))

    def build(self) -> BertClassifier:
        """Build a BERT, initialised from another run if requested, with a classification head."""
        net = BertClassifier(self.config.model, self.sizes["source"] + 1, self.sizes["labels"])
        if self._pretrained is not None:
            pretrained = load_bert(self._pretrained).net
            net.bert.load_state_dict(pretrained.bert.state_dict())
            net.pooler.load_state_dict(pretrained.pooler.state_dict())
        return net

    def scorer(self, net: BertClassifier, split: HeldOut) -> Validate:
        """Return what computes the accuracy."""
        return partial(class_accuracy, net, self.held_out[split])


# What a classifier says of texts, and how often it is right.

_CONFUSIONS = 5  # number to show


class Guess(NamedTuple):
    """A class that a text may belong to."""

    label: str
    probability: float


@torch.inference_mode()
def classify(classifier: TrainedClassifier, text: str, top: int) -> list[Guess]:
    """Return the likeliest classes of a text, likeliest first; a long text is truncated, as in training."""
    config, (tokenizer, labels), net = classifier
    ids = [BOS_ID, *tokenizer.encode([text])[0][: config.batch.max_tokens - 2], EOS_ID]
    probs = net(torch.tensor([ids], device=next(net.parameters()).device))[0].float().softmax(-1)
    likeliest = probs.topk(min(top, len(labels)))
    return [Guess(labels[i], p) for p, i in zip(*(values.tolist() for values in likeliest), strict=True)]


def labelled_batches(classifier: TrainedClassifier, texts: Path, labels: Path) -> list[LabelledBatch]:
    """Read texts and their labels from two files, as batches of similar length."""
    config, (tokenizer, names), _ = classifier
    lines, numbers = read_lines(texts), names.numbers(labels)
    if len(lines) != len(numbers):
        raise ValueError(f"{texts} has {len(lines):,} lines but {labels} has {len(numbers):,}: give a label for each")
    text = LabelledText(TokenArray.of(tokenizer.encode(lines), len(tokenizer)), numbers)
    batch = config.batch
    return BucketSampler(text, batch.tokens_per_batch, batch.max_tokens, examples=labelled_examples).all()


@torch.inference_mode()
def confusion(net: BertClassifier, batches: Iterable[LabelledBatch], n_classes: int) -> Int[Tensor, "C C"]:
    """Count how many texts of each class (row) the network assigns to each class (column)."""
    device = next(net.parameters()).device
    taken = torch.zeros(n_classes * n_classes, dtype=torch.long, device=device)
    for batch in (batch.to(device) for batch in batches):
        taken += (batch.label * n_classes + net(batch.ids).argmax(-1)).bincount(minlength=n_classes**2)
    return taken.view(n_classes, n_classes).cpu()


def summary(taken: Int[Tensor, "C C"], labels: Sequence[str]) -> list[str]:
    """Return lines with the accuracy and the most frequent confusions."""
    right, n_texts = int(taken.trace()), int(taken.sum())
    lines = [f"accuracy {100 * right / n_texts:.2f} % of {n_texts:,} texts"]
    wrong = taken.clone().fill_diagonal_(0).flatten()
    counts, places = wrong.sort(descending=True, stable=True)
    confusions = [
        f"{labels[place // len(labels)]} taken for {labels[place % len(labels)]} ({count:,})"
        for count, place in zip(counts[:_CONFUSIONS].tolist(), places[:_CONFUSIONS].tolist(), strict=True)
        if count
    ]
    return [*lines, f"most often confused: {', '.join(confusions)}"] if confusions else lines
