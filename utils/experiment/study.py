"""A study: many trainings whose settings Optuna draws (Akiba et al. 2019), learning from their dev scores.

Everything is in the study's own folder: a journal, which several processes may write to at once, and the runs.
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
from utils.training.progress import Progress

RUNS = "runs"  # one folder per trial, kept apart from those that translate.py searches
PICTURE = "study.png"

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
WHY = "why"  # the reason why a trial failed
MINUTES = "minutes"  # duration of its training

_JOURNAL = "journal.log"
_SETTINGS = "settings"  # what all trials of the study share
_FAILURES = 3  # in a row, after which the cause is probably not in the drawn settings
_POLL = 1.0  # seconds between checks of what other processes do


class Training(Protocol):
    """The part of a `TrainingProcess` that a study needs."""

    @property
    def has_ended(self) -> bool:
        """Whether the training is complete."""

    def __enter__(self) -> Self:
        """Start or resume the training."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Have the training save and end."""

    def validations(self) -> Iterator[dict[str, Any]]:
        """Yield the log record of each validation as it comes."""

    def stop(self) -> None:
        """Have the training save and end."""


Train = Callable[[str, Sequence[str], Path, Path], Training]  # name, options of train.py, folder, root of runs


class Study:
    """Draws settings, trains with them and records the scores; resumes a study that was started before.

    A trial whose process was stopped or killed is still running according to the journal, but nobody holds the lock of
    its training: the next process to look for work resumes that trial.

    Args:
        config: the study file.
        root: where the runs are; the study gets a folder among them.
        train: starts or resumes a training.

    Raises:
        ValueError: when the study was started with other settings.
    """

    def __init__(self, config: StudyConfig, root: Path = PICKLES, train: Train = TrainingProcess) -> None:
        self.config = config
        self.folder = root / f"{config.name}-study"
        self._train = train
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # its own messages would mix with ours
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
                f"the study {self.config.name} was started with other settings: {_first(found)}: rename this one"
            )

    def _alone(self) -> AbstractContextManager[None]:
        """Within the block, no other process takes or returns a trial."""
        return locked(self.folder / "claim.lock")

    def trials(self, *states: TrialState) -> list[FrozenTrial]:
        """Return the trials in any of these states, or all."""
        return self._optuna.get_trials(deepcopy=False, states=states or None)

    def ranked(self) -> list[FrozenTrial]:
        """Return the complete trials, best first; of equal scores, the earlier first."""
        sign = 1 if self.config.minimised else -1
        return sorted(self.trials(TrialState.COMPLETE), key=lambda trial: sign * (trial.value or 0.0))

    @property
    def best(self) -> FrozenTrial | None:
        """The best complete trial, if there is one."""
        return next(iter(self.ranked()), None)

    def importance(self) -> dict[str, float]:
        """Return how much each option matters for being among the best, by PED-ANOVA (Watanabe et al. 2023).

        Empty with fewer than two complete trials per option.
        """
        if len(self.trials(TrialState.COMPLETE)) < 2 * len(self.config.space):
            return {}
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        return optuna.importance.get_param_importances(self._optuna, evaluator=evaluator)

    def values(self, trial: FrozenTrial) -> dict[str, Any]:
        """Return the settings that a trial has drawn."""
        return drawn_values(self.config.space, trial.params)

    def run_name(self, trial: FrozenTrial) -> str:
        """Return the run name of a trial's training; its folder under `runs` begins with it."""
        return f"{self.config.name}-{trial.number}"

    def go_on(
        self,
        n_trials: int,
        say: Callable[[str], None] = print,
        on_validation: Callable[[int, int, float], None] = lambda *_: None,
    ) -> Iterator[FrozenTrial]:
        """Train until the study has this many finished trials; yield those that ended here, failed ones included.

        Args:
            n_trials: number of complete or pruned trials, whichever process trained them.
            say: called with a line about what is waited for.
            on_validation: called at each validation with the trial's number, the update and the score.

        Raises:
            ValueError: when several trials in a row have failed.
            KeyboardInterrupt: when this process or its training was told to stop.
        """
        failures, is_waiting = 0, False
        while True:
            with ExitStack() as held:
                claimed = self._claim(n_trials, held)
                if claimed is not None:
                    trial, training = claimed
                    is_waiting = False
                    state, value = self._follow(trial, training, on_validation)
                    with (
                        self._alone()
                    ):  # no other process may find the training free before the trial's result is recorded
                        self._optuna.tell(trial, value, state)
                        held.close()
            if claimed is None:
                if len(self.trials(*FINISHED)) >= n_trials:
                    return
                if not is_waiting:
                    numbers = ", ".join(str(one.number) for one in self.trials(TrialState.RUNNING))
                    say(f"waiting for trial {numbers}, which another process is training")
                    is_waiting = True
                time.sleep(_POLL)
                continue
            finished = self.trials()[trial.number]
            failures = failures + 1 if finished.state == TrialState.FAIL else 0
            yield finished
            if failures == _FAILURES:
                raise ValueError(
                    f"{failures} trials in a row failed: see the reasons above; the same command resumes the study"
                )

    def _claim(self, n_trials: int, held: ExitStack) -> tuple[Trial, Training] | None:
        """Take an abandoned trial, or a new one if more are wanted; its training runs until `held` is closed."""
        with self._alone():
            if len(self.trials(*FINISHED)) >= n_trials:
                return None
            for left in self.trials(TrialState.RUNNING):
                if left.params.keys() != self.config.space.keys():  # killed while drawing them
                    self._optuna.tell(left.number, state=TrialState.FAIL)
                elif (training := self._enter(left, held)) is not None:
                    return self._again(left.number), training
            if len(self.trials(*FINISHED, TrialState.RUNNING)) >= n_trials:
                return None
            # a seed for each trial: two processes with the same seed would draw the same settings
            (seed,) = np.random.SeedSequence((self.config.seed, len(self.trials()))).generate_state(1)
            self._optuna.sampler = self.config.sampler.build(int(seed))
            trial = self._optuna.ask({option: domain.distribution for option, domain in self.config.space.items()})
            training = self._enter(self.trials()[trial.number], held)
            return None if training is None else (trial, training)

    def _again(self, number: int) -> Trial:
        """Return a trial that was started before, for reporting to it."""
        study_id = self._storage.get_study_id_from_name(self.config.name)
        return Trial(self._optuna, self._storage.get_trial_id_from_study_id_trial_number(study_id, number))

    def _enter(self, trial: FrozenTrial, held: ExitStack) -> Training | None:
        """Start or resume the training of a trial; None if another process is running it.

        Raises:
            ValueError: when a run of this name has other settings, because the journal was removed, for example.
        """
        name, values = self.run_name(trial), self.values(trial)
        if (run := run_named(name, self.folder / RUNS)) is not None:
            ours = self.config.settings(values)
            found = changed_settings(read_config(run, type(ours)).plain(), ours.plain())
            if found := {key: pair for key, pair in found.items() if not _is_filled_in(key, ours)}:
                raise ValueError(f"{run} is not a run of trial {trial.number}: {_first(found)}: remove that folder")
        training = self._train(name, self.config.arguments(values), self.folder, self.folder / RUNS)
        try:
            return held.enter_context(training)
        except BusyError:
            return None

    def _follow(
        self, trial: Trial, training: Training, on_validation: Callable[[int, int, float], None]
    ) -> tuple[TrialState, float | None]:
        """Report each validation, and stop a training that is not worth continuing."""
        pick = min if self.config.minimised else max
        score, best, progress = self.config.scored, None, Progress()
        plan = self.config.settings(drawn_values(self.config.space, trial.params)).training
        known = set(self.trials()[trial.number].intermediate_values)  # from before a resume
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
                over = training.has_ended or progress.ended(plan)  # then there is nothing left to prune
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
    """Describe the first difference."""
    name, (was, now) = next(iter(differences.items()))
    if was is ABSENT:
        return f"{name} is new"
    return f"{name} was {as_text(was)} and is " + ("gone" if now is ABSENT else as_text(now))


def _is_filled_in(name: str, config: AnyConfig) -> bool:
    """Return whether a training sets this itself: its name, or the architecture of the BERT that it starts from."""
    if isinstance(config, ClassificationConfig) and config.model.init_encoder is not None:
        return name == "name" or name.removeprefix("model.") in config.model.architecture()
    return name == "name" or f"{name}.".startswith("model.bert.")


def _cut_torn_line(journal: Path) -> None:
    """Remove an incomplete last line left by a crash: Optuna would append the next line to it, and read neither."""
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
