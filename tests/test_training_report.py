"""What a training reports, and what a dry run, a trace, a signal and a lack of memory come to."""

import copy
import gzip
import io
import json
import math
import mmap
import re
import shutil
import signal
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.profiler import record_function

from config.data import BatchConfig
from config.training import OptimizerConfig, TranslationTrainingConfig
from models.transformer import Transformer
from tests.tiny import MODEL, lively
from utils.dataset.batch import Batch, BucketSampler, padded
from utils.dataset.ids import TokenArray, TokenPairs
from utils.device import compile_blocks
from utils.memory import return_freed_memory
from utils.training.distributed import graceful_interrupt, own_device
from utils.training.dry_run import (
    RECORDED,
    SKIPPED,
    Tracer,
    dry_run,
    explained_out_of_memory,
    forget_peak,
    parameter_table,
    peak_memory,
)
from utils.training.loss import Loss
from utils.training.optimizer import Optimizer
from utils.training.report import (
    Decoration,
    JsonlLog,
    Meter,
    Sample,
    StepReport,
    TensorBoardLog,
    Terminal,
    Validation,
    read_log,
)
from utils.training.schedule import Progress

CPU = torch.device("cpu")
REPORT = StepReport(3.25, 2.5, 1.5, 0.0005, 1234, 5678.4, 0.125, 0)
SAMPLE = Sample("都\u2028です", 'the "capital"', "capital")
SIGNATURES = {"bleu": "nrefs:1|tok:13a", "chrf": "nrefs:1|nc:6"}
VALIDATION = Validation(2.0, {"bleu": 12.34, "chrf": 45.67}, SIGNATURES, [SAMPLE], train_loss=2.5)


def at(step: int, best: int = 0) -> Progress:
    return Progress(step=step, epoch=1, position=2, target_tokens=1234, seconds=6.0 * step, best_step=best)


def test_a_report_is_of_all_updates_since_the_last_one() -> None:
    """But for the loss of skipped ones; the sums go on in another meter."""
    uneven = Batch(padded([[4, 5, 6], [4]]), padded([[7, 8], []], bos=True))
    small = Batch(padded([[4]]), padded([[]], bos=True))
    optimizer = Optimizer(nn.Linear(1, 1), OptimizerConfig(peak_lr=0.25))
    optimizer.skipped += 3

    def count(meter: Meter, batches: list[Batch], nats: float, norm: float) -> None:
        n = sum(batch.target_tokens for batch in batches)
        loss = Loss(*torch.tensor([nats, n, nats / 4]))
        meter.count(loss, torch.tensor(norm), batches, n, 2.0)

    count(meter := Meter(), [uneven], 8.0, 3.0)
    second = Meter(**copy.deepcopy(vars(meter)))
    count(second, [uneven], 12.0, 5.0)
    count(second, [uneven], math.nan, math.inf)
    report = second.report(at(3), optimizer, torch.tensor(math.inf))
    assert report == StepReport(20 / 8, 5 / 8, math.inf, 0.25, 1234, 12 / 6, 1 - 15 / 21, 3)
    count(second, [small, small], 1.0, 2.0)
    report = second.report(at(4), optimizer, torch.tensor(2.0))
    assert report == StepReport(1 / 2, 1 / 8, 2, 0.25, 1234, 2 / 2, 0, 3)
    assert second.train_loss() == pytest.approx(21 / 4 / 10)  # since the last validation, whatever was reported
    count(second, [small], 3.0, 2.0)
    assert second.train_loss() == 3 / 4
    assert math.isnan(second.train_loss())


def test_a_log_file_gets_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(TranslationTrainingConfig(max_steps=200, max_epochs=None), steps_per_epoch=8)
    for step in range(10, 101, 10):
        terminal.on_step(at(step), REPORT._replace(skipped=(step >= 30) + 2 * (step >= 60)))
    terminal.close()
    out = capsys.readouterr()
    assert [re.sub("  .*", "", line) for line in out.out.splitlines()] == [
        "step 30: 1 update skipped so far: gradient not finite",
        "step 50/200",
        "step 60: 3 updates skipped so far: gradient not finite",
        "step 100/200",
    ]
    facts = "loss 3.250  10.0 min to go  5,678 tok/s  lr 5.0e-04  epoch 1.25  padding 12.5%  gradient 1.50"
    assert facts in out.out
    assert not out.err


