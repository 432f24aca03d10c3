"""The benchmarks measure what they claim to, and find the faults that they are made to find."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
import tomllib
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib import import_module
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from bench import decode, everyday, faults, gpu, measure, train
from bench.decode import CTRANSLATE2, RECOMPUTING
from bench.hostile import UNSAID, hostile_lines, outcome
from bench.results import train_table
from bench.train import COMPARED, EOLE, JOEYNMT, OURS, PEER_WARM_UP, PEERS, PLAIN
from config.model import TransformerConfig
from config.search import Bounds, SearchConfig
from const.path import ROOT
from models.stepwise import Recomputing
from models.transformer import Transformer
from tests.tiny import MODEL as TINY
from tests.tiny import TEXT, run, sources, tokenizers, translating
from tests.tree import asked
from utils import device
from utils.dataset.batch import Batch, BucketSampler
from utils.dataset.ids import TokenArray, TokenPairs
from utils.export.ctranslate2 import to_ctranslate2
from utils.file import read_json
from utils.load import load_run
from utils.search.beam import beam_search
from utils.search.translation import Candidate, Piece, Translation
from utils.training.dry_run import RANGES
from utils.training.loss import TranslationObjective
from utils.training.report import read_log

CPU = torch.device("cpu")
CONFIG = TransformerConfig(
    d_model=16, n_heads=2, d_ff=24, n_encoder_layers=2, n_decoder_layers=1, dropout=0.1, attention_dropout=0.1
)
VOCAB = 24


def batch(*lengths: int) -> Batch:
    return Batch(sources(*lengths), sources(*lengths, seed=1))


# lines unlike any text


def test_hostile_lines_are_drawn_alike_and_a_loop_that_is_not_said_is_counted() -> None:
    lines = hostile_lines(TEXT.src, 90)
    assert lines == hostile_lines(TEXT.src, 99)[:90]
    assert len({*lines}) > 80
    assert max(map(len, lines)) > 100

    def translated(text: str, loop: str = "") -> Translation:
        best = Candidate(text, -1.0, [], [])
        return Translation([best], [Piece("寺", [5], "", [best], loop=loop)], [])

    assert outcome("寺", translated("temple " * 9)) == UNSAID
    assert outcome("寺", translated("temple " * 9, "cut")) == "cut"
    assert outcome("寺", translated("a temple")) == "no loop"
    assert outcome("はい、はい、はい、はい、はい、", translated("yes.......")) == "no loop"


# what all share


@pytest.mark.parametrize("name", ["decode", "train", "serve", "faults", "data", "hostile"])
def test_the_examples_of_a_help_are_understood(name: str) -> None:
    parser = import_module(f"bench.{name}").build_parser()
    examples = re.findall(rf"^ +python -m bench\.{name}(.*)$", parser.format_help(), re.M)
    assert examples
    for example in examples:
        parser.parse_args(re.split(r" {3,}", example)[0].split())


REFUSED = """
bench.decode --run nowhere          | no run nowhere
bench.decode --json .               | is not a file
bench.train --joeynmt nowhere       | --joeynmt nowhere: not a virtual environment with JoeyNMT
bench.train --config demo --eole .  | demo is measured with this project alone: leave out --joeynmt and --eole
bench.train --config multi30k_de_en_rnn | its network is no Transformer
bench.train --config demos          | no settings demos: did you mean demo?
bench.data --folder . --pairs 10    | --pairs 10: give 2,000
"""


@pytest.mark.parametrize("line", REFUSED.strip().splitlines())
def test_a_mistake_is_said_before_anything_is_measured(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command, words = (part.strip() for part in line.split(" | "))
    monkeypatch.setattr(sys, "argv", command.split())
    with pytest.raises((ValueError, SystemExit)) as error:
        import_module(command.split()[0]).main()
    assert words in str(error.value) + capsys.readouterr().err


def test_operations_counted_by_hand_are_those_that_torch_counts() -> None:
    rows, n_src, n_tgt = 3, 5, 7
    by_hand = int(measure.training_flops(CONFIG, VOCAB, np.full(rows, n_src), np.full(rows, n_tgt)).sum())
    src, tgt = torch.randint(4, VOCAB, (rows, n_src)), torch.randint(4, VOCAB, (rows, n_tgt + 1))
    model = Transformer(CONFIG, VOCAB, VOCAB).eval()  # a network that trains sums biases by products, too
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(model(src, tgt[:, :-1]).flatten(0, 1), tgt[:, 1:].flatten()).backward()
    assert counter.get_total_flops() == by_hand
    with FlopCounterMode(display=False) as counter:
        TranslationObjective(0.1)(model.train(), Batch(src, tgt))[0].backward()
    assert counter.get_total_flops() <= 1.01 * by_hand
    lengths = np.array([5, 3]), np.array([7, 2])  # a pair costs what it is long, not what its batch is
    alone = [measure.training_flops(CONFIG, VOCAB, *(side[i : i + 1] for side in lengths)).item() for i in (0, 1)]
    assert measure.training_flops(CONFIG, VOCAB, *lengths).tolist() == alone


@pytest.mark.parametrize("speed", [0.2, 50.0, 800_000.0])  # GFLOP/s: emulated, of an old core, of a GPU
def test_a_peak_is_found_in_about_a_second_however_slow_a_processor_is(
    speed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]

    def product(a: Tensor, b: Tensor) -> None:
        clock[0] += 1e-5 + 2 * len(a) * a.size(1) * b.size(1) / speed / 1e9  # what is small is slow to begin

    monkeypatch.setattr(measure, "_LARGEST", 2**20)
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(torch, "mm", product)
    monkeypatch.setattr(torch, "ones", lambda rows, columns, **_: Tensor([0.0]).expand(rows, columns))
    assert measure.product_peak(torch.bfloat16) == pytest.approx(speed, rel=0.01)
    assert clock[0] < 3


@pytest.mark.processor
def test_what_auto_would_never_choose_is_left_out_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    speeds = {"bf16": 0.004, "int8": 1.5}
    monkeypatch.setattr(device, "speedup", lambda name, _d_model, _learning: speeds[name])
    for exact, kept in ((True, ["int8", "fp32"]), (False, ["fp32"])):
        monkeypatch.setattr(measure, "multiplies_int8", lambda exact=exact: exact)
        assert measure.precisions(None, ("bf16", "int8"), 32, False) == kept
        assert "bf16 is left out: 0.004 times as fast as fp32 here, emulated" in (said := capsys.readouterr().out)
        assert ("int8 is left out" in said) == (not exact)
    speeds["bf16"] = 0.5
    assert measure.precisions(None, ("bf16",), 32, True) == ["fp32"]
    assert "emulated" not in capsys.readouterr().out
    assert measure.precisions(("bf16",), ("bf16", "int8"), 32, False) == ["bf16", "fp32"]


def test_without_a_terminal_it_is_said_how_far_a_benchmark_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert measure.in_rounds(["a", "b"], str.upper, 2) == {"a": ["A", "A"], "b": ["B", "B"]}
    assert capsys.readouterr().out.splitlines() == ["1 of 4: a", "2 of 4: b", "3 of 4: a", "4 of 4: b"]


# decoding


def test_a_search_without_caches_finds_the_same() -> None:
    model, src = translating(), sources(5, 3, 7)
    rest = asked(src, [Bounds(0, 9)] * 3), SearchConfig(beam_size=3)
    cached, anew = beam_search(model, *rest), beam_search(Recomputing.of(model), *rest)
    ids, expected = ([[h.ids for h in hypotheses] for hypotheses in found_by] for found_by in (anew, cached))
    assert ids == expected


@pytest.mark.processor
def test_every_system_makes_as_many_steps_as_are_forced(tmp_path: Path) -> None:
    folder = run(tmp_path / "pickles", replace(TINY, max_length=24))
    to_ctranslate2(load_run(folder, CPU).transformer, tokenizers(), tmp_path / "exported")
    job = decode.Job(folder, tmp_path / "exported", tokenizers().src.encode(TEXT.src[:4]), 6, 1)
    for (system, precision), batched in itertools.product(
        ((OURS, "fp32"), (RECOMPUTING, "fp32"), (CTRANSLATE2, "float32")), (True, False)
    ):
        measured = decode.measure(decode.Setting(system, precision, 2, batched), job)
        # ours takes its last step to give </s>
        assert [len(ids) for ids in measured.translations] == [n := 6 if system == CTRANSLATE2 else 5] * 4
        assert measured.tokens_per_s / measured.sentences_per_s == pytest.approx(n)


def test_decoding_is_compared_with_like_settings() -> None:
    measurements = [
        decode.Measurement(decode.Setting(system, precision, 1, True), None, 2, speed, 10 * speed, 1.0, ids)
        for system, precision, speed, ids in (
            (OURS, "fp32", 6.0, [[4], [5]]),
            (OURS, "bf16", 12.0, [[4], [6]]),
            (CTRANSLATE2, "float32", 4.0, [[4], [5]]),
            (RECOMPUTING, "fp32", 1.0, [[7], [7]]),
        )
    ]
    ratios = {"fp32_greedy_batched_x": 1.5, "bf16_greedy_batched_x": 3}
    assert decode.summary(measurements, None) == ratios
    equal = {"greedy_equal_ctranslate2": 1.0, "greedy_equal_bf16": 0.5}
    assert ratios.items() | equal.items() <= decode.summary(measurements, lambda m: m.sentences_per_s).items()


def test_one_by_one_the_limit_is_reading_the_weights_and_in_batches_the_operations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decode, "product_peak", lambda _: 3e-9)  # 3 operations and 5 bytes a second
    monkeypatch.setattr(decode, "reading_speed", lambda _: 5e-9)
    net, src, ids = Transformer(CONFIG, VOCAB, VOCAB), [[4] * 5] * 2, [[4] * 6] * 2
    limit = decode.Limit(net, CONFIG, "bf16")
    batched, alone = (
        decode.Measurement(decode.Setting(OURS, "bf16", 4, batched), None, 1, 1.0, 6.0, 1.0, ids)
        for batched in (True, False)
    )
    of_greedy, of_beam = (measure.forward_flops(CONFIG, VOCAB, np.array([5]), np.array([7]), beams) for beams in (1, 4))
    assert of_greedy * 3 < of_beam * 3 < of_greedy * 12  # the source is encoded once
    assert limit.sentences_per_s(batched, src) == pytest.approx(3 / of_beam.item())
    encoder, decoder = (sum(p.numel() for p in part.parameters()) for part in (net.encoder, net.decoder))
    with monkeypatch.context() as patch:
        patch.setattr(decode, "product_peak", {torch.int8: 9e-9, torch.float32: 1e-9}.get)
        for exact, peak in ((True, 9), (False, 1)):
            patch.setattr(decode, "multiplies_int8", lambda exact=exact: exact)
            assert decode.Limit(net, CONFIG, "int8").flops == pytest.approx(peak)
    limit.flops = 1e9
    read = 2 * (encoder + 7 * (decoder + net.output.weight.numel()))
    assert limit.sentences_per_s(alone, src) == pytest.approx(5 / read)


# training


@pytest.fixture
def job(tmp_path: Path) -> train.Job:
    lengths = [*itertools.islice(itertools.cycle((3, 8, 5, 11)), 60), 0, COMPARED.batch.max_tokens]
    sentences = [[4 + (n + i) % 20 for i in range(n)] for n in lengths]
    pairs = TokenPairs(TokenArray.of(sentences, VOCAB), TokenArray.of(sentences[::-1], VOCAB))
    config, batch = replace(COMPARED, model=CONFIG), replace(COMPARED.batch, tokens_per_batch=64)
    config = replace(config, batch=batch)
    return train.Job(config, pairs, (VOCAB, VOCAB), CPU, 1, warm_up=0.01, seconds=0.1, texts=tmp_path, peers={})


def test_tokens_a_second_are_those_of_the_targets_after_the_warm_up(
    job: train.Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Batch] = []
    monkeypatch.setattr(time, "perf_counter", lambda: 0.04 * len(seen))
    rate = train.timed(seen.append, itertools.cycle([batch(7), batch(2, 5)]), replace(job, warm_up=0.1), min_steps=2)
    assert len(seen) == 3 + 3  # 0.1 seconds are over after three steps
    assert rate == pytest.approx((7 + 2 * (2 + 5)) / 0.12)  # what is read first stands for <s> and is not predicted


@pytest.mark.parametrize(
    ("system", "precision"), [(OURS, "fp32"), pytest.param(OURS, "bf16", marks=pytest.mark.slow), (PLAIN, "fp32")]
)
def test_each_system_trains_and_its_parts_are_seen(job: train.Job, system: str, precision: str) -> None:
    measured = train.measure(train.Setting(system, precision, tokens_per_batch=64), job)
    assert measured.tokens_per_s > 0
    assert measured.padding == BucketSampler(job.pairs, 64, COMPARED.batch.max_tokens, 1).epoch(0).padding
    assert set(measured.part_ms) == set(RANGES)


@pytest.mark.parametrize("name", train.TWINS)
def test_what_ours_is_measured_without_is_not_used_and_learns_the_same(
    name: str, job: train.Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, losses = next(iter(BucketSampler(job.pairs, 64, COMPARED.batch.max_tokens, 1).epoch(0))), []
    place, attribute, _ = train.TWINS[name]
    own = getattr(place, attribute)
    monkeypatch.setattr(place, attribute, own)  # restored afterwards
    for without in ("", name):
        torch.manual_seed(1)
        model = Transformer(replace(CONFIG, dropout=0.0, attention_dropout=0.0), VOCAB, VOCAB)
        step = train.our_step(job.config, model, train.Setting(OURS, "fp32", without=without))
        losses.append([float(cast(Any, step(batch))[0].nats) for _ in range(2)])
    assert getattr(place, attribute) is not own
    assert losses[0] == pytest.approx(losses[1])


def test_the_plain_model_hides_future_and_padding() -> None:
    torch.manual_seed(1)
    model = train.PlainTransformer(CONFIG, VOCAB).eval()
    src, tgt = sources(3, 6), sources(4, 4, seed=2)[:, :-1]
    logits = model(src, tgt)
    other = tgt.clone()
    other[:, -1] = 9
    assert torch.equal(model(src, other)[:, :-1], logits[:, :-1])
    assert not torch.equal(model(src, other)[:, -1], logits[:, -1])
    torch.testing.assert_close(model(src[:1, :4], tgt[:1]), logits[:1])


def trained(setting: train.Setting, speed: float) -> train.Measurement:
    return train.Measurement(setting, speed, 1024.0, None, {})


@pytest.mark.parametrize(
    ("alone", "place", "n_settings"), [(False, "cpu", 4 + 2 + 2), (True, "cpu", 4), (True, "cuda", 3)]
)
def test_the_summary_of_training_has_a_figure_for_every_setting(
    alone: bool, place: str, n_settings: int, job: train.Job
) -> None:
    """The plain loop has the network of the toolkits, and no other."""
    config, peers = (job.config, {}) if alone else (COMPARED, dict.fromkeys(("JoeyNMT", "Eole"), Path()))
    job = replace(job, config=config, device=torch.device(place), peers=peers)
    settings = train.all_settings(job, ["bf16", "fp32"], compiled=True)
    assert {setting.tokens_per_batch for setting in settings} == {config.batch.tokens_per_batch}
    assert len(train.summary([trained(setting, 1.0) for setting in settings])) == len(settings) == n_settings


def test_the_best_round_counts_and_what_lacks_a_compiler_is_left_out(
    job: train.Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    speeds = iter([3.0, 5.0, 4.0])

    def measured(_: object, setting: train.Setting, __: train.Job) -> train.Measurement:
        if setting.compiled:
            raise RuntimeError("no g++")
        return trained(setting, next(speeds))

    monkeypatch.setattr(train, "in_own_process", measured)
    settings = [train.Setting(OURS, "bf16", compiled) for compiled in (False, True)]
    (best,) = train.measure_all(settings, job, 3)
    assert (best.setting, best.tokens_per_s) == (settings[0], 5.0)
    assert "no g++" in capsys.readouterr().out


def record(setting: train.Setting) -> dict[str, Any]:
    """What bench.train writes of a single setting."""
    machine = {"name": "x", "machine": "y", "mflop_per_target_token": 2.0, "product_gflops": {"bf16": 4.0}}
    return machine | {"measurements": [asdict(trained(setting, 500.0))]}


def test_the_table_shows_the_rest_where_our_fastest_form_was_left_out() -> None:
    *_, row = train_table([record(train.Setting(OURS, "bf16", without="graphs"))]).splitlines()
    assert row.split(" | ")[1:7] == ["miyako bf16 without graphs", "4,096", "500", "1.00 x", "1.00 x", "25%"]


@pytest.mark.gpu
def test_a_gpu_is_measured_from_begin_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = "bench.train --device cuda --config demo --warm-up 1 --seconds 1 --rounds 1 --json"
    monkeypatch.setattr(sys, "argv", [*command.split(), str(tmp_path / "gpu.json")])
    train.main()
    result = json.loads((tmp_path / "gpu.json").read_text())
    assert len(result["measurements"]) == 3  # none was left out
    assert "miyako_bf16_compiled_tokens_per_s=" in capsys.readouterr().out.splitlines()[-1]


# other toolkits


def test_rates_in_a_log_count_for_as_long_as_they_lasted(job: train.Job, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    shown = {
        JOEYNMT: "2026-11-21 14:24:32,243 - INFO - joeynmt.training - Epoch   1, Step:        2, "
        "Batch Acc: 0.042743, Tokens per Sec:     {}, Lr: 0.000002",
        EOLE: "[2026-11-21 14:25:43,339 INFO] Step  2/1000000; acc: 0.0; lr: 3.95e-06; sents:     444; "
        "bsz: 3236/2592/222; 262/{} tok/s;     25 sec;",
    }

    def lines(line: str) -> Iterator[str]:
        for seconds, rate in [*[(100.0, 999)] * PEER_WARM_UP, (3.0, 10), (1.0, 50), (5.0, 999)]:
            clock[0] += seconds
            yield from ("another line", line.format(rate))

    for peer, line in shown.items():
        for warm_up, seconds, mean in ((0, 4, (3 * 10 + 1 * 50) / 4), (203, 1, 50)):  # from the first line on
            rate = train.logged_rate(lines(line), peer, replace(job, warm_up=warm_up, seconds=seconds), deque())
            assert rate == pytest.approx(mean)


def test_the_peers_do_the_work_that_ours_does(job: train.Job, tmp_path: Path) -> None:
    class Letters:
        def tokens(self, ids: list[int]) -> list[str]:
            return [chr(ord("a") + i) for i in ids]

        def __len__(self) -> int:
            return VOCAB

    train.write_texts({"train": job.pairs}, Letters(), tmp_path)  # type: ignore[arg-type]
    src, tgt = ((tmp_path / f"train.{side}").read_text().splitlines() for side in ("src", "tgt"))
    epoch = BucketSampler(job.pairs, 64, COMPARED.batch.max_tokens, 1).epoch(0)
    assert len(src) == len(tgt) == len(job.pairs.src) - epoch.n_dropped == 58
    assert sum(len(line.split(" ")) + 1 for line in tgt) == sum(epoch.target_tokens(i) for i in range(len(epoch)))
    joeynmt, eole = (yaml.safe_load((tmp_path / f"{peer.package}.yaml").read_text()) for peer in PEERS)
    model = COMPARED.model
    sizes = [model.n_encoder_layers, model.n_heads, model.d_model, model.d_ff]
    for stack in ("encoder", "decoder"):
        assert [joeynmt["model"][stack][n] for n in ("num_layers", "num_heads", "hidden_size", "ff_size")] == sizes
    assert [eole["model"][name] for name in ("layers", "heads", "hidden_size", "transformer_ff")] == sizes
    for settings in (joeynmt, eole):
        assert settings["training"]["label_smoothing"] == COMPARED.training.label_smoothing
        assert settings["training"]["batch_size"] == COMPARED.batch.tokens_per_batch


# a toolkit that logs ever higher speeds
TALKING = """
import itertools, sys
for n in itertools.count():
    print(f"Tokens per Sec: {n}, {sys.argv[1:]}", file=sys.stderr, flush=True)
