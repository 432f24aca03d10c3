"""Exported == ours: CTranslate2 gives the same tokens as our own search."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import ctranslate2
import pytest
import torch

from const.token import BOS, PAD, SPECIAL_TOKENS, UNK
from layers.decoder_block import DecoderBlock
from models.bert import BertConfig
from models.transformer import Transformer, TransformerConfig
from tests.tiny import MODEL, TEXT, tokenizers, translating
from utils.dataset.batch import padded
from utils.export.ctranslate2 import QUANTIZATIONS, to_ctranslate2
from utils.search.constraint import Bounds, SearchConfig
from utils.search.sampling import greedy_search
from utils.text.tokenizer import TokenizerPair

N_TOKENS = 12
DRAW = random.Random(1)
N_PIECES = len(tokenizers().src)
# sentences, and any pieces in any order
SOURCES = tokenizers().src.encode(TEXT.src[::2]) + [
    [DRAW.randrange(len(SPECIAL_TOKENS), N_PIECES) for _ in range(DRAW.randint(1, 30))] for _ in range(240)
]

SHAPES = {
    "norm first": MODEL,
    "norm last": replace(MODEL, norm_first=False),
    "untied": replace(MODEL, tie="none"),
    "learned positions, norm last, untied": replace(MODEL, norm_first=False, positions="learned", tie="none"),
    "learned positions, untied, gelu": replace(MODEL, positions="learned", tie="none", activation="gelu"),
    "rotary positions": replace(MODEL, positions="rotary", n_encoder_layers=2),
    "swish": replace(MODEL, activation="swish", n_encoder_layers=2),
}


def attentive(config: TransformerConfig) -> Transformer:
    """What it says depends on the source more than on what it has said."""
    model = translating(config, seed=2)
    for block in cast(Sequence[DecoderBlock], model.decoder):
        for linear in (block.cross_attention.key_value, block.cross_attention.output):
            linear.weight.data *= 3
    return model


def exported(config: TransformerConfig, folder: Path, quantization: str | None = None) -> ctranslate2.Translator:
    to_ctranslate2(attentive(config), tokenizers(), folder / "model", quantization)
    return ctranslate2.Translator(str(folder / "model"), device="cpu", intra_threads=1)


def greedy(theirs: ctranslate2.Translator, sources: list[list[int]], tokenizers: TokenizerPair) -> list[list[str]]:
    found = theirs.translate_batch(
        [tokenizers.src.tokens(ids) for ids in sources],
        beam_size=1,
        min_decoding_length=0,
        max_decoding_length=N_TOKENS,
        no_repeat_ngram_size=1,
        suppress_sequences=[[token] for token in (PAD, UNK, BOS)],
    )
    return [translation.hypotheses[0] for translation in found]


def our_greedy(model: Transformer, sources: list[list[int]], tokenizers: TokenizerPair) -> list[list[str]]:
    bounds = [Bounds(0, N_TOKENS + 1)] * len(sources)
    found = greedy_search(model, padded(sources), bounds, SearchConfig(beam_size=1, no_repeat_ngram=1))
    return [tokenizers.tgt.tokens(hypothesis.ids) for hypothesis in found]


@pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES)
def test_it_says_the_same_and_finds_it_as_likely(config: TransformerConfig, tmp_path: Path) -> None:
    src, tgt = tokenizers()
    theirs, model = exported(config, tmp_path), attentive(config)
    assert len(SOURCES) == 300
    ours = our_greedy(model, SOURCES, tokenizers())
    assert ours == greedy(theirs, SOURCES, tokenizers())
    assert len({tuple(tokens) for tokens in ours}) > 50

    targets = tgt.encode(TEXT.tgt[::2])
    given, sources = padded(targets, bos=True), SOURCES[: len(targets)]
    log_probs = model(padded(sources), given[:, :-1]).log_softmax(-1).gather(-1, given[:, 1:, None])[..., 0].tolist()
    scored = theirs.score_batch([src.tokens(ids) for ids in sources], [tgt.tokens(ids) for ids in targets])
    for ids, row, score in zip(targets, log_probs, scored, strict=True):
        assert score.log_probs == pytest.approx(row[: len(ids) + 1], abs=1e-3)


def test_one_vocabulary_and_one_matrix_for_both_sides(tmp_path: Path) -> None:
    both = TokenizerPair(tokenizers().src, tokenizers().src)
    config = replace(MODEL, tie="all")
    model = translating(config)
    to_ctranslate2(model, both, tmp_path / "model")
    theirs = ctranslate2.Translator(str(tmp_path / "model"), device="cpu", intra_threads=1)
    assert our_greedy(model, SOURCES[:100], both) == greedy(theirs, SOURCES[:100], both)


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_smaller_numbers_say_almost_the_same(quantization: str, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    config = replace(MODEL, norm_first=False)  # whose numbers stay small
    whole = exported(config, tmp_path / "whole")
    small = exported(config, tmp_path, quantization)
    targets = [tokenizers().tgt.tokens(ids) for ids in tokenizers().tgt.encode(TEXT.tgt[::10])]
    sources = [tokenizers().src.tokens(ids) for ids in tokenizers().src.encode(TEXT.src[::10])]
    pairs = list(zip(small.score_batch(sources, targets), whole.score_batch(sources, targets), strict=True))
    far = [abs(a - b) for ours, theirs in pairs for a, b in zip(ours.log_probs, theirs.log_probs, strict=True)]
    # AVX2 has no arithmetic for int16, which is computed as int8 there, and int8's sums saturate
    is_old = torch.backends.cpu.get_cpu_capability() == "AVX2"
    tolerance = 0.1 if not quantization.startswith("int" if is_old else "int8") else 1.0 if is_old else 0.5
    assert sum(far) / len(far) < tolerance
    sizes = [(tmp_path / folder / "model.bin").stat().st_size for folder in ("model", "whole/model")]
    assert (sizes[0] < 0.8 * sizes[1]) == (quantization != "float32")


def test_what_it_cannot_hold_is_named(tmp_path: Path) -> None:
    bert = BertConfig(d_model=16, n_heads=2, d_ff=32, n_layers=1, max_length=48)
    for config, quantization, message in (
        (replace(MODEL, activation="mish"), None, "no activation mish, only relu, gelu, swish: export to safetensors"),
        (replace(MODEL, bert=bert), None, "does not support a BERT as encoder: export to safetensors"),
        (MODEL, "int4", "quantization=int4: CTranslate2 supports int8, "),
    ):
        with pytest.raises(ValueError, match=message):
            to_ctranslate2(translating(config), tokenizers(), tmp_path / "model", quantization)
    assert not any(tmp_path.iterdir())


def test_a_folder_that_is_there_stays(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="already exists"):
        to_ctranslate2(translating(), tokenizers(), tmp_path)
