"""A search: many trainings whose settings Optuna draws (Akiba et al. 2019), learning from their dev scores.

Everything is in the search's own folder: a journal, which several processes may write to at once, and the runs.
"""

import os
import shlex
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import matplotlib.pyplot as plt
import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import MedianPruner, NopPruner
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import FrozenTrial, Trial, TrialState
from optuna.visualization import matplotlib as plots
from tqdm import tqdm

from config.group import Group, bounded
from config.reader import Text, layer_from_file, names_of, read_value
from config.training import Criterion
from const.path import PICKLES
from utils.arguments import as_text
from utils.command import aligned, print_above_bars
from utils.config import AnyConfig, find_settings
from utils.experiment.trial import BusyError, TrainingProcess, TrialConfig, mistakes_in, refuse_options
from utils.file import atomic_file, locked, write_json
from utils.training.checkpoint import ABSENT, changed_settings, flat
from utils.training.report import SCORES

# What a study file says of a search.


@dataclass(frozen=True)
class Domain:
    """The values that may be drawn for an option: numbers from `low` to `high`, both included, or `choices`.

    Args:
        low: smallest number.
        high: largest number.
        log: draw uniformly on a logarithmic scale.
        step: distance between the numbers, from `low`; null: any number, or any whole number if both ends are.
        choices: unordered values, as they would be written on the command line.
    """

    low: int | float | None = None
    high: int | float | None = None
    log: bool = False
    step: int | float | None = None
    choices: list[str] = field(default_factory=list)

    @property
    def distribution(self) -> BaseDistribution:
        """The values as an Optuna distribution, which refuses what cannot be drawn."""
        low, high, step = self.low, self.high, self.step
        if low is None or high is None or self.choices:
            if not low is high is None or len({*self.choices}) < max(2, len(self.choices)):
                raise ValueError(f"low={low}, choices={self.choices}: give low and high, or two or more choices, once")
            return CategoricalDistribution(self.choices)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of steps that do not reach `high`: refused below
            if isinstance(low, int) and isinstance(high, int) and (step is None or isinstance(step, int)):
                found: Any = IntDistribution(low, high, self.log, 1 if step is None else step)
            else:
                found = FloatDistribution(low, high, self.log, step)
        if found.high != high or low == high:
            raise ValueError(f"high={high} is not above low={low} by a whole number of steps={step}")
        return found


@dataclass(frozen=True)
class SamplerConfig(Group):
    """How the next values are chosen: near those of good trials, by TPE (Bergstra et al. 2011).

    Args:
        startup_trials: number of trials that are drawn at random first.
    """

    startup_trials: int = bounded(10, least=0)


