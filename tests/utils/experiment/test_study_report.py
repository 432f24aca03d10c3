"""What is said of a study is what its journal holds; its best settings are those that train.py would train with."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from tests.utils.experiment.fake_training import At, World, raising
from utils.arguments import read_arguments
from utils.config import TranslationConfig
from utils.experiment import study as study_module
from utils.experiment.study import (
    Choices,
    DrawnTrial,
    PrunerConfig,
    Range,
    Study,
    StudyConfig,
    draw,
    short_names,
    summary,
    trial_line,
    write_best,
    write_trials,
)

CONFIG = StudyConfig(
    "tiny",
    Path("const/preset/demo.yaml"),
    {"optimizer.peak_lr": Range(0.001, 0.1, log=True), "model.d_ff": Choices((16, 32))},
    {"training.max_steps": 30},
    pruner=PrunerConfig("median", startup_trials=3),
    score="bleu",
)


def score(at: At) -> float:
    """The fifth trial is bad from its beginning on, the third one good."""
    return at.step + {2: 5.0, 4: -9.0}.get(at.number, at.number / 10)


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """Seven trials: the second one failed, the fifth was given up."""
    world = World(score)
    world.events["tiny-1", 20] = raising(ValueError, "the training tiny-1 failed: out of memory")
    found = Study(CONFIG, tmp_path, world.train)
    states = [trial.state.name for trial in found.go_on(6)]
    assert states == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE", "PRUNED", "COMPLETE", "COMPLETE"]
    return found


def shown(study: Study, number: int) -> str:
    rate, d_ff = study.trials()[number].params.values()
    return f"peak_lr {rate:.4g}  d_ff {d_ff}"


def test_each_trial_is_a_line(study: Study) -> None:
    lines = [trial_line(study, trial) for trial in study.trials()]
    assert lines[0] == f"trial 0  complete  BLEU 30.00  {shown(study, 0)}  3.0 min  best 35.00 (trial 2)"
    assert lines[1] == f"trial 1  failed  {shown(study, 1)}  1.0 min: the training tiny-1 failed: out of memory"
    assert lines[4] == f"trial 4  pruned at step 10  BLEU 1.00  {shown(study, 4)}  1.0 min  best 35.00 (trial 2)"


def test_the_summary_has_the_best_ones_and_how_to_train_with_them(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, _, names, *rows, _, importance, _, _, command = summary(study)
    assert head == f"{tmp_path / 'tiny-study'}: 5 complete, 1 pruned, 1 failed"
    assert names.split() == ["trial", "BLEU", "peak_lr", "d_ff", "min"]
    assert [row.split()[:2] for row in rows] == [
        ["2", "35.00"],
        ["6", "30.60"],
        ["5", "30.50"],
        ["3", "30.30"],
        ["0", "30.00"],
    ]
    assert importance.startswith("importance")
    assert {"peak_lr", "d_ff"} < set(importance.split())
    monkeypatch.chdir(Path(__file__).resolve().parents[3])
    program, script, *arguments = shlex.split(command)
    assert (program, script) == ("python", "train.py")
    config = read_arguments(arguments).config
    preset = TranslationConfig.load(Path("const/preset/demo.yaml"))
    best = study.values(study.trials()[2])
    assert config == replace(
        preset,
        name="tiny-best",
        optimizer=replace(preset.optimizer, peak_lr=best["optimizer.peak_lr"]),
        model=replace(preset.model, d_ff=best["model.d_ff"]),
        training=replace(preset.training, max_steps=30, select_by="bleu"),
    )
    assert "--training.select_by=bleu" in arguments


def test_the_summary_says_where_the_picture_lies(study: Study) -> None:
    assert not any("picture" in line for line in summary(study))
    (study.folder / "study.png").touch()
    assert f"picture: {study.folder / 'study.png'}" in summary(study)


def test_train_reads_the_best_settings(study: Study, tmp_path: Path) -> None:
    write_best(study, tmp_path / "new" / "best.yaml")
    config = read_arguments(["--config", str(tmp_path / "new" / "best.yaml")]).config
    assert config == replace(CONFIG.settings(study.values(study.trials()[2])), name="tiny-best")
    assert config.training.max_steps == 30


def test_of_a_study_without_a_complete_trial_nothing_is_the_best(tmp_path: Path) -> None:
    world = World(score)
    begun = Study(CONFIG, tmp_path, world.train)
    world.events["tiny-0", 20] = raising(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        list(begun.go_on(1))
    assert summary(begun) == [f"{tmp_path / 'tiny-study'}: 1 running", "no trial is complete yet"]
    with pytest.raises(ValueError, match="no trial of tiny is complete yet"):
        write_best(begun, tmp_path / "best.yaml")
    draw(begun)
    assert not (begun.folder / "study.png").exists()


def test_all_trials_are_written(study: Study, tmp_path: Path) -> None:
    checkpoints = study.folder / "runs" / "tiny-2-20260101-000000" / "checkpoints"
    checkpoints.mkdir(parents=True)
    (checkpoints / "step-00000030.pt").touch()
    write_trials(study, tmp_path / "trials.json")
    found = json.loads((tmp_path / "trials.json").read_text(encoding="utf-8"))
    trials = found.pop("trials")
    assert sum(found.pop("importance").values()) == pytest.approx(1)
    assert found == {"study": "tiny", "score": "bleu", "minimised": False, "best": 2}
    assert [trial["state"] for trial in trials][3:5] == ["complete", "pruned"]
    rate, d_ff = study.trials()[2].params.values()
    assert trials[2] == {
        "number": 2,
        "state": "complete",
        "score": 35,
        "options": {"optimizer.peak_lr": rate, "model.d_ff": int(d_ff)},
        "minutes": 3,
        "run": "tiny-2-20260101-000000",
        "by_step": {"10": 15, "20": 25, "30": 35},
        "why": None,
    }
    assert trials[1]["why"] == "the training tiny-1 failed: out of memory"


def test_the_picture_shows_what_was_finished(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[Any, ...]] = []
    monkeypatch.setattr(study_module, "draw_study", lambda *given: drawn.append(given))
    draw(study)
    ((trials, name, minimised, importance, picture),) = drawn
    assert [trial.number for trial in trials] == [0, 2, 3, 4, 5, 6]
    assert trials[1] == DrawnTrial(2, "complete", 35, {10: 15, 20: 25, 30: 35})
    assert trials[3] == DrawnTrial(4, "pruned", 1, {10: 1})
    assert (name, minimised, importance.keys()) == ("BLEU", False, {"peak_lr", "d_ff"})
    assert picture == study.folder / "study.png"


def test_the_lowest_loss_leads_the_table(tmp_path: Path) -> None:
    world = World(lambda at: 2.0 + at.number, field="loss")
    lost = Study(replace(CONFIG, score="loss"), tmp_path, world.train)
    list(lost.go_on(3))
    _, _, names, *rows = summary(lost)
    assert names.split()[1] == "loss"
    assert rows[0].split()[:2] == ["0", "2.0000"]
    assert lost.trials(TrialState.COMPLETE)


def test_the_table_has_the_five_best_trials(tmp_path: Path) -> None:
    searched = Study(CONFIG, tmp_path, World(score).train)
    list(searched.go_on(8))
    _, _, _, *rows = summary(searched)
    assert [row.split()[0] for row in rows[: rows.index("")]] == ["2", "7", "6", "5", "3"]


def test_options_that_end_alike_keep_their_names() -> None:
    found = short_names(["model.dropout", "optimizer.peak_lr", "masking.dropout"])
    assert list(found.values()) == ["model.dropout", "peak_lr", "masking.dropout"]


def test_a_trial_that_was_never_drawn_whole_has_its_line(tmp_path: Path) -> None:
    begun = Study(CONFIG, tmp_path, World(score).train)
    begun._optuna.ask({"model.d_ff": CONFIG.space["model.d_ff"].distribution})
    list(begun.go_on(1))
    assert trial_line(begun, begun.trials()[0]).endswith(": stopped while drawing its settings")
