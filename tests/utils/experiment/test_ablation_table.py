import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from const.path import FIGURE, ROOT
from tests.utils.experiment.tiny_ablation import result, tiny_ablation
from utils.experiment import ablation as ablation_module
from utils.experiment.ablation import Ablation, Comparison, Results, compare, draw, page, read_ablation, write_table

# dev BLEU by seed. Around their means, what was trained varies by 0.2² + 0.2² + 0.1² + 0.1² + 0.3² + 0.3² with three
# degrees of freedom; what translates with the same weights varies by 0.1/3, 0.2/3 and 0.1/3 to either side beyond its
# own means and those of the seeds.
SCORES = {
    "base": (30.2, 29.8),
    "norm-last": (28.1, 27.9),
    "dropout-0.3": (31.2, 31.8),
    "beam-1-greedy": (29.7, 29.1),
    "beam-2": (30.7, 30.3),
}
DEVIATION = (0.28 / 3) ** 0.5
SHARED = (2 * (0.01 + 0.04 + 0.01) / 9 / 2) ** 0.5


@pytest.fixture(scope="module")
def ablation(tmp_path_factory: pytest.TempPathFactory) -> Ablation:
    return tiny_ablation(tmp_path_factory.mktemp("ablation"))


def written(ablation: Ablation, folder: Path, scores: Mapping[str, tuple[float, ...]]) -> Results:
    results = Results(ablation, folder / "results")
    for alternative in ablation.everything:
        for seed, dev_bleu in enumerate(scores.get(alternative.slug, ()), 1):
            results.write(alternative, seed, result(ablation, alternative, seed, dev_bleu))
    return results


def rows(text: str) -> dict[str, list[str]]:
    """Cells of the table by what the switch is turned to."""
    table = [re.split(r" ?\| ", line)[1:] for line in text.splitlines() if line.startswith("| ")]
    return {cells[1]: cells for cells in table[1:]}


@pytest.fixture
def found(ablation: Ablation, tmp_path: Path) -> Comparison:
    return compare(written(ablation, tmp_path, SCORES))


def test_differences_and_their_errors_are_those_by_hand(found: Comparison) -> None:
    """What was trained has its errors from all that was trained; what only translates, from all on the same weights."""
    judged = {row.alternative.slug: row.difference for row in found.rows}
    trained = 3.18 * DEVIATION * (1 / 2 + 1 / 2) ** 0.5
    shared = 4.30 * SHARED * (1 / 2 + 1 / 2) ** 0.5
    expected = {
        "norm-last": (-2.0, trained, "worse"),
        "beam-1-greedy": (-0.6, shared, "worse"),
        "beam-2": (0.5, shared, "better"),
        "dropout-0.3": (1.5, trained, "better"),
    }
    assert list(judged) == list(expected)
    for slug, (value, margin, verdict) in expected.items():
        difference = judged[slug]
        assert difference is not None
        assert difference.value == pytest.approx(value)
        assert difference.margin == pytest.approx(margin)
        assert difference.verdict == verdict
    assert found.trained is not None
    assert found.translated is not None
    assert (found.trained.freedom, found.translated.freedom) == (3, 2)
    assert found.verdicts() == {"better": 2, "worse": 2}


def test_a_difference_within_its_margin_is_none(ablation: Ablation, tmp_path: Path) -> None:
    near = compare(written(ablation, tmp_path, SCORES | {"dropout-0.3": (30.6, 31.2)}))
    assert near.verdicts()["no difference seen"] == 1


def test_a_line_tells_what_differs_and_what_came_out(found: Comparison) -> None:
    cells = rows(page(found, "tiny.png"))
    assert list(cells) == ["**base**", "last", "1, greedy", "2", "0.3"]
    assert cells["**base**"][3:7] == ["**30.00 ± 0.28**", "", "", "31.00 ± 0.28"]
    assert cells["last"] == [
        *("norm", "last", "`model.norm_first` true → false", "**28.00 ± 0.14**", "-2.00 (± 0.97)", "worse"),
        *("29.00 ± 0.14", "50.00 ± 0.00", "1.23 M", "6.0 |"),
    ]
    assert cells["2"][2:6] == ["`search.beam_size` 4 → 2", "**30.50 ± 0.28**", "+0.50 (± 0.35)", "better"]


def test_the_page_says_how_it_is_read_and_made(found: Comparison) -> None:
    text = page(found, "tiny.png")
    for told in (
        "pooled, is 0.31 (3 degrees of freedom: 3.18 standard errors)",
        "is left out, and it is 0.08 (2 degrees of freedom: 4.30 standard errors)",
        "**dropout 0.3** alone varies more than all others that were trained together",
        "**beam 1, greedy** alone varies more than all others on the same weights together",
        "means over 2 seeds",
        "in about 0.2 of the 4 here",
        "`training.max_steps` 4",
        "`optimizer.clip_norm` null",
        "python -m bench.ablation tiny.yaml --table`",
        "6 trainings, 36.0 min in all, on an abacus; torch 9. `tok:13a`.",
        "Trained by the code of `0123456789ab`, translated by that of `0123456789ab`.\n",
        "](tiny.png)",
    ):
        assert told in text
    assert "Without a result" not in text


def test_who_varies_as_others_do_is_not_named(ablation: Ablation, tmp_path: Path) -> None:
    scores = {"base": (30.2, 29.8), "norm-last": (28.2, 27.8), "dropout-0.3": (30.2, 29.8)}
    assert "alone varies" not in page(compare(written(ablation, tmp_path, scores)), "tiny.png")


