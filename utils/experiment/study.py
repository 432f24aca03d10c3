"""A study: many trainings that Optuna draws the settings of (Akiba et al. 2019), and whose dev scores it learns from.

All of it lies in a folder of its own: a journal, which several processes may write at once, and the runs.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import FrozenTrial, Trial, TrialState

from const.path import PICKLES
from utils.changed_setting import ABSENT, changed_settings
from utils.config import AnyConfig, ClassificationConfig
from utils.experiment.search_space import drawn_values
from utils.experiment.study_config import StudyConfig
from utils.experiment.train_options import as_text
from utils.experiment.training_process import BusyError, TrainingProcess, run_named
from utils.file import locked
from utils.run import read_config
from utils.training.plan import Progress

RUNS = "runs"  # one folder a trial, out of the way of those that translate.py looks for
PICTURE = "study.png"

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
WHY = "why"  # a trial failed
MINUTES = "minutes"  # that its training took

_JOURNAL = "journal.log"
_SETTINGS = "settings"  # that all trials of the study have
_FAILURES = 3  # in a row, after which the mistake is probably not the trials'
_POLL = 1.0  # seconds between two looks at what other processes do


class Training(Protocol):
    """What a study must know of a `TrainingProcess`."""

    @property
    def has_ended(self) -> bool:
        """Whether it was trained to its end."""

    def __enter__(self) -> Self:
        """Begin, or go on."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Have it save and end."""

    def validations(self) -> Iterator[dict[str, Any]]:
        """What its log says of each, as they come."""

    def stop(self) -> None:
        """Have it save and end."""


Train = Callable[[str, Sequence[str], Path, Path], Training]  # name, options of train.py, folder, root of runs


