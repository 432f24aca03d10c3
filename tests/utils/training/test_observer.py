"""What the terminal shows, what is written down, and what a resumed run makes of it."""

import json
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from utils.training.observer import JsonlLog, Sample, StepReport, TensorBoardLog, Terminal, Validation, duration
from utils.training.plan import Progress, TrainingConfig

REPORT = StepReport(3.25, 1.5, 0.0005, 1234, 5678.4, 0.125)
# U+2028 stands inside sentences of real corpora, and is no end of a line
SAMPLE = Sample("都\u2028です", 'the "capital"', "capital")
VALIDATION = Validation(2.0, 12.34, 45.67, "nrefs:1|tok:13a", "nrefs:1|nc:6", [SAMPLE])


def at(step: int, best: int = 0) -> Progress:
    return Progress(step=step, epoch=1, position=2, target_tokens=1234, seconds=6.0 * step, best_step=best)


def records(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


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


def read_events(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def test_tensorboard_reads_the_curves_of_a_resumed_run(tmp_path: Path) -> None:
    for resumed_at, steps in ((0, (10, 20, 30)), (20, (25, 40))):
        log = TensorBoardLog(tmp_path, resumed_at)
        for step in steps:
            log.on_step(at(step), REPORT._replace(loss=step + resumed_at / 100))
            log.on_validation(at(step), VALIDATION._replace(bleu=float(step)))
        log.close()
    events = read_events(tmp_path)
    loss = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert [step for step, _ in loss] == [10, 20, 25, 40]
    assert [value for _, value in loss] == pytest.approx([10, 20, 25.2, 40.2])
    assert [event.value for event in events.Scalars("dev/bleu")] == [10, 20, 25, 40]
    assert set(events.Tags()["scalars"]) == {
        *(f"train/{name}" for name in StepReport._fields),
        *(f"dev/{name}" for name in ("loss", "perplexity", "bleu", "chrf")),
    }


def test_a_validation_can_be_seen_before_the_training_ends(tmp_path: Path) -> None:
    log = TensorBoardLog(tmp_path, 0)
    log.on_validation(at(10), VALIDATION)
    assert [event.value for event in read_events(tmp_path).Scalars("dev/bleu")] == pytest.approx([12.34])
    log.close()


def test_a_log_file_gets_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(TrainingConfig(max_steps=200, max_epochs=None), steps_per_epoch=8)
    for step in range(10, 101, 10):
        terminal.on_step(at(step), REPORT)
    terminal.close()
    out = capsys.readouterr()
    lines = [line for line in out.out.splitlines() if line.startswith("step")]
    assert lines == [
        "step 50/200  epoch 1.25  loss 3.250  5,678 tok/s  padding 12.5%  lr 5.0e-04  5.0 min  ETA 15.0 min",
        "step 100/200  epoch 1.25  loss 3.250  5,678 tok/s  padding 12.5%  lr 5.0e-04  10.0 min  ETA 10.0 min",
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
        (TrainingConfig(max_epochs=5, max_minutes=1.0), "0.0 min"),
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


def test_a_validation_shows_scores_signature_and_samples(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(TrainingConfig(), steps_per_epoch=8)
    terminal.on_validation(at(1000, best=1000), VALIDATION)
    out = capsys.readouterr().out
    head = "── step 1,000  1.7 h  dev loss 2.000 nats/token  PPL 7.39  BLEU 12.34  chrF 45.67"
    assert f"\n{head}  (best so far)\n   nrefs:1|tok:13a\n" in out
    assert f"   source     {SAMPLE.source}\n   reference  {SAMPLE.reference}\n   ours       capital\n" in out
    terminal.on_validation(at(1000, best=900), VALIDATION)
    assert f"\n{head}\n" in capsys.readouterr().out
    terminal.close()


def test_a_terminal_gets_a_bar_and_scores_above_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    terminal = Terminal(TrainingConfig(max_steps=200), steps_per_epoch=8)
    for step in range(10, 61, 10):
        terminal.on_step(at(step), REPORT)
    terminal.on_validation(at(60), VALIDATION)
    terminal.close()
    out = capsys.readouterr()
    assert "60/160" in out.err  # 20 epochs of 8 steps come before 200
    assert "loss 3.250" in out.err
    assert "BLEU 12.34" in out.out
    assert not any(line.startswith("step") for line in out.out.splitlines())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 min"), (5399, "90.0 min"), (5400, "1.5 h"), (172_799, "48.0 h"), (172_800, "2.0 days")],
)
def test_durations_are_said_in_a_unit_that_reads_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_hopeless_loss_still_has_a_perplexity() -> None:
    assert VALIDATION._replace(loss=1e6).perplexity > 1e300
