"""study.py: real trainings in processes of their own, and what it says of those that take no time."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import study
from bench.faults import TinyTraining
from tests.outcome import Outcome, outcome
from tests.utils.experiment.fake_training import World
from utils.command import INTERRUPTED
from utils.config import TranslationConfig
from utils.experiment.study import Study
from utils.experiment.trial import TrainingProcess
from utils.run import CONFIG
from utils.training.report import LOG, read_log

SETTINGS = """
data: {held_out: 8, src: FOLDER/my.ja, tgt: FOLDER/my.en}
tokenizer: {kind: bpe, vocab_size: 48, joint: false}
model: {d_model: 16, n_heads: 2, d_ff: 32, n_encoder_layers: 1, n_decoder_layers: 1, max_length: 40, tie: target}
batch: {tokens_per_batch: 200, max_tokens: 40}
training: {max_steps: 15, max_epochs: null, validate_every: 5, report_every: 2, precision: fp32, device: cpu}
search: {beam_size: 2, max_ratio: 1.0}
"""
STUDY = """
name: tiny
preset: FOLDER/faults.yaml
options: {training.n_samples: 0}
space:
  optimizer.peak_lr: {low: 0.001, high: 0.1, log: true}
  model.d_ff: {choices: [16, 32]}
score: bleu
"""
PATIENCE = 600.0  # seconds

Command = Callable[..., Outcome]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    TinyTraining(tmp_path, SETTINGS.replace("FOLDER", str(tmp_path)))
    (tmp_path / "study.yaml").write_text(STUDY.replace("FOLDER", str(tmp_path)), encoding="utf-8")
    return tmp_path / "study.yaml"


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MIYAKO_CORPUS", str(tmp_path / "corpus"))
    monkeypatch.setenv("MIYAKO_PICKLES", str(tmp_path / "pickles"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs study.py in this process, with trainings that take no time where a world is given."""

    def run_it(*arguments: str | Path, world: World | None = None) -> Outcome:
        train = TrainingProcess if world is None else world.train
        monkeypatch.setattr(study, "Study", partial(Study, root=tmp_path / "pickles", train=train))
        if world is not None:  # drawing takes a second
            monkeypatch.setattr(study, "draw", lambda _: None)
        monkeypatch.setattr(sys, "argv", ["study.py", *map(str, arguments)])
        return outcome("study.py", study.main, capsys)

    return run_it


def dev_steps(folder: Path) -> list[int]:
    """Updates after which the first trial has validated so far."""
    logs = folder.glob(f"pickles/tiny-study/runs/tiny-0-*/{LOG}")
    return [record["step"] for log in logs for _, record in read_log(log) if record["kind"] == "dev"]


def stop_when_it_validates(folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not dev_steps(folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow
def test_a_stopped_study_goes_on_where_it_was(tmp_path: Path, file: Path, command: Command) -> None:
    """Each validation saves, so that the second part begins with the fifth update or later."""
    threading.Thread(target=stop_when_it_validates, args=[tmp_path]).start()
    stopped = command(file, "--trials", "1")
    assert stopped.status == INTERRUPTED
    assert stopped.out.splitlines()[-1] == "stopped; the running training is saved, and the same command resumes it"
    before = dev_steps(tmp_path)
    assert before[-1] < 15

    ended = command(file, "--trials", "1", "--best", tmp_path / "best.yaml", "--json", tmp_path / "all.json")
    assert ended.status == 0
    assert "0 of 1 trials are finished\ntrial 0  complete  BLEU " in ended.out
    folder = tmp_path / "pickles" / "tiny-study"
    assert "Resuming from step" in (folder / "tiny-0.log").read_text(encoding="utf-8")
    assert dev_steps(tmp_path) == [5, 10, 15]
    (run,) = (folder / "runs").iterdir()
    assert (folder / "study.png").read_bytes().startswith(b"\x89PNG")

    written = json.loads((tmp_path / "all.json").read_text(encoding="utf-8"))
    (best,) = written["trials"]
    assert best["run"] == run.name
    trained, settings = TranslationConfig.load(run / CONFIG), TranslationConfig.load(tmp_path / "best.yaml")
    assert settings.name == "tiny-best"
    assert (settings.model, settings.optimizer) == (trained.model, trained.optimizer)
    assert best["options"] == {
        "optimizer.peak_lr": settings.optimizer.peak_lr, "model.d_ff": settings.model.d_ff
    }  # fmt: skip
    assert list(best["by_step"]) == ["5", "10", "15"]


def test_a_line_for_each_trial_and_a_table_at_the_end(file: Path, command: Command, tmp_path: Path) -> None:
    world = World(lambda at: at.step + at.number / 10)
    ended = command(file, "--trials", "4", world=world)
    assert (ended.status, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0] == f"{tmp_path / 'pickles' / 'tiny-study'}: 0 of 4 trials are finished"
    assert [line.split()[1] for line in lines[1:5]] == ["0", "1", "2", "3"]
    assert lines[4].endswith("best 30.30 (trial 3)")
    assert lines[-1].startswith(f"  python train.py --config {tmp_path / 'faults.yaml'} --training.select_by=bleu ")
    again = command(file, "--trials", "4", world=world)
    assert again.out.splitlines()[0].endswith("tiny-study: 4 trials are finished")
    assert again.out.splitlines()[1:] == lines[5:]
    looked_at = command(file, "--trials", "0", "--best", tmp_path / "best.yaml", world=world)
    assert looked_at.out.splitlines()[0].endswith("tiny-study: 4 trials are finished")
    assert looked_at.out.splitlines()[-1].endswith(f"for python train.py --config {tmp_path / 'best.yaml'}")
    assert TranslationConfig.load(tmp_path / "best.yaml").training.select_by == "bleu"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_interruption_says_how_to_go_on(file: Path, command: Command, number: signal.Signals) -> None:
    world = World(lambda at: at.step)
    world.events["tiny-1", 20] = lambda: os.kill(os.getpid(), number)
    signal.signal(number, signal.SIG_DFL)  # also where the tests themselves run under nohup
    ended = command(file, "--trials", "3", world=world)
    assert ended.status == INTERRUPTED
    assert ended.out.splitlines()[-1] == "stopped; the running training is saved, and the same command resumes it"
    assert command(file, "--trials", "3", world=world).status == 0
    assert len(world.options["tiny-1"]) == 2


def test_under_nohup_a_closed_terminal_stops_nothing(file: Path, command: Command) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    world = World(lambda at: at.step)
    world.events["tiny-0", 20] = lambda: os.kill(os.getpid(), signal.SIGHUP)
    assert command(file, "--trials", "1", world=world).status == 0


def test_a_mistake_is_a_line(file: Path, command: Command, tmp_path: Path) -> None:
    world = World(lambda at: at.step)
    assert "--trials -1: give 0 or more" in command(file, "--trials", "-1", world=world).complaint
    assert "no study" in command(tmp_path / "none.yaml", world=world).complaint
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("model.d_ff", "model.dff"), encoding="utf-8")
    assert "did you mean --model.d_ff" in command(file, world=world).complaint
    assert not (tmp_path / "pickles").exists()
    file.write_text(text, encoding="utf-8")
    assert command(file, "--trials", "1", world=world).status == 0
    file.write_text(text.replace("high: 0.1", "high: 0.2"), encoding="utf-8")
    assert "space.optimizer.peak_lr.high was 0.1 and is 0.2" in command(file, world=world).complaint
