"""The benchmark measures what it claims to; speed is not tested."""

import itertools
import json
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.profiler import record_function

from bench import train as module
from bench.train import GPU_BUDGETS, LONGEST, OURS, PLAIN, Job, Measurement, PlainLoop, PlainTransformer, Setting
from config.model import TransformerConfig
from const.token import PAD_ID
from tests.tiny import sources
from utils.dataset.batch import Batch, BucketSampler
from utils.dataset.ids import TokenArray, TokenPairs
from utils.training.dry_run import RANGES

CONFIG = TransformerConfig(d_model=16, n_heads=2, d_ff=32, n_encoder_layers=1, n_decoder_layers=1)
VOCAB = 24
PEAKS = {"fp32": 10.0, "bf16": 40.0}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    lengths = [*itertools.islice(itertools.cycle((3, 8, 5, 11)), 60), 0, LONGEST]
    sentences = [[4 + (n + i) % 20 for i in range(n)] for n in lengths]
    pairs = TokenPairs(TokenArray.of(sentences, VOCAB), TokenArray.of(sentences[::-1], VOCAB))
    return Job(
        CONFIG, pairs, VOCAB, torch.device("cpu"), threads=1, warm_up=0.01, seconds=0.1, texts=tmp_path, peers={}
    )


def batch(*lengths: int) -> Batch:
    return Batch(sources(*lengths), sources(*lengths, seed=1))


@pytest.mark.parametrize(("warm_up", "uncounted"), [(0.01, 2), (0.1, 3)], ids=["the fewest steps", "so long"])
def test_tokens_a_second_are_those_of_the_targets_without_what_is_before(
    job: Job, monkeypatch: pytest.MonkeyPatch, warm_up: float, uncounted: int
) -> None:
    seen: list[Batch] = []
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def step(batch: Batch) -> None:
        seen.append(batch)
        clock[0] += 0.04

    job = replace(job, warm_up=warm_up)
    rate = module.timed(step, itertools.cycle([batch(7), batch(2, 5)]), job, fewest=2)
    # 0.1 seconds are over after three steps. What is read first stands for <s> and is not predicted
    assert len(seen) == uncounted + 3
    assert rate == pytest.approx((7 + 2 * (2 + 5) if uncounted % 2 else 2 * 7 + 2 + 5) / 0.12)


@pytest.mark.parametrize("system", [OURS, PLAIN])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_each_system_trains_and_is_seen(job: Job, system: str, precision: str) -> None:
    found = module.measure(Setting(system, precision, tokens_per_batch=64), job)
    assert found.rounds == (found.tokens_per_s,)
    assert found.tokens_per_s > 0
    assert found.padding == BucketSampler(job.pairs, 64, LONGEST, 1).epoch(0).padding
    assert set(found.part_ms) == set(RANGES)


def test_parts_of_a_step_are_means_in_milliseconds() -> None:
    took = []

    def step(_: Batch) -> None:
        begin = time.perf_counter()
        with record_function("forward"):
            time.sleep(0.02)
        took.append(time.perf_counter() - begin)

    def source() -> Iterator[Batch]:
        while True:
            time.sleep(0.01)
            yield batch(3)

    found = module.parts(step, source())
    assert set(found) == {"data", "forward"}
    assert found["data"] >= 10
    assert found["forward"] >= 20
    assert found["forward"] <= 1000 * max(took)


def test_the_plain_model_hides_future_and_padding() -> None:
    torch.manual_seed(1)
    model = PlainTransformer(CONFIG, VOCAB).eval()
    src, tgt = sources(3, 6), sources(4, 4, seed=2)[:, :-1]
    logits = model(src, tgt)
    other = tgt.clone()
    other[:, -1] = 9
    assert torch.equal(model(src, other)[:, :-1], logits[:, :-1])
    assert not torch.equal(model(src, other)[:, -1], logits[:, -1])
    shorter = model(src[:1, :4], tgt[:1])
    torch.testing.assert_close(shorter, logits[:1])


def test_the_plain_loop_learns_the_same_whatever_is_padded() -> None:
    def gradients(padding: int) -> list[torch.Tensor]:
        torch.manual_seed(1)
        loop = PlainLoop(PlainTransformer(replace(CONFIG, dropout=0.0), VOCAB), 0.1, bf16=False)
        loop.train_step(Batch(*(F.pad(side, (0, padding), value=PAD_ID) for side in batch(3, 7))))
        return [p.grad for p in loop.model.parameters() if p.grad is not None]

    tight, loose = gradients(0), gradients(5)
    assert len(tight) == len(list(PlainTransformer(CONFIG, VOCAB).parameters()))
    torch.testing.assert_close(tight, loose)


def measurement(setting: Setting, speed: float, **other: Any) -> Measurement:
    return replace(Measurement(setting, speed, 1024.0, 0.02, {}, (speed,)), **other)


FOUND = [
    measurement(Setting(OURS, "bf16"), 300.0, part_ms=dict(zip(RANGES, (1.0, 2.0, 3.0, 4.0), strict=True))),
    measurement(Setting(OURS, "fp32"), 150.0),
    measurement(Setting(PLAIN, "fp32"), 100.0),
    measurement(Setting("JoeyNMT", "fp32"), 60.0, padding=None),
]


