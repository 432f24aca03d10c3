"""Export of a run to CTranslate2, alone or in a package of Argos Translate, from which LibreTranslate translates, too.

`utils/export/engine.py` translates with what was exported alone.
"""

import shutil
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from config.data import primary_language
from const.corpora import VERSION
from const.path import EXPORTED
from const.token import BOS, EOS, EOS_ID, UNK
from layers.positional_encoding import LearnedPositionalEncoding, SinusoidalPositionalEncoding, sinusoid
from models.transformer import Transformer
from utils.command import needing_group, page_template
from utils.export import CARD, COMPARED, refuse_difference
from utils.export.engine import CTranslate2Search, TranslatorSettings
from utils.file import read_json, write_json, write_text
from utils.load import Run
from utils.search.forced import token_log_probs
from utils.text.language import language_name
from utils.text.tokenizer import SentencePieceTokenizer, TokenizerPair, every_token
from utils.text.words import WORDS

with needing_group("export"):
    from ctranslate2.specs import common_spec, model_spec, transformer_spec  # with torch

QUANTIZATIONS: tuple[str, ...] = model_spec.ACCEPTED_MODEL_TYPES  # int8, float16 ...; float32 leaves weights unchanged
_MODULE: dict[str, tuple[str, ...]] = {  # theirs: ours, of which several are concatenated along their rows
    "encoder/embeddings_0": ("src_embedding",),
    "encoder/layer_norm": ("encoder_norm",),
    "decoder/embeddings": ("tgt_embedding",),
    "decoder/layer_norm": ("decoder_norm",),
    "decoder/projection": ("output",),
}
_IN_BLOCK = {
    "self_attention/linear_0": ("self_attention.query", "self_attention.key_value"),
    "self_attention/linear_1": ("self_attention.output",),
    "self_attention/layer_norm": ("around_self.norm",),
    "attention/linear_0": ("cross_attention.query",),
    "attention/linear_1": ("cross_attention.key_value",),
    "attention/linear_2": ("cross_attention.output",),
    "attention/layer_norm": ("around_cross.norm",),
    "ffn/linear_0": ("feed_forward.widen",),
    "ffn/linear_0_noact": ("feed_forward.value",),  # of a gate, the second half of `widen`
    "ffn/linear_1": ("feed_forward.narrow",),
    "ffn/layer_norm": ("around_feed.norm",),
}
_ACTIVATION = {name: common_spec.Activation[name.upper()] for name in ("relu", "gelu", "swish")}
_ACTIVATION["swiglu"] = _ACTIVATION["swish"]  # and a gate
_POSITIONS = "sinusoidal", "learned", "rotary"


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
    _write(model, tokenizers, folder, None)
    _refuse_difference(model, tokenizers, folder)  # of exact weights: rounded ones would hide a small difference
    if quantization is not None:
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
        "CTranslate2", expected, lambda: CTranslate2Search(folder, tokenizers, "cpu").log_probs([source], [target])[0]
    )


def _specification(model: Transformer) -> transformer_spec.TransformerSpec:
    """Return the network's weights under the names of CTranslate2."""
    config = model.config
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
    left = model.state_dict()
    if config.activation == "swiglu":
        for name in [name for name in left if ".feed_forward.widen." in name]:
            left[name], left[name.replace("widen", "value")] = left[name].chunk(2)
    places = dict(_MODULE)
    for side, n_layers in (("encoder", config.n_encoder_layers), ("decoder", config.n_decoder_layers)):
        for i in range(n_layers):
            for theirs, ours in _IN_BLOCK.items():
                places[f"{side}/layer_{i}/{theirs}"] = tuple(f"{side}.{i}.{name}" for name in ours)
    for theirs, ours in places.items():
        for parameter, of_norm in (("weight", "gamma"), ("bias", "beta")):
            names = [f"{name}.{parameter}" for name in ours]
            if left.keys() >= {*names}:
                array = _array(torch.cat([left.pop(name) for name in names]))
                setattr(model_spec.index_spec(spec, theirs), of_norm if theirs.endswith("norm") else parameter, array)
    if config.positions != "rotary":
        for side_spec, side, positions in (
            (spec.encoder, "src", model.src_positions),
            (spec.decoder, "tgt", model.tgt_positions),
        ):
            table = left.pop(f"{side}_positions.table.weight", positions.table)
            side_spec.position_encodings.encodings = _array(table)
    if left:
        raise ValueError(f"CTranslate2 has no place for {next(iter(left))} of this network: export to safetensors")
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = BOS, EOS, UNK
    spec.config.layer_norm_epsilon = 1e-5  # of every norm; by default that of an RMSNorm is another
    spec.config.decoder_start_token, spec.config.add_source_eos = BOS, True
    return spec


def _array(tensor: Tensor) -> NDArray[np.float32]:
    return tensor.detach().float().cpu().numpy()


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
    metadata = {
        "package_version": VERSION,
        "argos_version": "1.5",  # which its own trainer writes
        "from_code": codes[0],
        "from_name": names[0],
        "to_code": codes[1],
        "to_name": names[1],
    }
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