class Study:
    """Draws settings, trains with them, remembers the scores; goes on with what was begun before.

    A trial whose process was stopped or killed is still running in the journal, but nobody holds the lock of its
    training: whoever comes next goes on with that very trial.

    Args:
        config: what the study file says.
        root: where runs are; the study gets a folder among them.
        train: begins a training, or goes on with it.

    Raises:
        ValueError: the study was begun with other settings.
    """

    def __init__(self, config: StudyConfig, root: Path = PICKLES, train: Train = TrainingProcess) -> None:
        self.config = config
        self.folder = root / f"{config.name}-study"
        self._train = train
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # its own lines would stand between ours
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._alone():
            journal = self.folder / _JOURNAL
            _cut_torn_line(journal)
            self._storage = JournalStorage(JournalFileBackend(str(journal)))
            self._optuna = optuna.create_study(
                storage=self._storage,
                study_name=config.name,
                direction="minimize" if config.minimised else "maximize",
                pruner=config.pruner.build(),
                load_if_exists=True,
            )
            self._require_same_settings()

    def _require_same_settings(self) -> None:
        ours = json.loads(json.dumps(self.config.plain(), default=str))
        theirs = self._optuna.user_attrs.get(_SETTINGS)
        if theirs is None:
            self._optuna.set_user_attr(_SETTINGS, ours)
        elif found := changed_settings(theirs, ours):
            raise ValueError(
                f"the study {self.config.name} was begun otherwise: {_first(found)}: give this one another name"
            )

    def _alone(self) -> AbstractContextManager[None]:
        """Inside, no other process takes a trial or gives one back."""
        return locked(self.folder / "claim.lock")

    def trials(self, *states: TrialState) -> list[FrozenTrial]:
        """Those in one of these states, or all."""
        return self._optuna.get_trials(deepcopy=False, states=states or None)

    def ranked(self) -> list[FrozenTrial]:
        """Those that were trained to their end, the best first; of equals the first."""
        sign = 1 if self.config.minimised else -1
        return sorted(self.trials(TrialState.COMPLETE), key=lambda trial: sign * (trial.value or 0.0))

    @property
    def best(self) -> FrozenTrial | None:
        """The first of them."""
        return next(iter(self.ranked()), None)

    def importance(self) -> dict[str, float]:
        """Of each option for being among the best, PED-ANOVA (Watanabe et al. 2023); of few trials nothing is known."""
        if len(self.trials(TrialState.COMPLETE)) < 2 * len(self.config.space):
            return {}
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        return optuna.importance.get_param_importances(self._optuna, evaluator=evaluator)

    def values(self, trial: FrozenTrial) -> dict[str, Any]:
        """The settings that a trial has drawn."""
        return drawn_values(self.config.space, trial.params)

    def run_name(self, trial: FrozenTrial) -> str:
        """Of its training; the folder under `runs` begins with it."""
        return f"{self.config.name}-{trial.number}"

    def go_on(
        self,
        n_trials: int,
        say: Callable[[str], None] = print,
        on_validation: Callable[[int, int, float], None] = lambda *_: None,
    ) -> Iterator[FrozenTrial]:
        """Train until so many trials of the study are finished; yields those that ended here, failed ones too.

        Args:
            n_trials: complete or pruned, whoever has trained them.
            say: is told what is waited for.
            on_validation: is told of each: the trial's number, the update, the score.

        Raises:
            ValueError: one failure follows the other.
            KeyboardInterrupt: this process was told to stop, or its training.
        """
        failures, is_waiting = 0, False
        while True:
            with ExitStack() as held:
                claimed = self._claim(n_trials, held)
                if claimed is not None:
                    trial, training = claimed
                    is_waiting = False
                    state, value = self._follow(trial, training, on_validation)
                    with self._alone():  # nobody may find the training free and the trial not yet told
                        self._optuna.tell(trial, value, state)
                        held.close()
            if claimed is None:
                if len(self.trials(*FINISHED)) >= n_trials:
                    return
                if not is_waiting:
                    numbers = ", ".join(str(one.number) for one in self.trials(TrialState.RUNNING))
                    say(f"waiting for trial {numbers}, which another process trains")
                    is_waiting = True
                time.sleep(_POLL)
                continue
            finished = self.trials()[trial.number]
            failures = failures + 1 if finished.state == TrialState.FAIL else 0
            yield finished
            if failures == _FAILURES:
                raise ValueError(
                    f"{failures} trials in a row failed: see why above; the same command goes on with the study"
                )

    def _claim(self, n_trials: int, held: ExitStack) -> tuple[Trial, Training] | None:
        """A trial that is nobody's, or a new one where more are wanted; its training goes on for as long as `held`."""
        with self._alone():
            if len(self.trials(*FINISHED)) >= n_trials:
                return None
            for left in self.trials(TrialState.RUNNING):
                if left.params.keys() != self.config.space.keys():  # killed while it drew them
                    self._optuna.tell(left.number, state=TrialState.FAIL)
                elif (training := self._enter(left, held)) is not None:
                    return self._again(left.number), training
            if len(self.trials(*FINISHED, TrialState.RUNNING)) >= n_trials:
                return None
            # a seed for each trial: two processes that began with one seed would draw the same
            (seed,) = np.random.SeedSequence((self.config.seed, len(self.trials()))).generate_state(1)
            self._optuna.sampler = self.config.sampler.build(int(seed))
            trial = self._optuna.ask({option: domain.distribution for option, domain in self.config.space.items()})
            training = self._enter(self.trials()[trial.number], held)
            return None if training is None else (trial, training)

    def _again(self, number: int) -> Trial:
        """A trial that was begun before, to be reported to."""
        study_id = self._storage.get_study_id_from_name(self.config.name)
        return Trial(self._optuna, self._storage.get_trial_id_from_study_id_trial_number(study_id, number))

    def _enter(self, trial: FrozenTrial, held: ExitStack) -> Training | None:
        """Its training, unless another process is at it.

        Raises:
            ValueError: a run of this name has other settings, as where somebody has removed the journal.
        """
        name, values = self.run_name(trial), self.values(trial)
        if (run := run_named(name, self.folder / RUNS)) is not None:
            ours = self.config.settings(values)
            found = changed_settings(read_config(run, type(ours)).plain(), ours.plain())
            if found := {key: pair for key, pair in found.items() if not _is_filled_in(key, ours)}:
                raise ValueError(f"{run} is no run of trial {trial.number}: {_first(found)}: remove that folder")
        training = self._train(name, self.config.arguments(values), self.folder, self.folder / RUNS)
        try:
            return held.enter_context(training)
        except BusyError:
            return None

    def _follow(
        self, trial: Trial, training: Training, on_validation: Callable[[int, int, float], None]
    ) -> tuple[TrialState, float | None]:
        """Report each validation, and stop where it is not worth going on."""
        pick = min if self.config.minimised else max
        score, best, progress = self.config.scored, None, Progress()
        plan = self.config.settings(drawn_values(self.config.space, trial.params)).training
        known = set(self.trials()[trial.number].intermediate_values)  # of an earlier part
        try:
            for record in training.validations():
                if record["step"] not in known:
                    trial.set_user_attr(MINUTES, record["minutes"])
                value = record.get(score)
                progress.step, progress.epoch = record["step"], record["epoch"]
                progress.seconds = 60 * record["minutes"]
                progress.note(float("-inf") if value is None else -value if self.config.minimised else value)
                if value is None:  # not finite
                    continue
                best = value if best is None else pick(best, value)
                on_validation(trial.number, record["step"], value)
                if record["step"] not in known:
                    trial.report(value, record["step"])
                over = training.has_ended or progress.ended(plan)  # then there is nothing left to be given up
                if not over and trial.should_prune():
                    training.stop()
                    return TrialState.PRUNED, None
        except ValueError as error:
            trial.set_user_attr(WHY, str(error))
            return TrialState.FAIL, None
        if best is None:
            trial.set_user_attr(WHY, f"no validation has a finite {score}")
            return TrialState.FAIL, None
        return TrialState.COMPLETE, best


def _first(differences: Mapping[str, tuple[Any, Any]]) -> str:
    """The first of them, in words."""
    name, (was, now) = next(iter(differences.items()))
    if was is ABSENT:
        return f"{name} is new"
    return f"{name} was {as_text(was)} and is " + ("gone" if now is ABSENT else as_text(now))


def _is_filled_in(name: str, config: AnyConfig) -> bool:
    """Whether a training gives itself this setting: its name, or the architecture of the BERT that it begins with."""
    if isinstance(config, ClassificationConfig) and config.model.init_encoder is not None:
        return name == "name" or name.removeprefix("model.") in config.model.architecture()
    return name == "name" or f"{name}.".startswith("model.bert.")


def _cut_torn_line(journal: Path) -> None:
    """Remove what a crash has left of a line: Optuna would write the next one behind it, and read neither."""
    if not journal.exists():
        return
    lock = JournalFileSymlinkLock(str(journal))
    lock.acquire()
    try:
        whole = journal.read_bytes().rfind(b"\n") + 1
        if whole < journal.stat().st_size:
            os.truncate(journal, whole)
    finally:
        lock.release()
