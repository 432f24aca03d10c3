"""A search: many trainings whose settings Optuna draws (Akiba et al. 2019), learning from their dev scores.

Everything is in the search's own folder: a journal, which several processes may write to at once, and the runs.
"""

import json
import os
import shlex
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import matplotlib.pyplot as plt
import numpy as np
import optuna
import yaml
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import MedianPruner, NopPruner
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import FrozenTrial, Trial, TrialState
from optuna.visualization import matplotlib as plots

from config.training import Criterion
from const.path import PICKLES
from utils.arguments import as_text
from utils.command import aligned, print_above_bars
from utils.config import find_settings
from utils.experiment.trial import BusyError, TrainingProcess, TrialConfig, parsed, run_named
from utils.file import atomic_file, locked, write_json
from utils.training.checkpoint import ABSENT, changed_settings
from utils.training.report import SCORES

# What a study file says of a search.


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; whole numbers if both ends are.

    Args:
        low: smallest value.
        high: largest value.
        log: draw uniformly on a logarithmic scale.
        step: distance between the values, from `low`; null: any value.
    """

    low: int | float
    high: int | float
    log: bool = False
    step: int | float | None = None

    @property
    def distribution(self) -> BaseDistribution:
        """The range as an Optuna distribution, which refuses what cannot be drawn."""
        step = self.step or 1
        n_steps = (self.high - self.low) / step
        if n_steps <= 0 or self.step == 0 or (self.step and abs(n_steps - round(n_steps)) > 1e-6 * n_steps):
            raise ValueError(f"high={self.high} is not above low={self.low} by a whole number of steps={step} above 0")
        if isinstance(self.low, int) and isinstance(self.high, int):
            if isinstance(step, float):
                raise ValueError(f"step={step} of whole numbers: give a whole number, or low={float(self.low)}")
            return IntDistribution(self.low, self.high, self.log, step)
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
    """Unordered values of any type that YAML has; Optuna is given their texts, for it cannot store lists."""

    choices: list[Any]

    @property
    def distribution(self) -> BaseDistribution:
        """The choice as an Optuna distribution."""
        texts = [as_text(choice) for choice in self.choices]
        if len({*texts}) < max(2, len(texts)):
            raise ValueError(f"choices={texts}: give at least two, each once")
        return CategoricalDistribution(texts)

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values to check: all of them."""
        return tuple(self.choices)

    def value(self, drawn: Any) -> Any:
        """Return what Optuna has drawn as a setting."""
        return next(choice for choice in self.choices if as_text(choice) == drawn)


@dataclass(frozen=True)
class SamplerConfig:
    """How the next values are chosen: near those of good trials, by TPE (Bergstra et al. 2011).

    Args:
        startup_trials: number of trials that are drawn at random first.
    """

    startup_trials: int = 10


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


_SIZES_OF_UPDATE = {
    f"batch.{name}" for name in ("tokens_per_batch", "sentences_per_batch", "accumulate", "n_streams", "segment_length")
}


@dataclass(frozen=True, kw_only=True)
class StudyConfig(TrialConfig):
    """The contents of a study file with a `space`.

    Args:
        space: options of train.py, with the values that may be drawn for each: `{low: 1e-4, high: 1e-2, log: true}`
            or `{choices: [relu, gelu]}`.
        sampler: how the next values are chosen.
        pruner: when a training is given up early; a word is its kind.
        score: dev score to optimise; null: the preset's training.select_by.
        seed: for drawing values.
    """

    space: dict[str, Any]
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    pruner: PrunerConfig = field(default_factory=PrunerConfig)
    score: Criterion | None = None
    seed: int = 1

    @cached_property
    def domains(self) -> dict[str, Range | Choices]:
        """The values that may be drawn for each option."""
        found: dict[str, Range | Choices] = {}
        for option, given in self.space.items():
            try:
                has_choices = isinstance(given, dict) and "choices" in given
                domain = parsed(Choices, given) if has_choices else parsed(Range, given)
                _ = domain.distribution
                found[option] = domain
            except ValueError as error:
                raise ValueError(f"space.{option}: {error}") from error
        return found

    @cached_property
    def scored(self) -> str:
        """The name of the score."""
        return self.score or self.settings({}).training.select_by

    @property
    def minimised(self) -> bool:
        """Whether a lower score is better."""
        return self.scored == "loss"

    def arguments(self, values: Mapping[str, Any]) -> list[str]:
        """Return the arguments of train.py for a trial that has drawn these values."""
        return super().arguments(values if self.score is None else {"training.select_by": self.score, **values})

    def check(self) -> None:
        """Refuse, before the first trial, every option and every end of a range that train.py would refuse."""
        super().check()
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}: give 0 or more")
        if not self.space:
            raise ValueError("space is empty: name at least one option, with its range or choices")
        self.refuse(self.space, {"training.select_by": "score"})
        self.refuse(self.options, {"training.select_by": "score", **dict.fromkeys(self.space, "its range")})
        self.settings({})
        for option, domain in self.domains.items():
            for end in domain.ends:
                try:
                    self.settings({option: end})
                except ValueError as error:
                    raise ValueError(f"space.{option}, {as_text(end)}: {error}") from error
            if self.minimised and option.startswith("tokenizer."):
                raise ValueError(f"the loss is per token, and {option} changes what a token is: give score: bleu")
            if self.pruner.kind != "none" and option in _SIZES_OF_UPDATE:
                raise ValueError(
                    "trainings are pruned by comparing scores after the same number of updates, and "
                    f"{option} changes the size of an update: give pruner: none"
                )

    def plain(self) -> dict[str, Any]:
        """Return what makes scores comparable, in JSON types; study files with equal ones can share trials."""
        preset = yaml.safe_load(find_settings(self.preset).read_text(encoding="utf-8"))
        space = {option: vars(domain) for option, domain in self.domains.items()}
        plain = {"preset": preset, "options": self.options, "space": space, "score": self.scored}
        found: dict[str, Any] = json.loads(json.dumps(plain, default=str))
        return found


