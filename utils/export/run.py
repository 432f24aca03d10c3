"""A run as a gift: weights in a quarter of the size, settings without paths of this machine, and a model card."""

import shutil
from pathlib import Path

import torch
import yaml

from const.corpora import CORPORA
from utils.command import page_template
from utils.config import TranslationConfig
from utils.export import CARD
from utils.file import read_json, write_json, write_text
from utils.load import load_run
from utils.provenance import portable
from utils.run import CONFIG, TEST, WEIGHTS, read_config
from utils.text.language import language_name
from utils.training.checkpoint import read_n_averaged, read_rank, read_weights, write_weights
from utils.training.report import Sample, spread

_SHOWN = 5  # translations


def write_run(folder: Path, draft: Path) -> None:
    """Write a translator's run into an existing empty folder; its samples are translated again by what is written."""
    config, weights = read_config(folder, TranslationConfig), folder / WEIGHTS
    if not (folder / TEST).is_file():
        raise ValueError(f"{folder} has no {TEST} yet, which its card is made from: let its training end")
    settings, result = config.plain(portable), read_json(folder / TEST)
    settings["data"]["archive"] = None  # whoever gets this has another copy, or none
    write_text(draft / CONFIG, yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
    for file in folder.glob("tokenizer*"):
        shutil.copyfile(file, draft / file.name)
    n_averaged = read_n_averaged(weights)
    write_weights(read_weights(weights), draft / WEIGHTS, read_rank(weights), n_averaged, in_int8=True)
    samples = [Sample(**sample) for sample in result.get("samples", [])]
    translator = load_run(draft, torch.device("cpu")).translator(precision="fp32")
    found = translator.translate([sample.source for sample in samples])
    samples = [sample._replace(translation=one.text) for sample, one in zip(samples, found, strict=True)]
    write_json(draft / TEST, result | {"samples": [sample._asdict() for sample in samples]})
    card = page_template(Path(__file__).with_name("run.md")).render(
        name=config.name,
        languages=[language_name(code) for code in (config.data.src_lang, config.data.tgt_lang)],
        model=config.model,
        result=result,
        corpus=CORPORA.get(config.data.corpus),
        samples=spread(samples, _SHOWN),
        kinds=translator.tokenizers.kinds,
    )
    write_text(draft / CARD, card)
