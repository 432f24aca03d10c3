"""Conversion of a network to CTranslate2 (Klein et al. 2020), a decoder in C++: weights under its names."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
from ctranslate2.specs import common_spec, model_spec, transformer_spec
from ctranslate2.specs.attention_spec import MultiHeadAttentionSpec
from numpy.typing import NDArray
from torch import Tensor, nn

from const.token import BOS, EOS, UNK
from layers.decoder_block import DecoderBlock
from layers.encoder_block import EncoderBlock
from layers.feed_forward import FeedForward
from layers.multi_head_attention import MultiHeadAttention
from layers.positional_encoding import LearnedPositionalEncoding
from layers.residual import Residual
from layers.token_embedding import TokenEmbedding
from models.transformer import Transformer
from utils.file import atomic_folder
from utils.text.pair import TokenizerPair
from utils.text.tokenizer import every_token

QUANTIZATIONS: tuple[str, ...] = model_spec.ACCEPTED_MODEL_TYPES  # int8, float16 ...; float32 leaves weights unchanged
_ACTIVATION = {
    "relu": common_spec.Activation.RELU,
    "gelu": common_spec.Activation.GELU,
    "swish": common_spec.Activation.SWISH,
}


def to_ctranslate2(
    model: Transformer, tokenizers: TokenizerPair, folder: Path, quantization: str | None = None
) -> None:
    """Write a model for `ctranslate2.Translator`, which takes and returns pieces, not text.

    Args:
        model: any of our models that CTranslate2 supports.
        tokenizers: the tokenizers it was trained with.
        folder: folder to create.
        quantization: one of `QUANTIZATIONS`; None: single precision.

    Raises:
        ValueError: the folder already exists, or as for `write_ctranslate2`.
    """
    if folder.exists():
        raise ValueError(f"{folder} already exists: remove it, or give another name")
    with atomic_folder(folder) as draft:
        write_ctranslate2(model, tokenizers, draft, quantization)


def write_ctranslate2(
    model: Transformer, tokenizers: TokenizerPair, folder: Path, quantization: str | None = None
) -> None:
    """Write a model like `to_ctranslate2`, with the same arguments, into an existing empty folder.

    Raises:
        ValueError: CTranslate2 lacks a layer, the quantization, or a BERT as encoder.
    """
    require_quantization(quantization)
    spec = _specification(model)
    spec.register_source_vocabulary(every_token(tokenizers.src))
    spec.register_target_vocabulary(every_token(tokenizers.tgt))
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(folder))


def require_quantization(quantization: str | None) -> None:
    """Refuse a quantization that CTranslate2 does not support.

    Raises:
        ValueError: it is not supported.
    """
    if quantization is not None and quantization not in QUANTIZATIONS:
        raise ValueError(f"quantization={quantization}: CTranslate2 supports {', '.join(QUANTIZATIONS)}")


def _specification(model: Transformer) -> transformer_spec.TransformerSpec:
    """Return the network's weights under the names of CTranslate2."""
    config, src_embedding = model.config, model.src_embedding
    if not isinstance(src_embedding, TokenEmbedding):
        raise ValueError(
            "CTranslate2 does not support a BERT as encoder: export to safetensors, or export a run trained without "
            "model.bert"
        )
    if config.activation not in _ACTIVATION:
        raise ValueError(
            f"CTranslate2 has no activation {config.activation}, only {', '.join(_ACTIVATION)}: "
            "export to safetensors, or train with one of these"
        )
    # the width of a head's components that turn; CTranslate2 pairs neighbours, as `RotaryEmbedding` does
    rotary_dim = config.d_model // config.n_heads if config.positions == "rotary" else None
    shape = {
        "num_heads": config.n_heads,
        "pre_norm": config.norm_first,
        "activation": _ACTIVATION[config.activation],
        "rotary_dim": rotary_dim,
    }
    spec = transformer_spec.TransformerSpec(
        transformer_spec.TransformerEncoderSpec(config.n_encoder_layers, **shape),
        transformer_spec.TransformerDecoderSpec(config.n_decoder_layers, **shape),
    )
    sides = (
        (spec.encoder, spec.encoder.embeddings[0], src_embedding, model.src_positions, model.encoder_norm),
        (spec.decoder, spec.decoder.embeddings, model.tgt_embedding, model.tgt_positions, model.decoder_norm),
    )
    for side, embedding, table, positions, norm in sides:
        embedding.weight = _array(table.weight)
        embedding.multiply_by_sqrt_depth = True
        if rotary_dim is None:
            side.position_encodings.encodings = _array(_table(positions))
        if isinstance(norm, nn.LayerNorm):
            _set_norm(side.layer_norm, norm)
    encoder, decoder = cast(Sequence[EncoderBlock], model.encoder), cast(Sequence[DecoderBlock], model.decoder)
    for theirs, ours in zip(spec.encoder.layer, encoder, strict=True):
        _set_attention(theirs.self_attention, ours.self_attention, ours.around_self, is_self=True)
        _set_feed_forward(theirs.ffn, ours.feed_forward, ours.around_feed)
    for theirs, block in zip(spec.decoder.layer, decoder, strict=True):
        _set_attention(theirs.self_attention, block.self_attention, block.around_self, is_self=True)
        _set_attention(theirs.attention, block.cross_attention, block.around_cross, is_self=False)
        _set_feed_forward(theirs.ffn, block.feed_forward, block.around_feed)
    _set_linear(spec.decoder.projection, model.output)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = BOS, EOS, UNK
    spec.config.decoder_start_token, spec.config.add_source_eos = BOS, True
    return spec


def _array(*tensors: Tensor) -> NDArray[np.float32]:
    """Concatenate tensors along their rows."""
    return np.concatenate([tensor.detach().float().cpu().numpy() for tensor in tensors])


def _table(positions: nn.Module) -> Tensor:
    if isinstance(positions, LearnedPositionalEncoding):
        return positions.table.weight
    return cast(Tensor, positions.table)


def _set_norm(theirs: common_spec.LayerNormSpec, ours: nn.LayerNorm) -> None:
    theirs.gamma, theirs.beta = _array(ours.weight), _array(ours.bias)


def _set_linear(theirs: common_spec.LinearSpec, *ours: nn.Linear) -> None:
    """Merge several linear layers into one."""
    theirs.weight = _array(*(linear.weight for linear in ours))
    if all(linear.bias is not None for linear in ours):
        theirs.bias = _array(*(linear.bias for linear in ours))


def _set_attention(theirs: MultiHeadAttentionSpec, ours: MultiHeadAttention, around: Residual, is_self: bool) -> None:
    if is_self:
        _set_linear(theirs.linear[0], ours.query, ours.key_value)
    else:
        _set_linear(theirs.linear[0], ours.query)
        _set_linear(theirs.linear[1], ours.key_value)
    _set_linear(theirs.linear[-1], ours.output)
    _set_norm(theirs.layer_norm, around.norm)


def _set_feed_forward(theirs: transformer_spec.FeedForwardSpec, ours: FeedForward, around: Residual) -> None:
    _set_linear(theirs.linear_0, ours.widen)
    _set_linear(theirs.linear_1, ours.narrow)
    _set_norm(theirs.layer_norm, around.norm)
