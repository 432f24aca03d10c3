"""The recipe of bentrevett's seq2seq, notebook 6: a network of its size, and batches as it cuts them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from const.path import PRESET
from layers.positional_encoding import LearnedPositionalEncoding
from models.transformer import Transformer
from utils.config import TranslationConfig
from utils.dataset.batch import BucketSampler, require_positions
from utils.dataset.corpus import Corpus, Split, cached_tokenizers, cached_tokens, prepare_corpus
from utils.dataset.ids import TokenPairs
from utils.text.tokenizer import TokenizerPair
from utils.training.plan import learning_rate

Texts = tuple[Corpus, TokenizerPair, Callable[[Split], TokenPairs]]


@pytest.fixture(scope="module")
def config() -> TranslationConfig:
    return TranslationConfig.load(PRESET / "multi30k_de_en_words.yaml")


def test_with_its_vocabularies_it_has_its_number_of_parameters(config: TranslationConfig) -> None:
    with torch.device("meta"):
        net = Transformer(config.model, 7855, 5893)
    assert sum(parameter.numel() for parameter in net.parameters()) == 9_038_853
    tables = [part.table for part in net.modules() if isinstance(part, LearnedPositionalEncoding)]
    assert [tuple(table.weight.shape) for table in tables] == [(100, 256)] * 2
    assert all(isinstance(norm, nn.Identity) for norm in (net.encoder_norm, net.decoder_norm))  # norms last


def test_it_steps_as_torch_adam_does_by_default(config: TranslationConfig) -> None:
    default = torch.optim.Adam([torch.zeros(1)]).defaults
    assert (config.optimizer.betas, config.optimizer.eps) == (default["betas"], default["eps"])
    assert config.optimizer.weight_decay == 0
    assert {learning_rate(step, config.optimizer) for step in (1, 2, 227, 2270)} == {0.0005}


@pytest.fixture(scope="module")
def texts(config: TranslationConfig, shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Texts:
    """The real corpus, its vocabularies, and the ids of a split."""
    root = tmp_path_factory.mktemp("corpus")
    data = replace(config.data, archive=shared_data / "multi30k.tar.xz")
    corpus = prepare_corpus(data, root)
    tokenizers = cached_tokenizers(corpus, data, config.tokenizer, print, root)
    return corpus, tokenizers, lambda split: cached_tokens(corpus, split, data, tokenizers, print, root)


def test_moses_cuts_nearly_as_many_words_as_spacy_and_bleu_takes_them(texts: Texts) -> None:
    corpus, tokenizers, _ = texts
    assert [len(tokenizer) for tokenizer in tokenizers] == [7859, 5921]  # spaCy: 7855 and 5893
    assert corpus.pre_tokenized


def test_an_epoch_is_all_pairs_in_batches_of_128_and_ends_with_a_validation(
    config: TranslationConfig, texts: Texts
) -> None:
    batch = config.batch
    bounds = batch.tokens_per_batch, batch.max_tokens, 1, batch.length_multiple, batch.sentences_per_batch
    epoch = BucketSampler(texts[2]("train"), *bounds).epoch(0)
    assert sorted(len(each.src) for each in epoch) == [29_000 % 128] + [128] * 226
    assert epoch.n_dropped == 0
    assert len(epoch) == config.training.validate_every
    assert epoch.padding < 0.03


def test_every_line_that_is_read_fits_the_table(config: TranslationConfig, texts: Texts) -> None:
    corpus, _, ids = texts
    config.batch.require_positions(config.model.max_length)
    for sides, files in (ids("dev"), corpus.dev), (ids("test"), corpus.test):
        for side, file in zip(sides, files, strict=True):
            require_positions(side, file, config.model.max_length, "model.max_length")
