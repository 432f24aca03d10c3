"""Exports that this project reads again: a network of any task on its own, and a translator's run for others.

A network is weights as safetensors, all that is needed to rebuild it as JSON, and its vocabulary. A run for others has
weights in a quarter of the size, settings without paths of this machine, and a model card.
"""

import shutil
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import yaml

from config.model import BertConfig
from const.corpora import CORPORA
from const.token import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from models.bert import Bert, BertClassifier, BertForPreTraining
from models.decoder_only import DecoderOnlyTranslator
from models.recurrent import RecurrentTranslator
from models.transformer import Transformer
from models.transformer_xl import TransformerXL
from models.translation_model import TranslationModel
from utils import run as run_folder
from utils.command import page_template
from utils.config import TranslationConfig
from utils.export import CARD
from utils.file import read_json, write_json, write_text
from utils.load import load_run
from utils.provenance import portable
from utils.text.language import language_name
from utils.text.tokenizer import TokenizerPair, Vocabulary, load_tokenizers
from utils.training.checkpoint import read_n_averaged, read_rank, read_weights, write_weights
from utils.training.report import Sample, spread
from utils.training.schedule import Rank

CONFIG, WEIGHTS = "config.json", "model.safetensors"
Network = TranslationModel | BertForPreTraining | BertClassifier | TransformerXL

_NETWORKS = Transformer, RecurrentTranslator, DecoderOnlyTranslator, BertForPreTraining, BertClassifier, TransformerXL
_NETWORK: dict[str, Any] = {network.__name__: network for network in _NETWORKS}
_SPECIAL = {"pad_id": PAD_ID, "unk_id": UNK_ID, "bos_id": BOS_ID, "eos_id": EOS_ID}


class Exported(NamedTuple):
    """The content of a folder."""

    net: Network  # in evaluation mode
    tokenizers: TokenizerPair  # the same one twice if source and target share it
    facts: dict[str, Any]  # content of config.json


def write_safetensors(net: Network, vocabulary: Vocabulary, facts: dict[str, Any], rank: Rank, folder: Path) -> None:
    """Write a network into an existing empty folder.

    `config.json` is flat: `architecture` (the class), the settings of `models/`, the sizes of the vocabularies (and
    the number of classes), the ids of the special tokens, and the facts: its name and others.
    """
    settings, architecture = asdict(net.config), type(net).__name__
    settings.pop("init_encoder", None)  # matters only in training, and is a path on one machine
    write_json(folder / CONFIG, {"architecture": architecture, **facts, **settings, **_sizes(net), **_SPECIAL})
    vocabulary.save(folder)
    write_weights(net.state_dict(), folder / WEIGHTS, rank)
    card = page_template(Path(__file__).with_name("safetensors.md"))
    write_text(folder / CARD, card.render(name=facts["name"], architecture=architecture))


def load_safetensors(folder: Path) -> Exported:
    """Read what `write_safetensors` wrote."""
    path = folder / CONFIG
    try:
        facts = read_json(path)
        if facts["architecture"] not in _NETWORK:
            raise ValueError(f"architecture={facts['architecture']} is not one of {', '.join(_NETWORK)}")
        network = _NETWORK[facts["architecture"]]
        config = get_type_hints(network.__init__)["config"]
        names = (leaf.name for leaf in fields(config))  # newer ones had their defaults
        settings = {name: facts[name] for name in names if name in facts}
        if settings.get("bert"):
            settings["bert"] = BertConfig(**settings["bert"])
        sizes = {name: facts[name] for name in ("src_vocab", "tgt_vocab", "vocab", "n_classes") if name in facts}
        net: Network = network(config(**settings), **sizes)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} does not describe one of our networks ({error}): export the run again") from error
    try:
        net.load_state_dict(read_weights(folder / WEIGHTS))
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{folder / WEIGHTS} does not fit {CONFIG}: {reason}") from error
    return Exported(net.eval(), load_tokenizers(folder), facts)


def _sizes(net: Network) -> dict[str, int]:
    """Return what a network is built from besides its settings."""
    match net:
        case Transformer(bert=Bert() as bert):  # one more row, for the token [MASK]
            return {"src_vocab": len(bert.embedding.weight) - 1, "tgt_vocab": len(net.tgt_embedding.weight)}
        case TranslationModel():
            src, tgt = net.get_parameter("src_embedding.weight"), net.tgt_embedding.weight
            return {"src_vocab": len(src), "tgt_vocab": len(tgt)}
        case BertClassifier():
            return {"vocab": len(net.bert.embedding.weight), "n_classes": len(net.classifier.weight)}
        case BertForPreTraining():
            return {"vocab": len(net.bert.embedding.weight)}
        case TransformerXL():
            return {"vocab": len(net.embedding.weight)}


_SHOWN = 5  # translations on the card of a run


def write_run(folder: Path, draft: Path) -> None:
    """Write a translator's run into an existing empty folder; its samples are translated again by what is written."""
    config, weights = run_folder.read_config(folder, TranslationConfig), folder / WEIGHTS
    if not (folder / run_folder.TEST).is_file():
        raise ValueError(f"{folder} has no {run_folder.TEST} yet, which its card is made from: let its training end")
    settings, result = config.plain(portable), read_json(folder / run_folder.TEST)
    settings["data"]["archive"] = None  # whoever gets this has another copy, or none
    write_text(draft / run_folder.CONFIG, yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
    for file in folder.glob("tokenizer*"):
        shutil.copyfile(file, draft / file.name)
    n_averaged = read_n_averaged(weights)
    write_weights(read_weights(weights), draft / WEIGHTS, read_rank(weights), n_averaged, in_int8=True)
    samples = [Sample(**sample) for sample in result.get("samples", [])]
    translator = load_run(draft).translator(precision="fp32")
    translations = translator.translate([sample.source for sample in samples])
    samples = [sample._replace(translation=new.text) for sample, new in zip(samples, translations, strict=True)]
    write_json(draft / run_folder.TEST, result | {"samples": [sample._asdict() for sample in samples]})
    card = page_template(Path(__file__).with_name("run.md")).render(
        name=config.name,
        languages=[language_name(code) for code in config.data.languages],
        model=config.model,
        result=result,
        corpus=None if config.data.src or config.data.pairs else CORPORA.get(config.data.corpus),
        samples=spread(samples, _SHOWN),
        kinds=translator.tokenizers.text_tags,
    )
    write_text(draft / CARD, card)
