"""Scores of systems: printed, and written to files on request."""

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

N_BOOTSTRAP = 1000  # as in sacreBLEU's command line


def report_options(parser: Parser) -> None:
    """Add the options that all reports share."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report to this file as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report to this file as an HTML page")
    parser.add_argument(
        "--bootstrap", type=int, metavar="N", default=N_BOOTSTRAP, help="resamples for 95 %% intervals; 0: no intervals"
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="random seed of the samples (default: SACREBLEU_SEED, or sacreBLEU's own)"
    )


def evaluate(system: System, text: ReferenceText, n_bootstrap: int) -> Evaluation:
    """Score a system, and analyse where it does well."""
    metrics = build_metrics(text.tgt_lang, text.tokenize)
    with tqdm(total=len(metrics), desc="scoring", unit="metric", disable=None, leave=False) as bar:
        found = measure(system.translations, text.references, metrics, n_bootstrap, bar.update)
    return text.evaluation(system, found)


def report(evaluations: Sequence[Evaluation], comparisons: Sequence[Comparison], arguments: Namespace) -> None:
    """Print the results, and write them to the requested files."""
    print(as_text(evaluations, comparisons).rstrip("\n"))
    if arguments.json:
        write_json(arguments.json, as_dict(evaluations, comparisons))
    if arguments.html:
        write_html(evaluations, comparisons, arguments.html)
