"""The decoding-speed table of docs/speed.md, made from the files in figure/bench: `python -m bench.decode_table`."""

from pathlib import Path
from typing import Any

from bench.decode import CTRANSLATE2, OURS, RECOMPUTING
from bench.results import rewrite_pages
from const.path import FIGURE
from utils.file import read_json

FOLDER = FIGURE / "bench"

_HEAD = (
    "| run, its test set | search | CTranslate2 float32 | without caches | ours fp32 | ours bf16 |\n"
    "|---|---|---|---|---|---|"
)


def decode_table(folder: Path) -> str:
    """Return a Markdown table with a row for each search in a `decode_*.json`: sentences per second, and the ratio."""
    rows = []
    for file in sorted(folder.glob("decode_*.json")):
        result = read_json(file)
        found = {tuple(row["setting"].values()): row["sentences_per_s"] for row in result["measurements"]}
        for beam, batched in sorted({(beam, batched) for _, _, beam, batched in found}, key=lambda s: (not s[1], s[0])):
            base = found[CTRANSLATE2, "float32", beam, batched]
            ours = [_cell(found, key, base) for key in _columns(beam, batched)]
            search = f"{'greedy' if beam == 1 else f'beam {beam}'}, {'batched' if batched else 'one by one'}"
            rows.append(f"| `{result['name']}`{_length(result)} | {search} | {base:.1f} | {' | '.join(ours)} |")
    return "\n".join([_HEAD, *rows])


def _columns(beam: int, batched: bool) -> list[tuple[str, str, int, bool]]:
    return [(RECOMPUTING, "fp32", beam, batched), (OURS, "fp32", beam, batched), (OURS, "bf16", beam, batched)]


def _cell(found: dict[Any, float], key: tuple[str, str, int, bool], base: float) -> str:
    return f"{found[key]:.1f} ({found[key] / base:.2f} x)" if key in found else ""


def _length(result: dict[str, Any]) -> str:
    return f", {result['tokens']} tokens forced" if result["tokens"] else ""


if __name__ == "__main__":
    rewrite_pages(decode_table(FOLDER), "decoding")
