import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.faults import TinyTraining
from const.path import ROOT
from utils.experiment import trial
from utils.experiment.trial import BusyError, TrainingProcess, run_named, stop_as_by_ctrl_c
from utils.training.report import LOG, read_log

SETTINGS = """
data: {held_out: 8}
tokenizer: {kind: bpe, vocab_size: 48, joint: false}
model: {d_model: 16, n_heads: 2, d_ff: 32, n_encoder_layers: 1, n_decoder_layers: 1, max_length: 40, tie: target}
batch: {tokens_per_batch: 200, max_tokens: 40}
training: {max_steps: 6, validate_every: 3, report_every: 2, precision: fp32, device: cpu}
search: {beam_size: 2, max_ratio: 1.0}
"""


@pytest.fixture(autouse=True)
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIYAKO_CORPUS", str(tmp_path / "corpus"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def training(home: Path, *options: str) -> TrainingProcess:
    tiny = TinyTraining(home, SETTINGS)
    files = ["--data.src", str(home / "my.ja"), "--data.tgt", str(home / "my.en")]
    options = ("--config", str(tiny.folder / "faults.yaml"), *files, *options)
    return TrainingProcess("trial-7", options, home / "study", home / "pickles")


def steps(records: list[dict[str, Any]]) -> list[int]:
    return [record["step"] for record in records]


def test_it_trains_once(tmp_path: Path) -> None:
    first = training(tmp_path)
    assert first.run is None
    with first:
        validations = list(first.validations())
    assert steps(validations) == [3, 6]
    assert all(0 <= record["bleu"] <= 100 and record["loss"] > 0 for record in validations)
    assert first.has_ended
    said = first.said.read_text()
    with training(tmp_path) as second:
        assert list(second.validations()) == validations
    assert second.said.read_text() == said
    assert len(list((tmp_path / "pickles").iterdir())) == 1


def test_only_one_process_trains_it_and_the_next_goes_on_where_that_stood(tmp_path: Path) -> None:
    """It would take hours to its end, and validates every third update."""
    with training(tmp_path, "--training.max_steps", "1000000", "--training.max_epochs", "1000000") as first:
        with pytest.raises(BusyError, match="trial-7"), training(tmp_path):
            pass
        assert next(iter(first.validations()))["step"] == 3
        first.stop()
    assert not first.has_ended
    run = first.run
    assert run is not None
    before = [record["step"] for _, record in read_log(run / LOG) if record["kind"] == "dev"]
    with training(tmp_path) as second:
        after = []
        for record in second.validations():
            after.append(record["step"])
            if len(after) == len(before) + 2:
                second.stop()
    assert second.run == run
    assert after == list(range(3, after[-1] + 1, 3))
    assert "Resuming from step" in second.said.read_text()


def test_ctrl_c_is_for_whoever_began_it_and_a_kill_is_told(tmp_path: Path) -> None:
    """A terminal sends it to all processes of a group, and the second signal would not let it save."""
    with training(tmp_path) as begun:
        assert begun._process is not None
        assert os.getpgid(begun._process.pid) not in (os.getpgid(0), 0)
        begun._process.kill()
        with pytest.raises(ValueError, match=r"trial-7 failed: killed by SIGKILL, .*trial-7\.log"):
            list(begun.validations())


