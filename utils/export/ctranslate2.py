"""Export of a run to CTranslate2; `utils/export/engine.py` translates with what was exported."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from const.token import BOS, EOS, UNK
from layers.decoder_block import DecoderBlock
from layers.encoder_block import EncoderBlock
from layers.positional_encoding import LearnedPositionalEncoding
from models.transformer import Transformer
from utils.command import needing_group, page_template
from utils.export import CARD, EXPORTED
from utils.export.engine import TranslatorSettings
from utils.file import write_json, write_text
from utils.text.tokenizer import SentencePieceTokenizer, TokenizerPair, every_token

with needing_group("export"):
    from ctranslate2.specs import common_spec, model_spec, transformer_spec  # with torch

QUANTIZATIONS: tuple[str, ...] = model_spec.ACCEPTED_MODEL_TYPES  # int8, float16 ...; float32 leaves weights unchanged
_ACTIVATION = {name: common_spec.Activation[name.upper()] for name in ("relu", "gelu", "swish")}


def write_translator(
    model: Transformer, tokenizers: TokenizerPair, settings: TranslatorSettings, folder: Path, quantization: str | None
) -> None:
    """Write into a folder all that is needed to translate with CTranslate2."""
    to_ctranslate2(model, tokenizers, folder, quantization)
    tokenizers.save(folder)
    write_json(folder / EXPORTED, asdict(settings))
    card = page_template(Path(__file__).with_name("ctranslate2.md")).render(
        settings=settings,
        search=asdict(settings.search),
        file=EXPORTED,
        weights=quantization or "float32",
        has_pieces=isinstance(tokenizers.tgt, SentencePieceTokenizer),
        is_joint=tokenizers.is_joint,
        tags=tokenizers.tags,
        kinds=tokenizers.kinds,
        is_lower=all(word == word.lower() for word in every_token(tokenizers.src)),
    )
    write_text(folder / CARD, card)


def to_ctranslate2(
    model: Transformer, tokenizers: TokenizerPair, folder: Path, quantization: str | None = None
) -> None:
    """Write a model for `ctranslate2.Translator`, which takes and returns pieces, not text, into a folder."""
    if quantization not in (None, *QUANTIZATIONS):
        raise ValueError(f"quantization={quantization}: CTranslate2 supports {', '.join(QUANTIZATIONS)}")
    spec = _specification(model)
    spec.register_source_vocabulary(every_token(tokenizers.src))
    spec.register_target_vocabulary(every_token(tokenizers.tgt))
    spec.validate()
    spec.optimize(quantization=quantization)
    folder.mkdir(exist_ok=True)
    spec.save(str(folder))


def _specification(model: Transformer) -> transformer_spec.TransformerSpec:
    """Return the network's weights under the names of CTranslate2."""
    config = model.config
    if model.bert is not None:
        raise ValueError(
            "CTranslate2 does not support a BERT as encoder: export to safetensors, or export a run trained without "
            "model.bert"
        )
    if not (config.scale_attention and config.scale_embedding) or config.positions == "none":
        raise ValueError(
            "CTranslate2 always scales attention and embeddings and has positions: export to safetensors, or export a "
            "run trained with them"
        )
    if config.activation not in _ACTIVATION:
        raise ValueError(
            f"CTranslate2 has no activation {config.activation}, only {', '.join(_ACTIVATION)}: "
            "export to safetensors, or train with one of these"
        )
    shape = {
        "num_heads": config.n_heads,
        "pre_norm": config.norm_first,
        "activation": _ACTIVATION[config.activation],
        # components of a head that turn; CTranslate2 pairs neighbours, as `RotaryEmbedding` does
        "rotary_dim": config.d_model // config.n_heads if config.positions == "rotary" else None,
    }
    spec = transformer_spec.TransformerSpec(
        transformer_spec.TransformerEncoderSpec(config.n_encoder_layers, **shape),
        transformer_spec.TransformerDecoderSpec(config.n_decoder_layers, **shape),
    )
    sides = (
        (spec.encoder, spec.encoder.embeddings[0], model.src_embedding, model.src_positions, model.encoder_norm),
        (spec.decoder, spec.decoder.embeddings, model.tgt_embedding, model.tgt_positions, model.decoder_norm),
    )
    for side, embedding, tokens, positions, norm in sides:
        embedding.weight = _array(tokens.weight)
        if config.positions != "rotary":
            table = positions.table.weight if isinstance(positions, LearnedPositionalEncoding) else positions.table
            side.position_encodings.encodings = _array(cast(Tensor, table))
        if isinstance(norm, nn.LayerNorm):
            _set_norm(side.layer_norm, norm)
    for theirs, ours in zip(spec.encoder.layer, cast(Sequence[EncoderBlock], model.encoder), strict=True):
        _set_block(theirs, ours)
    for theirs, block in zip(spec.decoder.layer, cast(Sequence[DecoderBlock], model.decoder), strict=True):
        _set_block(theirs, block)
        cross = block.cross_attention
        _set_linears(theirs.attention.linear, (cross.query,), (cross.key_value,), (cross.output,))
        _set_norm(theirs.attention.layer_norm, block.around_cross.norm)
    _set_linears([spec.decoder.projection], (model.output,))
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = BOS, EOS, UNK
    spec.config.decoder_start_token, spec.config.add_source_eos = BOS, True
    return spec


def _array(*tensors: Tensor) -> NDArray[np.float32]:
    """Concatenate tensors along their rows."""
    return np.concatenate([tensor.detach().float().cpu().numpy() for tensor in tensors])


def _set_norm(theirs: common_spec.LayerNormSpec, ours: nn.LayerNorm) -> None:
    theirs.gamma, theirs.beta = _array(ours.weight), _array(ours.bias)


def _set_linears(theirs: Sequence[common_spec.LinearSpec], *ours: Sequence[nn.Linear]) -> None:
    """Merge several linear layers of ours into each of theirs."""
    for spec, linears in zip(theirs, ours, strict=True):
        spec.weight = _array(*(linear.weight for linear in linears))
        if all(linear.bias is not None for linear in linears):
            spec.bias = _array(*(linear.bias for linear in linears))


def _set_block(
    theirs: transformer_spec.TransformerEncoderLayerSpec | transformer_spec.TransformerDecoderLayerSpec,
    ours: EncoderBlock | DecoderBlock,
) -> None:
    """Set what the blocks of both sides have."""
    attention, feed = ours.self_attention, ours.feed_forward
    _set_linears(theirs.self_attention.linear, (attention.query, attention.key_value), (attention.output,))
    _set_norm(theirs.self_attention.layer_norm, ours.around_self.norm)
    _set_linears([theirs.ffn.linear_0, theirs.ffn.linear_1], (feed.widen,), (feed.narrow,))
    _set_norm(theirs.ffn.layer_norm, ours.around_feed.norm)
