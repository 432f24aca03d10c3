"""Reading runs of tasks other than translation: what was trained, and what belongs to it."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

from models.bert import BertClassifier, BertConfig, BertForPreTraining
from models.transformer import TransformerConfig
from models.transformer_xl import TransformerXL
from utils.config import ClassificationConfig, LanguageConfig, MaskedLanguageConfig
from utils.dataset.labelled import LabelNames
from utils.run import load_weights, read_config
from utils.text.pair import TokenizerPair, load_tokenizers
from utils.text.script import primary_language
from utils.text.tokenizer import Tokenizer

LABELS = "labels.json"  # in a classifier's run


class PretrainedBert(NamedTuple):
    """A trained BERT and what belongs to it."""

    config: MaskedLanguageConfig
    tokenizer: Tokenizer
    net: BertForPreTraining


def load_bert(folder: Path, device: torch.device | None = None) -> PretrainedBert:
    """Read the run of a BERT.

    Raises:
        ValueError: when there is no such run, it is of another task, or it has no weights yet.
    """
    config = read_config(folder, MaskedLanguageConfig)
    tokenizer = load_tokenizers(folder).src
    net = BertForPreTraining(config.model, len(tokenizer) + 1).to(device)
    load_weights(net, folder)
    return PretrainedBert(config, tokenizer, net.eval())


def pretrained_shape(folder: Path, own: TransformerConfig | BertConfig, language: str | None = None) -> dict[str, Any]:
    """Return the settings of a BERT, for a network initialised from it; dropouts and `fused` are the network's own.

    Args:
        folder: the BERT's run.
        own: settings of the network.
        language: that the network is to read; None: any.

    Raises:
        ValueError: when there is no such run, or it is of another task or language.
    """
    config = read_config(folder, MaskedLanguageConfig)
    if language is not None and primary_language(config.data.language) != primary_language(language):
        raise ValueError(f"init_encoder={folder} reads {config.data.language}, but the texts to read are in {language}")
    free = {"dropout": own.dropout, "attention_dropout": own.attention_dropout, "fused": own.fused}
    return asdict(config.model) | free


class TrainedLanguageModel(NamedTuple):
    """A trained Transformer-XL and what belongs to it."""

    config: LanguageConfig
    tokenizer: Tokenizer
    net: TransformerXL


def load_language_model(folder: Path, device: torch.device | None = None) -> TrainedLanguageModel:
    """Read the run of a Transformer-XL.

    Raises:
        ValueError: when there is no such run, it is of another task, or it has no weights yet.
    """
    config = read_config(folder, LanguageConfig)
    tokenizer = load_tokenizers(folder).src
    net = TransformerXL(config.model, len(tokenizer)).to(device)
    load_weights(net, folder)
    return TrainedLanguageModel(config, tokenizer, net.eval())


class Labelling(NamedTuple):
    """The tokenizer of a classifier, and the names of its classes."""

    tokenizer: Tokenizer
    labels: LabelNames

    def save(self, folder: Path) -> None:
        """Write both into a folder."""
        TokenizerPair(self.tokenizer, self.tokenizer).save(folder)
        self.labels.save(folder / LABELS)

    @classmethod
    def load(cls, folder: Path) -> "Labelling":
        """Read what `save` wrote."""
        return cls(load_tokenizers(folder).src, LabelNames.load(folder / LABELS))


class TrainedClassifier(NamedTuple):
    """A trained classifier and what belongs to it."""

    config: ClassificationConfig
    vocabulary: Labelling
    net: BertClassifier


def load_classifier(folder: Path, device: torch.device | None = None) -> TrainedClassifier:
    """Read the run of a classifier.

    Raises:
        ValueError: when there is no such run, it is of another task, or it has no weights yet.
    """
    config = read_config(folder, ClassificationConfig)
    vocabulary = Labelling.load(folder)
    net = BertClassifier(config.model, len(vocabulary.tokenizer) + 1, len(vocabulary.labels)).to(device)
    load_weights(net, folder)
    return TrainedClassifier(config, vocabulary, net.eval())
