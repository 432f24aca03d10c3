"""evaluate.py run: scores of a run on a text of its own corpus."""

from pathlib import Path

from jsonargparse import Namespace

from utils.command_line import Parser, require_options_at_least
from utils.device import pick_device
from utils.evaluation.comparison import System
from utils.evaluation.metric import refuse_samples
from utils.evaluation.reference_text import ReferenceText
from utils.file import require_file, write_lines
from utils.run import find_run, load_run
from utils.scoring.report import evaluate, report, report_options
from utils.scoring.source_text import n_best, read_run_text, training_text
from utils.scoring.verb import Verb, run_text_options
from utils.terminal.option import changed_by


def run_options(parser: Parser) -> None:
    """Add the options of `run`."""
    run_text_options(parser, "score", "test")
    parser.add_argument("--beam", type=int, metavar="N", help="beam size; 1 is greedy search (default: the run's)")
    parser.add_argument(
        "--length_penalty",
        type=float,
        metavar="A",
        help="larger values favour longer translations (default: the run's)",
    )
    parser.add_argument("--translations", type=Path, metavar="FILE", help="also write the translations to this file")
    report_options(parser)


def evaluate_run(arguments: Namespace) -> None:
    """Translate a text of a run's own corpus with the run, and score the translations."""
    require_options_at_least(arguments, limit=1)
    require_file(arguments.translations)
    run = load_run(find_run(arguments.run), pick_device(arguments.device))
    search = changed_by(run.config.search, {"beam": "beam_size", "length_penalty": "length_penalty"}, arguments)
    corpus, pairs, name, tokenize = read_run_text(run, arguments.split, arguments.limit)
    refuse_samples(arguments.bootstrap, len(pairs), "--bootstrap")
    translations = [translation.text for translation in n_best(run.translator(search), pairs.src, 1)]
    if arguments.translations:
        write_lines(arguments.translations, translations)
    text = ReferenceText(name, corpus.tgt_lang, tokenize, pairs.src, pairs.tgt, training_text(run))
    system = f"{run.folder.resolve().name}, beam {search.beam_size}, length penalty {search.length_penalty:g}"
    report([evaluate(System(system, translations), text, arguments.bootstrap)], [], arguments)


RUN = Verb(
    "[RUN] [--split dev|test] [--beam N] [--limit N] [--translations FILE]",
    "translate the test set of a run's corpus with the run, and score the translations",
    run_options,
    evaluate_run,
)
