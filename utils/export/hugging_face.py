"""BERT from a folder written by Hugging Face's `save_pretrained`: model.safetensors, config.json, vocab.txt."""

import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from layers.feed_forward import Activation
from models.bert import BertConfig, BertForPreTraining
from utils.file import read_json, write_lines
from utils.training.checkpoint import read_weights

# WordPiece: words split into the longest pieces that fit, as in BERT, Devlin et al. 2019; Schuster & Nakajima 2012.

SUFFIX = ".txt"
PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
_INSIDE = "##"  # marks a piece that does not begin a word
_LONGEST_WORD = 100  # letters; longer words are unknown, as in the tokenizers of published models

# blocks of Chinese characters, each of which is a word; kana and hangul are treated like an alphabet
_CHINESE = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)


class _Characters(dict[int, str]):
    """What each character becomes before text is split by spaces, computed when it first occurs."""

    def __init__(self, lowercase: bool) -> None:
        self._lowercase = lowercase

    def __missing__(self, code: int) -> str:
        self[code] = self._become(chr(code))
        return self[code]

    def _become(self, char: str) -> str:
        category = unicodedata.category(char)
        if char in "\t\n\r":
            return " "
        if category in ("Cc", "Cf", "Co", "Cs") or char == "\ufffd" or (self._lowercase and category == "Mn"):
            return ""
        if char.isspace():
            return " "
        # all of ASCII that is neither letter nor digit counts as punctuation, `$+<=>^`|~` too
        if category[0] == "P" or (char.isascii() and not char.isalnum()):
            return f" {char} "
        if any(first <= ord(char) <= last for first, last in _CHINESE):
            return f" {char} "
        return char.lower() if self._lowercase else char


class WordPieceTokenizer:
    """BERT's tokenizer: split by spaces, punctuation and Chinese characters, then each word into known pieces.

    Its special tokens are wherever its vocabulary has them; of these, encoding only ever returns [UNK].

    Args:
        vocabulary: the pieces in the order of their ids; `##` before those that continue a word.
        lowercase: whether text is lower-cased, and loses its accents, before it is looked up.

    Raises:
        ValueError: a special token is missing.
    """

    def __init__(self, vocabulary: Sequence[str], lowercase: bool) -> None:
        self._pieces = list(vocabulary)
        self._ids = {piece: i for i, piece in enumerate(self._pieces)}
        self._lowercase = lowercase
        self._characters = _Characters(lowercase)
        self._longest = max(map(len, self._pieces), default=0)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = map(
            self._special, (PAD, UNK, CLS, SEP, MASK)
        )

    def _special(self, token: str) -> int:
        if token not in self._ids:
            raise ValueError(f"{token} is not among the {len(self)} pieces of the vocabulary: BERT needs it")
        return self._ids[token]

    @classmethod
    def load(cls, path: Path, lowercase: bool) -> "WordPieceTokenizer":
        """Read a vocab.txt, one piece per line.

        Raises:
            ValueError: the file is not UTF-8, or a special token is missing.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 text ({error})") from error
        # not splitlines, which also splits at characters that a vocabulary may have as pieces
        return cls(text.removesuffix("\n").split("\n"), lowercase)

    def save(self, path: Path) -> None:
        """Write the vocabulary, one piece per line."""
        write_lines(path.with_suffix(SUFFIX), self._pieces)

    def __len__(self) -> int:
        """Size of the vocabulary."""
        return len(self._pieces)

    def words(self, text: str) -> list[str]:
        """Return the words, before they are split into pieces."""
        text = unicodedata.normalize("NFD", text) if self._lowercase else text
        return text.translate(self._characters).split()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return ids of each text, without [CLS] and [SEP]; a word that known pieces cannot make up is one [UNK]."""
        return [[i for word in self.words(text) for i in self._cut(word)] for text in texts]

    def _cut(self, word: str) -> list[int]:
        """Split a word from left to right, each time taking the longest piece that fits."""
        if len(word) > _LONGEST_WORD:
            return [self.unk_id]
        ids: list[int] = []
        start = 0
        while start < len(word):
            mark = _INSIDE if start else ""
            for end in range(min(len(word), start + self._longest), start, -1):
                if (found := self._ids.get(mark + word[start:end])) is not None:
                    ids.append(found)
                    start = end
                    break
            else:
                return [self.unk_id]
        return ids

    def sample(self, texts: Sequence[str], rate: float, seed: int) -> NoReturn:  # noqa: ARG002 (the protocol has it)
        """Refuse to sample: there is only one way to split a word, each piece being the longest that fits."""
        raise ValueError(
            f"tokenizer.sampling={rate} splits words at random, WordPiece always into the longest pieces: set it to 0"
        )

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Join words by spaces; [PAD], [CLS] and [SEP] are left out."""
        silent = (self.pad_id, self.cls_id, self.sep_id)
        pieces = ([self._pieces[i] for i in sequence if i not in silent] for sequence in ids)
        return [" ".join(sequence).replace(f" {_INSIDE}", "") for sequence in pieces]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the pieces."""
        return [self._pieces[i] for i in ids]