# The search.

RUNS = "runs"  # one folder per trial, kept apart from those that translate.py searches
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
WHY = "why"  # the reason why a trial failed
MINUTES = "minutes"  # duration of its training

_SETTINGS = "settings"  # what all trials of the study share
_FAILURES = 3  # in a row, after which the cause is probably not in the drawn settings
_POLL = 1.0  # seconds between checks of what other processes do


class Study:
    """Draws settings, trains with them and records the scores; resumes a study that was started before.

    A trial whose process was stopped or killed is still running according to the journal, but nobody holds the lock of
    its training: the next process to look for work resumes that trial.

    Args:
        config: the study file.
        root: where the runs are; the study gets a folder among them.
    """

    def __init__(self, config: StudyConfig, root: Path = PICKLES) -> None:
        self.config = config
        self.folder = root / f"{config.name}-study"
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # its own messages would mix with ours
        self.folder.mkdir(parents=True, exist_ok=True)
        pruner = config.pruner
        median = MedianPruner(n_startup_trials=pruner.startup_trials, n_warmup_steps=pruner.warmup_steps)
        with self._alone():
            journal = self.folder / "journal.log"
            _cut_torn_line(journal)
            self._storage = JournalStorage(JournalFileBackend(str(journal)))
            self.optuna = optuna.create_study(
                storage=self._storage,
                study_name=config.name,
                direction="minimize" if config.minimised else "maximize",
                pruner=median if pruner.kind == "median" else NopPruner(),
                load_if_exists=True,
            )
            self._require_same_settings()

    def _require_same_settings(self) -> None:
        ours, theirs = self.config.plain(), self.optuna.user_attrs.get(_SETTINGS)
        if theirs is None:
            if (runs := self.folder / RUNS).exists():
                raise ValueError(f"{runs} has runs of which the journal knows nothing: remove that folder")
            self.optuna.set_user_attr(_SETTINGS, ours)
        elif changed := changed_settings(theirs, ours):
            name, pair = next(iter(changed.items()))
            was, now = ("absent" if value is ABSENT else as_text(value) for value in pair)
            raise ValueError(
                f"the study {self.config.name} was started with other settings: {name} was {was} and is {now}: "
                "rename this one"
            )

    def _alone(self) -> AbstractContextManager[None]:
        """Within the block, no other process takes or returns a trial."""
        return locked(self.folder / "claim.lock")

    def trials(self, *states: TrialState) -> list[FrozenTrial]:
        """Return the trials in any of these states, or all."""
        return self.optuna.get_trials(deepcopy=False, states=states or None)

    def ranked(self) -> list[FrozenTrial]:
        """Return the complete trials, best first; of equal scores, the earlier first."""
        sign = 1 if self.config.minimised else -1
        return sorted(self.trials(TrialState.COMPLETE), key=lambda trial: sign * (trial.value or 0.0))

    def importance(self) -> dict[str, float]:
        """Return how much each option matters for being among the best, by PED-ANOVA (Watanabe et al. 2023).

        Empty with fewer than two complete trials per option.
        """
        if len(self.trials(TrialState.COMPLETE)) < 2 * len(self.config.space):
            return {}
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        return optuna.importance.get_param_importances(self.optuna, evaluator=evaluator)

    def values(self, trial: FrozenTrial | Trial) -> dict[str, Any]:
        """Return the settings that a trial has drawn, in the order of the study file."""
        drawn = trial.params
        return {name: domain.value(drawn[name]) for name, domain in self.config.domains.items() if name in drawn}

    def run_name(self, trial: FrozenTrial | Trial) -> str:
        """Return the run name of a trial's training; its folder under `runs` begins with it."""
        return f"{self.config.name}-{trial.number}"

    def search(
        self, n_trials: int, on_validation: Callable[[int, int, float], None] = lambda *_: None
    ) -> Iterator[FrozenTrial]:
        """Train until the study has this many finished trials; yield those that ended here, failed ones included.

        Args:
            n_trials: number of complete or pruned trials, whichever process trained them.
            on_validation: called at each validation with the trial's number, the update and the score.
        """
        failures, is_waiting = 0, False
        while len(self.trials(*FINISHED)) < n_trials:
            with ExitStack() as held:
                if (claimed := self._claim(n_trials, held)) is not None:
                    state, value = self._objective(*claimed, on_validation)
                    # no other process may find the training free before the trial's result is recorded
                    with self._alone():
                        self.optuna.tell(claimed[0], value, state)
                        held.close()
            if claimed is None:
                if not is_waiting:
                    print_above_bars("waiting for trials that other processes are training")
                is_waiting = True
                time.sleep(_POLL)
                continue
            is_waiting, ended = False, self.trials()[claimed[0].number]
            yield ended
            failures = failures + 1 if ended.state == TrialState.FAIL else 0
            if failures == _FAILURES:
                raise ValueError(f"{failures} trials in a row failed, for the reasons above: the same command resumes")

    def _claim(self, n_trials: int, held: ExitStack) -> tuple[Trial, TrainingProcess] | None:
        """Take an abandoned trial, or a new one if more are wanted; its training runs until `held` is closed."""
        with self._alone():
            for left in self.trials(TrialState.RUNNING):
                if left.params.keys() != self.config.space.keys():  # killed while drawing them
                    self.optuna.tell(left.number, state=TrialState.FAIL)
                elif (training := self._enter(left, held)) is not None:
                    return self._again(left.number), training
            if len(self.trials(*FINISHED, TrialState.RUNNING)) >= n_trials:
                return None
            # a seed for each trial: two processes with the same seed would draw the same settings
            (seed,) = np.random.SeedSequence((self.config.seed, len(self.trials()))).generate_state(1)
            self.optuna.sampler = TPESampler(n_startup_trials=self.config.sampler.startup_trials, seed=int(seed))
            trial = self.optuna.ask({name: domain.distribution for name, domain in self.config.domains.items()})
            training = self._enter(trial, held)
            return None if training is None else (trial, training)

    def _again(self, number: int) -> Trial:
        """Return a trial that was started before, for reporting to it."""
        study_id = self._storage.get_study_id_from_name(self.config.name)
        return Trial(self.optuna, self._storage.get_trial_id_from_study_id_trial_number(study_id, number))

    def _enter(self, trial: FrozenTrial | Trial, held: ExitStack) -> TrainingProcess | None:
        """Start or resume the training of a trial; None if another process is running it."""
        arguments = self.config.arguments(self.values(trial))
        try:
            return held.enter_context(TrainingProcess(self.run_name(trial), arguments, self.folder, self.folder / RUNS))
        except BusyError:
            return None

    def _objective(
        self, trial: Trial, training: TrainingProcess, on_validation: Callable[[int, int, float], None]
    ) -> tuple[TrialState, float | None]:
        """Report each validation, and stop a training that is not worth continuing; return the best score."""
        scores: list[float] = []
        known = set(self.trials()[trial.number].intermediate_values)  # from before a resume
        try:
            for record in training.validations():
                value = record.get(self.config.scored)
                if record["step"] not in known:
                    trial.set_user_attr(MINUTES, record["minutes"])
                if value is None:  # not finite
                    continue
                scores.append(value)
                on_validation(trial.number, record["step"], value)
                if record["step"] not in known:
                    trial.report(value, record["step"])
                    if trial.should_prune():
                        training.stop()
                        return TrialState.PRUNED, None
            if scores:
                return TrialState.COMPLETE, (min if self.config.minimised else max)(scores)
            raise ValueError(f"no validation has a finite {self.config.scored}")
        except ValueError as error:
            trial.set_user_attr(WHY, str(error))
            return TrialState.FAIL, None


