"""A study: many trainings whose settings Optuna draws (Akiba et al. 2019), learning from their dev scores.

Everything is in the study's own folder: a journal, which several processes may write to at once, and the runs.
"""

import json
import math
import os
import shlex
import time
from argparse import ArgumentError
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, Self

import numpy as np
import optuna
import yaml
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import BasePruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import FrozenTrial, Trial, TrialState

from const.path import PICKLES
from utils.arguments import as_options, as_text, settings
from utils.command import Parser, aligned
from utils.config import AnyConfig, ClassificationConfig, find_settings, read_yaml
from utils.experiment.trial import BusyError, TrainingProcess, run_named
from utils.file import locked, require_folder_name, write_json
from utils.run import read_config
from utils.training.checkpoint import ABSENT, changed_settings
from utils.training.plan import Criterion, Progress
from utils.training.report import SCORES
from utils.visualize.curve import sheet

# What a study searches: the values that each option of train.py may have.


def unknown_key(key: object, known: list[str]) -> str:
    """Return the error message for an unknown key."""
    near = get_close_matches(str(key), known, n=1, cutoff=0.5)
    return f"unknown key {key}: " + (f"did you mean {near[0]}?" if near else f"give {', '.join(known)}")


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; whole numbers if both ends are.

    Args:
        low: smallest value.
        high: largest value.
        log: draw uniformly on a logarithmic scale.
        step: distance between the values, from `low`; null: any value.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None

    def __post_init__(self) -> None:
        """Refuse a range that nothing can be drawn from."""
        if not self.low < self.high:
            raise ValueError(f"low={self.low} is not below high={self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"low={self.low} has no logarithm: give more than 0, or leave log out")
        if self.step is None:
            return
        if self.log:
            raise ValueError(f"step={self.step} and log do not go together: leave one of them out")
        if self.step <= 0:
            raise ValueError(f"step={self.step}: give more than 0")
        n_steps = (self.high - self.low) / self.step
        if not math.isclose(n_steps, round(n_steps), rel_tol=1e-6):
            raise ValueError(f"high={self.high} is not a whole number of steps={self.step} above low={self.low}")
        if self.is_whole and not isinstance(self.step, int):
            raise ValueError(f"step={self.step} of whole numbers: give a whole number, or low={float(self.low)}")

    @property
    def is_whole(self) -> bool:
        """Whether the values are whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def distribution(self) -> BaseDistribution:
        """The range as an Optuna distribution."""
        if self.is_whole:
            return IntDistribution(int(self.low), int(self.high), self.log, int(self.step or 1))
        return FloatDistribution(self.low, self.high, self.log, self.step)

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values to check: a mistake shows at the ends first."""
        return self.low, self.high

    def value(self, drawn: Any) -> Any:
        """Return what Optuna has drawn as a setting."""
        return drawn


@dataclass(frozen=True)
class Choices:
    """Unordered values of any type that YAML has.

    Args:
        choices: the values.
    """

    choices: tuple[Any, ...]

    def __post_init__(self) -> None:
        """Refuse fewer than two values, and duplicates."""
        texts = [as_text(choice) for choice in self.choices]
        if len(texts) < 2:
            raise ValueError(f"choices={texts}: give at least two, or put the one under options")
        if twice := [text for text in texts if texts.count(text) > 1]:
            raise ValueError(f"choices has {twice[0]} twice: leave one of them out")

    @property
    def distribution(self) -> BaseDistribution:
        """The choice as an Optuna distribution over their texts: Optuna cannot store lists."""
        return CategoricalDistribution([as_text(choice) for choice in self.choices])

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values to check: all of them."""
        return self.choices

    def value(self, drawn: Any) -> Any:
        """Return what Optuna has drawn as a setting."""
        return next(choice for choice in self.choices if as_text(choice) == drawn)


Domain = Range | Choices


def read_domain(given: Any) -> Domain:
    """Read a domain such as `{low: 1e-4, high: 1e-2, log: true}` or `{choices: [relu, gelu]}`.

    Raises:
        ValueError: when it is something else.
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"{as_text(given)} is not a range: give {{low: ..., high: ...}} or {{choices: [...]}}")
    kind = Choices if "choices" in given else Range
    known = [field.name for field in fields(kind)]
    for key in given:
        if key not in known:
            raise ValueError(unknown_key(key, known))
    if kind is Choices:
        choices = given["choices"]
        if not isinstance(choices, list):
            raise ValueError(f"choices={as_text(choices)} is not a list: give [..., ...]")
        return Choices(tuple(choices))
    for key in ("low", "high"):
        if key not in given:
            raise ValueError(f"a range without {key}: give one")
    if not isinstance(log := given.get("log", False), bool):
        raise ValueError(f"log={as_text(log)}: give true or false")
    step = given.get("step")
    low, high = _number("low", given["low"]), _number("high", given["high"])
    return Range(low, high, log, None if step is None else _number("step", step))


