"""A training in a process of its own: `train.py` as anybody starts it, watched by what it writes into its folder."""

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
from utils.command_line import INTERRUPTED, TERMINATED
from utils.run import CHECKPOINTS, TEST
from utils.training.jsonl_log import LOG, read_log
from utils.training.step_file import step_files

POLL = 1.0  # seconds between two looks at the log
PATIENCE = 900.0  # seconds that a training which was asked to stop has to end a validation and save


def run_named(name: str, root: Path = PICKLES) -> Path | None:
    """The newest run of this name that has saved anything, if there is one."""
    stamp = "[0-9]" * 8 + "-" + "[0-9]" * 6
    folders = [folder for end in ("", "-*") for folder in root.glob(f"{name}-{stamp}{end}")]
    return max((folder for folder in folders if step_files(folder / CHECKPOINTS, ".pt")), default=None)


class BusyError(Exception):
    """Another process is at this training."""


def stop_as_by_ctrl_c() -> None:
    """SIGTERM, and a terminal that is closed, let the training that runs save; under nohup it goes on."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


class TrainingProcess:
    """Trains a run, goes on with it where it was begun before, and does nothing where it has ended.

    As a context manager it starts and, however the block ends, stops; a training that is stopped has saved. The lock is
    the training's too: it is held for as long as one of both lives, so that no second one begins beside an orphan.

    Args:
        name: of the run; no other training has it.
        options: of train.py, for the first time; a resumed run has them in its folder.
        folder: where its lock and what it prints go.
        root: where runs are.

    Raises:
        BusyError: on entering, when another process has begun it and lives.
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
        self._said_before = 0  # bytes of earlier parts

    @property
    def run(self) -> Path | None:
        """The folder, once something has been saved."""
        return run_named(self.name, self._root)

    @property
    def has_ended(self) -> bool:
        """Whether it was trained to its end, and tested."""
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
        except BaseException:  # a signal too: nobody else would stop what has begun
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
                process_group=0,  # Ctrl-C is for whoever began it, and a second signal would not let it save
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        if self._lock is not None:
            self._lock.close()

    def validations(self) -> Iterator[dict[str, Any]]:
        """What its log says of each validation, as they come, those of earlier parts first; ends with the training.

        Raises:
            ValueError: it failed; says where to read why.
            KeyboardInterrupt: somebody else stopped it.
        """
        step, size = 0, 0
        while True:
            alive = self._process is not None and self._process.poll() is None  # asked before the last look at the log
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
            why = f"killed by {signal.Signals(-status).name}, for want of memory maybe"
        else:
            lines = self.said.read_bytes()[self._said_before :].decode(errors="replace").split("\n")
            why = next((line.strip() for line in reversed(lines) if line.strip()), f"exit status {status}")
        raise ValueError(f"the training {self.name} failed: {why} (all that it said: {self.said})")

    def stop(self) -> None:
        """Have it save and end."""
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