"""


def test_a_peer_is_stopped_when_enough_was_seen_and_one_that_fails_says_its_last_words(job: train.Job) -> None:
    (job.texts / "joeynmt").mkdir()  # results of an earlier round block some toolkits
    job = replace(job, warm_up=0.1, seconds=0.3, peers=dict.fromkeys(("JoeyNMT", "Eole"), Path(sys.executable)))
    rate, peak = train.train_peer(JOEYNMT._replace(arguments=("-c", TALKING, "x")), job)
    assert rate > PEER_WARM_UP
    assert peak > 1
    assert not (job.texts / "joeynmt").exists()
    fails = EOLE._replace(arguments=("-c", "print('no such option'); raise SystemExit(1)"))
    with pytest.raises(ValueError, match=r"^Eole ended after 0 of 0 seconds; its last lines: no such option$"):
        train.train_peer(fails, job)


# faults


@pytest.mark.slow
def test_disturbed_trainings_end_as_undisturbed_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = faults.SETTINGS.replace("max_steps: 60", "max_steps: 12").replace("validate_every: 5", "validate_every: 3")
    training = faults.TinyTraining(tmp_path / "reference", short)
    training.finish()
    reference = training.outcome()
    faults.survive_damage(training, reference)
    monkeypatch.setattr(faults, "TinyTraining", lambda folder: type(training)(folder, short))
    monkeypatch.setattr(faults, "KILLS_A_TRAINING", 2)
    assert faults.survive_kills(tmp_path, 2, reference, 15.0, 1)["kills"] == 2


# the run on a GPU, in small and on a CPU: nothing of it needs what a GPU lacks


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment that lacks all packages but those that training and its tests need, as a borrowed GPU's may."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    spared = {name for group in project["tool"]["poetry"]["group"].values() for name in group["dependencies"]}
    spared -= {re.split(r"\W*[>\[]", needed)[0] for needed in project["project"]["dependencies"]}
    spared -= {"pytest", "beartype", "hypothesis"}  # those of its tests
    installed = packages_distributions().items()
    modules = [module for module, packages in installed if spared & {name.replace("_", "-") for name in packages}]
    assert {"fastapi", "prometheus_client", "ctranslate2", "optuna", "transformers"} <= set(modules)
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({modules}))\n")
    return os.environ | {"PYTHONPATH": str(tmp_path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def test_tests_of_a_gpu_are_collected_without_packages_of_other_commands(bare: dict[str, str]) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", "gpu", *gpu.TESTS]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=bare, check=False)
    assert done.returncode == 0, done.stdout
    assert {line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line} == set(gpu.TESTS)


def test_both_directions_are_trained_tested_and_kept(tmp_path: Path, bare: dict[str, str]) -> None:
    command = [sys.executable, "-m", "bench.gpu", "--dry-run", "--out", str(out := tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=bare, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("kftt_ja_en_bleu=")
    assert (out / "table.md").read_text() in done.stdout
    result = read_json(out / "result.json")
    score = re.escape(result["runs"]["kftt_ja_en"]["nymwa"].partition(",")[0].removeprefix("BLEU = "))
    assert re.search(rf"^\| kftt_ja_en \|.* \| {score} \|$", done.stdout, re.M)
    assert re.search(r"^\| kftt_en_ja \|.* \|  \|$", done.stdout, re.M)  # nymwa counts English alone
    assert list(result["runs"]) == ["kftt_trunk", "kftt_ja_en", "kftt_en_ja"]
    assert result["runs"]["kftt_en_ja"]["direction"] == "en-ja"
    with tarfile.open(out / "files.tar.gz") as archive:
        archive.extractall(tmp_path / "kept", filter="data")
    for name in gpu.DIRECTIONS:
        folder = tmp_path / "kept" / name
        (out / f"{name}.safetensors").rename(folder / "model.safetensors")
        _, config, _, model = load_run(folder, CPU)
        assert result["runs"][name]["beam"] == config.search.beam_size in (1, 2)  # the better one on dev
        assert model.output.weight is model.src_embedding.weight
        rates = [report["learning_rate"] for _, report in read_log(folder / "log.jsonl") if report["kind"] == "train"]
        assert rates[-1] < max(rates) / 2


def test_the_time_of_a_run_on_a_gpu_is_shared_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that take no time but for the trunk, which trains until it is told to end."""
    clock, commands = [1000.0], dict[str, tuple[str, ...]]()

    class Process:
        pid = 42

        def is_alive(self) -> bool:
            clock[0] += 1
            return True

    kill = Mock()
    monkeypatch.setattr(os, "kill", kill)
    for name in ("MIYAKO_CORPUS", "MIYAKO_PICKLES"):
        monkeypatch.setenv(name, "")  # restored afterwards
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda _: None)
    bench = gpu.Bench(tmp_path, minutes=9, scale=gpu.FULL)
    monkeypatch.setattr(bench, "start", lambda name, *command: commands.update({name: command}) or Process())
    monkeypatch.setattr(bench, "finish", lambda *_: None)
    monkeypatch.setattr(
        bench, "both", lambda step, given: commands.update({name + step: given[name] for name in given})
    )
    folders = dict.fromkeys((gpu.TRUNK, *gpu.DIRECTIONS), tmp_path)
    monkeypatch.setattr(bench, "runs", lambda: folders)
    (tmp_path / "log.jsonl").write_text('{"kind": "train", "step": 9, "minutes": 2.5}\n')
    bench.train(None, 4)
    left = 540 - gpu.FULL.test - 2 * gpu.FULL.start
    assert clock[0] - 1000 == pytest.approx(gpu.FULL.start + 0.4 * left, abs=1)
    kill.assert_called_once_with(42, signal.SIGINT)
    minutes = 2.5 + (1540 - clock[0] - gpu.FULL.test - gpu.FULL.start) / 60
    assert f"--training.max_minutes={round(minutes, 2)}" in commands["kftt_ja_en"]
    assert {"tests", "prepare", "speed"} < commands.keys()
    clock[0] = 1540 - gpu.FULL.test
    with pytest.raises(ValueError, match="no time is left for training: raise --minutes"):
        bench.train(None, 4)


