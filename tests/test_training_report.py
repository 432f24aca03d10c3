"""What a training reports, and what a dry run, a trace, a signal and a lack of memory come to."""

import copy
import gzip
import json
import math
import multiprocessing
import os
import pty
import re
import shutil
import signal
import sys
import termios
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.profiler import record_function

from config.data import BatchConfig
from config.training import OptimizerConfig, TranslationTrainingConfig
from const.token import BOS_ID, EOS_ID, PAD_ID
from models.transformer import Transformer
from tests.tiny import MODEL, lively
from train import compile_blocks
from utils.dataset.batch import Batch, Epoch, padded
from utils.dataset.ids import TokenArray, TokenPairs
from utils.device import return_freed_memory
from utils.training import report as module
from utils.training.distributed import Processes, graceful_interrupt, own_device
from utils.training.optimizer import Optimizer
from utils.training.plan import Progress
from utils.training.rehearsal import (
    LINES,
    RECORDED,
    SKIPPED,
    Tracer,
    dry_run,
    explained_out_of_memory,
    forget_peak,
    parameter_table,
    peak_memory,
    total_memory,
)
from utils.training.report import (
    Decoration,
    JsonlLog,
    Meter,
    Observer,
    Sample,
    StepReport,
    TensorBoardLog,
    Terminal,
    Validation,
    read_log,
)

REPORT = StepReport(3.25, 1.5, 0.0005, 1234, 5678.4, 0.125, 0)


SAMPLE = Sample("都\u2028です", 'the "capital"', "capital")


VALIDATION = Validation(
    2.0, {"bleu": 12.34, "chrf": 45.67}, {"bleu": "nrefs:1|tok:13a", "chrf": "nrefs:1|nc:6"}, [SAMPLE]
)


def at(step: int, best: int = 0) -> Progress:
    return Progress(step=step, epoch=1, position=2, target_tokens=1234, seconds=6.0 * step, best_step=best)


# sums between two reports


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def count(meter: Meter, batches: list[Batch], nats: float, norm: float) -> None:
    n = sum(int((batch.tgt[:, 1:] != PAD_ID).sum()) for batch in batches)
    meter.count(n, batches, torch.tensor(nats), torch.tensor(float(n)), torch.tensor(norm))


def optimizer(lr: float) -> Optimizer:
    net = nn.Linear(1, 1)
    made = Optimizer(net, OptimizerConfig(peak_lr=lr))
    made.skipped += 3
    return made


UNEVEN = Batch(padded([[4, 5, 6], [4]]), padded([[7, 8], []], bos=True))


SMALL = Batch(torch.tensor([[4, EOS_ID]]), torch.tensor([[BOS_ID, EOS_ID]]))


def test_a_report_is_of_all_updates_since_the_last_one(clock: Clock) -> None:
    progress = Progress()
    meter = Meter(progress)
    for nats, norm in ((8.0, 3.0), (12.0, 5.0)):
        clock.now += 2
        count(meter, [UNEVEN], nats, norm)
    report = meter.report(optimizer(0.25))
    assert report.loss == pytest.approx(20 / 8)
    assert (report.gradient_norm, report.learning_rate) == (5, 0.25)
    assert report.tokens_per_second == pytest.approx(8 / 4)
    assert report.padding == pytest.approx(1 - 10 / 14)
    assert report.target_tokens == 8
    assert report.skipped == 3

    clock.now += 4
    count(meter, [SMALL, SMALL], 1.0, 2.0)
    report = meter.report(optimizer(0.5))
    assert report.loss == pytest.approx(1 / 2)
    assert report.tokens_per_second == pytest.approx(2 / 4)
    assert report.padding == 0
    assert report.target_tokens == 10


def test_time_that_went_elsewhere_is_not_counted(clock: Clock) -> None:
    progress = Progress()
    meter = Meter(progress)
    clock.now += 1
    count(meter, [SMALL], 1.0, 1.0)
    clock.now += 1000
    meter.restart_clock()
    clock.now += 1
    count(meter, [SMALL], 1.0, 1.0)
    assert progress.seconds == 2
    assert meter.report(optimizer(0.1)).tokens_per_second == pytest.approx(2 / 2)


