"""The README's table of results, made from the files in figure/results: `python -m utils.evaluation.result_table`."""

import json
from pathlib import Path

from const.path import FIGURE, ROOT
from utils.file import atomic_file

_HEAD = (
    "| run | corpus | direction | parameters | training | test PPL | BLEU | chrF2 |\n|---|---|---|---|---|---|---|---|"
)


def result_table(folder: Path) -> str:
    """A row of Markdown for each `test.json` that a run left, by file name."""
    rows = []
    for file in sorted(folder.glob("*.json")):
        r = json.loads(file.read_text(encoding="utf-8"))
        training = f"{r['minutes']:.0f} min, {r['target_tokens'] / 1e6:.1f} M tokens"
        rows.append(
            f"| `{r['name']}` | {r['corpus']} | {r['direction'].replace('-', '→')} | {r['parameters'] / 1e6:.1f} M "
            f"| {training} | {r['perplexity']:.2f} | **{r['bleu']:.2f}** | {r['chrf']:.2f} |"
        )
    return "\n".join([_HEAD, *rows])


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
