"""evaluate.py tune: the beam size and length penalty that translate best."""

from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

from jsonargparse import Namespace
from tqdm import tqdm

from utils.above_bars import print_above_bars
from utils.command_line import Parser, require_options_at_least
from utils.device import pick_device
from utils.evaluation.metric import build_metrics
from utils.evaluation.tuning import Trial, best_trial, count_searches, try_settings
from utils.file import write_json
from utils.run import CONFIG, find_run, load_run
from utils.scoring.source_text import read_run_text
from utils.scoring.verb import Verb, run_text_options
from utils.search.hypothesis import SearchConfig
from utils.terminal.option import changed_by
from utils.visualize.beam_width import draw_beam_width


def tune_options(parser: Parser) -> None:
    """Add the options of `tune`."""
    run_text_options(parser, "translate", "dev")
    parser.add_argument(
        "--beams", type=int, nargs="+", metavar="N", default=[1, 2, 4, 8], help="beam sizes to try (default: 1 2 4 8)"
    )
    parser.add_argument(
        "--length_penalties",
        type=float,
        nargs="+",
        metavar="A",
        default=[0.0, 0.6, 1.0, 1.4],
        help="length penalties to try (default: 0 0.6 1 1.4)",
    )
    parser.add_argument("--save", action="store_true", help="save the best values as the run's own settings")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="plot BLEU against beam size to this PNG file")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all trials to this file")


def tune(arguments: Namespace) -> None:
    """Translate the dev set with each beam size and length penalty, and report the best."""
    require_options_at_least(arguments, limit=1)
    run = load_run(find_run(arguments.run), pick_device(arguments.device))
    options = {"beams": "beam_size", "length_penalties": "length_penalty"}
    for tried in product(*(arguments[option] for option in options)):
        changed_by(run.config.search, options, dict(zip(options, tried, strict=True)))  # refuses values out of range
    corpus, pairs, name, tokenize = read_run_text(run, arguments.split, arguments.limit)
    translator = run.translator()
    bleu = build_metrics(corpus.tgt_lang, tokenize)["BLEU"]
    n_searches = count_searches(arguments.beams, arguments.length_penalties)
    print(f"{run.folder.resolve().name}, {name}\n\n  beam  length penalty   BLEU  length ratio")
    with tqdm(total=n_searches * len(pairs), unit="sentence", disable=None, leave=False) as bar:

        def translate_with(search: SearchConfig) -> list[str]:
            translator.search = search
            return [translation.text for translation in translator.translate(pairs.src, bar.update)]

        def show(trial: Trial) -> None:
            scores = f"{trial.bleu:>5.2f}  {trial.length_ratio:>12.3f}"
            print_above_bars(f"{trial.beam_size:>6}  {trial.length_penalty:>14g}  {scores}")

        trials = try_settings(
            translate_with, pairs.tgt, run.config.search, arguments.beams, arguments.length_penalties, bleu, show
        )
    best = best_trial(trials)
    print(f"\nbest: --beam {best.beam_size} --length_penalty {best.length_penalty:g}   {bleu.get_signature()}")
    if arguments.json:
        found = {"run": run.folder.resolve().name, "text": name, "signature": str(bleu.get_signature())}
        write_json(arguments.json, {**found, "trials": [asdict(trial) for trial in trials]})
    if arguments.picture:
        draw_beam_width(trials, name, arguments.picture)
    if arguments.save:
        search = replace(run.config.search, beam_size=best.beam_size, length_penalty=best.length_penalty)
        replace(run.config, search=search).save(run.folder / CONFIG)
        print(f"saved in {run.folder / CONFIG}")


TUNE = Verb(
    "[RUN] [--beams N ...] [--length_penalties A ...] [--save] [--picture FILE]",
    "find the beam size and length penalty that translate the dev set best",
    tune_options,
    tune,
)