def _cut_torn_line(journal: Path) -> None:
    """Remove an incomplete last line left by a crash: Optuna would append the next line to it, and read neither."""
    if not journal.exists():
        return
    lock = JournalFileSymlinkLock(str(journal))
    lock.acquire()
    try:
        os.truncate(journal, journal.read_bytes().rfind(b"\n") + 1)
    finally:
        lock.release()


# What is reported of a search: a line for each trial, the best trials, pictures, how to train with their settings.

_SHOWN = 5  # trials in the table


def shown_score(study: Study, value: float | None) -> str:
    """Format a score with its name, and with as many digits as are meaningful."""
    name = SCORES.get(study.config.scored, study.config.scored)
    return f"{name} {value:.{4 if study.config.minimised else 2}f}"


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else as_text(value)


def trial_line(study: Study, trial: FrozenTrial) -> str:
    """Return a line with how a trial ended, and the best so far."""
    parts = [f"trial {trial.number}", "failed" if trial.state == TrialState.FAIL else trial.state.name.lower()]
    if trial.state == TrialState.PRUNED:
        parts[-1] += f" at step {trial.last_step:,}"
    if trial.value is not None:
        parts.append(shown_score(study, trial.value))
    parts += [f"{name} {_shown(value)}" for name, value in study.values(trial).items()]
    parts.append(f"{trial.user_attrs.get(MINUTES, 0.0):.1f} min")
    if trial.state == TrialState.FAIL:
        parts[-1] += f": {trial.user_attrs.get(WHY, 'stopped while drawing its settings')}"
    elif best := study.ranked():
        parts.append(f"best {shown_score(study, best[0].value)} (trial {best[0].number})")
    return "  ".join(parts)


