"""The result tables of the READMEs, made from the files in figure/results."""

from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from const.path import ROOT
from utils.changed_setting import changed_settings, flat
from utils.file import read_json, write_text
from utils.removed_setting import without_removed
from utils.training.validation import SCORES

READMES = (ROOT / "README.md", ROOT / "README.ja.md")

_HEAD = (
    "| run | corpus | direction | parameters | training | test PPL | BLEU | chrF2 |\n|---|---|---|---|---|---|---|---|"
)
_OTHER_HEAD = "| run | task | text | parameters | training | test PPL | scores |\n|---|---|---|---|---|---|---|"


def _results(folder: Path, of_translators: bool) -> Iterator[list[dict[str, Any]]]:
    """Yield the results of runs, grouped by name, in order of each group's first file.

    Raises:
        ValueError: results of one name have different settings.
    """
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
        for runs in _results(folder, of_translators=True)
        for r in runs[:1]
    ]
    return "\n".join([_HEAD, *rows])


def other_table(folder: Path) -> str:
    """Return a Markdown table with a row for each network of another task; runs of one name share a row."""
    rows = [
        f"| `{r['name']}` | {r['task']} | {r['text']} | {r['parameters'] / 1e6:.1f} M | {_training(runs)} "
        f"| {_mean(runs, 'perplexity')} "
        f"| {', '.join(f'{label} {_mean(runs, n)}' for n, label in SCORES.items() if n in r)} |"
        for runs in _results(folder, of_translators=False)
        for r in runs[:1]
    ]
    return "\n".join([_OTHER_HEAD, *rows])


def with_table(page: str, table: str, name: str) -> str:
    """Return the page with the table between the two marks of this name.

    Raises:
        ValueError: the page has no such marks.
    """
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if begin not in page or end not in page:
        raise ValueError(f"the page has no {begin} ... {end}: put both where the table should be")
    return f"{page.partition(begin)[0]}{begin}\n{table}\n{end}{page.partition(end)[2]}"


def rewrite_readmes(table: str, name: str) -> None:
    """Put a table in its place in the README of each language."""
    for readme in READMES:
        page = with_table(readme.read_text(encoding="utf-8"), table, name)
        write_text(readme, page)
