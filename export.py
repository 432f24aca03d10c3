"""Export a trained run: `python export.py [RUN] --to ctranslate2|argos|huggingface|safetensors|run --output PATH`."""

import argparse
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from utils.export import CARD
from utils.file import atomic_file, atomic_folder
from utils.run import CONFIG, WEIGHTS, find_run
from utils.text.tokenizer import TokenizerPair, Vocabulary
from utils.text.words import WORDS

if TYPE_CHECKING:
    from utils.export.safetensors import Network

# What computes is imported where it is used: torch takes seconds, which neither --help nor a mistake should wait for.


def build_parser() -> Parser:
    """Build the parser with all options."""
    parser = Parser(
        prog="export.py",
        version=VERSION,
        usage="python export.py [RUN] --to FORMAT --output PATH [--quantization TYPE]",
        description="Write a trained run in a format that other programs read, with its vocabulary and a README.md "
        "that explains its use. CTranslate2 translates on CPUs and GPUs without PyTorch; Argos Translate and "
        "LibreTranslate install a package, which is one file; Hugging Face's transformers load and fine-tune a "
        "translator as their Pegasus or Marian; safetensors holds named weights, from which this project can rebuild "
        "the network; a run is what this project itself uses, in a quarter of the size and with a model card, to be "
        "given to others.",
        epilog="""examples:
  python export.py --to ctranslate2 --output kftt_ja_en             the run trained last
  python export.py pickles/RUN --to ctranslate2 --output kftt_ja_en --quantization int8
  python export.py pickles/RUN --to argos --output ja_en.argosmodel
  python export.py pickles/RUN --to huggingface --output tanaka_ja_en
  python export.py pickles/RUN --to safetensors --output kftt_ja_en
  python export.py pickles/RUN --to run --output pickles/kftt_ja_en
  python export.py bert_ja-RUN --to safetensors --output bert_ja    runs of other tasks work too

To translate with an export for CTranslate2: translate.py --engine ctranslate2 --run FOLDER""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", nargs="?", type=Path, help="folder or name of a run (default: the one trained last)")
    parser.add_argument(
        "--to",
        choices=["ctranslate2", "argos", "huggingface", "safetensors", "run"],
        required=True,
        help="ctranslate2: translators, for CTranslate2 or translate.py --engine ctranslate2; argos: translators of "
        "plain text with one vocabulary of pieces, for Argos Translate; huggingface: translators with sinusoidal "
        "positions and one vocabulary of pieces, for transformers; safetensors: any run; run: translators, with "
        "weights in 8-bit integers",
    )
    parser.add_argument(
        "--output", type=Path, metavar="PATH", required=True, help="folder (argos: file) to create; it must not exist"
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
    if quantization is not None and arguments.to not in ("ctranslate2", "argos"):
        raise ValueError(f"--quantization {quantization} applies to CTranslate2: add --to ctranslate2 or --to argos")
    folder = find_run(arguments.run)
    if arguments.to == "ctranslate2":
        export_ctranslate2(folder, output, quantization)
        usage = f'python translate.py "TEXT" --engine ctranslate2 --run {shlex.quote(str(output))}'
        weights = output / "model.bin"
    elif arguments.to == "argos":
        export_argos(folder, output, quantization)
        usage = f"argostranslate.package.install_from_path({str(output)!r}), or the window of Argos Translate"
        weights = output
    elif arguments.to == "huggingface":
        export_hugging_face(folder, output)
        usage = f"transformers.AutoModelForSeq2SeqLM, as {output / CARD} shows"
        weights = output / WEIGHTS
    elif arguments.to == "run":
        export_run(folder, output)
        usage = f'python translate.py "TEXT" --run {shlex.quote(str(output))}'
        weights = output / WEIGHTS
    else:
        export_safetensors(folder, output)
        usage = f"utils.export.safetensors.load_safetensors, as {output / CARD} shows"
        weights = output / WEIGHTS
    after, before = (f"{file.stat().st_size / 1e6:.1f} MB" for file in (weights, folder / WEIGHTS))
    print(f"{output}: weights {after} ({folder.resolve().name}: {before})\nto use it: {usage}")


def export_ctranslate2(folder: Path, output: Path, quantization: str | None) -> None:
    """Write a translator for CTranslate2, with all that is needed to translate with it."""
    from utils.device import pick_device
    from utils.export.ctranslate2 import write_translator
    from utils.export.engine import TranslatorSettings
    from utils.load import load_run

    require_translator(folder, "CTranslate2")
    run = load_run(folder, pick_device("cpu"))
    data, longest, name = run.config.data, run.config.model.max_length, folder.resolve().name
    settings = TranslatorSettings(name, data.src_lang, data.tgt_lang, run.window, longest, run.config.search)
    with atomic_folder(output) as draft:
        write_translator(run.transformer, run.tokenizers, settings, draft, quantization)
        if (folder / WORDS).is_file():
            shutil.copyfile(folder / WORDS, draft / WORDS)


def export_argos(folder: Path, output: Path, quantization: str | None) -> None:
    """Write a translator as a package of Argos Translate."""
    from utils.device import pick_device
    from utils.export.argos import SUFFIX, write_argos
    from utils.load import load_run

    if output.suffix != SUFFIX:
        raise ValueError(f"--output {output}: a package of Argos Translate ends in {SUFFIX}: give {output}{SUFFIX}")
    require_translator(folder, "Argos Translate")
    with atomic_file(output) as draft:
        write_argos(load_run(folder, pick_device("cpu")), draft, quantization)


def export_hugging_face(folder: Path, output: Path) -> None:
    """Write a translator, with its tokenizer, for Hugging Face's transformers."""
    from utils.device import pick_device
    from utils.export.pegasus import write_pegasus
    from utils.load import load_run

    require_translator(folder, "Hugging Face")
    with atomic_folder(output) as draft:
        write_pegasus(load_run(folder, pick_device("cpu")), draft)


def export_run(folder: Path, output: Path) -> None:
    """Write a translator's run with weights in a quarter of the size and a model card."""
    from utils.export.run import write_run

    require_translator(folder, "others")
    with atomic_folder(output) as draft:
        write_run(folder, draft)


def require_translator(folder: Path, whom: str) -> None:
    """Refuse a run of another task."""
    if (config_type := config_type_of(folder / CONFIG)) is not TranslationConfig:
        raise ValueError(
            f"{folder} is of task {task_of(config_type)}, but only Transformers that translate can be exported for "
            f"{whom}: give --to safetensors"
        )


def export_safetensors(folder: Path, output: Path) -> None:
    """Write the network of a run of any task as safetensors."""
    from utils.export.safetensors import write_safetensors
    from utils.training.checkpoint import read_rank

    net, vocabulary, facts = load_any(folder)
    with atomic_folder(output) as draft:
        about = {"name": folder.resolve().name, **facts}
        write_safetensors(net, vocabulary, about, read_rank(folder / WEIGHTS), draft)


def load_any(folder: Path) -> tuple["Network", Vocabulary, dict[str, Any]]:
    """Load the network of a run of any task, with its vocabulary and facts such as its languages."""
    from utils.device import pick_device
    from utils.load import load_bert, load_classifier, load_language_model, load_run

    config_type = config_type_of(folder / CONFIG)
    if config_type is ClassificationConfig:
        classifier = load_classifier(folder)
        return classifier.net, classifier.vocabulary, {"labels": classifier.vocabulary.labels}
    if config_type in (MaskedLanguageConfig, LanguageConfig):
        one = load_bert(folder) if config_type is MaskedLanguageConfig else load_language_model(folder)
        return one.net, TokenizerPair(one.vocabulary, one.vocabulary), {"language": one.config.data.language}
    run = load_run(folder, pick_device("cpu"))
    data = run.config.data
    return run.model, run.tokenizers, {"src_lang": data.src_lang, "tgt_lang": data.tgt_lang}


if __name__ == "__main__":
    run_command("export.py", main)