def test_an_update_that_was_not_made_is_not_in_the_loss(clock: Clock) -> None:
    meter = Meter(Progress())
    clock.now += 2
    count(meter, [UNEVEN], 8.0, 3.0)
    count(meter, [UNEVEN], float("nan"), float("inf"))
    report = meter.report(optimizer(0.1))
    assert report.loss == pytest.approx(8 / 4)
    assert report.tokens_per_second == pytest.approx(8 / 2)
    assert report.gradient_norm == float("inf")


def test_what_was_counted_goes_on_in_another_meter(clock: Clock) -> None:
    progress = Progress()
    first, second = Meter(progress), Meter(progress)
    clock.now += 2
    count(first, [UNEVEN], 8.0, 3.0)
    second.load_state_dict(first.state_dict())
    second.restart_clock()
    clock.now += 2
    count(second, [SMALL], 1.0, 2.0)
    report = second.report(optimizer(0.1))
    assert report.loss == pytest.approx(9 / 5)
    assert report.tokens_per_second == pytest.approx(5 / 4)
    assert report.padding == pytest.approx(1 - 13 / 17)


# on a terminal, and in its place


def test_a_log_file_gets_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(TranslationTrainingConfig(max_steps=200, max_epochs=None), steps_per_epoch=8)
    for step in range(10, 101, 10):
        terminal.on_step(at(step), REPORT)
    terminal.close()
    out = capsys.readouterr()
    lines = [line for line in out.out.splitlines() if line.startswith("step")]
    assert lines == [
        "step 50/200  loss 3.250  15.0 min to go  5,678 tok/s  lr 5.0e-04  epoch 1.25  padding 12.5%  gradient 1.50  "
        "5.0 min so far",
        "step 100/200  loss 3.250  10.0 min to go  5,678 tok/s  lr 5.0e-04  epoch 1.25  padding 12.5%  gradient 1.50  "
        "10.0 min so far",
    ]
    assert out.out.splitlines()[0] == "At this speed the training takes about 18.0 min more."
    assert out.out.count("At this speed") == 1
    assert not out.err


