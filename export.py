"""Export a trained run: `python export.py [RUN ...] --to ctranslate2|argos|huggingface|onnx|... --output PATH`."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from utils.command import Parser, aligned, run_command
from utils.config import (
    ClassificationConfig,
    LanguageConfig,
    MaskedLanguageConfig,
    TranslationConfig,
    config_type_of,
)
from utils.export import CARD, PACKAGE
from utils.file import atomic_file, atomic_folder
from utils.run import CONFIG, WEIGHTS, find_run, require_run
from utils.text.tokenizer import TokenizerPair, Vocabulary

if TYPE_CHECKING:
    from utils.export.safetensors import Network

# What computes is imported where it is used: torch takes seconds, which neither --help nor a mistake should wait for.


def build_parser() -> Parser:
    """Build the parser with all options."""
    parser = Parser(
        prog="export.py",
        usage="python export.py [RUN] --to FORMAT --output PATH [--quantization TYPE]",
        description="Write a trained run in a format that other programs read, with its vocabulary and a README.md "
        "that explains its use. CTranslate2 translates on CPUs and GPUs without PyTorch; Argos Translate and "
        "LibreTranslate install a package, which is one file; Hugging Face's transformers load and fine-tune a "
        "translator as their Pegasus or Marian; ONNX graphs run in any runtime for them; safetensors holds named "
        "weights, from which this project can rebuild the network; a run is what this project itself uses, in a "
        "quarter of the size and with a model card, to be given to others; web is a page that translates in the "
        "browser, without a server of ours or a network.",
        epilog="""examples:
  python export.py --to ctranslate2 --output kftt_ja_en             the run trained last
  python export.py pickles/RUN --to ctranslate2 --output kftt_ja_en --quantization int8
  python export.py pickles/RUN --to argos --output ja_en.argosmodel
  python export.py pickles/RUN --to huggingface --output tanaka_ja_en
  python export.py pickles/RUN --to onnx --output kftt_ja_en --quantization int8
  python export.py pickles/RUN --to safetensors --output kftt_ja_en
  python export.py pickles/RUN --to run --output pickles/kftt_ja_en
  python export.py kftt_ja_en kftt_en_ja --to web --output site     serve it: python -m http.server --directory site
  python export.py bert_ja-RUN --to safetensors --output bert_ja    runs of other tasks work too

