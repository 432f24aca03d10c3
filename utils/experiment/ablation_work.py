"""The trainings of an ablation, one after another, shared by any number of processes."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from tqdm import tqdm

from const.path import PICKLES
from utils.above_bars import print_above_bars
from utils.experiment.ablation import Ablation, Alternative, Training
from utils.experiment.ablation_result import Result, Results, score_run
from utils.experiment.training_process import BusyError, TrainingProcess

POLL = 5.0  # seconds between checks of trainings that other processes run


class Begun(Protocol):
    """A training that has started: `TrainingProcess`, within its block."""

    @property
    def run(self) -> Path | None:
        """Folder of the run; None: nothing was saved."""

    def validations(self) -> Iterator[dict[str, Any]]:
        """Yield the records of its validations until its end."""


Begin = Callable[[str, Sequence[str], Path, Path], AbstractContextManager[Begun]]
Score = Callable[[Path, Ablation, Alternative, int], Result]


class Work:
    """Trains and scores what has no result yet; several processes can share the work.

    Args:
        results: to complete.
        root: where the runs are.
        begin: starts a training.
        score: scores a finished run.
        poll: seconds between checks of what other processes run.
    """

    def __init__(
        self,
        results: Results,
        root: Path = PICKLES,
        begin: Begin = TrainingProcess,
        score: Score = score_run,
        poll: float = POLL,
    ) -> None:
        self._results = results
        self._ablation = results.ablation
        self._root = root
        self._begin = begin
        self._score = score
        self._poll = poll

    def finish(self) -> None:
        """Work until everything has a result, including what other processes are running now.

        A training that fails is reported and skipped, so that the night is not lost for the rest. All that translates
        with the base's weights uses those of one run: if the base is trained again, all of it is scored again.

        Raises:
            ValueError: when there are results or runs of other settings, or trainings have failed.
            KeyboardInterrupt: when it was stopped; the training has saved.
        """
        self._results.require_same(self._root)
        waiting = [training for training in self._ablation.trainings() if not self._is_done(training)]
        n_all, failures = len(self._ablation.trainings()), []
        with tqdm(total=n_all, initial=n_all - len(waiting), unit="training", dynamic_ncols=True, disable=None) as bar:
            say = Said()
            while waiting:
                busy = []
                for training in waiting:
                    try:
                        self._work_at(training, say, bar)
                    except BusyError:
                        busy.append(training)
                        continue
                    except (ValueError, OSError, RuntimeError) as error:  # a full disk or lack of memory, say
                        failures.append(_failure(training, error))
                        say(f"failed: {failures[-1]}")
                    bar.update()
                if len(busy) == len(waiting):
                    say.once(f"other processes are running {', '.join(training.name for training in busy)}")
                    time.sleep(self._poll)
                waiting = busy
        if failures:
            raise ValueError(f"{len(failures)} of {n_all} trainings failed: {'; '.join(failures)}")

    def _is_done(self, training: Training) -> bool:
        """Return whether all that translates with it has a result, with the same weights."""
        runs = {self._results.run(alternative, training.seed) for alternative in training.translating}
        return len(runs) == 1 and None not in runs

    def _work_at(self, training: Training, say: "Said", bar: "tqdm[Any]") -> None:
        """Train or resume, and score all that translates with it; do nothing if another process was faster.

        Raises:
            BusyError: when another process is running it now.
            ValueError, OSError, RuntimeError: when it failed.
        """
        home = self._root / f"ablation-{self._ablation.spec.name}"
        with self._begin(training.name, training.arguments, home, self._root) as begun:
            if self._is_done(training):
                return
            say(f"training {training.name}")
            for record in begun.validations():
                bar.set_postfix_str(f"{training.name}, step {record['step']:,}, dev BLEU {record['bleu']:.2f}")
            if begun.run is None:
                raise ValueError(f"the training {training.name} left no run: see {home / training.name}.log")
            for alternative in training.translating:
                if self._results.run(alternative, training.seed) == begun.run.name:
                    continue
                result = self._score(begun.run, self._ablation, alternative, training.seed)
                self._results.write(alternative, training.seed, result)
                say(told(alternative, result))


def _failure(training: Training, error: Exception) -> str:
    line = " ".join(str(error).split())
    return line if training.name in line else f"{training.name}: {line}"


class Said:
    """Prints lines above a bar, or in a log."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, line: str) -> None:
        """Print a line."""
        self._last = line
        print_above_bars(line)

    def once(self, line: str) -> None:
        """Print a line unless it was also the last one."""
        if line != self._last:
            self(line)


def told(alternative: Alternative, result: Result) -> str:
    """Return a result as a line."""
    dev = f"dev BLEU {result['dev_bleu']:.2f}, chrF2 {result['dev_chrf']:.2f}"
    test = f"test BLEU {result['test_bleu']:.2f}"
    return f"{alternative}, seed {result['seed']}: {dev}; {test}; {result['minutes']:.1f} min"