def test_figures_are_speeds_shares_and_ratios() -> None:
    figures = module.summary(FOUND, 1e7, PEAKS)
    assert figures["miyako_bf16_tokens_per_s"] == 300
    assert figures["miyako_bf16_of_peak"] == pytest.approx(300 * 1e7 / 40e9)
    assert figures["joeynmt_fp32_of_peak"] == pytest.approx(60 * 1e7 / 10e9)
    assert figures["miyako_bf16_over_joeynmt_fp32"] == 5
    assert figures["miyako_fp32_over_torch_nn_transformer_fp32"] == 1.5
    assert sum("_over_" in name for name in figures) == 4


def test_the_table_sets_the_fastest_of_ours_beside_each() -> None:
    lines = module.table(FOUND, 1e7, PEAKS).splitlines()
    assert [line.split()[-2] for line in lines[1:]] == ["1.00", "2.00", "3.00", "5.00"]
    assert len({len(line) for line in lines}) == 1
    assert "1.0          2.0          3.0          4.0" in lines[1]


def test_names_tell_settings_apart() -> None:
    settings = [*module.cpu_settings(["JoeyNMT", "Eole"], compiled=True), *module.gpu_settings()]
    names = [module.short_name(setting) for setting in settings]
    assert len(set(names)) == len(names)
    assert "miyako_bf16_compiled_65536" in names
    assert {setting.tokens_per_batch for setting in module.gpu_settings()} == set(GPU_BUDGETS)


def test_the_best_round_counts_and_all_are_kept(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = {"bf16": [3.0, 5.0, 4.0], "fp32": [2.0, 1.0, 1.5]}
    asked: list[str] = []

    def measure(setting: Setting, _: Job) -> Measurement:
        asked.append(setting.precision)
        return measurement(setting, speeds[setting.precision].pop(0))

    monkeypatch.setattr(module, "in_own_process", measure)
    found = module.measure_all([Setting(OURS, "bf16"), Setting(OURS, "fp32")], job, 3)
    assert asked == ["bf16", "fp32"] * 3
    assert [(f.tokens_per_s, f.rounds) for f in found] == [(5.0, (3.0, 5.0, 4.0)), (2.0, (2.0, 1.0, 1.5))]


def test_what_lacks_a_compiler_or_memory_is_left_out_and_said(
    job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(setting: Setting, _: Job) -> Measurement:
        if setting.compiled or setting.tokens_per_batch > 9000:
            raise RuntimeError("no g++")
        return measurement(setting, 1.0)

    monkeypatch.setattr(module, "in_own_process", measure)
    settings = [Setting(OURS, "bf16"), Setting(OURS, "bf16", compiled=True)]
    assert [found.setting for found in module.measure_all(settings, job, 2)] == settings[:1]
    assert capsys.readouterr().out.count("no g++") == 1
    with pytest.raises(RuntimeError):
        module.measure_all([Setting(OURS, "bf16", tokens_per_batch=9999)], job, 1)
    on_gpu = replace(job, device=torch.device("cuda"))
    assert len(module.measure_all(module.gpu_settings(), on_gpu, 1)) == 1


class UnspeakableError(RuntimeError):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and\n{two}")


def test_an_error_that_cannot_travel_is_said_in_one_line(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*_: object) -> Measurement:
        raise UnspeakableError(1, 2)

    monkeypatch.setattr(module, "measure", measure)
    with pytest.raises(RuntimeError, match=r"^UnspeakableError: 1 and$") as caught:
        module.measure_plainly(Setting(OURS, "bf16"), job)
    assert type(caught.value) is RuntimeError


@pytest.mark.slow
def test_a_process_of_its_own_measures_the_same_job(job: Job) -> None:
    found = module.in_own_process(Setting(PLAIN, "fp32", tokens_per_batch=64), job)
    assert found.padding == BucketSampler(job.pairs, 64, LONGEST, 1).epoch(0).padding


def test_peers_read_what_our_sampler_takes(job: Job) -> None:
    class Letters:
        def tokens(self, ids: list[int]) -> list[str]:
            return [chr(ord("a") + i) for i in ids]

    text = module.within(job.pairs, Letters())  # type: ignore[arg-type]
    epoch = BucketSampler(job.pairs, 64, LONGEST, 1).epoch(0)
    assert len(text.src) == len(text.tgt) == len(job.pairs.src) - epoch.n_dropped == 58
    assert sum(len(line.split(" ")) + 1 for line in text.tgt) == sum(epoch.target_tokens(i) for i in range(len(epoch)))
    assert text.src[0] == "j k l m n"


def test_the_examples_of_the_help_are_understood() -> None:
    examples = re.findall(r"^ +python -m bench.train(.*)$", module.build_parser().format_help(), re.M)
    assert len(examples) == 5
    for example in examples:
        module.build_parser().parse_args(re.split(r" {3,}", example)[0].split())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rounds", "0"], "--rounds 0: give more than 0"),
        (["--joeynmt", "nowhere"], "--joeynmt nowhere: not a virtual environment"),
    ],
)
def test_what_cannot_be_measured_is_said(options: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.train", *options])
    with pytest.raises(ValueError, match=said):
        module.main()


@pytest.mark.gpu
def test_a_gpu_is_measured_from_begin_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gpu.json"
    options = ["--device", "cuda", "--corpus", "embedded", "--seconds", "1", "--rounds", "1", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["bench.train", *options])
    module.main()
    result = json.loads(file.read_text())
    assert len(result["measurements"]) == 2 * len(GPU_BUDGETS)
    assert all(0 < value < 1 for name, value in result["figures"].items() if name.endswith("_of_peak"))
    assert "miyako_bf16_65536_tokens_per_s=" in capsys.readouterr().out.splitlines()[-1]