To translate with an export for CTranslate2: translate.py --run FOLDER""",
    )
    which = "folder or name of a run; of several, --to web (default: the one trained last)"
    parser.add_argument("run", nargs="*", type=Path, help=which)
    parser.add_argument(
        "--to",
        choices=["ctranslate2", "argos", "huggingface", "onnx", "safetensors", "run", "web"],
        required=True,
        help="ctranslate2: translators, for CTranslate2 or translate.py; argos: translators of "
        "plain text with one vocabulary of pieces, for Argos Translate; huggingface: translators with sinusoidal "
        "positions and one vocabulary of pieces, for transformers; onnx: translators but for those with a BERT; "
        "safetensors: any run; run: translators, with weights in 8-bit integers; web: as onnx, with vocabularies of "
        "pieces",
    )
    parser.add_argument(
        "--output", type=Path, metavar="PATH", required=True, help="folder (argos: file) to create; it must not exist"
    )
    parser.add_argument(
        "--quantization",
        type=str,
        metavar="TYPE",
        help="type of the weights for CTranslate2 and ONNX: int8 (a quarter of the size) or float32 (default: float32, "
        "the same as in the run); for CTranslate2 also int8_float32, int8_float16, int8_bfloat16, int16, float16 or "
        "bfloat16",
    )
    web = parser.add_argument_group("--to web")
    what = "folder of the npm package onnxruntime-web, which computes in the browser (default: node_modules/)"
    web.add_argument("--runtime", type=Path, metavar="FOLDER", help=what)
    web.add_argument("--one-file", action="store_true", help="one page with everything inside")
    what = "weights of the first run at other steps, for a slider of the page that looks inside"
    web.add_argument("--checkpoints", type=Path, nargs="+", default=[], metavar="FILE", help=what)
    return parser


def main() -> None:
    """Read the arguments, write the folder and print how to use it."""
    arguments = build_parser().parse_args()
    to, output, quantization = arguments.to, arguments.output, arguments.quantization
    if output.exists():
        raise ValueError(f"--output {output} already exists: remove it, or give another name")
    if quantization is not None and to not in ("ctranslate2", "argos", "onnx"):
        raise ValueError(f"--quantization {quantization} is for --to ctranslate2, argos or onnx: give one of them")
    if to == "argos" and output.suffix != PACKAGE:
        raise ValueError(f"--output {output}: a package of Argos Translate ends in {PACKAGE}: give {output}{PACKAGE}")
    folders = [find_run(run) for run in arguments.run or [None]]
    if to == "web":
        return export_web(folders, output, arguments.runtime, arguments.checkpoints, arguments.one_file)
    if given := [name for name in ("runtime", "one_file", "checkpoints") if arguments[name]]:
        raise ValueError(f"--{given[0]} applies to pages: add --to web")
    if len(folders) > 1:
        raise ValueError(f"{len(folders)} runs, but --to {to} exports one: give one, or --to web")
    (folder,) = folders
    export(folder, to, output, quantization)
    place, card = shlex.quote(str(output)), output / CARD
    usage = {
        "ctranslate2": f'python translate.py "TEXT" --run {place}',
        "argos": f"argostranslate.package.install_from_path({str(output)!r}), or the window of Argos Translate",
        "huggingface": f"transformers.AutoModelForSeq2SeqLM, as {card} shows",
        "onnx": f"onnxruntime, as {card} shows",
        "safetensors": f"utils.export.safetensors.load_safetensors, as {card} shows",
        "run": f'python translate.py "TEXT" --run {place}',
    }
    weights = {"ctranslate2": output / "model.bin", "argos": output, "onnx": output / "weights.bin"}.get(
        to, output / WEIGHTS
    )
    after, before = (f"{file.stat().st_size / 1e6:.1f} MB" for file in (weights, folder / WEIGHTS))
    print(f"{output}: weights {after} ({folder.resolve().name}: {before})\nto use it: {usage[to]}")
    return None


def export_web(
    folders: Sequence[Path], output: Path, runtime: Path | None, checkpoints: Sequence[Path], one_file: bool
) -> None:
    """Write pages that translate with some runs, and print the sizes of their files."""
    for folder in folders:
        require_run(folder)
        if (config_type := config_type_of(folder / CONFIG)) is not TranslationConfig:
            raise ValueError(f"{folder} is of task {config_type.task}, but pages translate: give a translator")
    from utils.export.web import find_runtime, write_web
    from utils.load import examples

    files = find_runtime(runtime)
    with atomic_folder(output) as draft:
        sizes = write_web({folder: examples(folder) for folder in folders}, draft, files, checkpoints, one_file)
    rows = [(file, f"{size / 1e6:.2f} MB") for file, size in [*sizes.items(), ("in all", sum(sizes.values()))]]
    print("\n".join(aligned(rows, "lr")))
    open_it = (
        f"open {output / 'index.html'}" if one_file else f"python -m http.server --directory {shlex.quote(str(output))}"
    )
    print(f"to use it: {open_it}")


def export(folder: Path, to: str, output: Path, quantization: str | None = None) -> None:
    """Write a run in a format; nothing is left of what fails."""
    require_run(folder)
    if to != "safetensors" and (config_type := config_type_of(folder / CONFIG)) is not TranslationConfig:
        raise ValueError(
            f"{folder} is of task {config_type.task}, but only Transformers that translate can be exported "
            f"--to {to}: give --to safetensors"
        )
    from utils.load import load_run

    with (atomic_file if to == "argos" else atomic_folder)(output) as draft:
        match to:
            case "ctranslate2":
                from utils.export.ctranslate2 import write_translator

                write_translator(load_run(folder), draft, quantization)
            case "argos":
                from utils.export.ctranslate2 import write_argos

                write_argos(load_run(folder), draft, quantization)
            case "huggingface":
                from utils.export.pegasus import write_pegasus

                write_pegasus(load_run(folder), draft)
            case "onnx":
                from utils.export.graph import write_graphs

                write_graphs(load_run(folder), draft, quantization)
            case "safetensors":
                from utils.export.safetensors import write_safetensors
                from utils.training.checkpoint import read_rank

                write_safetensors(*load_any(folder), read_rank(folder / WEIGHTS), draft)
            case "run":
                from utils.export.safetensors import write_run

                write_run(folder, draft)


def load_any(folder: Path) -> tuple["Network", Vocabulary, dict[str, Any]]:
    """Load the network of a run of any task, with its vocabulary, its name and facts such as its languages."""
    from utils.load import load_bert, load_classifier, load_language_model, load_run

    config_type, name = config_type_of(folder / CONFIG), {"name": folder.resolve().name}
    if config_type is ClassificationConfig:
        classifier = load_classifier(folder)
        return classifier.net, classifier.vocabulary, name | {"labels": classifier.vocabulary.labels}
    if config_type in (MaskedLanguageConfig, LanguageConfig):
        trained = load_bert(folder) if config_type is MaskedLanguageConfig else load_language_model(folder)
        pair = TokenizerPair(trained.vocabulary, trained.vocabulary)
        return trained.net, pair, name | {"language": trained.config.data.language}
    run = load_run(folder)
    data = run.config.data
    return run.model, run.tokenizers, name | {"src_lang": data.src_lang, "tgt_lang": data.tgt_lang}


if __name__ == "__main__":
    run_command("export.py", main)
