"""Export a trained run: `python export.py [RUN] --to ctranslate2|safetensors --output FOLDER`."""

import argparse
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import torch

from const.corpora import VERSION
from utils.command import Parser, run_command
from utils.config import (
    ClassificationConfig,
    LanguageConfig,
    MaskedLanguageConfig,
    TranslationConfig,
    config_type_of,
    task_of,
)
from utils.export.model_card import CARD, ctranslate2_card, safetensors_card
from utils.export.requirement import require_ctranslate2
from utils.export.safetensors import Network, write_safetensors
from utils.export.translator_settings import TranslatorSettings
from utils.file import atomic_folder
from utils.run import CONFIG, WEIGHTS, Run, find_run, load_bert, load_classifier, load_language_model, load_run
from utils.text.tokenizer import TokenizerPair, Vocabulary
from utils.training.checkpoint import read_score

_CPU = torch.device("cpu")


class Trained(NamedTuple):
    """The network of a run, with its vocabulary and facts such as its languages."""

    net: Network
    vocabulary: Vocabulary
    facts: dict[str, Any]


def build_parser() -> Parser:
    """Build the parser with all options."""
    parser = Parser(
        prog="export.py",
        version=VERSION,
        usage="python export.py [RUN] --to FORMAT --output FOLDER [--quantization TYPE]",
        description="Write a trained run in a format that other programs read, with its vocabulary and a README.md "
        "that explains its use. CTranslate2 translates on CPUs and GPUs without PyTorch; safetensors holds named "
        "weights, from which this project can rebuild the network.",
        epilog="""examples:
  python export.py --to ctranslate2 --output kftt_ja_en             the run trained last
  python export.py pickles/RUN --to ctranslate2 --output kftt_ja_en --quantization int8
  python export.py pickles/RUN --to safetensors --output kftt_ja_en
  python export.py bert_ja-RUN --to safetensors --output bert_ja    runs of other tasks work too

To translate with an export for CTranslate2: translate.py --engine ctranslate2 --run FOLDER""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", nargs="?", type=Path, help="folder or name of a run (default: the one trained last)")
    parser.add_argument(
        "--to",
        choices=["ctranslate2", "safetensors"],
        required=True,
        help="ctranslate2: translators, for CTranslate2 or translate.py --engine ctranslate2; safetensors: any run",
    )
    parser.add_argument(
        "--output", type=Path, metavar="FOLDER", required=True, help="folder to create; it must not exist"
    )
    parser.add_argument(
        "--quantization",
        type=str,
        metavar="TYPE",
        help="type of the weights for CTranslate2: int8 (a quarter of the size), int8_float32, int8_float16, "
        "int8_bfloat16, int16, float16, bfloat16 or float32 (default: float32, the same as in the run)",
    )
    return parser


def main() -> None:
    """Read the arguments, load the run, write the folder and print how to use it."""
    arguments = build_parser().parse_args()
    output, quantization = arguments.output, arguments.quantization
    if output.exists():
        raise ValueError(f"--output {output} already exists: remove it, or give another name")
    if quantization is not None and arguments.to != "ctranslate2":
        raise ValueError(f"--quantization {quantization} applies to CTranslate2: add --to ctranslate2")
    folder = find_run(arguments.run)
    if arguments.to == "ctranslate2":
        export_ctranslate2(folder, output, quantization)
        remedy = f'python translate.py "TEXT" --engine ctranslate2 --run {shlex.quote(str(output))}'
        made = output / "model.bin"
    else:
        export_safetensors(folder, output)
        remedy = f"utils.export.safetensors.load_safetensors, as {output / CARD} shows"
        made = output / WEIGHTS
    name = folder.resolve().name
    print(f"{output}: weights {megabytes(made)} ({name}: {megabytes(folder / WEIGHTS)})")
    print(f"to use it: {remedy}")


def export_ctranslate2(folder: Path, output: Path, quantization: str | None = None) -> None:
    """Write a translator for CTranslate2, with all that is needed to translate with it.

    Args:
        folder: folder of the run.
        output: folder to create.
        quantization: one of `utils.export.ctranslate2.QUANTIZATIONS`; None: single precision.

    Raises:
        ValueError: CTranslate2 is not installed, or does not support this quantization or network.
    """
    require_ctranslate2()
    from utils.export.ctranslate2 import require_quantization, write_ctranslate2

    require_quantization(quantization)
    if (config_type := config_type_of(folder / CONFIG)) is not TranslationConfig:
        raise ValueError(
            f"{folder} is of task {task_of(config_type)}, but only translators can be exported for CTranslate2: "
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
    """Return what translating with a run's weights needs besides them."""
    data, search = run.config.data, run.config.search
    name = run.folder.resolve().name
    return TranslatorSettings(name, data.src_lang, data.tgt_lang, run.window, run.config.model.max_length, search)


def export_safetensors(folder: Path, output: Path) -> None:
    """Write the network of a run of any task as safetensors.

    Args:
        folder: folder of the run.
        output: folder to create.

    Raises:
        ValueError: the run has no weights yet, or they do not fit its settings.
    """
    net, vocabulary, facts = load_trained(folder)
    name = folder.resolve().name
    with atomic_folder(output) as draft:
        write_safetensors(net, vocabulary, {"name": name, **facts}, read_score(folder / WEIGHTS), draft)
        (draft / CARD).write_text(safetensors_card(name, type(net).__name__), encoding="utf-8")


def load_trained(folder: Path) -> Trained:
    """Load the network of a run of any task."""
    config_type = config_type_of(folder / CONFIG)
    if config_type is MaskedLanguageConfig:
        bert = load_bert(folder)
        vocabulary = TokenizerPair(bert.tokenizer, bert.tokenizer)
        return Trained(bert.net, vocabulary, {"language": bert.config.data.language})
    if config_type is LanguageConfig:
        model = load_language_model(folder)
        vocabulary = TokenizerPair(model.tokenizer, model.tokenizer)
        return Trained(model.net, vocabulary, {"language": model.config.data.language})
    if config_type is ClassificationConfig:
        classifier = load_classifier(folder)
        return Trained(classifier.net, classifier.vocabulary, {"labels": classifier.vocabulary.labels})
    run = load_run(folder, _CPU)
    return Trained(
        run.model, run.tokenizers, {"src_lang": run.config.data.src_lang, "tgt_lang": run.config.data.tgt_lang}
    )


def megabytes(file: Path) -> str:
    """Return the size of a file in megabytes, for display."""
    return f"{file.stat().st_size / 1e6:.1f} MB"


if __name__ == "__main__":
    run_command("export.py", main)
