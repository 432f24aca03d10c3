"""A trial: what a study file says of each training, and `train.py` in its own process, watched through its files."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from config.group import Group
from const.path import PICKLES, ROOT
from utils.arguments import as_options, settings
from utils.command import INTERRUPTED, TERMINATED
from utils.config import AnyConfig, find_settings
from utils.file import require_folder_name
from utils.run import CHECKPOINTS, TEST, runs_named
from utils.training.checkpoint import step_files
from utils.training.report import LOG, read_log

POLL = 1.0  # seconds between checks of the log
PATIENCE = 900.0  # seconds for a training that was asked to stop to finish a validation and save


@contextmanager
def mistakes_in(place: str) -> Iterator[None]:
    """Within the block, let every mistake say where it was made."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


@dataclass(frozen=True, kw_only=True)
class TrialConfig(Group):
    """What a study file says of all its trainings; what train.py would refuse is refused when it is read.

    Args:
        name: of the study; the names of its trainings begin with it.
        preset: settings of all trainings, as a path relative to the working directory or the project's folder.
        options: of train.py, overriding the preset's; as written.
    """

    name: str
    preset: Path
    options: dict[str, Any] = field(default_factory=dict)

    def given(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return all options of a training for which these are chosen."""
        return {**self.options, **values}

    def arguments(self, values: Mapping[str, Any]) -> list[str]:
        """Return the arguments of train.py for a training with these options, without its name."""
        return ["--config", str(find_settings(self.preset)), *as_options(self.given(values))]

    def settings(self, values: Mapping[str, Any]) -> AnyConfig:
        """Return all settings with these options, as train.py would read them."""
        return settings(find_settings(self.preset), self.given(values))

    def check(self) -> None:
        """Refuse what is no name of a folder."""
        require_folder_name(self.name)


def refuse_options(options: Mapping[str, Any], elsewhere: Mapping[str, str]) -> None:
    """Refuse options that are no settings of a training, or are given elsewhere in the file."""
    for option in options:
        if "." not in option:
            raise ValueError(f"{option} is not a setting of a training: give those with a dot, as model.dropout")
        if option in elsewhere:
            raise ValueError(f"{option} is not for options: give {elsewhere[option]} instead")


def run_named(name: str, root: Path = PICKLES) -> Path | None:
    """Return the newest run of this name that has saved a checkpoint, if there is one."""
    return next((folder for folder in runs_named(name, root) if step_files(folder / CHECKPOINTS, ".pt")), None)


def stop_as_by_ctrl_c() -> None:
    """Let the running training save after SIGTERM or when the terminal is closed; under nohup it continues."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


class BusyError(Exception):
    """Another process is running this training."""


class TrainingProcess:
    """Trains a run; resumes it if it was started before, and does nothing if it has ended.

    As a context manager it starts the training, and stops it however the block ends; a stopped training has saved. The
    training's process holds the lock, too: as long as either process lives, no second training starts beside an orphan,
    and entering raises `BusyError`. The options are those of a new run: a resumed run has them in its folder.
    """

    def __init__(self, name: str, options: Sequence[str], folder: Path, root: Path = PICKLES) -> None:
        self.name, self.output = name, folder / f"{name}.log"
        self._options, self._root = options, root
        self._held = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self._resumed_at = 0  # bytes of output from before a resume

    @property
    def run(self) -> Path | None:
        """The folder of the run, once something has been saved."""
        return run_named(self.name, self._root)

    def __enter__(self) -> Self:
        self.output.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:  # also a signal undoes all: nobody else would stop the process that has started
            lock = held.enter_context(self.output.with_name(f"{self.name}.lock").open("ab"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BusyError(self.name) from None
            held.callback(self.stop)
            if self.run is None or not (self.run / TEST).is_file():
                self._start(lock.fileno())
            self._held = held.pop_all()
        return self

    def _start(self, lock: int) -> None:
        arguments = [*self._options, "--name", self.name] if self.run is None else ["--resume", str(self.run)]
        with self.output.open("ab") as output:
            self._resumed_at = output.tell()
            self._process = subprocess.Popen(
                [sys.executable, str(ROOT / "train.py"), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | {"MIYAKO_PICKLES": str(self._root)},
                pass_fds=[lock],
                process_group=0,  # Ctrl-C is for the parent process; a second signal would not let it save
            )

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def validations(self) -> Iterator[dict[str, Any]]:
        """Yield the log record of each validation as it comes, earlier ones of a resumed run first, until the end.

        A training that fails raises a ValueError with the last line of its output; one that somebody else has stopped,
        a KeyboardInterrupt.
        """
        step, size = 0, 0
        while not self._stopped:
            alive = self._process is not None and self._process.poll() is None  # before the last read of the log
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
            self._wait(POLL)

    def _require_success(self) -> None:
        status = 0 if self._process is None or self._stopped else self._process.returncode
        if status in (INTERRUPTED, TERMINATED, -signal.SIGINT, -signal.SIGTERM):
            raise KeyboardInterrupt
        if not status:
            return
        why = f"killed by {signal.Signals(-status).name}, perhaps for lack of memory" if status < 0 else ""
        if not why:
            text = self.output.read_bytes()[self._resumed_at :].decode(errors="replace")
            why = text.strip().split("\n")[-1].strip() or f"exit status {status}"
        raise ValueError(f"the training {self.name} failed: {why} (full output: {self.output})")

    def stop(self) -> None:
        """Have the training save and end."""
        asked, self._stopped = self._stopped, True
        if self._process is None or self._process.poll() is not None:
            return
        if not asked:  # a second signal would not let it save
            self._process.send_signal(signal.SIGTERM)
        self._wait(PATIENCE)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _wait(self, seconds: float) -> None:
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
