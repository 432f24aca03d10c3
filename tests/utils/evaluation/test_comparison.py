"""Comparisons of systems and their significance, against sacreBLEU's command line."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.utils.evaluation.texts import ENGLISH, JAPANESE, Translated
from utils.evaluation.metric import Comparison, Metric, System, Test, build_metrics, compare, measure, sampling_seed

Found = tuple[list[list[Metric]], list[Comparison]]


def compared(text: Translated, lang: str, tokenize: str, test: Test, n_samples: int, n_bootstrap: int = 0) -> Found:
    systems = [System("good", text.good), System("bad", text.bad)]
    with sampling_seed(7):
        return compare(systems, text.references, build_metrics(lang, tokenize), test, n_samples, n_bootstrap)


@pytest.mark.parametrize("option", ["bs", "ar"])
@pytest.mark.parametrize(
    ("text", "lang", "tokenize", "options"),
    [(ENGLISH, "en", "13a", []), (JAPANESE, "ja", "ja-mecab", ["--ter-normalized", "--ter-asian-support"])],
    ids=["en", "ja"],
)
def test_scores_and_p_values_are_sacrebleus(
    text: Translated, lang: str, tokenize: str, options: list[str], option: str, tmp_path: Path
) -> None:
    for name, lines in text._asdict().items():
        (tmp_path / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", "references", "-i", "good", "bad", "-m", "bleu", "chrf", "ter"]
    shown = ["-f", "latex", "--no-color"]  # its JSON output fails with bootstrap results
    told = subprocess.run(
        [*command, *shown, "-tok", tokenize, *options, f"--paired-{option}", f"--paired-{option}-n", "300", "-w", "4"],
        cwd=tmp_path,
        env=os.environ | {"SACREBLEU_SEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    scores, comparisons = compared(text, lang, tokenize, "bootstrap" if option == "bs" else "randomization", 300)
    expected: list[float] = []
    for of_system in scores:
        for i, metric in enumerate(of_system):
            middle, half = (metric.low + metric.high) / 2, (metric.high - metric.low) / 2
            expected += [metric.score] + ([middle, half] if option == "bs" else [])
            expected += [comparisons[i].p_value] if of_system is scores[1] else []
    assert [float(number) for number in re.findall(r"\d+\.\d{4}\b", told)] == pytest.approx(expected, abs=1e-3)
    for metric in scores[0]:
        assert f"{metric.name} {metric.signature}" in re.sub(" +", " ", told)


def test_a_system_is_tested_against_the_first_by_each_metric() -> None:
    systems = [System("good", ENGLISH.good), System("bad", ENGLISH.bad), System("best", ENGLISH.references)]
    scores, found = compare(systems, ENGLISH.references, build_metrics("en", "13a"), "bootstrap", 200)
    assert sorted((c.system, c.baseline, c.metric) for c in found) == [
        (system, "good", metric) for system in ("bad", "best") for metric in ("BLEU", "TER", "chrF2")
    ]
    by_name = {(c.system, c.metric): c for c in found}
    for i, name in ((1, "bad"), (2, "best")):
        for metric, baseline in zip(scores[i], scores[0], strict=True):
            assert by_name[name, metric.name].difference == pytest.approx(metric.score - baseline.score)
    assert by_name["bad", "BLEU"].difference < 0 < by_name["bad", "TER"].difference
    assert all(c.p_value < 0.05 for c in found)
    assert {c.method for c in found} == {"paired bootstrap, 200 resamples"}


@pytest.mark.parametrize("test", ["bootstrap", "randomization"])
def test_no_difference_is_never_significant(test: Test) -> None:
    systems = [System("a", ENGLISH.good), System("b", ENGLISH.good)]
    _, found = compare(systems, ENGLISH.references, build_metrics("en", "13a"), test, 200)
    assert [(c.difference, c.p_value) for c in found] == [(0, 1), (0, 1), (0, 1)]


def changed(n: int) -> list[str]:
    """Good lines, except for one wrong word in `n` of them."""
    return [line.replace("There", "Here") if i < n else line for i, line in enumerate(ENGLISH.references)]


@pytest.mark.parametrize("test", ["bootstrap", "randomization"])
@pytest.mark.parametrize(("n", "significant"), [(1, False), (2, False), (12, True)])
def test_a_few_words_are_chance_and_many_are_not(test: Test, n: int, significant: bool) -> None:
    systems = [System("a", ENGLISH.references), System("b", changed(n))]
    _, (bleu, *_) = compare(systems, ENGLISH.references, build_metrics("en", "13a"), test, 500)
    assert bleu.difference < 0
    assert (bleu.p_value < 0.05) == significant


def test_randomisation_is_no_surer_than_its_ways_to_swap() -> None:
    for n in (1, 2, 5):
        systems = [System("a", ENGLISH.references), System("b", changed(n))]
        _, found = compare(systems, ENGLISH.references, build_metrics("en", "13a"), "randomization", 500)
        assert [c.p_value for c in found] == [2 ** (1 - n)] * 3


def test_scores_are_those_of_each_system_alone() -> None:
    metrics = build_metrics("en", "13a")
    with sampling_seed(7):
        alone = measure(ENGLISH.good, ENGLISH.references, metrics, 300)
    (baseline, _), _ = compared(ENGLISH, "en", "13a", "bootstrap", 300)
    assert baseline == alone  # signatures, too
    (baseline, _), (bleu, *_) = compared(ENGLISH, "en", "13a", "randomization", 200, 300)
    assert [(m.score, m.low, m.high) for m in baseline] == [(m.score, m.low, m.high) for m in alone]
    assert "|bs:300|ar:200|seed:7|" in bleu.signature
    assert bleu.method == "approximate randomization, 200 trials"
    (baseline, _), (bleu, *_) = compared(ENGLISH, "en", "13a", "randomization", 200)
    assert all(m.low == m.score == m.high for m in baseline)
    assert "|bs:" not in bleu.signature


@pytest.mark.parametrize(("test", "n"), [("bootstrap", "1,000 resamples"), ("randomization", "10,000 trials")])
def test_samples_are_as_many_as_sacrebleus(test: Test, n: str) -> None:
    systems = [System("a", ENGLISH.good[:3]), System("b", ENGLISH.bad[:3])]
    _, (bleu,) = compare(systems, ENGLISH.references[:3], {"BLEU": build_metrics("en", "13a")["BLEU"]}, test)
    assert bleu.method.endswith(f", {n}")


@pytest.mark.parametrize("n", [-1, 0, 99])
def test_too_few_samples_are_refused(n: int) -> None:
    with pytest.raises(ValueError, match=f"^--samples {n}: "):
        compared(ENGLISH, "en", "13a", "bootstrap", n)
    with pytest.raises(ValueError, match=r"^--bootstrap 5: "):
        compared(ENGLISH, "en", "13a", "randomization", 100, 5)