def _number(name: str, value: Any) -> float:
    """Return a finite number; also from `1e-4`, which YAML 1.1 reads as a string."""
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        raise ValueError(f"{name}={as_text(value)} is not a number")
    return number


def drawn_values(space: Mapping[str, Domain], params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a trial has drawn, in the order of the study file."""
    return {option: domain.value(params[option]) for option, domain in space.items() if option in params}


def each_end(space: Mapping[str, Domain]) -> Iterator[tuple[str, Any]]:
    """Yield each option with each end of its range."""
    for option, domain in space.items():
        for end in domain.ends:
            yield option, end


# A study file: which training is repeated, what varies, and how the next values are chosen.


@dataclass(frozen=True)
class SamplerConfig:
    """How the next values are chosen: near those of good trials, by TPE (Bergstra et al. 2011).

    Args:
        startup_trials: number of trials that are drawn at random first.
    """

    startup_trials: int = 10

    def build(self, seed: int) -> BaseSampler:
        """Build the Optuna sampler."""
        return TPESampler(n_startup_trials=self.startup_trials, seed=seed)


@dataclass(frozen=True)
class PrunerConfig:
    """When a training is pruned, that is, given up early.

    Args:
        kind: median prunes a training whose best score so far is worse than the median score of complete trials at
            that update; none prunes nothing.
        startup_trials: number of complete trials before pruning starts.
        warmup_steps: updates of each training before it may be pruned.
    """

    kind: Literal["median", "none"] = "median"
    startup_trials: int = 5
    warmup_steps: int = 0

    def build(self) -> BasePruner:
        """Build the Optuna pruner."""
        if self.kind == "median":
            return MedianPruner(n_startup_trials=self.startup_trials, n_warmup_steps=self.warmup_steps)
        return NopPruner()


@dataclass(frozen=True)
class StudyConfig:
    """The contents of a study file; a key without a value counts as absent.

    Args:
        name: of the study; its folder is pickles/<name>-study.
        preset: settings shared by all trials, as a path relative to the working directory or the project's folder.
        space: options of train.py, with the values that may be drawn for each.
        options: of train.py, overriding the preset's.
        sampler: how the next values are chosen.
        pruner: when a training is given up early.
        score: dev score to optimise; null: the preset's training.select_by.
        seed: for drawing values.
    """

    name: str
    preset: Path
    space: Mapping[str, Domain]
    options: dict[str, Any] = field(default_factory=dict)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    pruner: PrunerConfig = field(default_factory=PrunerConfig)
    score: Criterion | None = None
    seed: int = 1

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a study file, and check every option and every end of a range with train.py's own parser.

        Raises:
            ValueError: when there is no such file, or it is invalid.
        """
        if not path.is_file():
            raise ValueError(f"no study {path}: give a YAML file such as const/study/demo.yaml")
        given = read_yaml(path)
        try:
            study = cls._read(given)
            study.check()
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        return study

    @classmethod
    def _read(cls, given: Any) -> Self:
        known = [leaf.name for leaf in fields(cls)]
        if not isinstance(given, dict):
            raise ValueError(f"no settings of a study: give {', '.join(known)}")
        for key in given:
            if key not in known:
                raise ValueError(unknown_key(key, known))
        given = {key: value for key, value in given.items() if value is not None}
        if isinstance(kind := given.get("pruner"), str):
            given["pruner"] = {"kind": kind}
        for group in ("sampler", "pruner"):
            if not isinstance(settings_of := given.get(group, {}), dict):
                raise ValueError(f"{group} is a group of settings, not {as_text(settings_of)}: give settings below it")
            for key, value in settings_of.items():
                if value is None:
                    raise ValueError(f"{group}.{key} cannot be null: give it a value, or leave it out")
        space = given.get("space")
        if not isinstance(space, dict) or not space:
            raise ValueError("a study without a space: name at least one option, with its range or choices")
        domains = {option: _domain_of(option, domain) for option, domain in space.items()}
        parser = Parser(exit_on_error=False)
        parser.add_class_arguments(cls, skip={"space"})
        try:
            parsed = parser.instantiate(parser.parse_object({key: given[key] for key in given if key != "space"}))
        except ArgumentError as error:
            raise ValueError(parser.explain(str(error))) from error
        return cls(**(vars(parsed) | {"space": domains}))

    def check(self) -> None:
        """Refuse what train.py would refuse, before the first trial starts.

        Raises:
            ValueError: when anything is invalid; one line.
        """
        require_folder_name(self.name)
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}: give 0 or more")
        for option in (*self.options, *self.space):
            if "." not in option:
                raise ValueError(
                    f"{option} is not a setting of a training: give those with a dot, such as training.max_steps"
                )
            if option == "training.select_by":
                raise ValueError(f"{option} decides how trials are compared: give score instead")
            if option in self.options and option in self.space:
                raise ValueError(f"{option} is under options and under space: leave one of them out")
        self.settings()
        for option, end in each_end(self.space):
            try:
                self.settings({option: end})
            except ValueError as error:
                raise ValueError(f"space.{option}, {as_text(end)}: {error}") from error
        if self.minimised and (cut := [option for option in self.space if option.startswith("tokenizer.")]):
            raise ValueError(f"the loss is per token, and {cut[0]} changes what a token is: give score: bleu")
        if self.pruner.kind != "none" and (sizes := [option for option in self.space if option in _UPDATE]):
            raise ValueError(
                f"trainings are pruned by comparing scores after the same number of updates, and {sizes[0]} changes "
                "the size of an update: give pruner: none"
            )

    @cached_property
    def scored(self) -> str:
        """The name of the score."""
        return self.score or self.settings().training.select_by

    @property
    def minimised(self) -> bool:
        """Whether a lower score is better."""
        return self.scored == "loss"

    def arguments(self, values: Mapping[str, Any]) -> list[str]:
        """Return the arguments of train.py for a trial that has drawn these values."""
        by = {} if self.score is None else {"training.select_by": self.score}
        return ["--config", str(find_settings(self.preset)), *as_options({**by, **self.options, **values})]

    def settings(self, values: Mapping[str, Any] | None = None) -> AnyConfig:
        """Return all settings of a trial that has drawn these values.

        Raises:
            ValueError: when train.py would refuse them.
        """
        return settings(self.arguments(values or {}))

    def plain(self) -> dict[str, Any]:
        """Return what makes scores comparable, in JSON types; study files with equal ones can share trials."""
        preset = yaml.safe_load(find_settings(self.preset).read_text(encoding="utf-8"))
        space = {option: vars(domain) for option, domain in self.space.items()}
        return {"preset": preset, "options": self.options, "space": space, "score": self.scored}