@dataclass(frozen=True)
class PrunerConfig(Group):
    """When a training is pruned, that is, given up early.

    Args:
        kind: median prunes a training whose best score so far is worse than the median score of complete trials at
            that update; none prunes nothing.
        startup_trials: number of complete trials before pruning starts.
        warmup_steps: updates of each training before it may be pruned.
    """

    kind: Literal["median", "none"] = "median"
    startup_trials: int = bounded(5, least=0)
    warmup_steps: int = bounded(0, least=0)


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
        pruner: when a training is given up early.
        score: dev score to optimise; null: the preset's training.select_by.
        seed: for drawing values.
    """

    space: dict[str, Domain]
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    pruner: PrunerConfig = field(default_factory=PrunerConfig)
    score: Criterion | None = None
    seed: int = bounded(1, least=0)

    @cached_property
    def base(self) -> AnyConfig:
        """All settings of a trial that has drawn nothing."""
        return self.settings({})

    @cached_property
    def scored(self) -> str:
        """The name of the score."""
        return self.score or self.base.training.select_by

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
        if not self.space:
            raise ValueError("space is empty: name at least one option, with its range or choices")
        refuse_options(self.space, {"training.select_by": "score"})
        refuse_options(self.options, {"training.select_by": "score", **dict.fromkeys(self.space, "its range")})
        _ = self.base
        for option, domain in self.space.items():
            with mistakes_in(f"space.{option}"):
                _ = domain.distribution
                for value in domain.choices or (domain.low, domain.high):  # at an end a mistake shows first
                    self.settings({option: value})
            if self.minimised and option.startswith("tokenizer."):
                raise ValueError(f"the loss is per token, and {option} changes what a token is: give score: bleu")
            if self.pruner.kind != "none" and option in _SIZES_OF_UPDATE:
                raise ValueError(
                    "trainings are pruned by comparing scores after the same number of updates, and "
                    f"{option} changes the size of an update: give pruner: none"
                )

    def shared(self) -> dict[str, str]:
        """Return, as text, what makes scores comparable; study files with the same can share trials."""
        space = {option: vars(domain) for option, domain in self.space.items()}
        preset = layer_from_file(find_settings(self.preset))
        return _texts({"preset": preset, "options": self.options, "space": space, "score": self.scored})


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
_POLL = 1.0  # seconds between checks of what other processes do


class Study:
    """Draws settings, trains with them and records the scores; resumes a study that was started before.

    A trial whose process was stopped or killed is still running according to the journal, but nobody holds the lock of
    its training: the next process to look for work resumes that trial.
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
            self.optuna = optuna.create_study(
                storage=JournalStorage(JournalFileBackend(str(journal))),
                study_name=config.name,
                direction="minimize" if config.minimised else "maximize",
                pruner=median if pruner.kind == "median" else NopPruner(),
                load_if_exists=True,
            )
            self._require_same_settings()

    def _require_same_settings(self) -> None:
        ours, theirs = self.config.shared(), self.optuna.user_attrs.get(_SETTINGS)
        if theirs is None:
            if (runs := self.folder / RUNS).exists():
                raise ValueError(f"{runs} has runs of which the journal knows nothing: remove that folder")
            self.optuna.set_user_attr(_SETTINGS, ours)
        elif changed := changed_settings(_texts(theirs), ours):
            name, pair = next(iter(changed.items()))
            was, now = ("absent" if value is ABSENT else value for value in pair)
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

    def values(self, trial: FrozenTrial | Trial) -> dict[str, Any]:
        """Return the settings that a trial has drawn, of their own types, in the order of the study file."""
        kinds, drawn = dict(names_of(type(self.config.base))), trial.params
        return {
            name: read_value(name, kinds[name], Text.of(as_text(drawn[name])))
            for name in self.config.space
            if name in drawn
        }

    def run_name(self, trial: FrozenTrial | Trial) -> str:
        """Return the name of a trial's training; its folder under `runs` begins with it."""
        return f"{self.config.name}-{trial.number}"

    def search(self, n_trials: int) -> None:
        """Train until the study has this many finished trials, whichever process trained them; show each that ends."""
        with tqdm(total=n_trials, dynamic_ncols=True, disable=None) as bar:
            failures = 0
            while (n_finished := len(self.trials(*FINISHED))) < n_trials:
                bar.n = n_finished
                with ExitStack() as held:
                    if (claimed := self._claim(n_trials, held)) is None:
                        bar.set_postfix_str("waiting for other processes")
                        time.sleep(_POLL)
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
                elif (training := self._enter(left, held)) is not None:
                    return Trial(self.optuna, left._trial_id), training
            if len(self.trials(*FINISHED, TrialState.RUNNING)) >= n_trials:
                return None
            # a seed for each trial: two processes with the same seed would draw the same settings
            (seed,) = np.random.SeedSequence((self.config.seed, len(self.trials()))).generate_state(1)
            self.optuna.sampler = TPESampler(n_startup_trials=self.config.sampler.startup_trials, seed=int(seed))
            trial = self.optuna.ask({name: domain.distribution for name, domain in self.config.space.items()})
            training = self._enter(trial, held)
            return None if training is None else (trial, training)

    def _enter(self, trial: FrozenTrial | Trial, held: ExitStack) -> TrainingProcess | None:
        """Start or resume the training of a trial; None if another process is running it."""
        arguments = self.config.arguments(self.values(trial))
        try:
            return held.enter_context(TrainingProcess(self.run_name(trial), arguments, self.folder, self.folder / RUNS))
        except BusyError:
            return None

    def _objective(self, trial: Trial, training: TrainingProcess, bar: "tqdm[Any]") -> tuple[TrialState, float | None]:
        """Report each validation, and stop a training that is not worth continuing; return the best score."""
        scores: list[float] = []
        known = set(self.trials()[trial.number].intermediate_values)  # from before a resume
        try:
            for record in training.validations():
                step, value = record["step"], record.get(self.config.scored)
                if step not in known:
                    trial.set_user_attr(MINUTES, record["minutes"])
                if value is None:  # not finite
                    continue
                scores.append(value)
                bar.set_postfix_str(f"trial {trial.number}, step {step:,}: {shown_score(self, value)}")
                if step not in known:
                    trial.report(value, step)
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


