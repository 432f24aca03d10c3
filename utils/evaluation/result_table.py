"""The README's tables of results, made from the files in figure/results: `python -m utils.evaluation.result_table`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from const.path import FIGURE, ROOT
from utils.file import atomic_file
from utils.training.observer import SCORES

_HEAD = (
    "| run | corpus | direction | parameters | training | test PPL | BLEU | chrF2 |\n|---|---|---|---|---|---|---|---|"
)
_OTHER_HEAD = "| run | task | text | parameters | training | test PPL | scores |\n|---|---|---|---|---|---|---|"


def _results(folder: Path, of_translators: bool) -> Iterator[dict[str, Any]]:
    """Each `test.json` that a run left, by file name."""
    for file in sorted(folder.glob("*.json")):
        result = json.loads(file.read_text(encoding="utf-8"))
        if ("bleu" in result) is of_translators:
            yield result


def _training(result: dict[str, Any]) -> str:
    return f"{result['minutes']:.0f} min, {result['target_tokens'] / 1e6:.1f} M tokens"


def result_table(folder: Path) -> str:
    """A row of Markdown for each translator's result."""
    rows = [
        f"| `{r['name']}` | {r['corpus']} | {r['direction'].replace('-', '→')} | {r['parameters'] / 1e6:.1f} M "
        f"| {_training(r)} | {r['perplexity']:.2f} | **{r['bleu']:.2f}** | {r['chrf']:.2f} |"
        for r in _results(folder, of_translators=True)
    ]
    return "\n".join([_HEAD, *rows])


def other_table(folder: Path) -> str:
    """A row of Markdown for each result of another task."""
    rows = [
        f"| `{r['name']}` | {r['task']} | {r['text']} | {r['parameters'] / 1e6:.1f} M | {_training(r)} "
        f"| {r['perplexity']:.2f} | {', '.join(f'{label} {r[n]:.2f}' for n, label in SCORES.items() if n in r)} |"
        for r in _results(folder, of_translators=False)
    ]
    return "\n".join([_OTHER_HEAD, *rows])


def with_table(page: str, table: str, name: str) -> str:
    """The page with this table between the two marks of this name.

    Raises:
        ValueError: it has no such marks.
    """
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if begin not in page or end not in page:
        raise ValueError(f"the page has no {begin} ... {end}: put both where the table shall stand")
    return f"{page.partition(begin)[0]}{begin}\n{table}\n{end}{page.partition(end)[2]}"


def rewrite_readme(table: str, name: str) -> None:
    """Put a table into its place in the README."""
    readme = ROOT / "README.md"
    page = with_table(readme.read_text(encoding="utf-8"), table, name)
    with atomic_file(readme) as draft:
        draft.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    rewrite_readme(result_table(FIGURE / "results"), "results")
    rewrite_readme(other_table(FIGURE / "results"), "models")