_UPDATE = {
    f"batch.{name}" for name in ("tokens_per_batch", "sentences_per_batch", "accumulate", "n_streams", "segment_length")
}


def _domain_of(option: object, given: Any) -> Domain:
    try:
        return read_domain(given)
    except ValueError as error:
        raise ValueError(f"space.{option}: {error}") from error


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


# A picture of a hyperparameter search: its trials, their learning curves, and the importance of each setting.

_BEST, _OTHER, _PRUNED = "C3", "C0", "0.6"


class DrawnTrial(NamedTuple):
    """A trial as shown in the picture."""

    number: int
    state: Literal["complete", "pruned"]
    score: float  # best score of a complete trial, last score of a pruned one
    curve: Mapping[int, float]  # score by update


def draw_study(
    trials: Sequence[DrawnTrial],
    score: str,
    minimised: bool,
    importance: Mapping[str, float],
    picture: Path,
) -> None:
    """Draw scores over trials, scores over updates and, if known, the importance of each setting, as a PNG.

    Args:
        trials: trials in order.
        score: name of the score, for labels.
        minimised: whether the lowest score is the best.
        importance: share of each setting; empty: unknown.
        picture: file to write.
    """
    pick = min if minimised else max
    complete = [trial for trial in trials if trial.state == "complete"]
    best = pick(complete, key=lambda trial: trial.score, default=None)
    widths = (1.1, 1.1, 0.8)[: 3 if importance else 2]
    with sheet(picture, (14 if importance else 10, 4), columns=len(widths), widths=widths) as axes:
        _draw_history(axes[0], trials, best, minimised)
        _draw_curves(axes[1], trials, best)
        axes[0].set(title="Trials", xlabel="trial", ylabel=f"dev {score}")
        axes[1].set(title="Learning curves", xlabel="updates", ylabel=f"dev {score}")
        for ax in axes[:2]:
            ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
            ax.grid(alpha=0.3)
        axes[0].legend(frameon=False)
        if importance:
            _draw_importance(axes[2], importance)


