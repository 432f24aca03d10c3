"""A translator as Hugging Face's Pegasus (norm first) or Marian (norm last), with its tokenizer.

Both are the Transformer of the paper, under the same names, but for the order of its D components: in their positions
all sines come before all cosines, in ours they alternate. Whatever reads or writes the D components is reordered alike.
"""

import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from const.token import BOS_ID, EOS, EOS_ID, PAD_ID, SPECIAL_TOKENS, UNK, UNK_ID
from layers.positional_encoding import sinusoid
from models.transformer import Transformer
from utils.command import needing_group, page_template
from utils.export import CARD, COMPARED, refuse_difference
from utils.export.hugging_face import CONFIG, TOKENIZER_CONFIG, WEIGHTS
from utils.file import write_json, write_text
from utils.load import Run
from utils.text.form import INVISIBLE, composed, known_characters, known_spelling
from utils.text.tokenizer import SentencePieceTokenizer, id_of_each

_MODULE = {"tgt_embedding": "shared", "encoder_norm": "encoder.layer_norm", "decoder_norm": "decoder.layer_norm"}
_IN_BLOCK = {  # ours: theirs, of which several are concatenated along the rows
    "self_attention.query": ("self_attn.q_proj",),
    "self_attention.key_value": ("self_attn.k_proj", "self_attn.v_proj"),
    "self_attention.output": ("self_attn.out_proj",),
    "around_self.norm": ("self_attn_layer_norm",),
    "cross_attention.query": ("encoder_attn.q_proj",),
    "cross_attention.key_value": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross_attention.output": ("encoder_attn.out_proj",),
    "around_cross.norm": ("encoder_attn_layer_norm",),
    "feed_forward.widen": ("fc1",),
    "feed_forward.narrow": ("fc2",),
    "around_feed.norm": ("final_layer_norm",),
}
_APART = r"(?<![^\p{{L}}\s])(?:{})(?!\p{{N}})"  # where a number is read that stays apart from others
_WRITES = (".output", ".narrow", "norm")  # modules whose rows, not columns, are the D components


def write_pegasus(run: Run, folder: Path) -> None:
    """Write into an existing empty folder what `AutoModelForSeq2SeqLM` and `AutoTokenizer` load."""
    model, tokenizer, search = run.transformer, _representable(run), run.config.search
    c, name = model.config, run.folder.resolve().name
    pegasus, marian = ("pegasus", "PegasusForConditionalGeneration"), ("marian", "MarianMTModel")
    model_type, architecture = pegasus if c.norm_first else marian
    ids = {"pad": PAD_ID, "bos": BOS_ID, "eos": EOS_ID, "decoder_start": BOS_ID, "forced_eos": EOS_ID}
    special = {f"{name}_token_id": i for name, i in ids.items()}
    settings = {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": len(tokenizer),
        "d_model": c.d_model,
        "encoder_layers": c.n_encoder_layers,
        "decoder_layers": c.n_decoder_layers,
        **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), c.n_heads),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), c.d_ff),
        "activation_function": c.activation,
        "max_position_embeddings": c.max_length,
        "scale_embedding": c.scale_embedding,
        **dict.fromkeys(("dropout", "activation_dropout"), c.dropout),
        "attention_dropout": c.attention_dropout,
    }
    generation = {  # lengths count the <s> that a translation begins with
        "min_length": 1 + search.min_length,
        "max_length": 1 + min(search.max_length + 1, c.max_length),
        "num_beams": search.beam_size,
        "length_penalty": search.length_penalty if search.beam_size > 1 else 1.0,  # of a greedy search none is accepted
        "no_repeat_ngram_size": search.no_repeat_ngram,
        "suppress_tokens": [PAD_ID, UNK_ID, BOS_ID],
    }
    names = dict(zip(("pad_token", "unk_token", "bos_token", "eos_token"), SPECIAL_TOKENS, strict=True))
    (folder / WEIGHTS).write_bytes(save(dict(_weights(model)), metadata={"format": "pt"}))  # first: it may refuse
    write_json(folder / CONFIG, settings | special)
    _refuse_difference(model, folder)
    tokenizing = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": run.window,
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    write_json(folder / "generation_config.json", generation | special)
    write_json(folder / TOKENIZER_CONFIG, tokenizing | names)
    write_text(folder / "tokenizer.json", _tokenizer(tokenizer))
    card, facts = page_template(Path(__file__).with_name("pegasus.md")), {"name": name, "architecture": architecture}
    write_text(folder / CARD, card.render(facts, data=run.config.data, window=run.window))


@torch.no_grad()
def _refuse_difference(model: Transformer, folder: Path) -> None:
    try:
        from transformers import AutoModelForSeq2SeqLM
    except ImportError:
        warnings.warn("transformers is not installed, so nothing tells whether it computes the same", stacklevel=3)
        return
    ids = torch.arange(min(COMPARED, model.config.max_length))[None] % (len(model.output.weight) - 1) + 1

    def compute() -> list[float]:
        theirs = AutoModelForSeq2SeqLM.from_pretrained(folder)
        return list(theirs(input_ids=ids, decoder_input_ids=ids).logits.flatten().tolist())

    refuse_difference("transformers", model(ids, ids).flatten().tolist(), compute)