WEIGHTS, CONFIG, VOCABULARY, TOKENIZER_CONFIG = (
    "model.safetensors",
    "config.json",
    "vocab.txt",
    "tokenizer_config.json",
)
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
_ACTIVATION: dict[str, Activation] = {
    "gelu": "gelu",
    "relu": "relu",
    "silu": "swish",
    "swish": "swish",
    "mish": "mish",
}
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
_IN_BLOCK = {
    "self_attention.query": ("attention.self.query",),
    "self_attention.key_value": ("attention.self.key", "attention.self.value"),
    "self_attention.output": ("attention.output.dense",),
    "around_self.norm": ("attention.output.LayerNorm",),
    "feed_forward.widen": ("intermediate.dense",),
    "feed_forward.narrow": ("output.dense",),
    "around_feed.norm": ("output.LayerNorm",),
}
_WORDS, _OUTPUT = "embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
_OLD_NAME = {
    "LayerNorm.gamma": "LayerNorm.weight",
    "LayerNorm.beta": "LayerNorm.bias",
    "cls.predictions.bias": "cls.predictions.decoder.bias",
}
_COUNTERS = "embeddings.position_ids"  # 0, 1, 2 ...: not a weight


class HuggingFaceBert(NamedTuple):
    """The content of a folder."""

    model: BertForPreTraining  # in evaluation mode
    tokenizer: WordPieceTokenizer
    missing: tuple[str, ...]  # heads that it lacked, which are freshly initialised


def load_hugging_face_bert(folder: Path, lowercase: bool | None = None) -> HuggingFaceBert:
    """Read a checkpoint, with weights from safetensors only, never from a pickle.

    Args:
        folder: a saved `BertModel`, `BertForMaskedLM` or `BertForPreTraining`, with its vocabulary.
        lowercase: whether its text was lower-cased; None: as in tokenizer_config.json, or yes if not given there.

    Raises:
        ValueError: a file is missing or damaged, or holds something that our BERT does not support.
    """
    for name in (CONFIG, VOCABULARY, WEIGHTS):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} has no {name}: a BERT is read from {CONFIG}, {VOCABULARY} and {WEIGHTS}")
    config = _config(_settings(folder / CONFIG), folder / CONFIG)
    theirs = _renamed(read_weights(folder / WEIGHTS))
    tokenizer = _tokenizer(folder, lowercase)
    if _WORDS in theirs and len(tokenizer) != len(theirs[_WORDS]):
        raise ValueError(
            f"{folder / VOCABULARY} has {len(tokenizer)} pieces but the embedding {len(theirs[_WORDS])} rows: "
            "they do not belong to the same model"
        )
    model = BertForPreTraining(config, len(tokenizer), tokenizer.pad_id)
    try:
        missing = load_weights(model, theirs)
    except ValueError as error:
        raise ValueError(f"{folder / WEIGHTS}: {error}") from error
    return HuggingFaceBert(model.eval(), tokenizer, missing)


