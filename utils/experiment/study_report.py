"""Reports of a study: a line for each trial, the best trials, how to train with their settings."""

import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from utils.experiment.study import FINISHED, MINUTES, PICTURE, RUNS, WHY, Study
from utils.experiment.train_options import as_text
from utils.experiment.training_process import run_named
from utils.file import write_json
from utils.terminal.plain_text import aligned
from utils.training.validation import SCORES
from utils.visualize.study import DrawnTrial, draw_study

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
