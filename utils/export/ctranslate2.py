"""Export of a run to CTranslate2, alone or in a package of Argos Translate, from which LibreTranslate translates, too.

`utils/export/engine.py` translates with what was exported alone.
"""

import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from config.data import primary_language
from const.corpora import VERSION
from const.token import BOS, EOS, EOS_ID, UNK
from layers.decoder_block import DecoderBlock
from layers.encoder_block import EncoderBlock
from layers.positional_encoding import LearnedPositionalEncoding, SinusoidalPositionalEncoding, sinusoid
from models.transformer import Transformer
from utils.command import needing_group, page_template
from utils.export import CARD, COMPARED, EXPORTED, refuse_difference
from utils.export.engine import CTranslate2Model, TranslatorSettings
from utils.file import read_json, write_json, write_text
from utils.load import Run
from utils.search.forced import token_log_probs
from utils.text.language import language_name
from utils.text.tokenizer import SentencePieceTokenizer, TokenizerPair, every_token
from utils.text.words import WORDS

with needing_group("export"):
    from ctranslate2.specs import common_spec, model_spec, transformer_spec  # with torch

QUANTIZATIONS: tuple[str, ...] = model_spec.ACCEPTED_MODEL_TYPES  # int8, float16 ...; float32 leaves weights unchanged
_ACTIVATION = {name: common_spec.Activation[name.upper()] for name in ("relu", "gelu", "swish")}
_POSITIONS = "sinusoidal", "learned", "rotary"
_ACTIVATION["swiglu"] = _ACTIVATION["swish"]  # and a gate


def write_translator(run: Run, folder: Path, quantization: str | None) -> None:
    """Write into a folder all that is needed to translate with CTranslate2."""
    data, longest, tokenizers = run.config.data, run.transformer.config.max_length, run.tokenizers
    name = run.folder.resolve().name
    settings = TranslatorSettings(name, *data.languages, run.window, longest, run.config.search)
    to_ctranslate2(run.transformer, tokenizers, folder, quantization)
    tokenizers.save(folder)
    if (run.folder / WORDS).is_file():
        shutil.copyfile(run.folder / WORDS, folder / WORDS)
    write_json(folder / EXPORTED, asdict(settings))
    card = page_template(Path(__file__).with_name("ctranslate2.md")).render(
        settings=settings,
        search=asdict(settings.search),
        file=EXPORTED,
        weights=quantization or "float32",
        has_pieces=isinstance(tokenizers.tgt, SentencePieceTokenizer),
        is_joint=tokenizers.is_joint,
        tags=tokenizers.tags,
        kinds=tokenizers.text_tags,
        is_lower=all(word == word.lower() for word in every_token(tokenizers.src)),
    )
    write_text(folder / CARD, card)


def to_ctranslate2(
    model: Transformer, tokenizers: TokenizerPair, folder: Path, quantization: str | None = None
) -> None:
    """Write a model for `ctranslate2.Translator`, which takes and returns pieces, not text, into a folder."""
    if quantization not in (None, *QUANTIZATIONS):
        raise ValueError(f"quantization={quantization}: CTranslate2 supports {', '.join(QUANTIZATIONS)}")
    with TemporaryDirectory() as exact:  # rounded weights would hide a small difference
        _write(model, tokenizers, Path(exact), None)
        _refuse_difference(model, tokenizers, Path(exact))
    _write(model, tokenizers, folder, quantization)


def _write(model: Transformer, tokenizers: TokenizerPair, folder: Path, quantization: str | None) -> None:
    spec = _specification(model)
    spec.register_source_vocabulary(every_token(tokenizers.src))
    spec.register_target_vocabulary(every_token(tokenizers.tgt))
    spec.validate()
    spec.optimize(quantization=quantization)
    folder.mkdir(exist_ok=True)
    spec.save(str(folder))


