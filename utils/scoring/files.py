"""evaluate.py file and compare: scores of translations from any system against references."""

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from jsonargparse import Namespace
from tqdm import tqdm

from utils.command_line import Parser
from utils.dataset.parallel_text import read_lines
from utils.evaluation.comparison import System, Test, compare
from utils.evaluation.metric import TOKENIZERS, build_metrics, fitting_tokenizer
from utils.evaluation.plausibility import refuse_other_language, refuse_same
from utils.evaluation.reference_text import ReferenceText
from utils.run import TRANSLATIONS
from utils.scoring.report import N_BOOTSTRAP, evaluate, report, report_options
from utils.scoring.verb import Verb, warn
from utils.text.script import require_language
from utils.text.spacing import looks_tokenized


def file_options(parser: Parser) -> None:
    """Add the options of `file`."""
    parser.add_argument("translations", type=Path, help="translations, one per line, UTF-8; or the folder of a run")
    parser.add_argument("references", type=Path, help="reference translations, one per line")
    text_options(parser)
    report_options(parser)


def evaluate_file(arguments: Namespace) -> None:
    """Score a file of translations."""
    text, (system,) = read_text(arguments, {"TRANSLATIONS": arguments.translations})
    report([evaluate(system, text, arguments.bootstrap)], [], arguments)


def compare_options(parser: Parser) -> None:
    """Add the options of `compare`."""
    parser.add_argument("references", type=Path, help="reference translations, one per line, UTF-8")
    parser.add_argument("baseline", type=Path, help="translations of the baseline system, or its run's folder")
    parser.add_argument("systems", type=Path, nargs="+", help="those of the other systems, one file or folder each")
    parser.add_argument("--test", type=str, choices=list(get_args(Test)), default="bootstrap", help="significance test")
    parser.add_argument(
        "--samples",
        type=int,
        metavar="N",
        help="samples of the test (default: 1000 for bootstrap, 10000 for randomization)",
    )
    text_options(parser)
    report_options(parser)
    parser.set_defaults(bootstrap=None)  # the default test's own samples give the intervals


def compare_files(arguments: Namespace) -> None:
    """Score files of translations, and test whether they differ significantly from the baseline."""
    if arguments.test == "bootstrap" and arguments.bootstrap is not None:
        raise ValueError(
            f"--bootstrap {arguments.bootstrap} and --test bootstrap at once: the intervals come from the samples "
            "of the test; give --samples"
        )
    n_bootstrap = N_BOOTSTRAP if arguments.bootstrap is None else arguments.bootstrap
    files = {"BASELINE": arguments.baseline} | {f"SYSTEM {i}": file for i, file in enumerate(arguments.systems, 1)}
    text, systems = read_text(arguments, files)
    metrics = build_metrics(text.tgt_lang, text.tokenize)
    with tqdm(total=len(metrics), desc="comparing", unit="metric", disable=None, leave=False) as bar:
        scores, comparisons = compare(
            systems, text.references, metrics, arguments.test, arguments.samples, n_bootstrap, bar.update
        )
    evaluations = [text.evaluation(system, found) for system, found in zip(systems, scores, strict=True)]
    report(evaluations, comparisons, arguments)


def text_options(parser: Parser) -> None:
    """Add the options that describe texts given as files."""
    parser.add_argument(
        "--tgt_lang", type=str, metavar="CODE", help="language of the translations: en, ja, ...; required"
    )
    parser.add_argument("--sources", type=Path, metavar="FILE", help="source sentences, shown in the report")
    parser.add_argument(
        "--training_text", type=Path, metavar="FILE", help="target side of the training set, for F1 by word frequency"
    )
    parser.add_argument("--pre_tokenized", action="store_true", help="words are separated by spaces in both files")
    parser.add_argument(
        "--tokenize",
        metavar="NAME",
        choices=list(TOKENIZERS),
        help="tokenizer for BLEU (default: that of the language)",
    )
    parser.add_argument("--force", action="store_true", help="score even if the texts look wrong")


def read_text(arguments: Namespace, files: dict[str, Path]) -> tuple[ReferenceText, list[System]]:
    """Read references, translations and other given texts; refuse texts whose score would be meaningless."""
    if arguments.tgt_lang is None:
        raise ValueError("--tgt_lang is missing: give the language of the translations, such as --tgt_lang en")
    require_language(tgt_lang=arguments.tgt_lang)
    given = {"REFERENCES": arguments.references} | {role: found_translations(path) for role, path in files.items()}
    if arguments.sources:
        given["--sources"] = arguments.sources
    lines = dict(zip(given, read_aligned(list(given.values())), strict=True))
    if not arguments.force:
        refuse_same({f"{role} {given[role]}": lines[role] for role in given})
        for role in ("REFERENCES", *files):
            remedy = "wrong file, or wrong --tgt_lang? (--force scores it anyway)"
            refuse_other_language(lines[role], arguments.tgt_lang, f"{role} {given[role]}", remedy)
    tokenize = fitting_tokenizer(arguments.tgt_lang, arguments.pre_tokenized, arguments.tokenize, arguments.force)
    if tokenize != "none":
        for role in given:
            if role != "--sources" and looks_tokenized(lines[role]):
                warn(f"{given[role]} looks tokenized: give --pre_tokenized if spaces separate all words and marks")
    if arguments.training_text and not arguments.training_text.is_file():
        raise ValueError(f"no such file: {arguments.training_text}")
    text = ReferenceText(
        str(arguments.references),
        arguments.tgt_lang,
        tokenize,
        lines.get("--sources", []),
        lines["REFERENCES"],
        arguments.training_text,
    )
    return text, [System(str(path), lines[role]) for role, path in files.items()]


def found_translations(path: Path) -> Path:
    """Return a file of translations: the path itself, or what a run in that folder made of its corpus's test text.

    Raises:
        ValueError: the folder has no such file.
    """
    if path.is_dir() and not (path / TRANSLATIONS).is_file():
        raise ValueError(
            f"{path} has no {TRANSLATIONS}, which a finished training leaves: give a file of translations; "
            f"`python evaluate.py run {path} --translations FILE` writes one"
        )
    return path / TRANSLATIONS if path.is_dir() else path


def read_aligned(files: Sequence[Path]) -> list[list[str]]:
    """Read texts that correspond line by line.

    Raises:
        ValueError: a file is missing, empty or not UTF-8, or the line counts differ.
    """
    texts = [read_lines(file) for file in files]
    for file, lines in zip(files, texts, strict=True):
        if len(lines) != len(texts[0]):
            raise ValueError(
                f"{files[0]} has {len(texts[0]):,} lines but {file} has {len(lines):,}: "
                "line i of one must correspond to line i of the other"
            )
    return texts


FILE = Verb(
    "TRANSLATIONS REFERENCES --tgt_lang CODE [--sources FILE] [--pre_tokenized]",
    "score a file of translations",
    file_options,
    evaluate_file,
)


COMPARE = Verb(
    "REFERENCES BASELINE SYSTEM [SYSTEM ...] --tgt_lang CODE [--test bootstrap|randomization]",
    "score files, and test whether they differ significantly from a baseline",
    compare_options,
    compare_files,
)
