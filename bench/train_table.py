"""The training-speed table of docs/speed.md, made from the files in figure/bench: `python -m bench.train_table`."""

from pathlib import Path
from typing import Any

from bench.results import rewrite_pages
from bench.train import OURS
from const.path import FIGURE
from utils.file import read_json
from utils.training.dry_run import RANGES

FOLDER = FIGURE / "bench"

_HEAD = (
    "| on | system | batch | target tokens/s | ours is | in the same precision | of the peak | padding "
    f"| {', '.join(RANGES)} (ms) | MiB |\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)


def train_table(folder: Path) -> str:
    """Return a Markdown table with a row for each setting in a `train_*.json`; "ours is": the ratio of our fastest."""
    rows = []
    for file in sorted(folder.glob("train_*.json")):
        result = read_json(file)
        measurements = result["measurements"]
        ours: dict[str, float] = {}  # by precision
        for found in measurements:
            setting, speed = found["setting"], found["tokens_per_s"]
            if setting["system"] == OURS:
                ours[setting["precision"]] = max(speed, ours.get(setting["precision"], 0.0))
        rows += [_row(result, found, ours) for found in measurements]
    return "\n".join([_HEAD, *rows])


def _row(result: dict[str, Any], found: dict[str, Any], ours: dict[str, float]) -> str:
    setting, speed = found["setting"], found["tokens_per_s"]
    peak = result["product_gflops"][setting["precision"]] * 1e9
    used = speed * result["mflop_per_target_token"] * 1e6 / peak
    cells = (
        f"`{result['name']}`, {result['machine']}",
        f"{setting['system']} {setting['precision']}{', compiled' if setting['compiled'] else ''}",
        f"{setting['tokens_per_batch']:,}",
        f"{speed:,.0f}",
        f"{max(ours.values()) / speed:.2f} x",
        f"{ours[setting['precision']] / speed:.2f} x" if setting["precision"] in ours else "",
        f"{used:.0%}",
        "" if found["padding"] is None else f"{found['padding']:.1%}",
        ", ".join(f"{found['part_ms'][part]:.0f}" for part in RANGES if part in found["part_ms"]),
        f"{found['peak_mib']:,.0f}",
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    rewrite_pages(train_table(FOLDER), "training")