def _draw_history(ax: Axes, trials: Sequence[DrawnTrial], best: DrawnTrial | None, minimised: bool) -> None:
    complete = [trial for trial in trials if trial.state == "complete"]
    pruned = [trial for trial in trials if trial.state == "pruned"]
    if complete:
        scores = accumulate((trial.score for trial in complete), min if minimised else max)
        steps = [*zip((trial.number for trial in complete), scores, strict=True)]
        steps.append((max(trial.number for trial in trials), steps[-1][1]))
        ax.step(*zip(*steps, strict=True), where="post", color=_BEST, lw=1.2, label="best so far")
        ax.plot([t.number for t in complete], [t.score for t in complete], "o", color=_OTHER, ms=6, label="complete")
    if pruned:
        ax.plot(
            [t.number for t in pruned], [t.score for t in pruned], "x", color=_PRUNED, ms=6, mew=1.5, label="pruned"
        )
    if best is not None:
        ax.plot(best.number, best.score, "o", color=_BEST, ms=9, label=f"best, trial {best.number}")


def _draw_curves(ax: Axes, trials: Sequence[DrawnTrial], best: DrawnTrial | None) -> None:
    for trial in trials:
        points = sorted(trial.curve.items())
        if not points:
            continue
        style: dict[str, Any] = {"marker": "o", "color": _OTHER, "lw": 0.9, "ms": 3}
        if trial.state == "pruned":
            style = {"marker": "x", "color": _PRUNED, "lw": 0.9, "ms": 6, "mew": 1.5}
        elif trial is best:
            style = {"marker": "o", "color": _BEST, "lw": 1.8, "ms": 5, "zorder": 3}
        ax.plot(*zip(*points, strict=True), markevery=[-1], **style)


def _draw_importance(ax: Axes, importance: Mapping[str, float]) -> None:
    names = sorted(importance, key=lambda name: importance[name])
    shares = [importance[name] for name in names]
    bars = ax.barh(names, shares, color=_OTHER, height=0.6)
    ax.bar_label(bars, [f"{share:.0%}" for share in shares], padding=3)
    ax.set(title="Importance", xlim=(0, 1.15 * max(shares)), xlabel="for being among the best")
    ax.xaxis.set_major_formatter(PercentFormatter(1))
    ax.xaxis.set_major_locator(MaxNLocator(nbins=4))
    ax.grid(axis="x", alpha=0.3)
    ax.set_axisbelow(True)


# Reports of a study: a line for each trial, the best trials, how to train with their settings.

_SHOWN = 5  # trials in the table


def shown_score(study: Study, value: float) -> str:
    """Format a score with as many digits as are meaningful."""
    return f"{value:.4f}" if study.config.minimised else f"{value:.2f}"


def label(study: Study) -> str:
    """Return the name of the score to show."""
    return SCORES.get(study.config.scored, study.config.scored)


def short_names(options: Iterable[str]) -> dict[str, str]:
    """Shorten `optimizer.peak_lr` to `peak_lr`, unless another option has the same ending."""
    options = list(options)
    ends = [option.rpartition(".")[2] for option in options]
    return {option: end if ends.count(end) == 1 else option for option, end in zip(options, ends, strict=True)}


def shown_values(study: Study, trial: FrozenTrial) -> dict[str, str]:
    """Return what a trial has drawn, in readable form."""
    names = short_names(study.config.space)
    return {
        names[option]: f"{value:.4g}" if isinstance(value, float) else as_text(value)
        for option, value in study.values(trial).items()
    }


