"""What the terminal shows, what is written down, and what a resumed run makes of it."""

import json
import math
import os
import pty
import re
import subprocess
import sys
import termios
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from const.path import ROOT
from utils.training.observer import (
    JsonlLog,
    Sample,
    StepReport,
    TensorBoardLog,
    Terminal,
    Validation,
    duration,
    read_log,
    terminal_columns,
)
from utils.training.plan import Progress, TrainingConfig

REPORT = StepReport(3.25, 1.5, 0.0005, 1234, 5678.4, 0.125, 0)
# U+2028 stands inside sentences of real corpora, and is no end of a line
SAMPLE = Sample("都\u2028です", 'the "capital"', "capital")
VALIDATION = Validation(
    2.0, {"bleu": 12.34, "chrf": 45.67}, {"bleu": "nrefs:1|tok:13a", "chrf": "nrefs:1|nc:6"}, [SAMPLE]
)


def at(step: int, best: int = 0) -> Progress:
    return Progress(step=step, epoch=1, position=2, target_tokens=1234, seconds=6.0 * step, best_step=best)


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


def test_the_log_can_be_followed_while_it_is_written(tmp_path: Path) -> None:
    log = JsonlLog(tmp_path / "log.jsonl", 0)
    log.on_step(at(1), REPORT)
    assert len(records(tmp_path / "log.jsonl")) == 1
    log.on_validation(at(1), VALIDATION)
    assert len(records(tmp_path / "log.jsonl")) == 2
    log.close()


def test_a_resumed_run_drops_what_was_lost_and_goes_on(tmp_path: Path) -> None:
    path = written(tmp_path / "log.jsonl", 10, 20, 30)
    log = JsonlLog(path, 20)
    log.on_step(at(25), REPORT)
    log.close()
    assert [(record["kind"], record["step"]) for record in records(path)] == [
        ("train", 10),
        ("train", 20),
        ("dev", 20),
        ("train", 25),
    ]
    assert records(path)[2]["samples"] == [SAMPLE._asdict()]
    assert [file.name for file in tmp_path.iterdir()] == ["log.jsonl"]


def test_a_line_that_a_crash_has_cut_off_is_no_hindrance(tmp_path: Path) -> None:
    path = written(tmp_path / "log.jsonl", 10, 20)
    path.write_bytes(path.read_bytes()[:-40])
    log = JsonlLog(path, 20)
    log.on_step(at(30), REPORT)
    log.close()
    assert [record["step"] for record in records(path)] == [10, 20, 30]


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


def test_a_validation_can_be_seen_before_the_training_ends(tmp_path: Path) -> None:
    log = TensorBoardLog(tmp_path, 0)
    log.on_validation(at(10), VALIDATION)
    assert [event.value for event in read_events(tmp_path).Scalars("dev/bleu")] == pytest.approx([12.34])
    log.close()


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