def test_an_orphan_keeps_its_run(tmp_path: Path) -> None:
    """Whoever began the training is killed; the training lives, and so does its lock."""
    options = training(tmp_path, "--training.max_steps", "1000000", "--training.max_epochs", "1000000")._options
    program = (
        "import os, signal, sys; from pathlib import Path;"
        "from utils.experiment.trial import TrainingProcess;"
        f"training = TrainingProcess('trial-7', {list(options)!r}, Path({str(tmp_path / 'study')!r}), "
        f"Path({str(tmp_path / 'pickles')!r})).__enter__(); print(training._process.pid, flush=True);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    parent = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    orphan = int(parent.stdout)
    try:
        assert parent.returncode == -signal.SIGKILL, parent.stderr
        with pytest.raises(BusyError), training(tmp_path):
            pass
    finally:
        os.kill(orphan, signal.SIGKILL)


def test_a_failure_says_why(tmp_path: Path) -> None:
    with (
        training(tmp_path, "--model.n_heads", "3") as failing,
        pytest.raises(ValueError, match=r"trial-7 failed: train.py: error: .*n_heads=3.*trial-7\.log"),
    ):
        list(failing.validations())
    assert not failing.has_ended


def test_a_run_is_known_by_its_whole_name(tmp_path: Path) -> None:
    for name in ("trial-1-20260101-000000", "trial-1-20260102-000000-2", "trial-11-20260103-000000", "trial-1"):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
        (tmp_path / name / "checkpoints" / "step-00000001.pt").touch()
    (tmp_path / "trial-1-20260104-000000" / "checkpoints").mkdir(parents=True)  # killed before it saved
    (tmp_path / "trial-1-20260105-000000" / "checkpoints").mkdir(parents=True)  # killed while it saved
    (tmp_path / "trial-1-20260105-000000" / "checkpoints" / ".step-00000001.pt.7.part").touch()
    found = run_named("trial-1", tmp_path)
    assert found is not None
    assert found.name == "trial-1-20260102-000000-2"
    assert run_named("trial-2", tmp_path) is None


@pytest.mark.parametrize("before", [signal.SIG_DFL, signal.SIG_IGN])
def test_a_closed_terminal_is_as_ctrl_c_unless_it_is_to_be_outlived(before: signal.Handlers) -> None:
    """`nohup` has the signal ignored."""
    found = {number: signal.signal(number, before) for number in (signal.SIGHUP, signal.SIGTERM)}
    try:
        stop_as_by_ctrl_c()
        expected = signal.default_int_handler if before is signal.SIG_DFL else before
        assert {signal.getsignal(number) for number in found} == {expected}
    finally:
        for number, handler in found.items():
            signal.signal(number, handler)


def standing_for(process: object, home: Path) -> TrainingProcess:
    """A training that has begun, with something else in the place of its process."""
    begun = TrainingProcess("trial-7", [], home / "study", home / "pickles")
    begun.said.parent.mkdir()
    begun._process = cast(subprocess.Popen[bytes], process)
    return begun


@pytest.mark.parametrize("status", [130, 143, -signal.SIGINT, -signal.SIGTERM])
def test_what_somebody_else_has_stopped_has_not_failed(tmp_path: Path, status: int) -> None:
    begun = standing_for(SimpleNamespace(poll=lambda: status, returncode=status), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        list(begun.validations())


def test_a_failure_that_says_nothing_has_its_status(tmp_path: Path) -> None:
    begun = standing_for(SimpleNamespace(poll=lambda: 3, returncode=3), tmp_path)
    begun.said.write_text("what an earlier part said\n")
    begun._said_before = begun.said.stat().st_size
    with pytest.raises(ValueError, match=r"^the training trial-7 failed: exit status 3 "):
        list(begun.validations())


def test_a_log_is_read_when_there_is_more_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two validations of a long training it is looked at a thousand times."""
    log = tmp_path / "pickles" / "trial-7-20260102-120000" / LOG
    (log.parent / "checkpoints").mkdir(parents=True)
    (log.parent / "checkpoints" / "step-00000003.pt").touch()
    looks = list[int]()

    def poll() -> int | None:
        looks.append(len(looks))
        with log.open("a") as file:  # at the first look one validation, at the sixth another
            if len(looks) in (1, 6):
                file.write(json.dumps({"step": len(looks), "kind": "dev"}) + "\n")
        return 0 if len(looks) == 9 else None

    def watched(path: Path) -> list[tuple[str, dict[str, Any]]]:
        reads.append(len(looks))
        return read_log(path)

    reads = list[int]()
    monkeypatch.setattr(trial, "read_log", watched)
    begun = standing_for(SimpleNamespace(poll=poll, returncode=0, wait=lambda _: None), tmp_path)
    assert steps(list(begun.validations())) == [1, 6]
    assert reads == [1, 6]


class Deaf:
    """A process that ends only when it is killed."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.interrupted = False  # by Ctrl-C, while it is waited for

    def poll(self) -> int | None:
        return -signal.SIGKILL if "killed" in self.told else None

    def send_signal(self, number: int) -> None:
        self.told.append(signal.Signals(number).name)

    def wait(self, seconds: float | None = None) -> int:
        if self.interrupted:
            raise KeyboardInterrupt
        if seconds is not None:
            self.told.append("waited for")
            raise subprocess.TimeoutExpired("train.py", seconds)
        return -signal.SIGKILL

    def kill(self) -> None:
        self.told.append("killed")


def test_who_does_not_end_is_killed_at_last(tmp_path: Path) -> None:
    deaf = Deaf()
    standing_for(deaf, tmp_path).stop()
    assert deaf.told == ["SIGTERM", "waited for", "killed"]


def test_no_second_signal_is_sent(tmp_path: Path) -> None:
    """Ctrl-C while it is waited for: the block is left, and asks again."""
    deaf = Deaf()
    begun = standing_for(deaf, tmp_path)
    deaf.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        begun.stop()
    deaf.interrupted = False
    begun.stop()
    assert deaf.told == ["SIGTERM", "waited for", "killed"]
