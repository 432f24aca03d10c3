"""The run of a language model that has learned nothing."""

from functools import cache
from pathlib import Path

import torch
from torch import nn

from models.transformer_xl import TransformerXL, TransformerXLConfig
from tests.tiny import TEXT
from utils.config import LanguageConfig
from utils.dataset.monolingual import MonolingualConfig
from utils.run import WEIGHTS, create_run
from utils.text.pair import TokenizerConfig, TokenizerPair, train_tokenizers
from utils.training.weight_store import write_weights

MODEL = TransformerXLConfig(d_model=8, n_heads=2, d_ff=12, n_layers=2, memory_length=20)
TOKENIZER = TokenizerConfig(kind="bpe", vocab_size=40, joint=False)  # not the translator's


@cache
def tokenizers() -> TokenizerPair:
    tokenizer = train_tokenizers(TOKENIZER, TEXT.src, TEXT.tgt).tgt
    return TokenizerPair(tokenizer, tokenizer)


def language_run(root: Path, language: str = "en") -> Path:
    """The folder; every weight is drawn, so that what it says depends on all that it reads."""
    config = LanguageConfig(
        name="xl", data=MonolingualConfig(corpus="files", language=language), tokenizer=TOKENIZER, model=MODEL
    )
    folder = create_run(config, tokenizers(), root)
    torch.manual_seed(0)
    net = TransformerXL(MODEL, len(tokenizers().src))
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.6)
    write_weights(net.state_dict(), folder / WEIGHTS, 0.0)
    return folder
