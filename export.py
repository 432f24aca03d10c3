"""Hand a trained run on: `python export.py [RUN] --to ctranslate2|safetensors --output FOLDER`."""

import argparse
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import torch

from const.version import VERSION
from utils.command_line import Parser, run_command
from utils.config import ClassificationConfig, Config, LanguageConfig, MaskedLanguageConfig, task_of, tree_of
from utils.export.model_card import CARD, ctranslate2_card, safetensors_card
from utils.export.requirement import require_ctranslate2
from utils.export.to_safetensors import Network, write_safetensors
from utils.export.translator_settings import TranslatorSettings
from utils.file import atomic_folder
from utils.run import CONFIG, WEIGHTS, Run, find_run, load_run
from utils.text.pair import TokenizerPair
from utils.text.vocabulary import Vocabulary
from utils.trained import load_bert, load_classifier, load_language_model
from utils.training.weight_store import read_score

_CPU = torch.device("cpu")


class Trained(NamedTuple):
    """The network of a run, and what must be known of it."""

    net: Network
    vocabulary: Vocabulary
    facts: dict[str, Any]


def build_parser() -> Parser:
    """All options."""
    parser = Parser(
        prog="export.py",
        version=VERSION,
        usage="python export.py [RUN] --to FORMAT --output FOLDER [--quantization TYPE]",
        description="Write a trained run in a format that other programs read, with its vocabulary and a README.md "
        "that says how. CTranslate2 translates on CPUs and GPUs without PyTorch; safetensors are weights by name, from "
        "which this project builds the network again.",
        epilog="""examples:
  python export.py --to ctranslate2 --output kftt_ja_en             the run trained last
  python export.py pickles/RUN --to ctranslate2 --output kftt_ja_en --quantization int8
  python export.py pickles/RUN --to safetensors --output kftt_ja_en
  python export.py bert_ja-RUN --to safetensors --output bert_ja    runs of other tasks, too

To translate with what was made for CTranslate2: translate.py --engine ctranslate2 --run FOLDER""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", nargs="?", type=Path, help="folder or name of a run (default: the one trained last)")
    parser.add_argument(
        "--to",
        choices=["ctranslate2", "safetensors"],
        required=True,
        help="ctranslate2: translators, for CTranslate2 or translate.py --engine ctranslate2; safetensors: any run",
    )
    parser.add_argument("--output", type=Path, metavar="FOLDER", required=True, help="is made, and must not be there")
    parser.add_argument(
        "--quantization",
        type=str,
        metavar="TYPE",
        help="of the weights for CTranslate2: int8 (a quarter as large), int8_float32, int8_float16, int8_bfloat16, "
        "int16, float16, bfloat16 or float32 (default: float32, exactly ours)",
    )
    return parser


def main() -> None:
    """Read the arguments, load the run, write the folder, say what to do with it."""
    arguments = build_parser().parse_args()
    output, quantization = arguments.output, arguments.quantization
    if output.exists():
        raise ValueError(f"--output {output} is there already: remove it, or give another name")
    if quantization is not None and arguments.to != "ctranslate2":
        raise ValueError(f"--quantization {quantization} is of CTranslate2's weights: add --to ctranslate2")
    folder = find_run(arguments.run)
    if arguments.to == "ctranslate2":
        export_ctranslate2(folder, output, quantization)
        remedy = f'python translate.py "TEXT" --engine ctranslate2 --run {shlex.quote(str(output))}'
        made = output / "model.bin"
    else:
        export_safetensors(folder, output)
        remedy = f"utils.export.to_safetensors.load_safetensors, as {output / CARD} shows"
        made = output / WEIGHTS
    name = folder.resolve().name
    print(f"{output}: weights of {megabytes(made)}; those of {name}: {megabytes(folder / WEIGHTS)}")
    print(f"to use it: {remedy}")


def export_ctranslate2(folder: Path, output: Path, quantization: str | None = None) -> None:
    """Write a translator for CTranslate2, with all that translating with it takes.

    Args:
        folder: of the run.
        output: is made.
        quantization: one of `utils.export.to_ctranslate2.QUANTIZATIONS`; None: single precision.

    Raises:
        ValueError: CTranslate2 is not installed, knows no such quantization, or cannot hold this network.
    """
    require_ctranslate2()
    from utils.export.to_ctranslate2 import require_quantization, write_ctranslate2

    require_quantization(quantization)
    if (tree := tree_of(folder / CONFIG)) is not Config:
        raise ValueError(
            f"{folder} is of task {task_of(tree)}, and for CTranslate2 translators alone are exported: "
            "give --to safetensors"
        )
    run = load_run(folder, _CPU)
    settings = translator_settings(run)
    with atomic_folder(output) as draft:
        write_ctranslate2(run.model, run.tokenizers, draft, quantization)
        run.tokenizers.save(draft)
        settings.save(draft)
        (draft / CARD).write_text(ctranslate2_card(settings, run.tokenizers, quantization), encoding="utf-8")


def translator_settings(run: Run) -> TranslatorSettings:
    """All that translating with a run's weights takes, beside them."""
    data, search = run.config.data, run.config.search
    name = run.folder.resolve().name
    return TranslatorSettings(name, data.src_lang, data.tgt_lang, run.window, run.config.model.max_length, search)


def export_safetensors(folder: Path, output: Path) -> None:
    """Write the network of a run of any task.

    Args:
        folder: of the run.
        output: is made.

    Raises:
        ValueError: nothing is learned yet, or the weights do not fit the settings.
    """
    net, vocabulary, facts = load_trained(folder)
    name = folder.resolve().name
    with atomic_folder(output) as draft:
        write_safetensors(net, vocabulary, {"name": name, **facts}, read_score(folder / WEIGHTS), draft)
        (draft / CARD).write_text(safetensors_card(name, type(net).__name__), encoding="utf-8")


def load_trained(folder: Path) -> Trained:
    """The network of a run of any task."""
    tree = tree_of(folder / CONFIG)
    if tree is MaskedLanguageConfig:
        bert = load_bert(folder)
        vocabulary = TokenizerPair(bert.tokenizer, bert.tokenizer)
        return Trained(bert.net, vocabulary, {"language": bert.config.data.language})
    if tree is LanguageConfig:
        model = load_language_model(folder)
        vocabulary = TokenizerPair(model.tokenizer, model.tokenizer)
        return Trained(model.net, vocabulary, {"language": model.config.data.language})
    if tree is ClassificationConfig:
        classifier = load_classifier(folder)
        return Trained(classifier.net, classifier.vocabulary, {"labels": classifier.vocabulary.labels})
    run = load_run(folder, _CPU)
    return Trained(
        run.model, run.tokenizers, {"src_lang": run.config.data.src_lang, "tgt_lang": run.config.data.tgt_lang}
    )


def megabytes(file: Path) -> str:
    """Size of a file, for people."""
    return f"{file.stat().st_size / 1e6:.1f} MB"


if __name__ == "__main__":
    run_command("export.py", main)
