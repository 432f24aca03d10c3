"""Published results: `python -m bench.results RUN ...` keeps those of runs, and fills the tables of the pages.

A result is the `test.json` of its run, with the translations next to it, so that anybody can score them again. The
tables of the pages are made from the results in figure/results/, and from scores of other systems in published.yaml.
"""

from argparse import RawDescriptionHelpFormatter
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import yaml

from const.path import FIGURE, ROOT
from utils.command import Parser, run_command
from utils.file import atomic_file, read_json, write_json, write_text
from utils.removed_setting import without_removed
from utils.run import TEST, TRANSLATIONS, find_run
from utils.training.checkpoint import changed_settings, flat
from utils.training.report import SCORES

_RESULT_PAGES = (ROOT / "docs" / "results.md", ROOT / "docs" / "ja" / "results.md")
_SPEED_PAGES = (ROOT / "docs" / "speed.md", ROOT / "docs" / "ja" / "speed.md")
PAGES = {  # that show a table, in both languages
    "results": (ROOT / "README.md", ROOT / "README.ja.md"),
    "published": _RESULT_PAGES,
    "models": _RESULT_PAGES,
    "decoding": _SPEED_PAGES,
    "training": _SPEED_PAGES,
}
RESULTS = FIGURE / "results"
PUBLISHED = Path(__file__).with_name("published.yaml")

_RESULTS_HEAD = (
    "| run | corpus | direction | parameters | training | test PPL | BLEU | chrF2 |\n|---|---|---|---|---|---|---|---|"
)
_OTHER_HEAD = "| run | task | text | parameters | training | test PPL | scores |\n|---|---|---|---|---|---|---|"
_PUBLISHED_HEAD = "| run | published BLEU | by | counted on | BLEU here | difference |\n|---|---|---|---|---|---|"


def read_results(folder: Path, of_translators: bool) -> Iterator[list[dict[str, Any]]]:
    """Yield the results of runs, grouped by name, in order of each group's first file."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(folder.glob("*.json")):
        result = read_json(file)
        if ("bleu" in result) is of_translators:
            others = runs.setdefault(result["name"], [])
            if others and (changed := changed_settings(_recipe(others[0]), _recipe(result))):
                raise ValueError(
                    f"{file} differs from other results of {result['name']} in {', '.join(changed)}: "
                    "keep those of one setting"
                )
            others.append(result)
    yield from runs.values()


def _recipe(result: dict[str, Any]) -> dict[str, Any]:
    """Return all settings but the seed, by their dotted names, if the result has them.

    Those that are null or false are left out: older results lack what did not exist yet, and was not done then.
    """
    settings = flat(without_removed(result.get("config", {})))
    return {
        name: value
        for name, value in settings.items()
        if value is not None and value is not False and name != "training.seed"
    }


def _mean(runs: list[dict[str, Any]], figure: str) -> str:
    """Format the mean and, for several seeds, the standard deviation."""
    values = [run[figure] for run in runs]
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def _training(runs: list[dict[str, Any]]) -> str:
    minutes, tokens = (mean(run[figure] for run in runs) for figure in ("minutes", "target_tokens"))
    seeds = f"{len(runs)} seeds, each " if len(runs) > 1 else ""
    return f"{seeds}{minutes:.0f} min, {tokens / 1e6:.1f} M tokens"


def result_table(folder: Path) -> str:
    """Return a Markdown table with a row for each translator; runs of one name share a row."""
    rows = [
        f"| `{r['name']}` | {r['corpus']} | {r['direction'].replace('-', '→')} | {r['parameters'] / 1e6:.1f} M "
        f"| {_training(runs)} | {_mean(runs, 'perplexity')} | **{_mean(runs, 'bleu')}** | {_mean(runs, 'chrf')} |"
        for runs in read_results(folder, of_translators=True)
        for r in runs[:1]
    ]
    return "\n".join([_RESULTS_HEAD, *rows])


def other_table(folder: Path) -> str:
    """Return a Markdown table with a row for each network of another task; runs of one name share a row."""
    rows = [
        f"| `{r['name']}` | {r['task']} | {r['text']} | {r['parameters'] / 1e6:.1f} M | {_training(runs)} "
        f"| {_mean(runs, 'perplexity')} "
        f"| {', '.join(f'{label} {_mean(runs, n)}' for n, label in SCORES.items() if n in r)} |"
        for runs in read_results(folder, of_translators=False)
        for r in runs[:1]
    ]
    return "\n".join([_OTHER_HEAD, *rows])


def published_table(folder: Path) -> str:
    """Return a Markdown table with a row for each published score that we have results for; seeds are averaged."""
    ours = {runs[0]["name"]: mean(run["bleu"] for run in runs) for runs in read_results(folder, of_translators=True)}
    rows = []
    for theirs in yaml.safe_load(PUBLISHED.read_text(encoding="utf-8")):
        if (here := ours.get(theirs["run"])) is not None:
            difference = f"{here - theirs['bleu']:+.2f}" if theirs["same"] else "not comparable"
            row = (
                f"| `{theirs['run']}` | {theirs['bleu']:.2f} | {theirs['by']} | {theirs['protocol']} | **{here:.2f}** "
            )
            rows.append(f"{row}| {difference} |")
    return "\n".join([_PUBLISHED_HEAD, *rows])


def with_table(page: str, table: str, name: str) -> str:
    """Return the page with the table between the two marks of this name."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if begin not in page or end not in page:
        raise ValueError(f"the page has no {begin} ... {end}: put both where the table should be")
    return f"{page.partition(begin)[0]}{begin}\n{table}\n{end}{page.partition(end)[2]}"


def rewrite_pages(table: str, name: str) -> None:
    """Put a table in its place in the page of each language."""
    for page in PAGES[name]:
        write_text(page, with_table(page.read_text(encoding="utf-8"), table, name))


def renew_tables(folder: Path) -> None:
    """Update the READMEs' tables with the results that are kept in a folder."""
    rewrite_pages(result_table(folder), "results")
    rewrite_pages(published_table(folder), "published")
    rewrite_pages(other_table(folder), "models")


def keep_result(run: Path, folder: Path) -> Path:
    """Copy a run's result into a folder, under the run's name and seed; an earlier result of both is replaced."""
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


def main() -> None:
    """Keep the results of the given runs, and update the tables."""
    parser = Parser(
        prog="bench.results",
        usage="python -m bench.results [RUN ...]",
        description="Keep the test results of runs in figure/results/, and show them in the READMEs.",
        epilog="""examples:
  python -m bench.results pickles/demo-20260101-120000
  python -m bench.results                     update the tables only""",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="folder or name of a run")
    for run in parser.parse_args().runs:
        print(keep_result(find_run(run), RESULTS))
    renew_tables(RESULTS)


if __name__ == "__main__":
    run_command("bench.results", main)