def load_weights(model: nn.Module, theirs: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Load weights with Hugging Face's names into a model of `models.bert` that contains a `bert`.

    Returns:
        The heads of the model for which `theirs` has no weights; they stay unchanged.

    Raises:
        ValueError: a weight is missing, unknown, or of another shape.
    """
    theirs = _renamed(theirs)
    if _OUTPUT in theirs and _WORDS in theirs and not theirs[_OUTPUT].equal(theirs[_WORDS]):
        raise ValueError(f"{_OUTPUT} is not the word embedding: only models whose output is tied to it can be read")
    state = model.state_dict()
    # the tied matrix is often stored only once
    sources = {ours: _sources(ours) for ours in state if ours != "head.output.weight"}
    known = {name for names in sources.values() for name in names}
    found = {ours for ours, names in sources.items() if not theirs.keys().isdisjoint(names)}
    missing = tuple(h for h in HEADS if hasattr(model, h) and not any(ours.startswith(h) for ours in found))
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
    strange = sorted(theirs.keys() - known - {_OUTPUT, _COUNTERS})
    if strange:
        raise ValueError(f"{strange[0]} is not a weight of this model ({len(strange)} unknown in all)")
    model.load_state_dict(loaded, strict=False)
    return missing


def _sources(ours: str) -> tuple[str, ...]:
    """Return their names for one weight of ours; if several, they are concatenated along the rows."""
    module, _, kind = ours.rpartition(".")
    if module in _MODULE:
        return (f"{_MODULE[module]}.{kind}",)
    number, _, part = module.removeprefix("bert.encoder.").partition(".")
    return tuple(f"encoder.layer.{number}.{name}.{kind}" for name in _IN_BLOCK[part])


def _renamed(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename weights: without the prefix of models with heads, and with current names in place of old ones."""
    renamed = {}
    for name, tensor in theirs.items():
        name = name.removeprefix("bert.")
        for old, new in _OLD_NAME.items():
            name = name.removesuffix(old) + new if name.endswith(old) else name
        renamed[name] = tensor
    return renamed


def _config(found: Mapping[str, Any], path: Path) -> BertConfig:
    if found.get("model_type") != "bert":
        raise ValueError(f"{path} says model_type={found.get('model_type')}: only bert can be read")
    if (activation := str(found.get("hidden_act", "gelu"))) not in _ACTIVATION:
        raise ValueError(f"{path} says hidden_act={activation}: our layers support {', '.join(_ACTIVATION)}")
    if (positions := found.get("position_embedding_type", "absolute")) != "absolute":
        raise ValueError(f"{path} says position_embedding_type={positions}: only absolute can be read")
    if found.get("is_decoder"):
        raise ValueError(f"{path} says is_decoder=true: only encoders can be read")
    settings: dict[str, Any] = {}
    for theirs, ours in _SETTING.items():
        default = getattr(BertConfig(), ours)
        value = found.get(theirs, default)
        kinds, least = ((int,), 1) if isinstance(default, int) else ((int, float), 0)
        if type(value) not in kinds or value < least:
            raise ValueError(f"{path} says {theirs}={value}: it must be {kinds[-1].__name__} and at least {least}")
        settings[ours] = type(default)(value)
    return BertConfig(activation=_ACTIVATION[activation], **settings)


def _tokenizer(folder: Path, lowercase: bool | None) -> WordPieceTokenizer:
    path = folder / TOKENIZER_CONFIG
    found = _settings(path) if path.is_file() else {}
    lowercase = bool(found.get("do_lower_case", True)) if lowercase is None else lowercase
    expected: dict[str, tuple[object, ...]] = {
        "tokenizer_class": ("BertTokenizer", "BertTokenizerFast", None),
        "do_basic_tokenize": (True, None),
        "tokenize_chinese_chars": (True, None),
        "strip_accents": (lowercase, None),
    }
    for name, values in expected.items():
        if (value := found.get(name)) not in values:
            raise ValueError(f"{path} says {name}={value}: our tokenizer supports only {values[0]}")
    return WordPieceTokenizer.load(folder / VOCABULARY, lowercase)


def _settings(path: Path) -> dict[str, Any]:
    found = read_json(path)
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no settings: a JSON object is expected")
    return found
