"""BERT from a folder written by Hugging Face's `save_pretrained`: model.safetensors, config.json, vocab.txt."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from config.model import Activation, BertConfig
from models.bert import BertForPreTraining
from utils.command import needing_group
from utils.file import read_json
from utils.training.checkpoint import read_weights

WEIGHTS, CONFIG = "model.safetensors", "config.json"
VOCABULARY, TOKENIZER_CONFIG = "vocab.txt", "tokenizer_config.json"
PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
HEADS = ("head", "pooler", "next_sentence", "classifier")  # parts of our models that a checkpoint may lack

_SETTING = {  # theirs: ours
    "hidden_size": "d_model",
    "num_attention_heads": "n_heads",
    "intermediate_size": "d_ff",
    "num_hidden_layers": "n_layers",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "max_position_embeddings": "max_length",
    "type_vocab_size": "n_segments",
    "layer_norm_eps": "norm_eps",
}
_ACTIVATION: dict[str, Activation] = {"gelu": "gelu", "relu": "relu", "silu": "swish", "swish": "swish", "mish": "mish"}
_MODULE = {  # ours: theirs
    "bert.embedding": "embeddings.word_embeddings",
    "bert.segment_embedding": "embeddings.token_type_embeddings",
    "bert.positions.table": "embeddings.position_embeddings",
    "bert.embedding_norm": "embeddings.LayerNorm",
    "pooler.dense": "pooler.dense",
    "head.dense": "cls.predictions.transform.dense",
    "head.norm": "cls.predictions.transform.LayerNorm",
    "head.output": "cls.predictions.decoder",
    "next_sentence": "cls.seq_relationship",
    "classifier": "classifier",
}
_IN_BLOCK = {  # several are concatenated along the rows
    "self_attention.query": ("attention.self.query",),
    "self_attention.key_value": ("attention.self.key", "attention.self.value"),
    "self_attention.output": ("attention.output.dense",),
    "around_self.norm": ("attention.output.LayerNorm",),
    "feed_forward.widen": ("intermediate.dense",),
    "feed_forward.narrow": ("output.dense",),
    "around_feed.norm": ("output.LayerNorm",),
}
_WORDS, _OUTPUT = "embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
_OLD_NAME = {"gamma": "weight", "beta": "bias"}  # of layer norms
_COUNTERS = "embeddings.position_ids"  # 0, 1, 2 ...: not a weight


class WordPieceTokenizer:
    """BERT's tokenizer: split by spaces, punctuation and Chinese characters, then each word into known pieces.

    Its special tokens are wherever its vocabulary has them; of these, encoding only ever returns [UNK].
    """

    def __init__(
        self, vocabulary: Sequence[str], lowercase: bool, strip_accents: bool | None = None, split_chinese: bool = True
    ) -> None:
        with needing_group("hugging_face"):
            from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
        self._pieces = list(vocabulary)
        ids = {piece: i for i, piece in enumerate(self._pieces)}
        special = (PAD, UNK, CLS, SEP, MASK)
        if lacking := [token for token in special if token not in ids]:
            raise ValueError(f"{lacking[0]} is not among the {len(self)} pieces of the vocabulary: BERT needs it")
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (ids[token] for token in special)
        self._tokenizer = Tokenizer(models.WordPiece(ids, unk_token=UNK, max_input_chars_per_word=100))
        self._tokenizer.normalizer = normalizers.BertNormalizer(
            handle_chinese_chars=split_chinese, strip_accents=strip_accents, lowercase=lowercase
        )
        self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def __len__(self) -> int:
        """Size of the vocabulary."""
        return len(self._pieces)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return ids of each text, without [CLS] and [SEP]; a word that known pieces cannot make up is one [UNK]."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Join words by spaces; [PAD], [CLS] and [SEP] are left out."""
        silent = (self.pad_id, self.cls_id, self.sep_id)
        texts = [" ".join(self.tokens([i for i in of_text if i not in silent])) for of_text in ids]
        return [text.replace(" ##", "") for text in texts]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the pieces."""
        return [self._pieces[i] for i in ids]


class HuggingFaceBert(NamedTuple):
    """The content of a folder."""

    model: BertForPreTraining  # in evaluation mode
    tokenizer: WordPieceTokenizer
    missing: tuple[str, ...]  # heads that it lacked, which are freshly initialised


def load_hugging_face_bert(folder: Path) -> HuggingFaceBert:
    """Read a saved `BertModel`, `BertForMaskedLM` or `BertForPreTraining`, with its vocabulary.

    Weights are read from safetensors only, never from a pickle.
    """
    for name in (CONFIG, VOCABULARY, WEIGHTS):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} has no {name}: a BERT is read from {CONFIG}, {VOCABULARY} and {WEIGHTS}")
    tokenizer = _tokenizer(folder)
    model = BertForPreTraining(_config(folder / CONFIG), len(tokenizer), tokenizer.pad_id)
    theirs = read_weights(folder / WEIGHTS)
    try:
        return HuggingFaceBert(model.eval(), tokenizer, load_theirs(model, theirs))
    except ValueError as error:
        raise ValueError(f"{folder / WEIGHTS}: {error}") from error


def load_theirs(model: nn.Module, theirs: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Load weights with Hugging Face's names into a model with a `bert`; return its heads that have none there."""
    theirs = {_current(name): tensor for name, tensor in theirs.items() if not name.endswith(_COUNTERS)}
    if _WORDS in theirs and not theirs.get(_OUTPUT, theirs[_WORDS]).equal(theirs[_WORDS]):
        raise ValueError(f"{_OUTPUT} is not the word embedding: only models whose output is tied to it can be read")
    state = model.state_dict()
    # the tied matrix is often stored only once
    sources = {ours: _sources(ours) for ours in state if ours != "head.output.weight"}
    present = [ours for ours, names in sources.items() if not theirs.keys().isdisjoint(names)]
    heads = [head for head in HEADS if hasattr(model, head)]
    missing = tuple(head for head in heads if not any(ours.startswith(head) for ours in present))
    loaded = {}
    for ours, names in sources.items():
        if ours.startswith(missing):
            continue
        shape = (len(state[ours]) // len(names), *state[ours].shape[1:])
        for name in names:
            if name not in theirs:
                raise ValueError(f"{name} is missing")
            if theirs[name].shape != shape:
                raise ValueError(f"{name} has shape {tuple(theirs[name].shape)}, but {shape} is expected")
        loaded[ours] = torch.cat([theirs[name] for name in names])
        if ours.startswith("next_sentence"):
            loaded[ours] = loaded[ours].flip(0)  # theirs: yes, no
    if strange := sorted(theirs.keys() - {_OUTPUT}.union(*sources.values())):
        raise ValueError(f"{strange[0]} is not a weight of this model ({len(strange)} unknown in all)")
    model.load_state_dict(loaded, strict=False)
    return missing


def _sources(ours: str) -> tuple[str, ...]:
    """Return their names for one weight of ours."""
    module, _, parameter = ours.rpartition(".")
    if module in _MODULE:
        return (f"{_MODULE[module]}.{parameter}",)
    number, _, part = module.removeprefix("bert.encoder.").partition(".")
    return tuple(f"encoder.layer.{number}.{name}.{parameter}" for name in _IN_BLOCK[part])


def _current(name: str) -> str:
    """Return their name as it is today, and in a model without heads."""
    module, _, parameter = name.removeprefix("bert.").rpartition(".")
    module = "cls.predictions.decoder" if module == "cls.predictions" else module
    return f"{module}.{_OLD_NAME.get(parameter, parameter)}"


def _config(path: Path) -> BertConfig:
    expected = {"model_type": ("bert",), "position_embedding_type": ("absolute", None), "is_decoder": (False, None)}
    written = _settings(path, expected | {"hidden_act": (*_ACTIVATION, None)})
    settings = {ours: written[theirs] for theirs, ours in _SETTING.items() if theirs in written}
    for name, value in settings.items():
        if not isinstance(value, int | float):
            raise ValueError(f"{path} says {name}={value}: it must be a number")
        settings[name] = type(getattr(BertConfig(), name))(value)
    return BertConfig(activation=_ACTIVATION[written.get("hidden_act") or "gelu"], **settings)


def _tokenizer(folder: Path) -> WordPieceTokenizer:
    expected = {"tokenizer_class": ("BertTokenizer", "BertTokenizerFast", None), "do_basic_tokenize": (True, None)}
    path, vocabulary = folder / TOKENIZER_CONFIG, folder / VOCABULARY
    settings = _settings(path, expected) if path.is_file() else {}
    try:
        text = vocabulary.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{vocabulary} is not UTF-8 text ({error})") from error
    return WordPieceTokenizer(
        text.removesuffix("\n").split("\n"),  # not splitlines: pieces may have other characters that it splits at
        lowercase=bool(settings.get("do_lower_case", True)),
        strip_accents=settings.get("strip_accents"),
        split_chinese=bool(settings.get("tokenize_chinese_chars", True)),
    )


def _settings(path: Path, expected: Mapping[str, Sequence[object]]) -> dict[str, Any]:
    """Read settings, and refuse those that are not as expected."""
    settings = read_json(path)
    if not isinstance(settings, dict):
        raise ValueError(f"{path} holds no settings: a JSON object is expected")
    for name, values in expected.items():
        if settings.get(name) not in values:
            given = ", ".join(str(value) for value in values if value is not None)
            raise ValueError(f"{path} says {name}={settings.get(name)}: only {given} can be read")
    return settings