# What is reported of a search.

_SHOWN = 5  # trials in the table


def shown_score(study: Study, value: float | None) -> str:
    """Format a score with its name, and with as many digits as are meaningful."""
    name = SCORES.get(study.config.scored, study.config.scored)
    return f"{name} {value:.{4 if study.config.minimised else 2}f}"


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else as_text(value)


def trial_line(study: Study, trial: FrozenTrial) -> str:
    """Return a line with how a trial ended, and the best so far."""
    state = trial.state.name.lower() + (f" at step {trial.last_step:,}" if trial.state == TrialState.PRUNED else "")
    score = [] if trial.value is None else [shown_score(study, trial.value)]
    values = [f"{name} {_shown(value)}" for name, value in study.values(trial).items()]
    minutes = f"{trial.user_attrs.get(MINUTES, 0.0):.1f} min"
    if trial.state == TrialState.FAIL:
        end = [trial.user_attrs.get(WHY, "stopped while drawing its settings")]
    else:
        end = [f"best {shown_score(study, best.value)} (trial {best.number})" for best in study.ranked()[:1]]
    return "  ".join([f"trial {trial.number}", state, *score, *values, minutes, *end])


def summary(study: Study) -> list[str]:
    """Return lines: number of trials, table of the best, how to train with the best."""
    states = [trial.state for trial in study.trials()]
    counts = {state: states.count(state) for state in (*FINISHED, TrialState.FAIL, TrialState.RUNNING)}
    told = ", ".join(f"{n} {state.name.lower()}" for state, n in counts.items() if n)
    lines = [f"{study.folder}: {told or 'no trial'}"]
    best = study.ranked()[:_SHOWN]
    if not best:
        return [*lines, "no trial is complete yet"]
    rows = [["trial", "score", *study.config.space, "min"]]
    for trial in best:
        values, minutes = study.values(trial).values(), trial.user_attrs[MINUTES]
        rows.append([str(trial.number), shown_score(study, trial.value), *map(_shown, values), f"{minutes:.1f}"])
    lines += ["", *aligned(rows, "r" * len(rows[0]))]
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
    trials = [
        {
            "number": trial.number,
            "state": trial.state.name.lower(),
            "score": trial.value,
            "options": study.values(trial),
            "minutes": trial.user_attrs.get(MINUTES),
            "run": study.run_name(trial),
            "by_step": dict(sorted(trial.intermediate_values.items())),
            "why": trial.user_attrs.get(WHY),
        }
        for trial in study.trials()
    ]
    found = {
        "study": study.config.name,
        "score": study.config.scored,
        "minimised": study.config.minimised,
        "best": next((trial.number for trial in study.ranked()), None),
    }
    write_json(path, found | {"trials": trials})


def draw(study: Study) -> list[Path]:
    """Draw scores by trial, scores by update and, once there are enough, importances, by Optuna's own plots, as PNGs.

    How much an option matters for being among the best is estimated by PED-ANOVA (Watanabe et al. 2023).
    """
    name, n_complete = SCORES.get(study.config.scored, study.config.scored), len(study.ranked())
    kinds: dict[str, Callable[[], Any]] = {}
    with plt.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if n_complete:
            kinds["history"] = partial(plots.plot_optimization_history, study.optuna, target_name=name)
            kinds["curves"] = partial(plots.plot_intermediate_values, study.optuna)
        if n_complete >= 2 * len(study.config.space):
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            kinds["importance"] = partial(plots.plot_param_importances, study.optuna, evaluator, target_name=name)
        for kind, plot in kinds.items():
            figure = plot().figure
            with atomic_file(study.folder / f"{kind}.png") as draft:
                figure.savefig(draft, format="png", bbox_inches="tight")
            plt.close(figure)
    return [study.folder / f"{kind}.png" for kind in kinds]
