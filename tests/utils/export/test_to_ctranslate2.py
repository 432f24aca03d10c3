"""Exported == ours: the same tokens from CTranslate2 as from our own search."""

from dataclasses import replace
from pathlib import Path

import ctranslate2
import pytest

from const.token import BOS, PAD, UNK
from models.transformer import TransformerConfig
from tests.tiny import MODEL, TEXT, tokenizers, translating
from utils.dataset.batch import padded
from utils.export.to_ctranslate2 import to_ctranslate2
from utils.search.greedy import greedy_search
from utils.search.hypothesis import Bounds, SearchConfig

N_TOKENS = 12
SOURCES = tokenizers().src.encode(TEXT.src[::2])

SHAPES = {
    "norm first": MODEL,
    "norm last": replace(MODEL, norm_first=False),
    "learned positions, untied, gelu": replace(MODEL, positions="learned", tie="none", activation="gelu"),
    "swish": replace(MODEL, activation="swish", n_encoder_layers=2),
}


def exported(config: TransformerConfig, folder: Path) -> ctranslate2.Translator:
    to_ctranslate2(translating(config), tokenizers(), folder / "model")
    return ctranslate2.Translator(str(folder / "model"), device="cpu", intra_threads=1)


@pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES)
def test_it_says_the_same_and_finds_it_as_likely(config: TransformerConfig, tmp_path: Path) -> None:
    src, tgt = tokenizers()
    pieces = [src.tokens(ids) for ids in SOURCES]
    theirs = exported(config, tmp_path)
    model = translating(config)
    bounds = [Bounds(0, N_TOKENS + 1)] * len(SOURCES)
    ours = [tgt.tokens(found.ids) for found in greedy_search(model, padded(SOURCES), bounds, SearchConfig(beam_size=1))]
    found = theirs.translate_batch(
        pieces,
        beam_size=1,
        min_decoding_length=0,
        max_decoding_length=N_TOKENS,
        suppress_sequences=[[token] for token in (PAD, UNK, BOS)],
    )
    assert len(SOURCES) >= 60
    assert ours == [translation.hypotheses[0] for translation in found]

    targets = tgt.encode(TEXT.tgt[::2])
    given = padded(targets, bos=True)
    log_probs = model(padded(SOURCES), given[:, :-1]).log_softmax(-1).gather(-1, given[:, 1:, None])[..., 0].tolist()
    scored = theirs.score_batch(pieces, [tgt.tokens(ids) for ids in targets])
    for ids, row, score in zip(targets, log_probs, scored, strict=True):
        assert score.log_probs == pytest.approx(row[: len(ids) + 1], abs=1e-3)


def test_what_it_cannot_hold_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no activation mish"):
        to_ctranslate2(translating(replace(MODEL, activation="mish")), tokenizers(), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_folder_that_is_there_stays(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there already"):
        to_ctranslate2(translating(), tokenizers(), tmp_path)