def summary(study: Study) -> list[str]:
    """Return lines: number of trials, table of the best, importance of the options, how to train with the best."""
    states = [trial.state for trial in study.trials()]
    counts = {state: states.count(state) for state in (*FINISHED, TrialState.FAIL, TrialState.RUNNING)}
    told = ", ".join(f"{n} {state.name.lower()}" for state, n in counts.items() if n)
    lines = [f"{study.folder}: {told or 'no trial'}"]
    best = study.ranked()[:_SHOWN]
    if not best:
        return [*lines, "no trial is complete yet"]
    rows = [["trial", "score", *study.config.space, "min"]]
    rows += [
        [
            str(trial.number),
            shown_score(study, trial.value),
            *map(_shown, study.values(trial).values()),
            f"{trial.user_attrs[MINUTES]:.1f}",
        ]
        for trial in best
    ]
    lines += ["", *aligned(rows, "r" * len(rows[0]))]
    if importance := study.importance():
        shares = (f"{option} {share:.0%}" for option, share in importance.items())
        lines += ["", f"importance for being among the best: {', '.join(shares)}"]
    arguments = study.config.arguments(study.values(best[0]))
    return [
        *lines,
        "",
        "to train with the best settings (add --training.max_steps or --training.max_epochs to train longer):",
        f"  {shlex.join(['python', 'train.py', *arguments, '--name', f'{study.config.name}-best'])}",
    ]


def write_best(study: Study, path: Path) -> None:
    """Write all settings of the best trial, for train.py --config."""
    if not (best := study.ranked()):
        raise ValueError(f"no trial of {study.config.name} is complete yet: resume it")
    replace(study.config.settings(study.values(best[0])), name=f"{study.config.name}-best").save(path)


def write_trials(study: Study, path: Path) -> None:
    """Write all trials, with everything that was reported of them."""
    trials = []
    for trial in study.trials():
        run = run_named(study.run_name(trial), study.folder / RUNS)
        trials.append(
            {
                "number": trial.number,
                "state": trial.state.name.lower(),
                "score": trial.value,
                "options": study.values(trial),
                "minutes": trial.user_attrs.get(MINUTES),
                "run": run and run.name,
                "by_step": dict(sorted(trial.intermediate_values.items())),
                "why": trial.user_attrs.get(WHY),
            }
        )
    found = {
        "study": study.config.name,
        "score": study.config.scored,
        "minimised": study.config.minimised,
        "best": next((trial.number for trial in study.ranked()), None),
        "importance": study.importance(),
        "trials": trials,
    }
    write_json(path, found)


def draw(study: Study) -> list[Path]:
    """Draw scores by trial, scores by update and, if known, importances, by Optuna's own plots; return the PNGs."""
    name = SCORES.get(study.config.scored, study.config.scored)
    kinds: dict[str, Callable[..., Any]] = {
        "history": partial(plots.plot_optimization_history, target_name=name),
        "curves": plots.plot_intermediate_values,
    }
    if study.importance():
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        kinds["importance"] = partial(plots.plot_param_importances, evaluator=evaluator, target_name=name)
    pictures = []
    for kind, plot in kinds.items() if study.ranked() else ():
        pictures.append(study.folder / f"{kind}.png")
        with plt.rc_context(), warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            figure = plot(study.optuna).figure
            with atomic_file(pictures[-1]) as draft:
                figure.savefig(draft, format="png", bbox_inches="tight")
            plt.close(figure)
    return pictures
