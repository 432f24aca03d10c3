"""Runs of other tasks than translation, each so small that it is made in a blink."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from torch import nn

from config.data import BatchConfig, LabelledConfig, MonolingualConfig, StreamConfig
from config.model import BertConfig, ClassifierConfig, TransformerXLConfig
from models.bert import BertClassifier, BertForPreTraining
from models.transformer_xl import TransformerXL
from tests.tiny import TEXT, TOKENIZER, tokenizers
from utils.config import AnyConfig, ClassificationConfig, LanguageConfig, MaskedLanguageConfig
from utils.dataset.labelled import LabelNames
from utils.load import Labelling
from utils.run import WEIGHTS, create_run
from utils.text.tokenizer import Tokenizer, TokenizerPair, Vocabulary, train_tokenizers
from utils.training.checkpoint import write_weights

JAPANESE = tokenizers().src
LABELS = LabelNames(("bridge", "garden", "river"))
BERT = BertConfig(d_model=8, n_heads=2, d_ff=12, n_layers=1, max_length=16)
BATCH = BatchConfig(tokens_per_batch=64, max_tokens=12)
XL = TransformerXLConfig(d_model=8, n_heads=2, d_ff=12, n_layers=2, memory_length=20, tie=False)
NOWHERE = LabelledConfig(*(Path(f"nowhere.{part}") for part in "abcdef"))


def lively(net: nn.Module, seed: int = 0) -> None:
    """What it says depends on all that it reads."""
    torch.manual_seed(seed)
    for parameter in net.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.6)


def says(net: nn.Module, output: nn.Linear, probabilities: list[float]) -> None:
    """It says the same whatever it reads."""
    for parameter in net.parameters():
        nn.init.zeros_(parameter)
    with torch.no_grad():
        output.bias.copy_(torch.tensor(probabilities).log())


def _run(config: AnyConfig, vocabulary: Vocabulary, net: nn.Module, root: Path) -> Path:
    folder = create_run(config, vocabulary, root)
    write_weights(net.state_dict(), folder / WEIGHTS, 0.0)
    return folder


def bert_run(root: Path, probabilities: list[float] | None = None) -> Path:
    """A BERT with `JAPANESE`; lively, or one that always says the same."""
    net = BertForPreTraining(BERT, len(JAPANESE) + 1)
    lively(net) if probabilities is None else says(net, net.head.output, probabilities)
    config = MaskedLanguageConfig(tokenizer=TOKENIZER, model=BERT, batch=BATCH)
    return _run(config, TokenizerPair(JAPANESE, JAPANESE), net, root)


def classifier_run(root: Path, probabilities: list[float] | None = None, data: LabelledConfig = NOWHERE) -> Path:
    """A classifier with `JAPANESE` and `LABELS`."""
    model = ClassifierConfig(d_model=8, n_heads=2, d_ff=12, n_layers=1, max_length=16)
    net = BertClassifier(model, len(JAPANESE) + 1, len(LABELS))
    lively(net, 5) if probabilities is None else says(net, net.classifier, probabilities)
    config = ClassificationConfig(data=data, tokenizer=TOKENIZER, model=model, batch=BATCH)
    return _run(config, Labelling(JAPANESE, LABELS), net, root)


@cache
def english() -> Tokenizer:
    """A language model's own tokenizer, not the translator's."""
    return train_tokenizers(replace(TOKENIZER, vocab_size=40), TEXT.src, TEXT.tgt).tgt


def language_run(root: Path, probabilities: list[float] | None = None) -> Path:
    """A Transformer-XL with the tokenizer `english`."""
    net = TransformerXL(XL, len(english()))
    lively(net, 1) if probabilities is None else says(net, net.output, probabilities)
    data = MonolingualConfig(corpus="files", language="en")
    config = LanguageConfig(name="xl", data=data, tokenizer=TOKENIZER, model=XL, batch=StreamConfig(segment_length=5))
    return _run(config, TokenizerPair(english(), english()), net, root)
