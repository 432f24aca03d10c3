"""A trial: what a study file says of each training, and `train.py` in its own process, watched through its files."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, TypeVar, get_args, get_origin

from config.reader import Text, fields_of, near_name, read_value
from const.path import PICKLES, ROOT
from utils.arguments import as_options, as_text, settings
from utils.command import INTERRUPTED, TERMINATED
from utils.config import AnyConfig, find_settings
from utils.file import require_folder_name
from utils.run import CHECKPOINTS, TEST, runs_named
from utils.training.checkpoint import step_files
from utils.training.report import LOG, read_log

POLL = 1.0  # seconds between checks of the log
PATIENCE = 900.0  # seconds for a training that was asked to stop to finish a validation and save

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class TrialConfig:
    """What a study file says of all its trainings.

    Args:
        name: of the study; the names of its trainings begin with it.
        preset: settings of all trainings, as a path relative to the working directory or the project's folder.
        options: of train.py, overriding the preset's.
    """

    name: str
    preset: Path
    options: dict[str, Any] = field(default_factory=dict)

    def arguments(self, values: Mapping[str, Any]) -> list[str]:
        """Return the arguments of train.py for a training with these options, without its name."""
        return ["--config", str(find_settings(self.preset)), *as_options({**self.options, **values})]

    def settings(self, values: Mapping[str, Any]) -> AnyConfig:
        """Return all settings with these options, as train.py would read them."""
        return settings(self.arguments(values))

    def check(self) -> None:
        """Refuse, before the first training, what train.py would refuse later."""
        require_folder_name(self.name)

    def refuse(self, options: Mapping[str, Any], given: Mapping[str, str]) -> None:
        """Refuse options that are no settings of a training, or are given elsewhere in the file."""
        for option in options:
            if "." not in option:
                raise ValueError(f"{option} is not a setting of a training: give those with a dot, as model.dropout")
            if option in given:
                raise ValueError(f"{option} is not for options: give {given[option]} instead")


def parsed(owner: type[T], given: Any, name: str = "") -> T:
    """Build a dataclass from what a YAML file says; a key without a value counts as absent, a word as its `kind`."""
    kinds = fields_of(owner)
    if isinstance(given, str) and "kind" in kinds:
        given = {"kind": given}
    if not isinstance(given, dict):
        raise ValueError(f"{name}{given} is no group of settings: give {', '.join(kinds)}")
    values = {}
    for key, value in given.items():
        if key not in kinds:
            near = near_name(key, kinds)
            raise ValueError(f"unknown key {key}: {f'did you mean {near}?' if near else 'give ' + ', '.join(kinds)}")
        if value is not None:
            values[key] = _parsed_value(key, kinds[key], value)
    if missing := [leaf.name for leaf in fields(owner) if _is_required(leaf) and leaf.name not in values]:  # type: ignore[arg-type]
        raise ValueError(f"{name}{missing[0]} is missing: give it a value")
    return owner(**values)


def _parsed_value(key: str, kind: Any, value: Any) -> Any:
    if is_dataclass(kind):
        return parsed(kind, value, f"{key}=")  # type: ignore[arg-type]
    if get_origin(kind) is list and isinstance(value, list):
        (each,) = get_args(kind)
        return value if each is Any else [_parsed_value(key, each, item) for item in value]
    if get_origin(kind) is dict or get_origin(kind) is list or isinstance(value, dict | list):
        if not isinstance(value, get_origin(kind) or str):
            wanted = {dict: "a group", list: "a list"}.get(get_origin(kind), "one value")
            raise ValueError(f"{key}={value}: give {wanted}")
        return value
    return read_value(key, kind, Text.of(as_text(value)))


def _is_required(leaf: Any) -> bool:
    return leaf.default is MISSING and leaf.default_factory is MISSING


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
    and entering raises `BusyError`.

    Args:
        name: of the run; no other training has it.
        options: of train.py for a new run; a resumed run has them in its folder.
        folder: where its lock and its output go.
        root: where the runs are.
    """

    def __init__(self, name: str, options: Sequence[str], folder: Path, root: Path = PICKLES) -> None:
        self.name = name
        self.output = folder / f"{name}.log"
        self._options = options
        self._lock_file = folder / f"{name}.lock"
        self._root = root
        self._lock: IO[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self._resumed_at = 0  # bytes of output from before a resume

    @property
    def run(self) -> Path | None:
        """The folder of the run, once something has been saved."""
        return run_named(self.name, self._root)

    def __enter__(self) -> Self:
        self.output.parent.mkdir(parents=True, exist_ok=True)
        self._lock = self._lock_file.open("ab")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise BusyError(self.name) from None
        try:
            if self.run is None or not (self.run / TEST).is_file():
                self._start(self._lock.fileno())
        except BaseException:  # also a signal: nobody else would stop the process that has started
            self.__exit__(None, None, None)
            raise
        return self

    def _start(self, lock: int) -> None:
        begun = self.run
        arguments = [*self._options, "--name", self.name] if begun is None else ["--resume", str(begun)]
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        if self._lock is not None:
            self._lock.close()

    def validations(self) -> Iterator[dict[str, Any]]:
        """Yield the log record of each validation as it comes, earlier ones of a resumed run first, until the end.

        A training that fails raises a ValueError with the last line of its output; one that somebody else has stopped,
        a KeyboardInterrupt.
        """
        step, size = 0, 0
        while not self._stopped:
            # checked before the last read of the log
            alive = self._process is not None and self._process.poll() is None
            log = self.run and self.run / LOG
            records = []
            if log and log.is_file() and (now := log.stat().st_size) != size:  # reading a long one takes a while
                records, size = read_log(log), now
            for _, record in records:
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
        if status < 0:
            why = f"killed by {signal.Signals(-status).name}, perhaps for lack of memory"
        else:
            lines = self.output.read_bytes()[self._resumed_at :].decode(errors="replace").split("\n")
            why = next((line.strip() for line in reversed(lines) if line.strip()), f"exit status {status}")
        raise ValueError(f"the training {self.name} failed: {why} (full output: {self.output})")

    def stop(self) -> None:
        """Have the training save and end."""
        asked, self._stopped = self._stopped, True
        if self._process is None or self._process.poll() is not None:
            return
        if not asked:  # a second signal would not let it save
            self._process.send_signal(signal.SIGTERM)
        if not self._wait(PATIENCE):
            self._process.kill()
            self._process.wait()

    def _wait(self, seconds: float) -> bool:
        """Return whether the process has ended by then."""
        try:
            return self._process is not None and self._process.wait(seconds) is not None
        except subprocess.TimeoutExpired:
            return False
