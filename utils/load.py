"""What was trained, loaded: a translator, a BERT, a Transformer-XL or a classifier, and what belongs to it."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from config.data import primary_language
from config.model import BertConfig, TransformerConfig
from config.search import SamplingConfig, SearchConfig
from config.training import Precision
from layers.packed import packed
from models.bert import BertClassifier, BertForPreTraining
from models.transformer import Transformer
from models.transformer_xl import TransformerXL
from utils.config import (
    ClassificationConfig,
    LanguageConfig,
    MaskedLanguageConfig,
    TranslationConfig,
)
from utils.dataset.labelled import LabelNames
from utils.device import inference_dtype
from utils.run import CONFIG, WEIGHTS, read_config
from utils.search.constraint import Ensemble, Searchable
from utils.search.translator import Translator
from utils.text.tokenizer import Tokenizer, TokenizerPair, every_token, load_tokenizers
from utils.training.checkpoint import first_difference, read_weights

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class Run(NamedTuple):
    """A trained model and what belongs to it."""

    folder: Path
    config: TranslationConfig
    tokenizers: TokenizerPair
    model: Transformer

    @property
    def window(self) -> int:
        """Most source tokens to translate at a time, </s> included."""
        return own_window(self.config)

    @property
    def precision(self) -> Precision:
        """Precision of its training, where its device supports it."""
        return own_precision(self.config, next(self.model.parameters()).device)

    def translator(self, search: SearchConfig | None = None) -> Translator:
        """Return a translator with the present weights; by default with the run's own search settings."""
        return translator_of([self.model], self.tokenizers, [self.config], search)


def own_window(config: TranslationConfig) -> int:
    """Return the most source tokens to translate at a time, </s> included: as many as in training."""
    return min(config.model.max_length, config.batch.max_tokens)


def own_precision(config: TranslationConfig, device: torch.device) -> Precision:
    """Return the precision of the training; auto for fp16 on a CPU, where it is not supported."""
    precision = config.training.precision
    return "auto" if precision == "fp16" and device.type == "cpu" else precision


def translator_of(
    nets: Sequence[Transformer],
    tokenizers: TokenizerPair,
    configs: Sequence[TranslationConfig],
    search: SearchConfig | None = None,
    sampling: SamplingConfig | None = None,
    minimum_bayes_risk: bool = False,
    precision: Precision | None = None,
) -> Translator:
    """Build a translator from a network, its tokenizers and its settings, or from several networks as an ensemble.

    Args:
        nets: on one device.
        tokenizers: which all of them share.
        configs: of each network.
        search: the search settings; None: those of the first.
        sampling: if given, draw translations instead of searching.
        minimum_bayes_risk: order candidates by how much they agree.
        precision: of the matrix products; None: that of the first.
    """
    first, device = configs[0], next(nets[0].parameters()).device
    dtype = inference_dtype(device, precision or own_precision(first, device))
    models = [packed(net, dtype) for net in nets]
    model: Searchable[Any] = models[0] if len(models) == 1 else Ensemble(models)
    return Translator(
        model,
        tokenizers,
        first.data.tgt_lang,
        search or first.search,
        min(map(own_window, configs)),
        min(config.model.max_length for config in configs),
        device,
        sampling,
        minimum_bayes_risk,
    )


def build_translator(
    runs: Sequence[Run],
    search: SearchConfig | None = None,
    sampling: SamplingConfig | None = None,
    minimum_bayes_risk: bool = False,
    precision: Precision = "auto",
) -> Translator:
    """Build a translator from one run, or from several that share a vocabulary; arguments as for `translator_of`."""
    first = runs[0]
    for other in runs[1:]:
        if not all(
            every_token(ours) == every_token(theirs)
            for ours, theirs in zip(first.tokenizers, other.tokenizers, strict=True)
        ):
            raise ValueError(
                f"{first.folder} and {other.folder} have different vocabularies: an ensemble needs the same"
            )
    nets, configs = [run.model for run in runs], [run.config for run in runs]
    return translator_of(nets, first.tokenizers, configs, search, sampling, minimum_bayes_risk, precision)


def load_run(folder: Path, device: torch.device) -> Run:
    """Read a translator's run, ready to translate on a device."""
    config = read_config(folder, TranslationConfig)
    tokenizers = load_tokenizers(folder)
    model = Transformer(config.model, len(tokenizers.src), len(tokenizers.tgt))
    return Run(folder, config, tokenizers, _trained(model, folder, device))


def _trained(net: ModuleT, folder: Path, device: torch.device | None) -> ModuleT:
    """Return a network with the best weights of a run, ready to be used on a device."""
    net.to(device)
    load_weights(net, folder)
    return net.eval()


def load_weights(net: nn.Module, folder: Path) -> None:
    """Load the best weights of a run into a network."""
    weights = folder / WEIGHTS
    if not weights.is_file():
        raise ValueError(f"{folder} has no {WEIGHTS} yet: it appears with the first validation")
    try:
        net.load_state_dict(read_weights(weights))
    except ValueError as error:
        raise ValueError(f"{error}: train the run again") from error
    except RuntimeError as error:
        raise ValueError(f"{weights} does not fit {CONFIG}: {first_difference(error)}") from error


LABELS = "labels.json"  # in a classifier's run


class PretrainedBert(NamedTuple):
    """A trained BERT and what belongs to it."""

    config: MaskedLanguageConfig
    tokenizer: Tokenizer
    net: BertForPreTraining


def load_bert(folder: Path, device: torch.device | None = None) -> PretrainedBert:
    """Read the run of a BERT."""
    config, tokenizer = read_config(folder, MaskedLanguageConfig), load_tokenizers(folder).src
    net = BertForPreTraining(config.model, len(tokenizer) + 1)
    return PretrainedBert(config, tokenizer, _trained(net, folder, device))


def pretrained_shape(folder: Path, own: TransformerConfig | BertConfig, language: str | None = None) -> dict[str, Any]:
    """Return the settings of a BERT, for a network initialised from it; dropouts and `fused` are the network's own.

    Args:
        folder: the BERT's run.
        own: settings of the network.
        language: that the network is to read; None: any.
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
    """Read the run of a Transformer-XL."""
    config, tokenizer = read_config(folder, LanguageConfig), load_tokenizers(folder).src
    net = TransformerXL(config.model, len(tokenizer))
    return TrainedLanguageModel(config, tokenizer, _trained(net, folder, device))


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
    """Read the run of a classifier."""
    config, vocabulary = read_config(folder, ClassificationConfig), Labelling.load(folder)
    net = BertClassifier(config.model, len(vocabulary.tokenizer) + 1, len(vocabulary.labels))
    return TrainedClassifier(config, vocabulary, _trained(net, folder, device))
