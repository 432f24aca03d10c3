"""Published results: `python -m utils.experiment.kept_result RUN ...` keeps those of runs in figure/results/.

A result is the `test.json` of its run, with the translations next to it, so that anybody can score them again; the
tables of both READMEs are then made from what is there.
"""

from argparse import RawDescriptionHelpFormatter
from pathlib import Path

from const.path import FIGURE
from utils.command_line import Parser, run_command
from utils.evaluation.result_table import other_table, result_table, rewrite_readmes
from utils.evaluation.yardstick import yardstick_table
from utils.file import atomic_file, read_json, write_json
from utils.run import TEST, TRANSLATIONS, find_run

RESULTS = FIGURE / "results"


def keep_result(run: Path, folder: Path) -> Path:
    """Copy a run's result into a folder, under the run's name and seed; an earlier result of both is replaced.

    Args:
        run: folder of the run.
        folder: where results are kept.

    Raises:
        ValueError: when the run has not been tested, or its result lacks the seed or the translations.
    """
    test, translations = run / TEST, run / TRANSLATIONS
    if not test.is_file():
        raise ValueError(f"{run} has no {TEST} yet: it is written when the training has ended")
    result = read_json(test)
    if "seed" not in result:
        raise ValueError(f"{test} does not contain the seed: test the run again, python train.py --resume {run}")
    if "bleu" in result and not translations.is_file():
        raise ValueError(f"{run} has no {TRANSLATIONS}: test the run again, python train.py --resume {run}")
    kept = folder / f"{result['name']}_{result['seed']}.json"
    if translations.is_file():
        with atomic_file(kept.with_suffix(".txt")) as draft:
            draft.write_bytes(translations.read_bytes())
    write_json(kept, result)
    return kept


def renew_tables(folder: Path) -> None:
    """Update the READMEs' tables with the results that are kept in a folder."""
    rewrite_readmes(result_table(folder), "results")
    rewrite_readmes(yardstick_table(folder), "yardsticks")
    rewrite_readmes(other_table(folder), "models")


def main() -> None:
    """Keep the results of the given runs, and update the tables."""
    parser = Parser(
        prog="kept_result",
        usage="python -m utils.experiment.kept_result [RUN ...]",
        description="Keep the test results of runs in figure/results/, and show them in the READMEs.",
        epilog="""examples:
  python -m utils.experiment.kept_result pickles/demo-20260101-120000
  python -m utils.experiment.kept_result                     update the tables only""",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="folder or name of a run")
    for run in parser.parse_args().runs:
        print(keep_result(find_run(run), RESULTS))
    renew_tables(RESULTS)


if __name__ == "__main__":
    run_command("kept_result", main)
