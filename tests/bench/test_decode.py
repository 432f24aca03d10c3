"""The benchmark measures what it claims to; speed is not tested."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench import decode as module
from bench.decode import CTRANSLATE2, OURS, RECOMPUTING, Job, Measurement, Recomputing, Setting
from config.search import Bounds, SearchConfig
from tests.tiny import MODEL, TEXT, run, sources, tokenizers, translating
from utils.export.ctranslate2 import to_ctranslate2
from utils.run import load_run
from utils.search.beam import beam_search


@pytest.fixture
def job(tmp_path: Path) -> Job:
    folder = run(tmp_path / "pickles", replace(MODEL, max_length=24))
    to_ctranslate2(load_run(folder, torch.device("cpu")).model, tokenizers(), tmp_path / "exported")
    return Job(folder, tmp_path / "exported", tokenizers().src.encode(TEXT.src[:12]), 0, 1)


def test_a_search_without_caches_finds_the_same() -> None:
    model, src = translating(), sources(5, 3, 7)
    bounds = [Bounds(0, 9)] * 3
    cached = beam_search(model, src, bounds, SearchConfig(beam_size=3))
    anew = beam_search(Recomputing(model), src, bounds, SearchConfig(beam_size=3))
    assert [[found.ids for found in n_best] for n_best in anew] == [[found.ids for found in n] for n in cached]


@pytest.mark.parametrize("system", [OURS, RECOMPUTING, CTRANSLATE2])
@pytest.mark.parametrize("batched", [True, False])
def test_every_system_says_as_many_tokens_as_are_forced(job: Job, system: str, batched: bool) -> None:
    precision = "float32" if system == CTRANSLATE2 else "fp32"
    found = module.measure(Setting(system, precision, 2, batched), replace(job, n_tokens=6))
    # ours takes its last step to say </s>
    assert {len(ids) for ids in found.translations} == {6 if system == CTRANSLATE2 else 5}
    assert len(found.translations) == len(job.sources)
    assert found.batch == (None if system != CTRANSLATE2 else 1 if not batched else found.batch)


def test_tokens_a_second_follow_from_what_was_said(job: Job) -> None:
    found = module.measure(Setting(OURS, "fp32", 1, True), job)
    n_tokens = sum(len(ids) for ids in found.translations)
    assert found.tokens_per_s / found.sentences_per_s == pytest.approx(n_tokens / len(job.sources))


def measurement(system: str, precision: str, speed: float, ids: list[list[int]], beam: int = 1) -> Measurement:
    return Measurement(Setting(system, precision, beam, True), None, speed, 10 * speed, 1.0, ids)


def test_figures_are_ratios_of_like_settings() -> None:
    found = [
        measurement(OURS, "fp32", 6.0, [[4], [5]]),
        measurement(OURS, "bf16", 12.0, [[4], [6]]),
        measurement(CTRANSLATE2, "float32", 4.0, [[4], [5]]),
        measurement(RECOMPUTING, "fp32", 1.0, [[7], [7]]),
        measurement(OURS, "bf16", 9.0, [[4], [6]], beam=5),
        measurement(CTRANSLATE2, "float32", 3.0, [[4], [5]], beam=5),
    ]
    assert module.ratios(found) == {
        "fp32_greedy_batched_x": 1.5,
        "bf16_greedy_batched_x": 3.0,
        "bf16_beam5_batched_x": 3.0,
    }
    assert module.equality(found) == {
        "greedy_equal_ctranslate2": 1.0,
        "greedy_equal_without_caches": 0.0,
        "greedy_equal_bf16": 0.5,
    }
    lines = module.table(found, ["x"], lambda _: 33.333).splitlines()
    assert [float(line.split()[-2]) for line in lines[1:]] == [1.5, 3.0, 1.0, 0.25, 3.0, 1.0]
    assert all(line.endswith("33.33") for line in lines[1:])


def test_all_that_is_compared_is_measured() -> None:
    settings = module.all_settings()
    assert len(set(settings)) == len(settings)
    for setting in settings:
        assert replace(setting, system=CTRANSLATE2, precision="float32") in settings


def test_the_examples_of_the_help_are_understood() -> None:
    examples = re.findall(r"^ +python -m bench.decode(.*)$", module.build_parser().format_help(), re.M)
    assert len(examples) == 4
    for example in examples:
        module.build_parser().parse_args(re.split(r" {3,}", example)[0].split())


@pytest.mark.parametrize(("option", "value"), [("sentences", 0), ("rounds", 0), ("threads", 0), ("tokens", -1)])
def test_numbers_that_measure_nothing_are_refused(option: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.decode", f"--{option}", str(value)])
    with pytest.raises(ValueError, match=f"^--{option} {value}: give {value + 1} or more$"):
        module.main()


def test_a_run_that_is_not_there_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.decode", "--run", "nowhere"])
    with pytest.raises(ValueError, match="no run nowhere"):
        module.main()