@pytest.mark.parametrize(
    ("plan", "estimate"),
    [
        (TranslationTrainingConfig(max_epochs=5), "2.0 min"),  # 5 epochs of 8 steps, 20 made in 2 minutes
        (TranslationTrainingConfig(max_epochs=5, max_steps=30), "1.0 min"),
        (TranslationTrainingConfig(max_epochs=5, max_minutes=3.5), "1.5 min"),
        (TranslationTrainingConfig(max_epochs=5, max_minutes=2.5), "30 s"),
        (TranslationTrainingConfig(max_epochs=5, max_minutes=1.5), "0 s"),  # that is over
        (TranslationTrainingConfig(max_epochs=None), None),
    ],
)
def test_the_estimate_is_of_the_bound_that_comes_first(
    plan: TranslationTrainingConfig, estimate: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal(plan, steps_per_epoch=8)
    terminal.on_step(at(10), REPORT)
    assert not capsys.readouterr().out
    terminal.on_step(at(20), REPORT)
    terminal.close()
    expected = f"At this speed the training takes about {estimate} more.\n" if estimate else ""
    assert capsys.readouterr().out == expected


def test_one_loss_that_is_no_number_does_not_spoil_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(TranslationTrainingConfig(max_epochs=None), steps_per_epoch=8)
    for step, loss in enumerate([math.nan, 4.0, 4.0, math.inf, math.nan], start=1):
        terminal.on_step(at(step), REPORT._replace(loss=loss))
    terminal.close()
    assert "loss 4.000" in capsys.readouterr().out


def test_updates_that_were_skipped_are_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(TranslationTrainingConfig(max_epochs=None), steps_per_epoch=8)
    for step, skipped in ((10, 0), (20, 1), (30, 1), (1040, 3)):
        terminal.on_step(at(step), REPORT._replace(skipped=skipped))
    terminal.close()
    assert capsys.readouterr().out.splitlines() == [
        "step 20: 1 update skipped so far: gradient not finite",
        "step 1,040: 3 updates skipped so far: gradient not finite",
    ]


def test_a_validation_shows_scores_signature_and_samples(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(TranslationTrainingConfig(), steps_per_epoch=8)
    terminal.on_validation(at(1000, best=1000), VALIDATION)
    out = capsys.readouterr().out
    head = "── step 1,000  1.7 h  dev loss 2.000  PPL 7.39  BLEU 12.34  chrF 45.67"
    assert f"\n{head}  (best)\n   nrefs:1|tok:13a\n" in out
    assert f"   source     {SAMPLE.source}\n   reference  {SAMPLE.reference}\n   ours       capital\n" in out
    terminal.on_validation(at(1000, best=900), VALIDATION)
    assert f"\n{head}\n" in capsys.readouterr().out
    terminal.close()


def on_a_terminal(columns: int, act: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> str:
    """What a terminal as wide as this is sent, standard output and error together."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    received = bytearray()

    def listen() -> None:
        while not received.endswith(b"THE END"):
            received.extend(os.read(ours, 65536))

    listener = threading.Thread(target=listen)
    listener.start()
    with os.fdopen(theirs, "w", encoding="utf-8") as screen, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", screen)
        patch.setattr(sys, "stderr", screen)
        try:
            act()
        finally:
            screen.write("THE END")
            screen.flush()
            listener.join()
    os.close(ours)
    return received.decode().removesuffix("THE END")


def train(plan: TranslationTrainingConfig, *steps: int) -> None:
    terminal = Terminal(plan, steps_per_epoch=8)
    for step in steps:
        terminal.on_step(at(step), REPORT)
    terminal.on_validation(at(steps[-1]), VALIDATION)
    terminal.close()


def bars(sent: str) -> list[str]:
    """Each state of the last line."""
    return [line for line in re.split(r"[\r\n]", sent) if re.match(r"^ *\d+%\|", line)]


@pytest.mark.parametrize(
    ("columns", "facts"),
    [
        (60, "60/160  loss 3.250  10.0 min to go"),
        (80, "60/160  loss 3.250  10.0 min to go  5,678 tok/s  lr 5.0e-04"),
        (
            120,
            "60/160  loss 3.250  10.0 min to go  5,678 tok/s  lr 5.0e-04  epoch 1.25  padding 12.5%  gradient 1.50",
        ),
    ],
)
def test_a_terminal_gets_a_bar_with_what_fits_beside_it(
    columns: int, facts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 20 epochs of 8 steps come before 200
    sent = on_a_terminal(columns, lambda: train(TranslationTrainingConfig(max_steps=200), 50, 60), monkeypatch)
    last = bars(sent)[-1]
    assert re.fullmatch(r" 38%\|[█-▏ ]{8,}\| (.*)", last.rstrip())[1] == facts  # type: ignore[index]
    assert all(len(bar) <= columns for bar in bars(sent))
    assert "\n── step 60  6.0 min" in sent.replace("\r", "")
    assert not re.search(r"^step", sent.replace("\r", ""), re.M)


# the log


def refuse(constant: str) -> float:
    raise AssertionError(f"{constant} is no JSON")


def records(path: Path) -> list[dict[str, object]]:
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line, parse_constant=refuse) for line in lines]


def written(path: Path, *steps: int) -> Path:
    log = JsonlLog(path, 0)
    for step in steps:
        log.on_step(at(step), REPORT)
        if step % 20 == 0:
            log.on_validation(at(step), VALIDATION)
    log.close()
    return path


def test_the_log_holds_a_line_a_report_and_a_line_a_validation(tmp_path: Path) -> None:
    train, dev = records(written(tmp_path / "log.jsonl", 20))
    assert train == {"kind": "train", "step": 20, "epoch": 1, "minutes": 2.0, **REPORT._asdict()}
    assert dev["kind"] == "dev"
    assert (dev["loss"], dev["bleu"], dev["chrf"], dev["perplexity"]) == (2, 12.34, 45.67, pytest.approx(7.389056))
    assert dev["samples"] == [SAMPLE._asdict()]
    assert dev["bleu_signature"] == "nrefs:1|tok:13a"


def test_a_run_resumed_again_and_again_from_older_checkpoints_has_each_step_once(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for resumed_at, until in ((0, 60), (40, 50), (20, 80), (80, 90)):
        log = JsonlLog(path, resumed_at)
        for step in range(resumed_at + 10, until + 1, 10):
            log.on_step(at(step), REPORT._replace(target_tokens=until))
            if step % 20 == 0:
                log.on_validation(at(step), VALIDATION)
        log.close()
        path.write_bytes(path.read_bytes() + b'{"kind": "train", "st')  # killed while it wrote
    kept = [(record["kind"], record["step"], record.get("target_tokens")) for _, record in read_log(path)]
    assert [step for kind, step, _ in kept if kind == "train"] == list(range(10, 91, 10))
    assert [step for kind, step, _ in kept if kind == "dev"] == [20, 40, 60, 80]
    assert [until for kind, _, until in kept if kind == "train"] == [60, 60, *[80] * 6, 90]


@pytest.mark.parametrize(
    "damaged",
    [
        b"\0" * 40,
        b"\xff\xfe",
        b'{"kind": "train", "step": 1',
        b"[1]",
        b"7",
        b'{"kind": "dev"}',
        b'{"kind": "dev", "step": 1e999}',
        b'{"kind": "dev", "step": "3"}',
        b"",
    ],
)
def test_what_the_disk_has_damaged_is_left_out_and_the_rest_is_kept(damaged: bytes, tmp_path: Path) -> None:
    path = written(tmp_path / "log.jsonl", 10, 20)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], damaged + b"\n", *lines[1:]]))
    assert [record["step"] for _, record in read_log(path)] == [10, 20, 20]
    JsonlLog(path, 20).close()
    assert path.read_bytes() == b"".join(lines)


def test_numbers_that_json_has_no_word_for_are_null(tmp_path: Path) -> None:
    log = JsonlLog(tmp_path / "log.jsonl", 0)
    log.on_step(at(10), REPORT._replace(loss=math.nan, gradient_norm=math.inf, skipped=10))
    log.on_validation(at(10), VALIDATION._replace(loss=math.nan))
    log.close()
    train, dev = records(tmp_path / "log.jsonl")
    assert train["loss"] is train["gradient_norm"] is dev["loss"] is dev["perplexity"] is None
    assert (train["skipped"], dev["bleu"]) == (10, 12.34)


# TensorBoard, and other decoration


def read_events(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def test_tensorboard_reads_the_curves_of_a_resumed_run(tmp_path: Path) -> None:
    for resumed_at, steps in ((0, (10, 20, 30)), (20, (25, 40))):
        log = TensorBoardLog(tmp_path, resumed_at)
        for step in steps:
            log.on_step(at(step), REPORT._replace(loss=step + resumed_at / 100))
            log.on_validation(at(step), VALIDATION._replace(scores={"bleu": float(step), "chrf": 0.0}))
        log.close()
    events = read_events(tmp_path)
    loss = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert [step for step, _ in loss] == [10, 20, 25, 40]
    assert [value for _, value in loss] == pytest.approx([10, 20, 25.2, 40.2])
    assert [event.value for event in events.Scalars("dev/bleu")] == [10, 20, 25, 40]
    assert events.Scalars("train/perplexity")[0].value == pytest.approx(math.exp(10))
    assert [event.value for event in events.Scalars("dev/perplexity")] == pytest.approx([math.exp(2)] * 4)
    assert set(events.Tags()["scalars"]) == {
        *(f"train/{name}" for name in (*StepReport._fields, "perplexity")),
        *(f"dev/{name}" for name in ("loss", "perplexity", "bleu", "chrf")),
    }


def texts(events: EventAccumulator, name: str) -> list[tuple[int, str]]:
    found = events.Tensors(f"{name}/text_summary")
    return [(event.step, event.tensor_proto.string_val[0].decode()) for event in found]


def test_tensorboard_reads_settings_and_translations_as_they_stand(tmp_path: Path) -> None:
    log = TensorBoardLog(tmp_path, 5, "model:\n  d_model: 16\n")
    log.on_validation(at(10), VALIDATION._replace(samples=[Sample("a *b* <i>c</i>", "# d", "_e_"), SAMPLE]))
    log.close()
    events = read_events(tmp_path)
    # indented by four: Markdown shows it as it is
    assert texts(events, "settings") == [(5, "    model:\n      d_model: 16\n")]
    ((step, shown),) = texts(events, "dev/samples")
    assert step == 10
    assert shown.startswith(
        "    source     a *b* <i>c</i>\n    reference  # d\n    ours       _e_\n    \n    source     都"
    )
    assert all(line.startswith("    ") for line in shown.split("\n")[:-1])


def test_a_loss_that_is_no_number_is_no_point(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = TensorBoardLog(tmp_path, 0)
    for step in (10, 20, 30):
        log.on_step(at(step), REPORT._replace(loss=math.nan if step == 20 else 2.0, skipped=step))
    log.close()
    events = read_events(tmp_path)
    assert [event.step for event in events.Scalars("train/loss")] == [10, 30]
    assert [event.step for event in events.Scalars("train/perplexity")] == [10, 30]
    assert [event.value for event in events.Scalars("train/skipped")] == [10, 20, 30]
    assert not caplog.records


class Broken(Observer):
    """Fails at one of what it is told."""

    def __init__(self, at: str, told: list[str]) -> None:
        for name in TOLD[1:]:
            setattr(self, name, lambda *_, name=name: fail(name, at, told))
        fail("__init__", at, told)


def fail(name: str, at: str, told: list[str]) -> None:
    told.append(name)
    if name == at:
        raise OSError(f"No space left for {name}\nand more")


TOLD = ["__init__", "on_step", "on_update", "on_validation", "close"]


@pytest.mark.parametrize("at", [*TOLD, "never"])
def test_a_decoration_that_fails_says_so_once_and_the_training_goes_on(
    at: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []
    decoration = Decoration(lambda: Broken(at, told))
    decoration.on_step(Progress(), REPORT)
    decoration.on_update()
    decoration.on_validation(Progress(), VALIDATION)
    decoration.close()
    assert told == (TOLD if at == "never" else TOLD[: TOLD.index(at) + 1])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == (at != "never")
    assert all(f"No space left for {at}" in line and "continues without" in line for line in lines)


# a dry run


LENGTHS = [*[4] * 7, *[9] * 20, 17]  # of 36 tokens a batch, </s> included: 7 x 5, six of 3 x 10 and 2 x 10, 1 x 18


def epoch() -> Epoch:
    sides = [TokenArray.of([[4] * n for n in LENGTHS], 8), TokenArray.of([[5] * (n - 1) for n in LENGTHS], 8)]
    return Epoch(TokenPairs(*sides), tokens_per_batch=36, max_tokens=None, multiple=1, key=(1, 0))


class Counting:
    """A trainer that learns nothing and lets a clock run: a second a row, a minute at the first sight of a shape."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.net: nn.Module = nn.Linear(2, 3)
        self.updates: list[list[tuple[int, ...]]] = []
        self.clock = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.clock)

    def train_step(self, micro_batches: list[Any]) -> None:
        shapes = [tuple(batch.src.shape) for batch in micro_batches]
        self.clock += sum(rows for rows, _ in shapes) + 60 * (shapes not in self.updates)
        self.updates.append(shapes)


def said(trainer: Counting, accumulate: int = 1, n_processes: int = 1) -> list[str]:
    """All but the table of parameters."""
    blocks: list[str] = []
    dry_run(trainer.net, trainer.train_step, epoch(), accumulate, blocks.append, n_processes)
    assert blocks[0] == parameter_table(trainer.net)
    return "\n".join(blocks[1:]).splitlines()


def test_shapes_and_times_are_those_of_the_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = said(Counting(monkeypatch))
    del lines[5]  # memory
    assert lines == [
        "an epoch: 9 batches, 9 updates, padding 0.0%",
        "  smallest batch  1 x 18 source and 1 x 17 target tokens",
        "  median batch    3 x 10 source and 3 x 9 target tokens",
        "  largest batch   7 x 5 source and 7 x 4 target tokens",
        "an update: 3 s at the median batch, 7 s at the largest",
        "  an epoch takes  27 s, validations not included",
    ]


def test_processes_that_share_an_update_rehearse_their_own_batches_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Counting(monkeypatch)
    lines = said(trainer, accumulate=4, n_processes=2)
    assert {tuple(shapes) for shapes in trainer.updates} == {((3, 10),) * 2, ((7, 5),) * 2}
    assert lines[0].startswith("an epoch: 9 batches, 3 updates of 4")
    assert lines[4] == "an update: 6 s at the median batch, 14 s at the largest"
    assert lines[6].startswith("  an epoch takes  18 s")


@pytest.mark.parametrize("tie", ["none", "target", "all"])
def test_parameters_are_counted_once_and_by_part(tie: Literal["none", "target", "all"]) -> None:
    net = Transformer(replace(MODEL, tie=tie), 24, 24)
    total, *rows = [line.split() for line in parameter_table(net).splitlines()]
    assert total == ["parameters", f"{sum(p.numel() for p in net.parameters()):,}"]
    sizes = {part: int(n.replace(",", "")) for part, n, *_ in rows}
    assert sum(sizes.values()) == sum(p.numel() for p in net.parameters())
    assert sizes["encoder"] == sum(p.numel() for p in net.encoder.parameters())
    assert sizes["src_embedding"] == 24 * 16
    assert (sizes["output"] > 0) == (tie == "none")
    shares = {part: rest[-1] for part, _, _, *rest in rows if rest}
    first = {"none": {}, "target": {"output": "tgt_embedding"}}
    assert shares == first.get(tie, {"tgt_embedding": "src_embedding", "output": "src_embedding"})
    assert sum(float(share.rstrip("%")) for _, _, share, *_ in rows) == pytest.approx(100, abs=0.5)


# a trace


CPU = torch.device("cpu")


def update() -> None:
    """Most of its time is one product, whatever else the machine does."""
    with record_function("data"):
        x = torch.ones(800, 800)
    with record_function("forward"):
        for _ in range(3):
            x = x @ x
        for act in (torch.exp, torch.sin, torch.cos, torch.tanh, torch.abs, torch.neg, torch.sqrt, torch.log):
            act(x[0])
        for join in (torch.add, torch.mul, torch.sub, torch.div, torch.maximum, torch.minimum):
            join(x[0], x[1])


def traced(folder: Path, n_updates: int) -> list[str]:
    said: list[str] = []
    with closing(Tracer(folder / "trace.json.gz", CPU, said.append)) as tracer:
        for _ in range(n_updates):
            update()
            tracer.on_update()
    return said


def events(folder: Path) -> list[dict[str, Any]]:
    with gzip.open(folder / "trace.json.gz", "rt", encoding="utf-8") as file:
        return [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]


def test_five_updates_are_recorded_after_three_and_training_goes_on(tmp_path: Path) -> None:
    said: list[str] = []
    with closing(Tracer(tmp_path / "trace.json.gz", CPU, said.append)) as tracer:
        for step in range(1, 21):
            assert (tmp_path / "trace.json.gz").exists() == (step > SKIPPED + RECORDED)
            assert bool(said) == (step > SKIPPED + RECORDED)
            update()
            tracer.on_update()
    found = counts(tmp_path)
    assert (found["data"], found["forward"], found["aten::mm"]) == (RECORDED, RECORDED, 3 * RECORDED)
    assert [file.name for file in tmp_path.iterdir()] == ["trace.json.gz"]


def counts(folder: Path) -> Counter[str]:
    return Counter(event["name"] for event in events(folder))


def test_what_takes_the_time_is_said_and_where_to_look(tmp_path: Path) -> None:
    table, where = traced(tmp_path, 10)
    head, columns, *rows = table.strip().splitlines()
    parts = re.fullmatch(r"5 updates recorded, ms each: data (\S+)  forward (\S+)", head)
    assert parts is not None
    for part, name in zip(parts.groups(), ("data", "forward"), strict=True):
        microseconds = sum(event["dur"] for event in events(tmp_path) if event["name"] == name)
        assert float(part) == pytest.approx(microseconds / 1000 / RECORDED, abs=0.06)  # as rounded
    assert columns.split()[:4] == ["ms", "share", "calls", "operation,"]
    cells = [row.split() for row in rows]
    assert len(cells) == LINES
    assert cells[0][2:] == ["3", "aten::mm"]
    assert all(name.startswith("aten::") for *_, name in cells)  # no range of the Trainer's, no step of the profiler's
    times = [float(ms) for ms, *_ in cells]
    assert times == sorted(times, reverse=True)
    assert sum(float(share.rstrip("%")) for _, share, *_ in cells) <= 100.5
    assert times[0] < float(parts[2])  # of one update, not of all five
    assert all(len(line) <= 80 for line in (head, columns, *rows))
    assert str(tmp_path / "trace.json.gz") in where
    assert "https://ui.perfetto.dev" in where
    assert "chrome://tracing" in where


# memory, signals, processes


CONFIG = BatchConfig(tokens_per_batch=4096, accumulate=3, max_tokens=128)


TWO = Batch(torch.ones(2, 9, dtype=torch.long), torch.ones(2, 5, dtype=torch.long))


LARGE = Batch(torch.ones(1024, 12, dtype=torch.long), torch.ones(1024, 15, dtype=torch.long))


SAID = (
    "out of memory at a batch of 1,024 x 12 source and 1,024 x 14 target tokens: "
    "lower --batch.tokens_per_batch (now 4096) and raise --batch.accumulate (now 3) to keep the size of an update, "
    "say --batch.tokens_per_batch 2048 --batch.accumulate 6"
)


class Greedy(nn.Module):
    """Takes more than any machine has, in its forward or in its backward."""

    def forward(self, x: Tensor, late: bool) -> Tensor:
        if late:
            x.register_hook(lambda gradient: gradient + torch.empty(2**60)[0])
            return x.sum()
        return torch.empty(2**60).sum() + x.sum()


@pytest.mark.parametrize("late", [False, True], ids=["forward", "backward"])
def test_a_batch_that_does_not_fit_is_named_with_the_option_to_lower(late: bool) -> None:
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(ValueError, match=re.escape(SAID)) as caught, explained_out_of_memory([TWO, LARGE], CONFIG):
        Greedy()(x * 1, late).backward()
    assert str(caught.value) == SAID


@pytest.mark.parametrize("error", [RuntimeError("mat1 and mat2 shapes cannot be multiplied"), KeyError("x")], ids=repr)
def test_any_other_error_passes(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, explained_out_of_memory([LARGE], CONFIG):
        raise error
    assert caught.value is error


def test_a_process_without_a_batch_passes_the_error_on() -> None:
    with pytest.raises(MemoryError), explained_out_of_memory([], CONFIG):
        raise MemoryError


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux forgets a peak")
def test_a_peak_is_of_the_time_since_it_was_forgotten() -> None:
    cpu, mib = torch.device("cpu"), 2**20
    torch.ones(100 * mib)  # 400 MiB
    high = peak_memory(cpu)
    return_freed_memory()  # of which a training before this test may have had some kept
    forget_peak(cpu)
    begin = peak_memory(cpu)
    assert begin < high - 300 * mib
    torch.ones(50 * mib)
    assert begin + 190 * mib < peak_memory(cpu) < begin + 250 * mib
    assert high < total_memory(cpu)


@pytest.mark.gpu
def test_a_peak_on_a_gpu_is_of_its_tensors() -> None:
    cuda = torch.device("cuda")
    torch.ones(2**20, device=cuda)
    forget_peak(cuda)
    begin = peak_memory(cuda)
    torch.ones(2**18, device=cuda)
    assert peak_memory(cuda) == begin + 2**20 < total_memory(cuda)


BOTH = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("number", BOTH)
def test_the_first_signal_asks_and_the_second_acts(number: signal.Signals) -> None:
    acted: list[int] = []
    before = {each: signal.signal(each, lambda given, _frame: acted.append(given)) for each in BOTH}
    try:
        with graceful_interrupt() as interrupt:
            assert not interrupt.asked
            signal.raise_signal(number)
            assert interrupt.asked
            assert not acted
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            assert acted == [signal.SIGTERM, signal.SIGINT]
        signal.raise_signal(number)
        assert acted[2:] == [number]
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def test_the_handlers_are_as_before_even_after_an_error() -> None:
    before = [signal.getsignal(number) for number in BOTH]

    def fail() -> None:
        with graceful_interrupt():
            assert [signal.getsignal(number) for number in BOTH] != before
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [signal.getsignal(number) for number in BOTH] == before


def test_every_block_is_compiled_and_nothing_else() -> None:
    net = lively(MODEL, 13, 13)
    compile_blocks(net)
    compiled = [name for name, part in net.named_modules() if part._compiled_call_impl is not None]
    assert compiled == ["encoder.0", "decoder.0", "decoder.1"]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler on a CPU")
def test_a_compiled_network_computes_the_same_and_is_copied_as_if_it_were_not() -> None:
    net = lively(MODEL, 13, 13)
    twin = copy.deepcopy(net)
    compile_blocks(twin)
    for shape in ((2, 5), (3, 7)):
        src = torch.randint(4, 13, shape, generator=torch.Generator().manual_seed(0))
        ours, theirs = (each(src, src.flip(1)) for each in (twin, net))
        torch.testing.assert_close(ours, theirs)
        gradients = (
            torch.autograd.grad(out.cos().sum(), list(each.parameters())) for out, each in ((ours, twin), (theirs, net))
        )
        torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4)
    copied: Transformer = copy.deepcopy(twin)
    assert all(block._compiled_call_impl is None for block in copied.encoder)


def exchange(rank: int, store: str) -> tuple[Any, ...]:
    """What one of two processes gets by gloo; each calls it in a process of its own."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    processes = Processes(rank, 2)
    tensors = [torch.full((2, 3), 1.0 + rank), torch.tensor(10.0 * rank)]
    processes.all_reduce(tensors)
    flags = processes.any(rank == 0, rank == 1, False)
    gathered = processes.gather({rank: "x", rank + 2: "y"})
    found = [x.tolist() for x in tensors], flags, processes.broadcast(f"of {rank}"), gathered
    dist.destroy_process_group()
    return found


def test_processes_add_agree_and_tell_each_other(tmp_path: Path) -> None:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        first, second = pool.map(exchange, (0, 1), [str(tmp_path / "store")] * 2, timeout=300)
    both = [[[3.0] * 3] * 2, 10.0], [True, True, False], "of 0"
    assert first == (*both, {0: "x", 1: "x", 2: "y", 3: "y"})
    assert second == (*both, {})


def test_each_process_has_the_gpu_of_its_place_on_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[torch.device] = []
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert own_device(cpu) == cpu
    assert not taken
    assert own_device(gpu) == torch.device("cuda", 1)
    assert taken == [torch.device("cuda", 1)]
    monkeypatch.delenv("LOCAL_RANK")
    assert own_device(gpu) == torch.device("cuda", 0)


@pytest.mark.parametrize(("rank", "order"), [(0, ["works", "meets"]), (1, ["meets", "works"])])
def test_the_others_work_when_the_first_is_done(rank: int, order: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(Processes, "broadcast", lambda *_: told.append("meets"))
    with Processes(rank, 2).first_alone():
        told.append("works")
    assert told == order