def test_a_log_file_gets_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(TrainingConfig(max_steps=200, max_epochs=None), steps_per_epoch=8)
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
        (TrainingConfig(max_epochs=5), "2.0 min"),  # 5 epochs of 8 steps, 20 made in 2 minutes
        (TrainingConfig(max_epochs=5, max_steps=30), "1.0 min"),
        (TrainingConfig(max_epochs=5, max_minutes=3.5), "1.5 min"),
        (TrainingConfig(max_epochs=5, max_minutes=2.5), "30 s"),
        (TrainingConfig(max_epochs=5, max_minutes=1.5), "0 s"),  # that is over
        (TrainingConfig(max_epochs=None), None),
    ],
)
def test_the_estimate_is_of_the_bound_that_comes_first(
    plan: TrainingConfig, estimate: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal(plan, steps_per_epoch=8)
    terminal.on_step(at(10), REPORT)
    assert not capsys.readouterr().out
    terminal.on_step(at(20), REPORT)
    terminal.close()
    expected = f"At this speed the training takes about {estimate} more.\n" if estimate else ""
    assert capsys.readouterr().out == expected


def test_the_loss_shown_is_smoothed(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(TrainingConfig(max_epochs=None), steps_per_epoch=8)
    for step in range(1, 6):
        terminal.on_step(at(step), REPORT._replace(loss=4.0 if step == 1 else 2.0))
    terminal.close()
    assert f"loss {2 + 2 * 0.95**4:.3f}" in capsys.readouterr().out


def test_one_loss_that_is_no_number_does_not_spoil_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(TrainingConfig(max_epochs=None), steps_per_epoch=8)
    for step, loss in enumerate([math.nan, 4.0, 4.0, math.inf, math.nan], start=1):
        terminal.on_step(at(step), REPORT._replace(loss=loss))
    terminal.close()
    assert "loss 4.000" in capsys.readouterr().out


def test_updates_that_were_skipped_are_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(TrainingConfig(max_epochs=None), steps_per_epoch=8)
    for step, skipped in ((10, 0), (20, 1), (30, 1), (1040, 3)):
        terminal.on_step(at(step), REPORT._replace(skipped=skipped))
    terminal.close()
    assert capsys.readouterr().out.splitlines() == [
        "step 20: 1 update skipped so far: gradient not finite",
        "step 1,040: 3 updates skipped so far: gradient not finite",
    ]


def test_what_was_skipped_before_a_resume_is_not_told_again(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(TrainingConfig(max_epochs=None), steps_per_epoch=8, skipped=2)
    for step, skipped in ((30, 2), (40, 3)):
        terminal.on_step(at(step), REPORT._replace(skipped=skipped))
    terminal.close()
    assert capsys.readouterr().out.splitlines() == ["step 40: 3 updates skipped so far: gradient not finite"]


def test_a_score_without_a_name_for_people_is_shown_by_its_own() -> None:
    assert str(Validation(0.0, {"bleu": 12.5, "exact_match": 3.0})) == "PPL 1.00  BLEU 12.50  exact_match 3.00"


def test_a_validation_shows_scores_signature_and_samples(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(TrainingConfig(), steps_per_epoch=8)
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


def train(plan: TrainingConfig, *steps: int) -> None:
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
    sent = on_a_terminal(columns, lambda: train(TrainingConfig(max_steps=200), 50, 60), monkeypatch)
    last = bars(sent)[-1]
    assert re.fullmatch(r" 38%\|[█-▏ ]{8,}\| (.*)", last.rstrip())[1] == facts  # type: ignore[index]
    assert all(len(bar) <= columns for bar in bars(sent))
    assert "\n── step 60  6.0 min" in sent.replace("\r", "")
    assert not re.search(r"^step", sent.replace("\r", ""), re.M)


def test_the_bar_of_a_resumed_run_is_where_the_run_is(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = on_a_terminal(80, lambda: train(TrainingConfig(), 80), monkeypatch)
    assert bars(sent)[-1].startswith(" 50%|")
    assert "8.0 min to go" in bars(sent)[-1]


def test_a_bound_in_minutes_moves_the_bar_too(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = on_a_terminal(80, lambda: train(TrainingConfig(max_minutes=8), 60), monkeypatch)
    assert bars(sent)[-1].startswith(" 75%|")
    assert "2.0 min to go" in bars(sent)[-1]


def test_a_bar_is_never_more_than_full(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = on_a_terminal(80, lambda: train(TrainingConfig(max_minutes=8), 100), monkeypatch)
    assert bars(sent)[-1].startswith("100%|")
    assert "0 s to go" in bars(sent)[-1]


def test_without_a_bound_there_is_no_bar_to_fill(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = on_a_terminal(80, lambda: train(TrainingConfig(max_epochs=None), 60), monkeypatch)
    assert not bars(sent)
    assert "step 60  loss 3.250  5,678 tok/s" in sent


@pytest.mark.parametrize("told", [os.terminal_size((0, 0)), OSError(), ValueError()], ids=repr)
def test_a_terminal_that_does_not_tell_its_width_has_eighty_columns(
    told: os.terminal_size | Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tell(_: int) -> os.terminal_size:
        if isinstance(told, Exception):
            raise told
        return told

    monkeypatch.setattr(os, "get_terminal_size", tell)
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)
    assert terminal_columns() == 80


def test_where_no_terminal_is_there_is_no_bar() -> None:
    program = (
        "from tests.utils.training.test_observer import train\n"
        "from utils.training.plan import TrainingConfig\n"
        "train(TrainingConfig(), *range(10, 101, 10))"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=True)
    assert ended.stderr == b""
    assert b"\r" not in ended.stdout
    assert b"\x1b" not in ended.stdout
    assert b"%|" not in ended.stdout
    assert ended.stdout.count(b"step ") == 3


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59, "59 s"),
        (60, "1.0 min"),
        (5399, "90.0 min"),
        (5400, "1.5 h"),
        (172_799, "48.0 h"),
        (172_800, "2.0 days"),
    ],
)
def test_durations_are_said_in_a_unit_that_reads_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_hopeless_loss_still_has_a_perplexity() -> None:
    assert VALIDATION._replace(loss=1e6).perplexity > 1e300