def test_the_speed_of_a_gpu_is_part_of_what_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("MIYAKO_CORPUS", "MIYAKO_PICKLES"):
        monkeypatch.setenv(name, "")  # restored afterwards
    bench = gpu.Bench(tmp_path, minutes=1, scale=gpu.FULL)
    runs = {name: {"target_tokens": 1, "tokens_per_second": 2.0, "bleu": 3.0} for name in gpu.DIRECTIONS}
    monkeypatch.setattr(bench, "results", lambda: runs)
    bench.speeds.write_text(json.dumps(record(train.Setting(OURS, "bf16"))))
    bench.publish({"commit": "abc"}, None)
    assert "miyako bf16 | 4,096 | 500" in capsys.readouterr().out
    result = read_json(tmp_path / "result.json")
    assert (result["commit"], result["speed"]["name"], result["figures"]["kftt_ja_en_bleu"]) == ("abc", "x", 3.0)


def test_tanaka_is_written_as_people_write_it() -> None:
    usual = everyday.usual_words(
        [("", "we met John, and then John and John"), ("", "so John")], [("", "a City, the City")]
    )
    assert usual["john"] == "John"
    assert "city" not in usual
    pair = "彼 は ジョン だ 。", "he does n't know john 's boss . i 'm here ."
    assert [*everyday.plain([pair], usual)] == [("彼はジョンだ。", "He doesn't know John's boss. I'm here.")]
