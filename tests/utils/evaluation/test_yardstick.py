"""The pages show published scores beside our own."""

import json
from pathlib import Path

from bench.results import YARDSTICKS, yardstick_table
from const.path import FIGURE


def keep(folder: Path, name: str, seed: int, bleu: float) -> None:
    (folder / f"{name}_{seed}.json").write_text(json.dumps({"name": name, "bleu": bleu}), encoding="utf-8")


def test_seeds_are_averaged_and_set_beside_what_was_published(tmp_path: Path) -> None:
    for seed, bleu in enumerate((41.0, 42.5)):
        keep(tmp_path, "multi30k_en_de", seed, bleu)
    keep(tmp_path, "another", 1, 99.0)
    (tmp_path / "bert_1.json").write_text('{"name": "bert", "accuracy": 3}', encoding="utf-8")
    (row,) = yardstick_table(tmp_path).splitlines()[2:]
    assert row.startswith("| `multi30k_en_de` | 41.02 | [Wu et al. 2021](")
    assert row.endswith("| lower-cased Moses tokens | **41.75** | +0.73 |")


def test_no_difference_is_told_of_scores_that_were_counted_otherwise(tmp_path: Path) -> None:
    keep(tmp_path, "tanaka_en_ja", 1, 40.0)
    assert yardstick_table(tmp_path).endswith("| **40.00** | not comparable |")


def test_each_is_of_a_preset() -> None:
    presets = {path.stem for path in (FIGURE.parent / "const" / "preset").iterdir()}
    assert {yardstick.result for yardstick in YARDSTICKS} <= presets