def _representable(run: Run) -> SentencePieceTokenizer:
    """Refuse what neither Pegasus nor Marian can be; return the tokenizer of the sources."""
    c, tokenizer = run.transformer.config, run.tokenizers.src
    needed = {"positions": "sinusoidal", "scale_attention": True, "tie": "all", "norm": "layer"}
    reasons = [f"{name}={value}, not {getattr(c, name)}" for name, value in needed.items() if getattr(c, name) != value]
    if c.activation == "swiglu":
        reasons = ["no feed-forward layer has a gate there"]
    if c.bert is not None:
        reasons = ["no BERT is an encoder there"]
    elif not reasons and isinstance(tokenizer, SentencePieceTokenizer) and tokenizer.keeps_forms:
        return tokenizer
    reason = (reasons or ["vocabularies there are of pieces, with tokenizer.normalization=identity"])[0]
    raise ValueError(f"{run.folder} cannot be a Pegasus or Marian of Hugging Face: {reason}; give --to safetensors")


def _weights(model: Transformer) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight under its name there; the one matrix of source, target and output once."""
    c = model.config
    order = torch.cat([torch.arange(start, c.d_model, 2) for start in (0, 1)])
    for side in ("encoder", "decoder"):  # Pegasus reads them as weights
        yield f"model.{side}.embed_positions.weight", sinusoid(c.max_length, c.d_model)[:, order]
    for name, tensor in model.state_dict().items():
        module, _, parameter = name.rpartition(".")
        if module in ("src_embedding", "output"):
            continue
        if module in _MODULE:
            names = [f"model.{_MODULE[module]}.{parameter}"]
        else:
            side, _, place = module.partition(".")
            number, _, part = place.partition(".")
            if part not in _IN_BLOCK:
                raise ValueError(f"Pegasus and Marian have no place for {name} of this network: give --to safetensors")
            names = [f"model.{side}.layers.{number}.{theirs}.{parameter}" for theirs in _IN_BLOCK[part]]
        tensor = tensor[order] if module.endswith(_WRITES) else tensor[..., order] if tensor.ndim == 2 else tensor
        yield from zip(names, tensor.chunk(len(names)), strict=True)


def _tokenizer(ours: SentencePieceTokenizer) -> str:
    """Return it as JSON of Hugging Face's, with the known form of each character; of half-width kana, with their mark.

    Unlike ours, it takes </s> in a text for the token, and leaves ² and ① unknown beside another number.
    """
    with needing_group("hugging_face"):
        from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    pieces = ours.pieces
    # special tokens are found in texts, too: with a ▁ behind it, a tag is not what somebody writes
    ids = {token + "▁" * (token in ours.known_tags): i for token, i in id_of_each(ours).items()}
    if ours.is_bpe:
        best_first = sorted(pieces, key=lambda piece: -pieces[piece].score)
        halves = ((piece[:i], piece[i:]) for piece in best_first for i in range(1, len(piece)))
        merges = [(left, right) for left, right in halves if left in pieces and right in pieces]
        tokenizer = Tokenizer(models.BPE(ids, merges, unk_token=UNK, fuse_unk=True))
    else:
        scores = [(token, pieces[token].score if token in pieces else 0.0) for token in ids]
        tokenizer = Tokenizer(models.Unigram(scores, unk_id=UNK_ID))
    tokenizer.add_special_tokens([token for token in ids if token not in pieces])
    known = known_characters(ids)
    voiced = [kana + mark for kana in map(chr, range(0xFF66, 0xFF9E)) for mark in "ﾞﾟ"]
    groups: dict[tuple[str, str], list[str]] = {}  # by what they are read as, and where
    for form in (*voiced, *map(chr, range(0x10000))):
        plain = known_spelling(form, known)
        if plain != form == composed(form):
            is_number = not form.isdecimal() and any(map(str.isnumeric, plain))
            groups.setdefault((plain, _APART if is_number else "{}"), []).append(form)
    invisible, around = normalizers.Replace(Regex(INVISIBLE.pattern), ""), normalizers.Replace(Regex("^ +| +$"), "")
    found = ((Regex(where.format("|".join(forms))), plain) for (plain, where), forms in groups.items())
    rewritten = [normalizers.Replace(pattern, plain) for pattern, plain in found]
    single = normalizers.Replace(Regex(" {2,}"), " ")
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), invisible, *rewritten, around, single])
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    added = [*((tag, ids[f"{tag}▁"]) for tag in ours.tags), (EOS, EOS_ID)]
    tokenizer.post_processor = processors.TemplateProcessing([*ours.tags, "$A", EOS], special_tokens=added)
    return tokenizer.to_str(pretty=True)