def _refuse_difference(model: Transformer, tokenizers: TokenizerPair, folder: Path) -> None:
    n, first = min(COMPARED, model.config.max_length) - 1, EOS_ID + 1  # token that is no special one
    source, target = ([i % (len(side) - first) + first for i in range(n)] for side in tokenizers)
    (expected,) = token_log_probs(model, [source], [target])
    refuse_difference(
        "CTranslate2", expected, lambda: CTranslate2Model(folder, tokenizers, "cpu").log_probs([source], [target])[0]
    )


def _specification(model: Transformer) -> transformer_spec.TransformerSpec:
    """Return the network's weights under the names of CTranslate2."""
    config, array = model.config, _Arrays(model)
    if model.bert is not None:
        raise ValueError(
            "CTranslate2 does not support a BERT as encoder: export to safetensors, or export a run trained without "
            "model.bert"
        )
    if not (config.scale_attention and config.scale_embedding) or config.positions not in _POSITIONS:
        raise ValueError(
            f"CTranslate2 always scales attention and embeddings and has {', '.join(_POSITIONS)} positions: export to "
            "safetensors, or export a run trained with them"
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
        "ffn_glu": config.activation == "swiglu",
        "rms_norm": config.norm == "rms",
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
        embedding.weight = array(tokens.weight)
        if config.positions != "rotary":
            table = positions.table.weight if isinstance(positions, LearnedPositionalEncoding) else positions.table
            side.position_encodings.encodings = array(cast(Tensor, table))
        if not isinstance(norm, nn.Identity):
            _set_norm(array, side.layer_norm, norm)
    for theirs, ours in zip(spec.encoder.layer, cast(Sequence[EncoderBlock], model.encoder), strict=True):
        _set_block(array, theirs, ours)
    for theirs, block in zip(spec.decoder.layer, cast(Sequence[DecoderBlock], model.decoder), strict=True):
        _set_block(array, theirs, block)
        cross = block.cross_attention
        _set_linears(array, theirs.attention.linear, (cross.query,), (cross.key_value,), (cross.output,))
        _set_norm(array, theirs.attention.layer_norm, block.around_cross.norm)
    _set_linears(array, [spec.decoder.projection], (model.output,))
    if unused := array.unused():
        raise ValueError(f"CTranslate2 has no place for {unused[0]} of this network: export to safetensors")
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = BOS, EOS, UNK
    spec.config.layer_norm_epsilon = 1e-5  # of every norm; by default that of an RMSNorm is another
    spec.config.decoder_start_token, spec.config.add_source_eos = BOS, True
    return spec


class _Arrays:
    """Makes arrays of a network's weights, and remembers which it has not been given."""

    def __init__(self, model: nn.Module) -> None:
        self._names = {parameter: name for name, parameter in model.named_parameters()}

    def __call__(self, *tensors: Tensor) -> NDArray[np.float32]:
        """Concatenate tensors along their rows."""
        for tensor in tensors:
            self._names.pop(cast(nn.Parameter, tensor), None)
        return np.concatenate([tensor.detach().float().cpu().numpy() for tensor in tensors])

    def unused(self) -> list[str]:
        """Return the names of weights that no array was made of."""
        return list(self._names.values())


def _set_norm(array: _Arrays, theirs: common_spec.LayerNormSpec, ours: nn.LayerNorm | nn.RMSNorm) -> None:
    theirs.gamma = array(ours.weight)
    if isinstance(ours, nn.LayerNorm):
        theirs.beta = array(ours.bias)


def _set_linears(array: _Arrays, theirs: Sequence[common_spec.LinearSpec], *ours: Sequence[nn.Linear]) -> None:
    """Merge several linear layers of ours into each of theirs."""
    for spec, linears in zip(theirs, ours, strict=True):
        spec.weight = array(*(linear.weight for linear in linears))
        if all(linear.bias is not None for linear in linears):
            spec.bias = array(*(linear.bias for linear in linears))


def _set_block(
    array: _Arrays,
    theirs: transformer_spec.TransformerEncoderLayerSpec | transformer_spec.TransformerDecoderLayerSpec,
    ours: EncoderBlock | DecoderBlock,
) -> None:
    """Set what the blocks of both sides have."""
    attention, feed = ours.self_attention, ours.feed_forward
    _set_linears(array, theirs.self_attention.linear, (attention.query, attention.key_value), (attention.output,))
    _set_norm(array, theirs.self_attention.layer_norm, ours.around_self.norm)
    _set_linears(array, [theirs.ffn.linear_1], (feed.narrow,))
    weights, biases = (np.split(array(part), feed.n_wide) for part in (feed.widen.weight, feed.widen.bias))
    wide = [theirs.ffn.linear_0, *([theirs.ffn.linear_0_noact] if feed.n_wide > 1 else [])]
    for spec, weight, bias in zip(wide, weights, biases, strict=True):
        spec.weight, spec.bias = weight, bias
    _set_norm(array, theirs.ffn.layer_norm, ours.around_feed.norm)


# A package of Argos Translate is a zip of one folder: `metadata.json`, `sentencepiece.model` for both languages, the
# network in `model/` and a `README.md` (`argostranslate/package.py` of github.com/argosopentech/argos-translate).

_LONGEST = 1024  # tokens of a sentence, to which CTranslate2 cuts what Argos Translate gives it


def write_argos(run: Run, path: Path, quantization: str | None) -> None:
    """Write a package."""
    model, tokenizer, name = run.transformer, _representable(run), run.folder.resolve().name
    for positions in (model.src_positions, model.tgt_positions):
        if isinstance(positions, SinusoidalPositionalEncoding):  # CTranslate2 stops where the table ends
            positions.table = sinusoid(_LONGEST, model.config.d_model)
    codes = [primary_language(code) for code in run.config.data.languages]
    names = [language_name(code) for code in codes]
    about = {"package_version": VERSION, "argos_version": "1.5"}  # the version that its own trainer writes
    metadata = about | {"from_code": codes[0], "from_name": names[0], "to_code": codes[1], "to_name": names[1]}
    card = f"# {name}\n\n{names[0]} → {names[1]}, trained from scratch with Miyako, version {VERSION}.\n"
    with TemporaryDirectory() as temporary, ZipFile(path, "w", ZIP_DEFLATED) as package:
        folder = Path(temporary) / name
        folder.mkdir()
        to_ctranslate2(model, run.tokenizers, folder / "model", quantization)
        if run.tokenizers.tags:  # Argos Translate gives pieces alone; CTranslate2 can begin them with a token
            config = folder / "model" / "config.json"
            begun = {"bos_token": run.tokenizers.tags[0], "add_source_bos": True}
            write_json(config, read_json(config) | begun)
        (folder / "sentencepiece.model").write_bytes(tokenizer.model)
        write_json(folder / "metadata.json", metadata)
        write_text(folder / CARD, card)
        for file in sorted(folder.rglob("*")):
            package.write(file, file.relative_to(temporary))


def _representable(run: Run) -> SentencePieceTokenizer:
    """Refuse what Argos Translate cannot read; return the tokenizer of both languages."""
    pair, longest = run.tokenizers, run.transformer.config.max_length
    if not isinstance(pair.tgt, SentencePieceTokenizer) or not pair.is_joint:
        reason = "it reads one vocabulary of pieces for both languages: train with --tokenizer.joint true"
    elif len(pair.tags) > 1:
        reason = f"it begins a source with one token at most, not {' '.join(pair.tags)}: give --to ctranslate2"
    elif run.config.data.is_tokenized:
        reason = "it gives plain text, and this run learned from words set apart by spaces: train with plain text"
    elif isinstance(run.transformer.src_positions, LearnedPositionalEncoding) and longest < _LONGEST:
        reason = (
            f"it gives up to {_LONGEST:,} pieces, and max_length={longest}: train with sinusoidal or rotary positions"
        )
    else:
        return pair.tgt
    raise ValueError(f"{run.folder} cannot be a package of Argos Translate: {reason}")