def trial_line(study: Study, trial: FrozenTrial) -> str:
    """Return a line with how a trial ended, and the best so far."""
    drawn = "  ".join(f"{name} {value}" for name, value in shown_values(study, trial).items())
    state = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned"}.get(trial.state, "failed")
    line = f"trial {trial.number}  {state}"
    if trial.state == TrialState.PRUNED and trial.last_step is not None:
        line += f" at step {trial.last_step:,}"
    if trial.value is not None:
        line += f"  {label(study)} {shown_score(study, trial.value)}"
    line += f"  {drawn}"
    if MINUTES in trial.user_attrs:
        line += f"  {trial.user_attrs[MINUTES]:.1f} min"
    if trial.state == TrialState.FAIL:
        return f"{line}: {trial.user_attrs.get(WHY, 'stopped while drawing its settings')}"
    if (best := study.best) is not None and best.value is not None:
        line += f"  best {shown_score(study, best.value)} (trial {best.number})"
    return line


def summary(study: Study) -> list[str]:
    """Return lines: number of trials, table of the best, importance of the options, how to train with the best."""
    counts = {
        state: len(study.trials(key))
        for state, key in (
            ("complete", TrialState.COMPLETE),
            ("pruned", TrialState.PRUNED),
            ("failed", TrialState.FAIL),
            ("running", TrialState.RUNNING),
        )
    }
    lines = [f"{study.folder}: " + ", ".join(f"{n} {state}" for state, n in counts.items() if n)]
    best = study.ranked()[:_SHOWN]
    if not best:
        return [*lines, "no trial is complete yet"]
    names = short_names(study.config.space)
    rows = [["trial", label(study), *names.values(), "min"]]
    rows += [
        [
            str(trial.number),
            shown_score(study, trial.value or 0.0),
            *shown_values(study, trial).values(),
            f"{trial.user_attrs[MINUTES]:.1f}",
        ]
        for trial in best
    ]
    lines += ["", *aligned(rows, "r" * len(rows[0]))]
    if importance := study.importance():
        shares = (f"{names[option]} {share:.0%}" for option, share in importance.items())
        lines += ["", f"importance for being among the best: {', '.join(shares)}"]
    if (picture := study.folder / PICTURE).is_file():
        lines += ["", f"picture: {picture}"]
    how = "to train with the best settings (add --training.max_steps or --training.max_epochs to train longer):"
    return [*lines, "", how, f"  {best_command(study, best[0])}"]


def best_command(study: Study, trial: FrozenTrial) -> str:
    """Return the command that trains with a trial's settings, for the same length."""
    arguments = study.config.arguments(study.values(trial))
    return shlex.join(["python", "train.py", *arguments, "--name", f"{study.config.name}-best"])


def write_best(study: Study, path: Path) -> None:
    """Write all settings of the best trial, for train.py --config.

    Raises:
        ValueError: when no trial is complete yet.
    """
    if (best := study.best) is None:
        raise ValueError(f"no trial of {study.config.name} is complete yet: resume it")
    replace(study.config.settings(study.values(best)), name=f"{study.config.name}-best").save(path)


def write_trials(study: Study, path: Path) -> None:
    """Write all trials, with everything that was reported of them."""
    best = study.best
    found = {
        "study": study.config.name,
        "score": study.config.scored,
        "minimised": study.config.minimised,
        "best": None if best is None else best.number,
        "importance": study.importance(),
        "trials": [_plain(study, trial) for trial in study.trials()],
    }
    write_json(path, found)


def _plain(study: Study, trial: FrozenTrial) -> dict[str, Any]:
    run = run_named(study.run_name(trial), study.folder / RUNS)
    return {
        "number": trial.number,
        "state": trial.state.name.lower(),
        "score": trial.value,
        "options": study.values(trial),
        "minutes": trial.user_attrs.get(MINUTES),
        "run": None if run is None else run.name,
        "by_step": {str(step): value for step, value in sorted(trial.intermediate_values.items())},
        "why": trial.user_attrs.get(WHY),
    }


def draw(study: Study) -> None:
    """Draw the study into its folder, if any trial is finished."""
    trials = [
        DrawnTrial(
            trial.number,
            "complete" if trial.state == TrialState.COMPLETE else "pruned",
            trial.value,
            trial.intermediate_values,
        )
        for trial in study.trials(*FINISHED)
        if trial.value is not None
    ]
    names = short_names(study.config.space)
    importance = {names[option]: share for option, share in study.importance().items()}
    if trials:
        draw_study(trials, label(study), study.config.minimised, importance, study.folder / PICTURE)
