"""A trial: what a study file says of each training, and `train.py` in its own process, watched through its files."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from config.bound import Config
from const.path import PICKLES, ROOT
from utils.arguments import as_options, config_with
from utils.command import INTERRUPTED, TERMINATED
from utils.config import AnyConfig, find_settings
from utils.file import locked, require_folder_name
from utils.run import CHECKPOINTS, TEST, runs_named
from utils.training.checkpoint import step_files
from utils.training.report import LOG, read_log

POLL = 1.0  # seconds between checks of the log, and of what other processes do
PATIENCE = 900.0  # seconds for a training that was asked to stop to finish a validation and save


@contextmanager
def mistakes_in(place: str) -> Iterator[None]:
    """Within the block, let every mistake say where it was made."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


@dataclass(frozen=True, kw_only=True)
class TrialConfig(Config):
    """What a study file says of all its trainings; what train.py would refuse is refused when it is read."""

    name: str  # of the study; the names of its trainings begin with it
    preset: Path  # relative to the working directory or the project's folder
    options: dict[str, Any] = field(default_factory=dict)  # of train.py, overriding the preset's; as written

    def given(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return all options of a training for which these are chosen."""
        return {**self.options, **values}

    def arguments(self, values: Mapping[str, Any]) -> list[str]:
        """Return the arguments of train.py for a training with these options, without its name."""
        return ["--config", str(find_settings(self.preset)), *as_options(self.given(values))]

    def settings(self, values: Mapping[str, Any]) -> AnyConfig:
        """Return all settings with these options, as train.py would read them."""
        return config_with(find_settings(self.preset), self.given(values))

    def check(self) -> None:
        """Refuse what is no name of a folder."""
        require_folder_name(self.name)

    def refuse(self, options: Mapping[str, Any], elsewhere: Mapping[str, str]) -> None:
        """Refuse options that are no settings of a training, or are given elsewhere in the file."""
        for option in options:
            if "." not in option:
                raise ValueError(f"{option} is not a setting of a training: give those with a dot, as model.dropout")
            if option in elsewhere:
                raise ValueError(f"{option} is not for options: give {elsewhere[option]} instead")


def stop_as_by_ctrl_c() -> None:
    """Let the running training save after SIGTERM or when the terminal is closed; under nohup it continues."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


def run_named(name: str, root: Path = PICKLES) -> Path | None:
    """Return the newest run of this name that has saved a checkpoint, if there is one."""
    return next((folder for folder in runs_named(name, root) if step_files(folder / CHECKPOINTS, ".pt")), None)


class TrainingProcess:
    """A `train.py` that is watched; there is no process if its run had ended before."""

    def __init__(self, name: str, output: Path, root: Path) -> None:
        self.name, self.output, self._root = name, output, root
        self.process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    @property
    def run(self) -> Path | None:
        """The folder of the run, once something has been saved."""
        return run_named(self.name, self._root)

    def start(self, options: Sequence[str], lock: int) -> None:
        """Train with these options, or resume with those of the run."""
        arguments = [*options, "--name", self.name] if self.run is None else ["--resume", str(self.run)]
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(ROOT / "train.py"), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | {"MIYAKO_PICKLES": str(self._root)},
                pass_fds=[lock],
                process_group=0,  # Ctrl-C is for the parent process; a second signal would not let it save
            )

    def validations(self) -> Iterator[dict[str, Any]]:
        """Yield the log record of each validation as it comes, earlier ones of a resumed run first, until the end.

        A training that fails raises a ValueError with the last line of its output; one that somebody else has stopped,
        a KeyboardInterrupt.
        """
        step, size = 0, 0
        while not self._stopped:
            alive = self.process is not None and self.process.poll() is None  # before the last read of the log
            log = self.run and self.run / LOG
            if log and log.is_file() and (now := log.stat().st_size) != size:  # reading a long one takes a while
                size = now
                for _, record in read_log(log):
                    if record["kind"] == "dev" and record["step"] > step:
                        step = record["step"]
                        yield record
            if not alive:
                self._require_success()
                return
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(POLL)  # type: ignore[union-attr]  # it is alive

    def _require_success(self) -> None:
        status = 0 if self.process is None or self._stopped else self.process.returncode
        if status in (INTERRUPTED, TERMINATED, -signal.SIGINT, -signal.SIGTERM):
            raise KeyboardInterrupt
        if status:
            last = self.output.read_text(errors="replace").strip().split("\n")[-1].strip() or f"exit status {status}"
            why = f"killed by {signal.Signals(-status).name}, perhaps for lack of memory" if status < 0 else last
            raise ValueError(f"the training {self.name} failed: {why} (full output: {self.output})")

    def stop(self) -> None:
        """Have the training save and end."""
        asked, self._stopped = self._stopped, True
        if self.process is None:
            return
        if not asked:  # a second signal would not let it save
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def training_process(
    name: str, options: Sequence[str], folder: Path, root: Path = PICKLES
) -> Iterator[TrainingProcess]:
    """Train a run, or resume it if it was started before, and stop it however the block ends; it has saved then.

    The training's process holds the lock, too: as long as either process lives, no second training starts beside an
    orphan, and `BusyError` is raised.
    """
    training = TrainingProcess(name, folder / f"{name}.log", root)
    with locked(folder / f"{name}.lock", f"another process is running the training {name}") as lock:
        try:
            if training.run is None or not (training.run / TEST).is_file():
                training.start(options, lock)
            yield training
        finally:
            training.stop()
