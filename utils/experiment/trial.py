"""A training in its own process: `train.py` as a user starts it, watched through the files in its folder."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from const.path import PICKLES, ROOT
from utils.command import INTERRUPTED, TERMINATED
from utils.run import CHECKPOINTS, TEST, runs_named
from utils.training.checkpoint import step_files
from utils.training.report import LOG, read_log

POLL = 1.0  # seconds between checks of the log
PATIENCE = 900.0  # seconds for a training that was asked to stop to finish a validation and save


def run_named(name: str, root: Path = PICKLES) -> Path | None:
    """Return the newest run of this name that has saved a checkpoint, if there is one."""
    return next((folder for folder in runs_named(name, root) if step_files(folder / CHECKPOINTS, ".pt")), None)


class BusyError(Exception):
    """Another process is running this training."""


def stop_as_by_ctrl_c() -> None:
    """Let the running training save after SIGTERM or when the terminal is closed; under nohup it continues."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


class TrainingProcess:
    """Trains a run; resumes it if it was started before, and does nothing if it has ended.

    As a context manager it starts the training, and stops it however the block ends; a stopped training has saved. The
    training's process holds the lock, too: as long as either process lives, no second training starts beside an orphan.

    Args:
        name: of the run; no other training has it.
        options: of train.py for a new run; a resumed run has them in its folder.
        folder: where its lock and its output go.
        root: where the runs are.

    Raises:
        BusyError: on entering, when another process is running the training.
    """

    def __init__(self, name: str, options: Sequence[str], folder: Path, root: Path = PICKLES) -> None:
        self.name = name
        self.said = folder / f"{name}.log"
        self._options = options
        self._lock_file = folder / f"{name}.lock"
        self._root = root
        self._lock: IO[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self._said_before = 0  # bytes of output from before a resume

    @property
    def run(self) -> Path | None:
        """The folder of the run, once something has been saved."""
        return run_named(self.name, self._root)

    @property
    def has_ended(self) -> bool:
        """Whether the training is complete, and tested."""
        return self.run is not None and (self.run / TEST).is_file()

    def __enter__(self) -> Self:
        self.said.parent.mkdir(parents=True, exist_ok=True)
        self._lock = self._lock_file.open("ab")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise BusyError(self.name) from None
        try:
            if not self.has_ended:
                self._start(self._lock.fileno())
        except BaseException:  # also a signal: nobody else would stop the process that has started
            self.__exit__(None, None, None)
            raise
        return self

    def _start(self, lock: int) -> None:
        begun = self.run
        arguments = [*self._options, "--name", self.name] if begun is None else ["--resume", str(begun)]
        with self.said.open("ab") as said:
            self._said_before = said.tell()
            self._process = subprocess.Popen(
                [sys.executable, str(ROOT / "train.py"), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=os.environ | {"MIYAKO_PICKLES": str(self._root)},
                pass_fds=[lock],
                process_group=0,  # Ctrl-C is for the parent process; a second signal would not let it save
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        if self._lock is not None:
            self._lock.close()

    def validations(self) -> Iterator[dict[str, Any]]:
        """Yield the log record of each validation as it comes, earlier ones of a resumed run first, until the end.

        Raises:
            ValueError: when it failed; the message names the file with its output.
            KeyboardInterrupt: when it was stopped from outside.
        """
        step, size = 0, 0
        while True:
            alive = (
                self._process is not None and self._process.poll() is None
            )  # checked before the last read of the log
            log = self.run and self.run / LOG
            records = []
            if log and log.is_file() and (now := log.stat().st_size) != size:  # reading a long one takes a while
                records, size = read_log(log), now
            for _, record in records:
                if record["kind"] == "dev" and record["step"] > step:
                    step = record["step"]
                    yield record
            if self._stopped:
                return
            if not alive:
                break
            self._wait(POLL)
        self._require_success()

    def _require_success(self) -> None:
        status = 0 if self._process is None else self._process.returncode
        if status in (INTERRUPTED, TERMINATED, -signal.SIGINT, -signal.SIGTERM):
            raise KeyboardInterrupt
        if not status:
            return
        if status < 0:
            why = f"killed by {signal.Signals(-status).name}, perhaps for lack of memory"
        else:
            lines = self.said.read_bytes()[self._said_before :].decode(errors="replace").split("\n")
            why = next((line.strip() for line in reversed(lines) if line.strip()), f"exit status {status}")
        raise ValueError(f"the training {self.name} failed: {why} (full output: {self.said})")

    def stop(self) -> None:
        """Have the training save and end."""
        asked, self._stopped = self._stopped, True
        if self._process is None or self._process.poll() is not None:
            return
        if not asked:  # a second signal would not let it save
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait(self, seconds: float) -> None:
        if self._process is not None:
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                return
