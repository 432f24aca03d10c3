"""What there is to say of a study: a line for each trial, the best ones, how to train with their settings."""

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

_SHOWN = 5  # trials of the table


def shown_score(study: Study, value: float) -> str:
    """A score with as many digits as mean something."""
    return f"{value:.4f}" if study.config.minimised else f"{value:.2f}"


def label(study: Study) -> str:
    """What people call the score."""
    return SCORES.get(study.config.scored, study.config.scored)


def short_names(options: Iterable[str]) -> dict[str, str]:
    """`peak_lr` of `optimizer.peak_lr`, where no other option ends so."""
    options = list(options)
    ends = [option.rpartition(".")[2] for option in options]
    return {option: end if ends.count(end) == 1 else option for option, end in zip(options, ends, strict=True)}


def shown_values(study: Study, trial: FrozenTrial) -> dict[str, str]:
    """What a trial has drawn, short enough to be read."""
    names = short_names(study.config.space)
    return {
        names[option]: f"{value:.4g}" if isinstance(value, float) else as_text(value)
        for option, value in study.values(trial).items()
    }


def trial_line(study: Study, trial: FrozenTrial) -> str:
    """How a trial ended, and the best so far."""
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
        return f"{line}: {trial.user_attrs.get(WHY, 'stopped while it was drawn')}"
    if (best := study.best) is not None and best.value is not None:
        line += f"  best {shown_score(study, best.value)} (trial {best.number})"
    return line


def summary(study: Study) -> list[str]:
    """How many trials there are, the best ones as a table, what the options are worth, how to train with the best."""
    counts = {
        state: len(study.trials(key))
        for state, key in (
            ("complete", TrialState.COMPLETE),
            ("pruned", TrialState.PRUNED),
            ("failed", TrialState.FAIL),
            ("under way", TrialState.RUNNING),
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
    how = "to train as the best of them did (add --training.max_steps or --training.max_epochs to train longer):"
    return [*lines, "", how, f"  {best_command(study, best[0])}"]


def best_command(study: Study, trial: FrozenTrial) -> str:
    """That trains as a trial did, and for as long."""
    arguments = study.config.arguments(study.values(trial))
    return shlex.join(["python", "train.py", *arguments, "--name", f"{study.config.name}-best"])


def write_best(study: Study, path: Path) -> None:
    """All settings of the best trial, for train.py --config.

    Raises:
        ValueError: none is complete yet.
    """
    if (best := study.best) is None:
        raise ValueError(f"no trial of {study.config.name} is complete yet: go on with it")
    replace(study.config.settings(study.values(best)), name=f"{study.config.name}-best").save(path)


def write_trials(study: Study, path: Path) -> None:
    """All trials, with all that was reported of them."""
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
    """Draw the study into its folder, once a trial is finished."""
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
