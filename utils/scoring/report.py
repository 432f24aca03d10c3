"""Scores of systems: printed, and written where they are asked for."""

from collections.abc import Sequence
from pathlib import Path

from jsonargparse import Namespace
from tqdm import tqdm

from utils.command_line import Parser
from utils.evaluation.comparison import System
from utils.evaluation.evaluation import Comparison, Evaluation
from utils.evaluation.metric import build_metrics, measure
from utils.evaluation.reference_text import ReferenceText
from utils.file import write_json
from utils.visualize.report import as_dict, as_text, write_html

N_BOOTSTRAP = 1000  # as sacreBLEU's command line


def report_options(parser: Parser) -> None:
    """What all reports have in common."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report to this file, as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report to this file, as a page")
    parser.add_argument(
        "--bootstrap", type=int, metavar="N", default=N_BOOTSTRAP, help="resamples for 95 %% intervals; 0: none"
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="of the samples (default: SACREBLEU_SEED, or sacreBLEU's own)"
    )


def evaluate(system: System, text: ReferenceText, n_bootstrap: int) -> Evaluation:
    """Score a system and look at where it is good."""
    metrics = build_metrics(text.tgt_lang, text.tokenize)
    with tqdm(total=len(metrics), desc="scoring", unit="metric", disable=None, leave=False) as bar:
        found = measure(system.translations, text.references, metrics, n_bootstrap, bar.update)
    return text.evaluation(system, found)


def report(evaluations: Sequence[Evaluation], comparisons: Sequence[Comparison], arguments: Namespace) -> None:
    """Print what was found, and write it to the files that are asked for."""
    print(as_text(evaluations, comparisons).rstrip("\n"))
    if arguments.json:
        write_json(arguments.json, as_dict(evaluations, comparisons))
    if arguments.html:
        write_html(evaluations, comparisons, arguments.html)