def test_a_jump_of_the_loss_is_said_once_with_the_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    with closing(Terminal(TranslationTrainingConfig(max_steps=200), steps_per_epoch=8)) as terminal:
        for step, nll in enumerate([6.0, 2.25, 3.2, 4.5, 4.25, 3.1, 4.2], 1):
            terminal.on_step(at(step), REPORT._replace(nll=nll))
    lines = [line for line in capsys.readouterr().out.splitlines() if "jumped" in line]
    assert [line.partition(";")[0] for line in lines] == [
        "step 4: the loss jumped from 2.25 to 4.50",
        "step 7: the loss jumped from 3.10 to 4.20",
    ]
    assert "lower --optimizer.peak_lr (0.0005 now)" in lines[0]


def test_the_estimate_is_of_the_bound_that_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    bounds: list[tuple[dict[str, Any], list[str]]] = [
        ({"max_epochs": 5}, ["2.0 min"]),  # 5 epochs of 8 steps, 20 made in 2 minutes
        ({"max_epochs": 5, "max_steps": 30}, ["1.0 min"]),
        ({"max_epochs": 5, "max_minutes": 2.5}, ["30 s"]),
        ({"max_epochs": 5, "max_minutes": 1.5}, ["0 s"]),  # that is over
        ({"max_epochs": None}, []),
    ]
    for limits, estimate in bounds:
        with closing(Terminal(TranslationTrainingConfig(**limits), steps_per_epoch=8)) as terminal:
            for _ in range(Terminal.REPORTS_PER_LINE):
                terminal.on_step(at(20), REPORT)
        assert re.findall("  ([^ ]+ [a-z]+) to go", capsys.readouterr().out) == estimate


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_and_each_validation_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, screen)
    terminal = Terminal(TranslationTrainingConfig(max_steps=200), steps_per_epoch=8)  # 20 epochs come before 200
    terminal.on_step(at(60), REPORT)
    terminal.on_validation(at(60, best=60), VALIDATION)
    terminal.on_validation(at(70, best=60), VALIDATION)
    terminal.close()
    sent, head = screen.getvalue(), "train PPL 12.18  dev PPL 7.39  BLEU 12.34  chrF 45.67"
    assert re.search(r"\r 38%\|.+\| 60/160  loss 3.250  10.0 min to go  5,678 tok/s", sent)
    shown = f"── step 60  6.0 min  {head}  (best)\n   nrefs:1|tok:13a\n   source     {SAMPLE.source}\n"
    assert shown in sent
    assert f"── step 70  7.0 min  {head}\n" in sent


