"""A search: many trainings whose settings Optuna draws (Akiba et al. 2019), learning from their dev scores.

Everything is in the search's own folder: a journal, which several processes may write to at once, and the runs.
"""

import os
import shlex
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import matplotlib.pyplot as plt
import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.storages import journal
from optuna.trial import FrozenTrial, Trial, TrialState
from optuna.visualization import matplotlib as plots
from tqdm import tqdm

from config.bound import Config, bounded
from config.reader import ABSENT, changed_settings, flat, settings_from_file
from config.training import Criterion
from const.path import PICKLES
from utils.arguments import as_text
from utils.command import aligned, print_above_bars
from utils.config import find_settings
from utils.experiment.trial import POLL, TrainingProcess, TrialConfig, mistakes_in, training_process
from utils.file import BusyError, atomic_file, locked
from utils.training.report import SCORES

# What a study file says of a search.


@dataclass(frozen=True)
class Domain:
    """The values that may be drawn for an option: Optuna's `low`, `high`, `log` and `step`, or `choices` as written."""

    low: int | float | None = None
    high: int | float | None = None
    log: bool = False
    step: int | float | None = None
    choices: list[str] = field(default_factory=list)

    @property
    def distribution(self) -> BaseDistribution:
        """The values as an Optuna distribution, which refuses what cannot be drawn."""
        low, high, step = self.low, self.high, self.step
        if self.choices and low is high is None:
            return CategoricalDistribution(self.choices)
        if self.choices or low is None or high is None:
            raise ValueError(f"low={low}, high={high}, choices={self.choices}: give low and high, or choices")
        if isinstance(low, int) and isinstance(high, int) and isinstance(step, int | None):
            return IntDistribution(low, high, self.log, step or 1)
        return FloatDistribution(low, high, self.log, step)


@dataclass(frozen=True)
class SamplerConfig(Config):
    """How the next values are chosen: at random at first, then near those of good trials, by TPE (Bergstra 2011)."""

    startup_trials: int = bounded(10, ge=0)


@dataclass(frozen=True)
class PrunerConfig(Config):
    """When a training is given up: its best score so far is worse than the median of complete trials at that update."""

    kind: Literal["median", "none"] = "median"
    startup_trials: int = bounded(5, ge=0)  # complete ones before any is given up
    warmup_steps: int = bounded(0, ge=0)  # of each training, before it may be


_SIZES_OF_UPDATE = {
    f"batch.{name}" for name in ("tokens_per_batch", "sentences_per_batch", "accumulate", "n_streams", "segment_length")
}


