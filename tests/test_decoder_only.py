"""The translator without an encoder: both its parts against one sequence, its layers, and what it has not."""

from dataclasses import replace

import pytest
import torch

from config.model import DecoderOnlyConfig
from const.token import BOS_ID, EOS_ID
from layers.mask import causal_mask
from models.decoder_only import DecoderOnlyTranslator
from tests.test_translators import DECODER_ONLY, SRC, TGT, assert_close, lively
from utils.search.forced import attention_weights, layer_guesses

MODERN = replace(DECODER_ONLY, activation="swiglu", norm="rms", tie="none", fused=False)


@pytest.mark.parametrize("config", [DECODER_ONLY, MODERN], ids=["classic", "modern"])
@torch.no_grad()
def test_it_is_one_sequence_of_which_the_source_is_seen_by_all(config: DecoderOnlyConfig) -> None:
    model, src, tgt = lively(config), SRC[:1], TGT[1:2]
    s_len, whole = src.size(1), src.size(1) + tgt.size(1)
    mask = causal_mask(whole, whole) | (torch.arange(whole) < s_len)
    x = torch.cat([model.src_embedding(src), model.tgt_embedding(tgt)], 1)
    for block in model.decoder:
        x, _ = block(x, mask, None)
    assert_close(model(src, tgt), model.output(model.decoder_norm(x))[:, s_len:])


@torch.no_grad()
def test_its_last_layer_is_the_network_and_it_has_no_attention_to_the_source_alone() -> None:
    model: DecoderOnlyTranslator = lively(DECODER_ONLY).float()
    guesses = layer_guesses(model, [4, 5, 6], [7, 8])
    assert_close(guesses[-1], model(torch.tensor([[4, 5, 6, EOS_ID]]), torch.tensor([[BOS_ID, 7, 8]]))[0])
    assert len(guesses) == 2
    with pytest.raises(ValueError, match=r"no attention to the source alone: give a Transformer's run$"):
        attention_weights(model, [4], [5])