def test_code_that_is_not_the_same_is_told_of(ablation: Ablation, tmp_path: Path) -> None:
    results = written(ablation, tmp_path, SCORES)
    norm, changed = ablation.alternatives[0], f"{'e' * 40}, changed"
    results.write(norm, 1, result(ablation, norm, 1, 28.1, trained={"machine": "an abacus", "commit": "version 2.0.0"}))
    results.write(norm, 2, result(ablation, norm, 2, 27.9, commit=changed))
    text = page(compare(results), "tiny.png")
    trained, translated = "`0123456789ab` or `version 2.0.0`", f"`0123456789ab` or `{'e' * 12}, changed`"
    assert f"Trained by the code of {trained}, translated by that of {translated}. Where the code differs" in text
    assert "Code marked `changed` is in no commit" in text


def test_other_weights_than_those_of_the_base_are_not_paired_with_it(ablation: Ablation, tmp_path: Path) -> None:
    results = written(ablation, tmp_path, SCORES)
    beam = ablation.alternatives[2]
    results.write(beam, 2, result(ablation, beam, 2, 30.3, run="another"))
    told = (
        r"/beam-2-2\.json was translated with the weights of another, but .*/base-2\.json with those of tiny-base-2: py"
    )
    with pytest.raises(ValueError, match=told):
        compare(results)


def test_what_is_not_there_yet_is_named(ablation: Ablation, tmp_path: Path) -> None:
    found = compare(written(ablation, tmp_path, {"base": (30.0, 31.0), "dropout-0.3": (29.0,), "beam-2": (30.0,)}))
    text = page(found, "tiny.png")
    assert "Without a result: norm last, beam 1, greedy." in text
    assert "means over 1 to 2 seeds" in text
    assert list(rows(text)) == ["**base**", "2", "0.3"]
    assert found.translated is None
    assert [row.difference.verdict for row in found.rows if row.difference] == ["unknown", "no difference seen"]


def test_the_same_weights_are_compared_seed_by_seed(ablation: Ablation, tmp_path: Path) -> None:
    """Where the base lacks a seed, that of a beam says nothing, however good it was."""
    found = compare(written(ablation, tmp_path, {"base": (30.0,), "beam-2": (30.5, 90.0), "norm-last": (28.0, 29.0)}))
    norm, beam = found.rows
    assert norm.difference is not None
    assert norm.difference.value == -1.5
    assert beam.difference == (0.5, None)
    assert beam.values("dev_bleu") == [30.5]


def test_who_share_weights_are_compared_on_the_seeds_that_all_have(ablation: Ablation, tmp_path: Path) -> None:
    scores = {"base": (30.2, 29.8), "beam-1-greedy": (29.7,), "beam-2": (30.7, 39.9)}
    beam = next(row for row in compare(written(ablation, tmp_path, scores)).rows if row.alternative.slug == "beam-2")
    assert beam.difference is not None
    assert beam.difference.value == pytest.approx(0.5)
    assert beam.difference.margin is None
    assert beam.values("dev_bleu") == [30.7, 39.9]
    results = written(ablation, tmp_path, scores)
    results.file(beam.alternative, 1).unlink()
    with pytest.raises(ValueError, match="no seed has results of all of base, beam 1, greedy, beam 2: python -m bench"):
        compare(results)


def test_one_seed_claims_nothing(ablation: Ablation, tmp_path: Path) -> None:
    found = compare(written(ablation, tmp_path, {slug: scores[:1] for slug, scores in SCORES.items()}))
    text = page(found, "tiny.png")
    assert "One seed says nothing about chance" in text
    assert rows(text)["last"][3:6] == ["**28.10**", "-2.10", "unknown"]


def test_without_the_base_there_is_nothing_to_compare_with(ablation: Ablation, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"no result of the base in .*: train it, python -m bench\.ablation .*tiny\.ya"
    ):
        compare(written(ablation, tmp_path, {"norm-last": (1.0,)}))


def test_page_and_picture_come_out_the_same_again(found: Comparison, tmp_path: Path) -> None:
    for name in ("a", "b"):
        draw(found, tmp_path / f"{name}.png")
        write_table(found, tmp_path / f"{name}.md", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a.md").read_text(encoding="utf-8") == (tmp_path / "b.md").read_text(encoding="utf-8")
    assert "](a.png)" in (tmp_path / "b.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("file", sorted((ROOT / "const" / "ablation").glob("*.yaml")), ids=lambda file: file.stem)
def test_the_page_of_the_repository_is_what_its_results_say(file: Path) -> None:
    table, picture = (FIGURE / f"ablation_{file.stem}.{kind}" for kind in ("md", "png"))
    if not table.exists():
        pytest.skip("nobody has trained for it yet")
    found = compare(Results(read_ablation(file), FIGURE / "ablation" / file.stem))
    assert table.read_text(encoding="utf-8") == page(found, picture.name)
    with Image.open(picture) as image:
        assert image.width <= 1400


def test_the_picture_shows_dev_bleu_and_its_margins(found: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[Any, ...]] = []
    monkeypatch.setattr(ablation_module, "draw_ablation", lambda *given: drawn.append(given))
    draw(found, Path("tiny.png"))
    ((base, recipes, title, axis, picture),) = drawn
    assert base == [30.2, 29.8]
    margins = [row.difference.margin for row in found.rows if row.difference]
    assert recipes == [
        ("norm", "last", [28.1, 27.9], margins[0], "worse"),
        ("beam", "1, greedy", [29.7, 29.1], margins[1], "worse"),
        ("beam", "2", [30.7, 30.3], margins[2], "better"),
        ("dropout", "0.3", [31.2, 31.8], margins[3], "better"),
    ]
    assert (title, axis) == ("tiny: one switch at a time, 2 seeds", "dev BLEU (embedded, ja-en)")
    assert picture == Path("tiny.png")
