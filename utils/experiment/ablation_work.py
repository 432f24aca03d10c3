"""The trainings of an ablation, one after the other, however many processes are at them."""

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

POLL = 5.0  # seconds between two looks at trainings that other processes are at


class Begun(Protocol):
    """A training that has begun: `TrainingProcess`, inside its block."""

    @property
    def run(self) -> Path | None:
        """Its folder."""

    def validations(self) -> Iterator[dict[str, Any]]:
        """What it says until its end."""


Begin = Callable[[str, Sequence[str], Path, Path], AbstractContextManager[Begun]]
Score = Callable[[Path, Ablation, Alternative, int], Result]


class Work:
    """Trains and scores what has no result yet; several at once share it.

    Args:
        results: that there shall be.
        root: where runs are.
        begin: a training.
        score: what has been trained.
        poll: seconds between two looks at what other processes are at.
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
        """Until everything has its result, also that which other processes are at now.

        A training that fails is told of and passed over, so that the night is not lost for the others. What translates
        with the base's weights does so with those of one run: where the base is trained anew, all of it is scored anew.

        Raises:
            ValueError: results or runs of other settings are there; trainings have failed.
            KeyboardInterrupt: somebody stopped it; the training has saved.
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
                    except (ValueError, OSError, RuntimeError) as error:  # a full disk, no memory
                        failures.append(_failure(training, error))
                        say(f"failed: {failures[-1]}")
                    bar.update()
                if len(busy) == len(waiting):
                    say.once(f"other processes are at {', '.join(training.name for training in busy)}")
                    time.sleep(self._poll)
                waiting = busy
        if failures:
            raise ValueError(f"{len(failures)} of {n_all} trainings failed: {'; '.join(failures)}")

    def _is_done(self, training: Training) -> bool:
        """Whether all that translates with it has a result, all of the same weights."""
        runs = {self._results.run(alternative, training.seed) for alternative in training.translating}
        return len(runs) == 1 and None not in runs

    def _work_at(self, training: Training, say: "Said", bar: "tqdm[Any]") -> None:
        """Train, or go on, and score all that translates with it; nothing where another process was faster.

        Raises:
            BusyError: another process is at it now.
            ValueError, OSError, RuntimeError: it failed.
        """
        home = self._root / f"ablation-{self._ablation.spec.name}"
        with self._begin(training.name, training.arguments, home, self._root) as begun:
            if self._is_done(training):
                return
            say(f"at {training.name}")
            for record in begun.validations():
                bar.set_postfix_str(f"{training.name}, step {record['step']:,}, dev BLEU {record['bleu']:.2f}")
            if begun.run is None:
                raise ValueError(f"the training {training.name} has left no run: see {home / training.name}.log")
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
    """Lines above a bar, or in a log."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, line: str) -> None:
        """Say it."""
        self._last = line
        print_above_bars(line)

    def once(self, line: str) -> None:
        """Say it, unless nothing else was said since."""
        if line != self._last:
            self(line)


def told(alternative: Alternative, result: Result) -> str:
    """A result in a line."""
    dev = f"dev BLEU {result['dev_bleu']:.2f}, chrF2 {result['dev_chrf']:.2f}"
    test = f"test BLEU {result['test_bleu']:.2f}"
    return f"{alternative}, seed {result['seed']}: {dev}; {test}; {result['minutes']:.1f} min"
