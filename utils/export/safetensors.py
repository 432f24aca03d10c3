"""A network on its own: weights as safetensors, all that is needed to rebuild it as JSON, and its vocabulary."""

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from const.token import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from layers.token_embedding import TokenEmbedding
from models.bert import Bert, BertClassifier, BertConfig, BertForPreTraining, ClassifierConfig
from models.transformer import Transformer, TransformerConfig
from models.transformer_xl import TransformerXL, TransformerXLConfig
from utils.file import write_json
from utils.text.tokenizer import TokenizerPair, Vocabulary, load_tokenizers
from utils.training.checkpoint import read_weights, write_weights

CONFIG, WEIGHTS = "config.json", "model.safetensors"
Network = Transformer | BertForPreTraining | BertClassifier | TransformerXL

_SPECIAL = {"pad_id": PAD_ID, "unk_id": UNK_ID, "bos_id": BOS_ID, "eos_id": EOS_ID}
_SIZES = {  # what each network is built from besides its settings
    "Transformer": ("src_vocab", "tgt_vocab"),
    "BertForPreTraining": ("vocab",),
    "BertClassifier": ("vocab", "n_classes"),
    "TransformerXL": ("vocab",),
}


class Exported(NamedTuple):
    """The content of a folder."""

    net: Network  # in evaluation mode
    tokenizers: TokenizerPair  # the same one twice if source and target share it
    facts: dict[str, Any]  # content of config.json


def write_safetensors(net: Network, vocabulary: Vocabulary, facts: dict[str, Any], score: float, folder: Path) -> None:
    """Write a network into an existing empty folder.

    `config.json` is flat: `architecture` (the class), the settings of `models/`, the sizes of the vocabularies (and
    the number of classes), the ids of the special tokens, and the facts.

    Args:
        net: any of our networks.
        vocabulary: its tokenizers, and labels if any.
        facts: further facts about it, as JSON values.
        score: validation score of the weights.
        folder: folder to write to.
    """
    settings = asdict(net.config)
    settings.pop("init_encoder", None)  # matters only in training, and is a path on one machine
    architecture = type(net).__name__
    sizes = dict(zip(_SIZES[architecture], _sizes(net), strict=True))
    found = {"architecture": architecture, **facts, **settings, **sizes, **_SPECIAL}
    write_json(folder / CONFIG, found)
    vocabulary.save(folder)
    write_weights(net.state_dict(), folder / WEIGHTS, score)


def load_safetensors(folder: Path, device: torch.device | None = None) -> Exported:
    """Read what `write_safetensors` wrote.

    Raises:
        ValueError: a file is missing or damaged, or the files do not fit each other.
    """
    path = folder / CONFIG
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        net = _network(facts)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} does not describe one of our networks ({error}): export the run again") from error
    try:
        net.load_state_dict(read_weights(folder / WEIGHTS))
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{folder / WEIGHTS} does not fit {CONFIG}: {reason}") from error
    return Exported(net.to(device).eval(), load_tokenizers(folder), facts)


def _sizes(net: Network) -> tuple[int, ...]:
    """Return the sizes in the order of `_SIZES`."""
    match net:
        case Transformer(src_embedding=Bert() as bert):
            # one more row, for the token [MASK]
            return len(bert.embedding.weight) - 1, len(net.tgt_embedding.weight)
        case Transformer():
            return len(cast(TokenEmbedding, net.src_embedding).weight), len(net.tgt_embedding.weight)
        case BertClassifier():
            return len(net.bert.embedding.weight), len(net.classifier.weight)
        case BertForPreTraining():
            return (len(net.bert.embedding.weight),)
        case TransformerXL():
            return (len(net.embedding.weight),)


def _network(facts: dict[str, Any]) -> Network:
    """Build the network, with fresh weights."""
    match facts["architecture"]:
        case "Transformer":
            bert = None if facts["bert"] is None else BertConfig(**facts["bert"])
            config = TransformerConfig(**_settings(TransformerConfig, facts | {"bert": bert}))
            return Transformer(config, facts["src_vocab"], facts["tgt_vocab"])
        case "BertForPreTraining":
            return BertForPreTraining(BertConfig(**_settings(BertConfig, facts)), facts["vocab"])
        case "BertClassifier":
            settings = _settings(ClassifierConfig, facts)
            return BertClassifier(ClassifierConfig(**settings), facts["vocab"], facts["n_classes"])
        case "TransformerXL":
            return TransformerXL(TransformerXLConfig(**_settings(TransformerXLConfig, facts)), facts["vocab"])
        case unknown:
            raise ValueError(f"architecture={unknown} is not one of {', '.join(_SIZES)}")


def _settings(config: type, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts that are settings of a network."""
    return {leaf.name: facts[leaf.name] for leaf in fields(config) if leaf.name != "init_encoder"}
