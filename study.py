"""Search for settings: `python study.py STUDY.yaml [--trials N]`; each trial is a training."""

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from const.corpora import VERSION
from utils.command import Parser, needing_group, print_above_bars, require_options_at_least, run_command
from utils.experiment.trial import stop_as_by_ctrl_c
from utils.file import require_file

with needing_group("study.py", "study"):
    from utils.experiment.study import (
        FINISHED,
        Study,
        StudyConfig,
        draw,
        label,
        shown_score,
        summary,
        trial_line,
        write_best,
        write_trials,
    )


def build_parser() -> Parser:
    """Build the parser of all options."""
    parser = Parser(
        prog="study.py",
        version=VERSION,
        usage="python study.py STUDY.yaml [--trials N] [--best FILE] [--json FILE]",
        description="Search for better settings than a preset's with Optuna. Each trial is a training of its own; "
        "hopeless ones are given up early. Trials are scored on dev text; test text is not used.",
        epilog="""examples:
  python study.py const/study/demo.yaml --trials 12            start or resume
  python study.py const/study/demo.yaml --best best.yaml       also write the best settings, for train.py --config
  python study.py const/study/demo.yaml --trials 0             report the results so far, train nothing
  python study.py const/study/multi30k.yaml --json all.json    also write all trials

The same command in a second terminal takes part. After Ctrl-C, SIGTERM, or when the terminal is closed, the running
training saves, and the same command resumes it.
Exit status: 0 on success, 2 after a mistake or three failures in a row, 130 after Ctrl-C.""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("study", type=Path, metavar="STUDY.yaml", help="what to search; see const/study/")
    parser.add_argument(
        "--trials",
        type=int,
        default=20,
        metavar="N",
        help="number of finished trials to reach, earlier ones included (default: 20)",
    )
    parser.add_argument(
        "--best",
        type=Path,
        metavar="FILE",
        help="at the end, write all settings of the best trial, for train.py --config; it trains for as long as a "
        "trial did unless --training.max_steps or --training.max_epochs is given",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="at the end, write all trials as JSON")
    return parser


def main() -> None:
    """Read the study file, train until there are enough trials, and report the best."""
    arguments = build_parser().parse_args()
    require_options_at_least(arguments, trials=0)
    require_file(arguments.best, arguments.json)
    config = StudyConfig.load(arguments.study)
    stop_as_by_ctrl_c()
    study = Study(config)
    finished = len(study.trials(*FINISHED))
    wanted = f" of {arguments.trials}" if finished < arguments.trials else ""
    print(f"{study.folder}: {finished}{wanted} trials are finished", flush=True)
    try:
        search(study, arguments.trials)
    except KeyboardInterrupt:
        print("stopped; the running training is saved, and the same command resumes it", flush=True)
        raise
    print("\n".join(summary(study)))
    if arguments.best is not None:
        write_best(study, arguments.best)
        print(f"its settings: {arguments.best}, for python train.py --config {arguments.best}")
    if arguments.json is not None:
        write_trials(study, arguments.json)


def search(study: Study, n_trials: int) -> None:
    """Train, printing a line for each trial that ends and drawing all of them."""
    finished = len(study.trials(*FINISHED))
    with tqdm(
        total=n_trials,
        initial=finished,
        dynamic_ncols=True,
        bar_format="{n_fmt}/{total_fmt} |{bar}| {desc}",
        disable=not sys.stderr.isatty(),
    ) as bar:

        def on_validation(number: int, step: int, value: float) -> None:
            bar.set_description_str(f"trial {number}, step {step:,}: {label(study)} {shown_score(study, value)}")

        for trial in study.go_on(n_trials, print_above_bars, on_validation):
            print_above_bars(trial_line(study, trial))
            draw(study)
            bar.n = len(study.trials(*FINISHED))
            bar.set_description_str("")


if __name__ == "__main__":
    run_command("study.py", main)