@dataclass(frozen=True, kw_only=True)
class StudyConfig(TrialConfig):
    """The contents of a study file with a `space`."""

    space: dict[str, Domain]  # of options of train.py
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    pruner: PrunerConfig = field(default_factory=PrunerConfig)
    score: Criterion | None = None  # on dev text; null: the preset's training.select_by
    seed: int = bounded(1, ge=0)  # for drawing values

    @cached_property
    def scored(self) -> str:
        """The name of the score."""
        return self.score or self.settings({}).training.select_by

    @property
    def minimised(self) -> bool:
        """Whether a lower score is better."""
        return self.scored == "loss"

    def given(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return all options of a trial that has drawn these values."""
        return super().given(values if self.score is None else {"training.select_by": self.score, **values})

    def check(self) -> None:
        """Refuse, before the first trial, every option and every end of a range that train.py would refuse."""
        super().check()
        self.refuse(self.space, {"training.select_by": "score"})
        self.refuse(self.options, {"training.select_by": "score", **dict.fromkeys(self.space, "its range")})
        self.settings({})
        for option, domain in self.space.items():
            with mistakes_in(f"space.{option}"):
                _ = domain.distribution
                for value in domain.choices or (domain.low, domain.high):  # at an end a mistake shows first
                    self.settings({option: value})
            if self.minimised and option.startswith("tokenizer."):
                raise ValueError(f"the loss is per token, and {option} changes what a token is: give score: bleu")
            if self.pruner.kind != "none" and option in _SIZES_OF_UPDATE:
                raise ValueError(
                    f"{option} changes the size of an update, by which a pruner compares: give pruner: none"
                )


def _texts(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return what is set, on one level; earlier versions kept numbers and lists, and every default."""
    texts = {name: as_text(value) for name, value in flat(settings).items()}
    return {name: text for name, text in texts.items() if text not in ("null", "false", "[]")}


# The search.

RUNS = "runs"  # one folder per trial, kept apart from those that translate.py searches
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
WHY = "why"  # the reason why a trial failed
MINUTES = "minutes"  # duration of its training

_SETTINGS = "settings"  # what all trials of the study share
_FAILURES = 3  # in a row, after which the cause is probably not in the drawn settings


class Study:
    """Draws settings, trains with them and records the scores; resumes a study that was started before.

    Optuna's ask and tell, because its `optimize` calls every trial that Ctrl-C has interrupted a failure. A trial whose
    process was stopped or killed is still running according to the journal, but nobody holds the lock of its training:
    the next process to look for work resumes that trial.
    """

    def __init__(self, config: StudyConfig, root: Path = PICKLES) -> None:
        self.config, pruner = config, config.pruner
        self.folder = root / f"{config.name}-study"
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # its own messages would mix with ours
        median = optuna.pruners.MedianPruner(pruner.startup_trials, pruner.warmup_steps)
        with self._alone():
            file = self.folder / "journal.log"
            _remove_torn_line(file)
            self.optuna = optuna.create_study(
                storage=optuna.storages.JournalStorage(journal.JournalFileBackend(str(file))),
                study_name=config.name,
                direction="minimize" if config.minimised else "maximize",
                pruner=median if pruner.kind == "median" else optuna.pruners.NopPruner(),
                load_if_exists=True,
            )
            self._require_same_settings()

    def _require_same_settings(self) -> None:
        """Refuse to share trials with a study file that differs in what makes scores comparable."""
        config, theirs = self.config, self.optuna.user_attrs.get(_SETTINGS)
        space = {option: vars(domain) for option, domain in config.space.items()}
        preset = settings_from_file(find_settings(config.preset))
        ours = _texts({"preset": preset, "options": config.options, "space": space, "score": config.scored})
        if theirs is None:
            if (runs := self.folder / RUNS).exists():
                raise ValueError(f"{runs} has runs of which the journal knows nothing: remove that folder")
            self.optuna.set_user_attr(_SETTINGS, ours)
        for name, pair in changed_settings(_texts(theirs or ours), ours).items():
            was, now = ("absent" if value is ABSENT else value for value in pair)
            raise ValueError(
                f"the study {config.name} was started with other settings: {name} was {was} and is {now}: rename it"
            )

    def _alone(self) -> AbstractContextManager[object]:
        """Within the block, no other process takes or returns a trial."""
        return locked(self.folder / "claim.lock")

    def trials(self, *states: TrialState) -> list[FrozenTrial]:
        """Return the trials in any of these states, or all."""
        return self.optuna.get_trials(deepcopy=False, states=states or None)

    def ranked(self) -> list[FrozenTrial]:
        """Return the complete trials, best first; of equal scores, the earlier first."""
        sign = 1 if self.config.minimised else -1
        return sorted(self.trials(TrialState.COMPLETE), key=lambda trial: sign * (trial.value or 0.0))

    def search(self, n_trials: int) -> None:
        """Train until the study has this many finished trials, whichever process trained them; show each that ends."""
        failures = 0
        with tqdm(total=n_trials, dynamic_ncols=True, disable=None) as bar:
            while (n_finished := len(self.trials(*FINISHED))) < n_trials:
                bar.n = n_finished
                with ExitStack() as held:
                    if (claimed := self._claim(n_trials, held)) is None:
                        bar.set_postfix_str("waiting for other processes")
                        time.sleep(POLL)
                        continue
                    state, value = self._objective(*claimed, bar)
                    # no other process may find the training free before the trial's result is recorded
                    with self._alone():
                        ended = self.optuna.tell(claimed[0], value, state)
                        held.close()
                print_above_bars(trial_line(self, ended))
                failures = failures + 1 if ended.state == TrialState.FAIL else 0
                if failures == _FAILURES:
                    raise ValueError(
                        f"{failures} trials in a row failed, for the reasons above: the same command resumes"
                    )

    def _claim(self, n_trials: int, held: ExitStack) -> tuple[Trial, TrainingProcess] | None:
        """Take an abandoned trial, or a new one if more are wanted; its training runs until `held` is closed."""
        with self._alone():
            for left in self.trials(TrialState.RUNNING):
                if left.params.keys() != self.config.space.keys():  # killed while drawing them
                    self.optuna.tell(left.number, state=TrialState.FAIL)
                    continue
                with suppress(BusyError):
                    return Trial(self.optuna, left._trial_id), held.enter_context(self._training(left))
            if len(self.trials(*FINISHED, TrialState.RUNNING)) >= n_trials:
                return None
            # a seed for each trial: two processes with the same seed would draw the same settings
            (seed,) = np.random.SeedSequence((self.config.seed, len(self.trials()))).generate_state(1)
            startup = self.config.sampler.startup_trials
            self.optuna.sampler = optuna.samplers.TPESampler(n_startup_trials=startup, seed=int(seed))
            trial = self.optuna.ask({name: domain.distribution for name, domain in self.config.space.items()})
            return trial, held.enter_context(self._training(trial))

    def _training(self, trial: FrozenTrial | Trial) -> AbstractContextManager[TrainingProcess]:
        name, options = f"{self.config.name}-{trial.number}", self.config.arguments(trial.params)
        return training_process(name, options, self.folder, self.folder / RUNS)

    def _objective(self, trial: Trial, training: TrainingProcess, bar: "tqdm[Any]") -> tuple[TrialState, float | None]:
        """Report each validation, and stop a training that is not worth continuing; return the best score."""
        scores = dict(self.trials()[trial.number].intermediate_values)  # from before a resume
        try:
            for record in training.validations():
                step, value = record["step"], record.get(self.config.scored)
                if step in scores:
                    continue
                trial.set_user_attr(MINUTES, record["minutes"])
                if value is None:  # not finite
                    continue
                bar.set_postfix_str(f"trial {trial.number}, step {step:,}: {shown_score(self, value)}")
                scores[step] = value
                trial.report(value, step)
                if trial.should_prune():
                    training.stop()
                    return TrialState.PRUNED, None
            if not scores:
                raise ValueError(f"no validation has a finite {self.config.scored}")
        except ValueError as error:
            trial.set_user_attr(WHY, str(error))
            return TrialState.FAIL, None
        return TrialState.COMPLETE, (min if self.config.minimised else max)(scores.values())


def _remove_torn_line(file: Path) -> None:
    """Remove an incomplete last line left by a crash: Optuna would append the next line to it, and read neither."""
    if file.exists():
        lock = journal.JournalFileSymlinkLock(str(file))
        lock.acquire()
        try:
            os.truncate(file, file.read_bytes().rfind(b"\n") + 1)
        finally:
            lock.release()


# What is reported of a search.


def shown_score(study: Study, value: float | None) -> str:
    """Format a score with its name, and with as many digits as are meaningful."""
    name = SCORES.get(study.config.scored, study.config.scored)
    return f"{name} {value:.{4 if study.config.minimised else 2}f}"


def _cells(study: Study, trial: FrozenTrial) -> dict[str, str]:
    """Return what a line or a row of the table says of a trial."""
    drawn = {name: trial.params[name] for name in study.config.space if name in trial.params}
    values = {name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in drawn.items()}
    score = {} if trial.value is None else {"score": shown_score(study, trial.value)}
    return {"trial": str(trial.number), **score, **values, "min": f"{trial.user_attrs.get(MINUTES, 0.0):.1f}"}


def trial_line(study: Study, trial: FrozenTrial) -> str:
    """Return a line with how a trial ended, and the best so far."""
    line = [f"{name} {cell}" for name, cell in _cells(study, trial).items()]
    line.insert(1, trial.state.name.lower())
    if trial.state == TrialState.FAIL:
        line.append(trial.user_attrs.get(WHY, ""))
    elif best := study.ranked():
        line.append(f"best {shown_score(study, best[0].value)} (trial {best[0].number})")
    return "  ".join(line)


def summary(study: Study) -> list[str]:
    """Return lines: number of trials, table of the best five, how to train with the best."""
    counts = {state: len(study.trials(state)) for state in (*FINISHED, TrialState.FAIL, TrialState.RUNNING)}
    told = ", ".join(f"{n} {state.name.lower()}" for state, n in counts.items() if n)
    lines = [f"{study.folder}: {told or 'no trial'}"]
    if not (best := study.ranked()):
        return [*lines, "no trial is complete yet"]
    rows = [_cells(study, trial) for trial in best[:5]]
    lines += ["", *aligned([list(rows[0]), *(list(row.values()) for row in rows)], "r" * len(rows[0])), ""]
    lines += ["to train with the best settings (add --training.max_steps or --training.max_epochs to train longer):"]
    arguments = [*study.config.arguments(best[0].params), "--name", f"{study.config.name}-best"]
    return [*lines, f"  {shlex.join(['python', 'train.py', *arguments])}"]


def write_best(study: Study, path: Path) -> None:
    """Write all settings of the best trial, for train.py --config."""
    if not (best := study.ranked()):
        raise ValueError(f"no trial of {study.config.name} is complete yet: resume it")
    replace(study.config.settings(best[0].params), name=f"{study.config.name}-best").save(path)


def draw(study: Study) -> list[Path]:
    """Draw scores by trial, scores by update and, once there are enough, importances, by Optuna's own plots, as PNGs.

    How much an option matters for being among the best is estimated by PED-ANOVA (Watanabe et al. 2023).
    """
    drawn: dict[str, Callable[[optuna.Study], Any]] = {}
    if n_complete := len(study.ranked()):
        drawn |= {"history": plots.plot_optimization_history, "curves": plots.plot_intermediate_values}
    with plt.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if n_complete >= 2 * len(study.config.space):
            drawn["importance"] = partial(plots.plot_param_importances, evaluator=PedAnovaImportanceEvaluator())
        for name, plot in drawn.items():
            figure = plot(study.optuna).figure
            with atomic_file(study.folder / f"{name}.png") as draft:
                figure.savefig(draft, format="png", bbox_inches="tight")
            plt.close(figure)
    return [study.folder / f"{name}.png" for name in drawn]
