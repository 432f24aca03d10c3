"""What a terminal shows, and what a file in its place."""

import math
import os
import pty
import re
import subprocess
import sys
import termios
import threading
from collections.abc import Callable

import pytest

from const.path import ROOT
from tests.utils.training.reports import REPORT, SAMPLE, VALIDATION, at
from utils.training.plan import TranslationTrainingConfig
from utils.training.report import Terminal, terminal_columns


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


def test_the_loss_shown_is_the_mean_of_the_reports_since_the_line_before(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(TranslationTrainingConfig(max_epochs=None), steps_per_epoch=8)
    for step in range(1, 1 + 2 * Terminal.REPORTS_PER_LINE):
        terminal.on_step(at(step), REPORT._replace(loss=40.0 - step))
    terminal.close()
    assert Terminal.REPORTS_PER_LINE == 5
    assert re.findall(r"loss ([\d.]+)", capsys.readouterr().out) == ["37.000", "32.000"]


def test_one_loss_that_is_no_number_does_not_spoil_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(TranslationTrainingConfig(max_epochs=None), steps_per_epoch=8)
    for step, loss in enumerate([math.nan, 4.0, 4.0, math.inf, math.nan], start=1):
        terminal.on_step(at(step), REPORT._replace(loss=loss))
    terminal.close()
    assert "loss 4.000" in capsys.readouterr().out


def test_without_any_loss_none_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(TranslationTrainingConfig(max_epochs=None), steps_per_epoch=8)
    for step in range(1, 1 + Terminal.REPORTS_PER_LINE):
        terminal.on_step(at(step), REPORT._replace(loss=math.nan))
    terminal.close()
    assert "loss nan" in capsys.readouterr().out


def test_updates_that_were_skipped_are_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(TranslationTrainingConfig(max_epochs=None), steps_per_epoch=8)
    for step, skipped in ((10, 0), (20, 1), (30, 1), (1040, 3)):
        terminal.on_step(at(step), REPORT._replace(skipped=skipped))
    terminal.close()
    assert capsys.readouterr().out.splitlines() == [
        "step 20: 1 update skipped so far: gradient not finite",
        "step 1,040: 3 updates skipped so far: gradient not finite",
    ]


def test_what_was_skipped_before_a_resume_is_not_told_again(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(TranslationTrainingConfig(max_epochs=None), steps_per_epoch=8, skipped=2)
    for step, skipped in ((30, 2), (40, 3)):
        terminal.on_step(at(step), REPORT._replace(skipped=skipped))
    terminal.close()
    assert capsys.readouterr().out.splitlines() == ["step 40: 3 updates skipped so far: gradient not finite"]


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


def test_the_bar_of_a_resumed_run_is_where_the_run_is(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = on_a_terminal(80, lambda: train(TranslationTrainingConfig(), 80), monkeypatch)
    assert bars(sent)[-1].startswith(" 50%|")
    assert "8.0 min to go" in bars(sent)[-1]


def test_a_bound_in_minutes_moves_the_bar_too(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = on_a_terminal(80, lambda: train(TranslationTrainingConfig(max_minutes=8), 60), monkeypatch)
    assert bars(sent)[-1].startswith(" 75%|")
    assert "2.0 min to go" in bars(sent)[-1]


def test_a_bar_is_never_more_than_full(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = on_a_terminal(80, lambda: train(TranslationTrainingConfig(max_minutes=8), 100), monkeypatch)
    assert bars(sent)[-1].startswith("100%|")
    assert "0 s to go" in bars(sent)[-1]


def test_without_a_bound_there_is_no_bar_to_fill(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = on_a_terminal(80, lambda: train(TranslationTrainingConfig(max_epochs=None), 60), monkeypatch)
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
        "from tests.utils.training.test_terminal import train\n"
        "from utils.training.plan import TranslationTrainingConfig\n"
        "train(TranslationTrainingConfig(), *range(10, 101, 10))"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=True)
    assert ended.stderr == b""
    assert b"\r" not in ended.stdout
    assert b"\x1b" not in ended.stdout
    assert b"%|" not in ended.stdout
    assert ended.stdout.count(b"step ") == 3
