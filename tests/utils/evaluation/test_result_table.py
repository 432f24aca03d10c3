"""The pages show the result files."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from bench.results import other_table, result_table, with_table


def test_a_row_says_what_its_file_says(tmp_path: Path) -> None:
    result = {
        "name": "small",
        "corpus": "kftt",
        "direction": "ja-en",
        "parameters": 9_960_000,
        "minutes": 86.4,
        "target_tokens": 10_460_000,
        "perplexity": 33.333,
        "bleu": 4.567,
        "chrf": 25.555,
    }
    (tmp_path / "small.json").write_text(json.dumps(result), encoding="utf-8")
    row = result_table(tmp_path).splitlines()[-1]
    assert row == "| `small` | kftt | ja→en | 10.0 M | 86 min, 10.5 M tokens | 33.33 | **4.57** | 25.55 |"


def test_runs_of_one_name_share_a_row_of_means(tmp_path: Path) -> None:
    same = {"name": "few", "corpus": "tanaka", "direction": "ja-en", "parameters": 1e6, "target_tokens": 2e6}
    for seed, bleu in enumerate((10.0, 12.0, 17.0)):
        result = same | {"seed": seed, "minutes": 5 + seed, "perplexity": 4.0, "bleu": bleu, "chrf": 3 * bleu}
        (tmp_path / f"few_{seed}.json").write_text(json.dumps(result), encoding="utf-8")
    row = "| `few` | tanaka | ja→en | 1.0 M | 3 seeds, each 6 min, 2.0 M tokens | 4.00 ± 0.00 "
    assert result_table(tmp_path).splitlines()[2:] == [row + "| **13.00 ± 3.61** | 39.00 ± 10.82 |"]


def test_a_mean_is_of_one_recipe(tmp_path: Path) -> None:
    same = {"name": "few", "corpus": "tanaka", "direction": "ja-en", "parameters": 1e6, "target_tokens": 2e6}
    scores = {"minutes": 5, "perplexity": 4.0, "bleu": 10.0, "chrf": 30.0}

    def keep(seed: int, d_model: int, search: Mapping[str, object] = MappingProxyType({}), **data: object) -> None:
        config = {"model": {"d_model": d_model}, "data": data, "training": {"seed": seed}, "search": {**search}}
        result = same | scores | {"config": config}
        (tmp_path / f"few_{seed}.json").write_text(json.dumps(result), encoding="utf-8")

    keep(1, 128)
    keep(2, 128)
    assert "2 seeds" in result_table(tmp_path)
    keep(2, 128, more_src=None, pre_tokenized=False)  # options that the first was made before
    assert "2 seeds" in result_table(tmp_path)
    keep(2, 128, {"coverage_penalty": 0.0})  # removed since
    assert "2 seeds" in result_table(tmp_path)
    for d_model, data, name in (
        (256, {}, "model.d_model"),
        (128, {"more_src": "back.ja"}, "data.more_src"),
        (128, {"held_out": 0}, "data.held_out"),
    ):
        keep(2, d_model, **data)
        with pytest.raises(ValueError, match=rf"few_2\.json differs from other results of few in {name}: keep"):
            result_table(tmp_path)


def test_other_tasks_have_a_table_of_their_own(tmp_path: Path) -> None:
    result = {
        "name": "bert",
        "task": "masked_language",
        "text": "kftt ja",
        "parameters": 5_381_699,
        "minutes": 13.6,
        "target_tokens": 1_460_000,
        "perplexity": 21.345,
        "accuracy": 44.444,
        "next_sentence": 71.5,
    }
    (tmp_path / "bert.json").write_text(json.dumps(result), encoding="utf-8")
    row = "| `bert` | masked_language | kftt ja | 5.4 M | 14 min, 1.5 M tokens | 21.34 "
    assert other_table(tmp_path).splitlines()[-1] == f"{row}| accuracy 44.44, next sentence 71.50 |"
    assert len(result_table(tmp_path).splitlines()) == 2


def test_only_the_part_between_the_marks_changes() -> None:
    page = "above\n<!-- speed -->\nold\n<!-- /speed -->\n<!-- results -->\nother\n<!-- /results -->\n"
    assert with_table(page, "new", "speed") == page.replace("old", "new")
    with pytest.raises(ValueError, match="no <!-- size -->"):
        with_table(page, "new", "size")