def test_a_run_resumed_again_and_again_has_each_step_once(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for resumed_at, until in ((0, 60), (40, 50), (20, 80), (80, 90)):
        log = JsonlLog(path, resumed_at)
        for step in range(resumed_at + 10, until + 1, 10):
            log.on_step(at(step), REPORT._replace(target_tokens=until, gradient_norm=math.inf))
            if step % 20 == 0:
                log.on_validation(at(step), VALIDATION._replace(loss=math.nan))
        log.close()
        path.write_bytes(path.read_bytes() + b'{"kind": "train", "st')  # killed while it wrote
    kept = [record for _, record in read_log(path)]
    train, dev = ([record for record in kept if record["kind"] == kind] for kind in ("train", "dev"))
    assert [record["step"] for record in train] == list(range(10, 91, 10))
    assert [record["target_tokens"] for record in train] == [60, 60, *[80] * 6, 90]
    facts = REPORT._asdict() | {"gradient_norm": None, "target_tokens": 60}  # JSON has no word for infinity
    assert train[0] == {"kind": "train", "step": 10, "epoch": 1, "minutes": 1.0, **facts}
    assert [record["step"] for record in dev] == [20, 40, 60, 80]
    assert dev[0]["loss"] is dev[0]["perplexity"] is None
    assert dev[0]["train_perplexity"] == math.exp(2.5)
    assert dev[0]["samples"] == [SAMPLE._asdict()]
    assert (dev[0]["bleu"], dev[0]["bleu_signature"]) == (12.34, "nrefs:1|tok:13a")


def test_what_the_disk_has_damaged_is_left_out_and_the_rest_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with closing(JsonlLog(path, 0)) as log:
        log.on_step(at(10), REPORT)
        log.on_validation(at(20), VALIDATION)
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = [b"\0" * 40, b"\xff\xfe", b'{"step": 1', b"[1]", b'{"kind": "dev"}', b'{"kind": "", "step": "3"}', b""]
    path.write_bytes(b"".join([lines[0], *(line + b"\n" for line in damaged), lines[1]]))
    assert [record["step"] for _, record in read_log(path)] == [10, 20]
    JsonlLog(path, 20).close()
    assert path.read_bytes() == b"".join(lines)


def test_tensorboard_reads_curves_settings_and_translations_of_a_resumed_run(tmp_path: Path) -> None:
    settings = "model:\n  d_model: 16\n"
    for resumed_at, steps in ((0, (10, 20, 30)), (20, (25, 40))):
        with closing(TensorBoardLog(tmp_path, resumed_at, settings)) as log:
            for step in steps:
                log.on_step(at(step), REPORT._replace(loss=math.nan if step == 10 else step + resumed_at))
                log.on_validation(at(step), VALIDATION._replace(scores={"bleu": float(step), "chrf": 0.0}))
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [event.value for event in events.Scalars("train/perplexity")] == pytest.approx([math.exp(2.5)] * 4)
    loss = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert loss == [(20, 20), (25, 45), (40, 60)]  # what is no number is no point
    assert [event.value for event in events.Scalars("dev/bleu")] == [10, 20, 25, 40]
    assert set(events.Tags()["scalars"]) == {
        *(f"train/{name}" for name in (*StepReport._fields, "perplexity")),
        *(f"dev/{name}" for name in ("loss", "perplexity", "train_perplexity", "bleu", "chrf")),
    }
    # indented by four: Markdown shows it as it is
    (shown,) = events.Tensors("settings/text_summary")[-1].tensor_proto.string_val
    assert shown.decode() == "    model:\n      d_model: 16\n"
    assert "dev/samples/text_summary" in events.Tags()["tensors"]


def test_a_decoration_that_fails_says_so_once_and_the_training_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    told = ["make", "on_step", "on_update", "on_validation", "close"]
    for n_told in range(1, 6):
        observer = Mock()
        observer.make.return_value = observer
        getattr(observer, told[n_told - 1]).side_effect = OSError("No space left\nand more")
        decoration = Decoration("a picture", observer.make)
        decoration.on_step(Progress(), REPORT)
        decoration.on_update()
        decoration.on_validation(Progress(), VALIDATION)
        decoration.close()
        assert [call[0] for call in observer.method_calls] == told[:n_told]
        assert capsys.readouterr().out == "The training continues without a picture: No space left\n"


def test_a_dry_run_reports_shapes_and_times_of_the_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four batches an update, of two processes; a row takes a second, and the first sight of a shape a minute."""
    lengths = [*[4] * 7, *[9] * 20, 17]  # of 36 tokens a batch, </s> included: 7 x 5, six of 3 x 10 and 2 x 10, 1 x 18
    sides = [TokenArray.of([[4] * (n - shorter) for n in lengths], 8) for shorter in (0, 1)]
    epoch = BucketSampler(TokenPairs(*sides), tokens_per_batch=36).epoch(0)
    net, said, updates, clock = nn.Linear(2, 3), list[str](), list[list[tuple[int, ...]]](), [0.0]

    def train_step(micro_batches: list[Any]) -> None:
        shapes = [tuple(batch.src.shape) for batch in micro_batches]
        clock[0] += sum(rows for rows, _ in shapes) + 60 * (shapes not in updates)
        updates.append(shapes)

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    dry_run(net, train_step, epoch, 4, said.append, 2)
    assert said[0] == parameter_table(net)
    assert {tuple(shapes) for shapes in updates} == {((3, 10),) * 2, ((7, 5),) * 2}
    lines = "\n".join(said[1:]).splitlines()
    del lines[5]  # memory
    assert lines == [
        "an epoch: 9 batches, 3 updates of 4, padding 0.0%",
        "  smallest batch  1 x 18 source and 1 x 17 target tokens",
        "  median batch    3 x 10 source and 3 x 9 target tokens",
        "  largest batch   7 x 5 source and 7 x 4 target tokens",
        "an update: 6 s at the median batch, 14 s at the largest",
        "  an epoch takes  18 s, validations not included",
    ]
    updates.clear()
    dry_run(net, train_step, epoch, 16, said.append)  # more than an epoch has
    assert {len(shapes) for shapes in updates} == {9}


def test_parameters_are_counted_once_and_by_part() -> None:
    net = Transformer(replace(MODEL, tie="all"), 24, 24)
    total, *rows = [line.split() for line in parameter_table(net).splitlines()]
    assert total == ["parameters", f"{sum(p.numel() for p in net.parameters()):,}"]
    assert sum(int(n.replace(",", "")) for _, n, *_ in rows) == sum(p.numel() for p in net.parameters())
    assert {part: rest[-1] for part, _, _, *rest in rows if rest} == dict.fromkeys(
        ("tgt_embedding", "output"), "src_embedding"
    )


def test_five_updates_are_recorded_after_three_and_what_takes_the_time_is_said(tmp_path: Path) -> None:
    path, said = tmp_path / "trace.json.gz", list[str]()
    with closing(Tracer(path, CPU, said.append)) as tracer:
        for step in range(1, SKIPPED + RECORDED + 4):
            assert path.exists() == bool(said) == (step > SKIPPED + RECORDED)
            with record_function("forward"):
                torch.ones(50, 50) @ torch.ones(50, 50)
            tracer.on_update()
    with gzip.open(path, "rt", encoding="utf-8") as file:
        names = [event["name"] for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    assert names.count("forward") == names.count("aten::mm") == RECORDED
    table, where = said
    assert re.search(rf"forward .+ {RECORDED} *$", table, re.M)
    assert str(path) in where
    with closing(Tracer(tmp_path / "none", CPU, said.append)) as tracer:
        tracer.on_update()
    assert "No trace" in said[-1]
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("late", [False, True], ids=["forward", "backward"])
def test_a_batch_that_does_not_fit_is_named_with_the_option_to_lower(late: bool) -> None:
    two, large = (Batch(torch.ones(n, w).long(), torch.ones(n, w + 3).long()) for n, w in ((2, 9), (1024, 12)))
    config = BatchConfig(tokens_per_batch=4096, accumulate=3, max_tokens=128)
    x = torch.ones(3, requires_grad=True)
    words = r"batch of 1,024 x 12 source and .*: .*--batch.tokens_per_batch 2048 --batch.accumulate 6"

    def update() -> None:
        y = x * 1
        if late:
            y.register_hook(lambda gradient: gradient + torch.empty(2**60)[0])
        else:
            torch.empty(2**60)
        y.sum().backward()

    with pytest.raises(ValueError, match=words), explained_out_of_memory([two, large], config):
        update()
    for batches, error in (([large], RuntimeError("shapes cannot be multiplied")), ([], MemoryError())):
        with pytest.raises(type(error)), explained_out_of_memory(batches, config):
            raise error


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux forgets a peak")
def test_a_peak_is_of_the_time_since_it_was_forgotten() -> None:
    mib = 2**20

    def hold(n_mib: int) -> None:
        """Take memory that no freed block of an earlier test has room for, and give it back."""
        torch.frombuffer(mmap.mmap(-1, n_mib * mib), dtype=torch.uint8).fill_(1)

    hold(400)
    high = peak_memory(CPU)
    return_freed_memory()  # of which a training before this test may have had some kept
    forget_peak(CPU)
    begin = peak_memory(CPU)
    assert begin < high - 300 * mib
    hold(200)
    assert begin + 190 * mib < peak_memory(CPU) < begin + 250 * mib


BOTH = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("number", BOTH)
def test_the_first_signal_asks_and_the_second_acts(number: signal.Signals) -> None:
    acted: list[int] = []
    before = {asking: signal.signal(asking, lambda given, _frame: acted.append(given)) for asking in BOTH}
    try:
        with graceful_interrupt() as interrupt:
            assert not interrupt.asked
            signal.raise_signal(number)
            assert interrupt.asked
            assert not acted
            signal.raise_signal(signal.SIGTERM)
            assert acted == [signal.SIGTERM]
        with pytest.raises(ZeroDivisionError), graceful_interrupt():
            raise ZeroDivisionError
        signal.raise_signal(number)  # after an error, too, it acts as before
        assert acted[1:] == [number]
    finally:
        for asking, handler in before.items():
            signal.signal(asking, handler)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler on a CPU")
def test_a_compiled_network_computes_the_same_and_is_copied_as_if_it_were_not() -> None:
    net = lively(MODEL, 13, 13)
    twin = copy.deepcopy(net)
    compile_blocks(twin)
    compiled = [name for name, part in twin.named_modules() if part._compiled_call_impl is not None]
    assert compiled == ["encoder.0", "decoder.0", "decoder.1"]
    for shape in ((2, 5), (3, 7)):
        src = torch.randint(4, 13, shape, generator=torch.Generator().manual_seed(0))
        ours, theirs = (network(src, src.flip(1)) for network in (twin, net))
        torch.testing.assert_close(ours, theirs)
        mine = torch.autograd.grad(ours.cos().sum(), list(twin.parameters()))
        others = torch.autograd.grad(theirs.cos().sum(), list(net.parameters()))
        torch.testing.assert_close(mine, others, rtol=1e-3, atol=1e-4)
    copied: Transformer = copy.deepcopy(twin)
    assert all(block._compiled_call_impl is None for block in copied.encoder)


def test_each_process_has_the_gpu_of_its_place_on_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert own_device(CPU) == CPU
    assert own_device(torch.device("cuda")) == torch.device("cuda", 1)
    assert taken == [torch.device("cuda", 1)]
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ValueError, match=r"process 2 .* no GPU .* of 2: give torchrun --nproc-per-node 2"):
        own_device(torch.device("cuda"))
