"""Of trainings that take no time: what a study draws, reports, gives up, goes on with, and leaves to others."""

import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import FrozenTrial, TrialState

from models.bert import BertConfig
from tests.strict import no_warning
from tests.utils.experiment.fake_training import At, FakeTraining, KilledError, World, raising
from utils.config import AnyConfig, ClassificationConfig, TranslationConfig
from utils.experiment.study import Choices, PrunerConfig, Range, SamplerConfig, Study, StudyConfig

CONFIG = StudyConfig(
    "tiny",
    Path("const/preset/demo.yaml"),
    {"optimizer.peak_lr": Range(0.001, 0.1, log=True), "model.d_ff": Choices((16, 32))},
    {"training.max_steps": 30},
    SamplerConfig(startup_trials=3),
    PrunerConfig("none"),
    "bleu",
)


pytestmark = no_warning


def rising(at: At) -> float:
    """The higher the rate, the better."""
    return at.step * at.rate


def falling(at: At) -> float:
    """Each trial is worse than the one before."""
    return -1.0 * at.number


def study(root: Path, world: World, **changed: Any) -> Study:
    return Study(replace(CONFIG, **changed), root, world.train)


def drawn(trials: list[FrozenTrial]) -> list[dict[str, Any]]:
    return [trial.params for trial in trials]


def test_a_repeated_command_adds_nothing(tmp_path: Path) -> None:
    world = World(rising)
    first = list(study(tmp_path, world).go_on(3))
    assert [trial.number for trial in first] == [0, 1, 2]
    assert {trial.state for trial in first} == {TrialState.COMPLETE}
    assert list(study(tmp_path, world).go_on(3)) == []
    assert list(study(tmp_path, world).go_on(0)) == []
    assert [trial.number for trial in study(tmp_path, world).go_on(5)] == [3, 4]
    assert not world.held


def test_a_trial_trains_with_what_it_has_drawn_and_is_worth_its_best_validation(tmp_path: Path) -> None:
    world = World(lambda at: {10: 5.0, 20: 8.0, 30: 7.0}[at.step])
    (trial,) = study(tmp_path, world).go_on(1)
    (options,) = world.options["tiny-0"]
    assert options.pop("training.select_by") == "bleu"
    assert options.pop("training.max_steps") == "30"
    assert float(options.pop("optimizer.peak_lr")) == trial.params["optimizer.peak_lr"]
    assert options == {"model.d_ff": trial.params["model.d_ff"]}
    assert trial.value == 8
    assert trial.intermediate_values == {10: 5, 20: 8, 30: 7}
    assert trial.user_attrs["minutes"] == 3


def test_the_highest_score_or_the_lowest_loss_is_the_best(tmp_path: Path) -> None:
    scored = study(tmp_path, World(rising))
    list(scored.go_on(4))
    rates = [trial.params["optimizer.peak_lr"] for trial in scored.ranked()]
    assert rates == sorted(rates, reverse=True)
    lost = study(tmp_path, World(rising, field="loss"), name="lost", score="loss")
    list(lost.go_on(4))
    rates = [trial.params["optimizer.peak_lr"] for trial in lost.ranked()]
    assert rates == sorted(rates)
    best = lost.best
    assert best is not None
    assert best.value == pytest.approx(10 * rates[0])


@pytest.mark.parametrize("stop", [KeyboardInterrupt, KilledError])
def test_an_interrupted_trial_is_gone_on_with_as_if_nothing_had_been(tmp_path: Path, stop: type[BaseException]) -> None:
    sampler = SamplerConfig(startup_trials=2)
    pruner = PrunerConfig("median", startup_trials=2)
    undisturbed = World(rising)
    expected = list(study(tmp_path / "one", undisturbed, sampler=sampler, pruner=pruner).go_on(6))

    world = World(rising)
    found: list[FrozenTrial] = []
    for disturbed, step, saved in (("tiny-1", 20, [10]), ("tiny-4", 10, [])):
        world.events[disturbed, step] = raising(stop)
        with pytest.raises(stop):
            found.extend(study(tmp_path / "other", world, sampler=sampler, pruner=pruner).go_on(6))
        assert [one["step"] for one in world.saved[disturbed]] == saved
    found += study(tmp_path / "other", world, sampler=sampler, pruner=pruner).go_on(6)
    assert [trial.number for trial in found] == list(range(6))
    assert drawn(found) == drawn(expected)
    assert [trial.state for trial in found] == [trial.state for trial in expected]
    assert [trial.intermediate_values for trial in found] == [trial.intermediate_values for trial in expected]
    assert world.options["tiny-1"][0] == world.options["tiny-1"][1]
    assert len(world.options["tiny-0"]) == 1


def test_what_is_worse_than_the_median_is_given_up(tmp_path: Path) -> None:
    world = World(lambda at: at.step - 8.0 * (at.number in (2, 3)))
    searched = study(tmp_path, world, pruner=PrunerConfig("median", startup_trials=2, warmup_steps=20))
    trials = list(searched.go_on(5))
    assert [trial.state.name for trial in trials] == ["COMPLETE", "COMPLETE", "PRUNED", "PRUNED", "COMPLETE"]
    assert world.stopped == ["tiny-2", "tiny-3"]
    assert trials[2].intermediate_values == {10: 2, 20: 12}  # before 20 updates nothing is given up
    assert trials[2].value == 12


def test_a_higher_loss_is_given_up(tmp_path: Path) -> None:
    world = World(lambda at: 5.0 + {2: 1, 3: -1}.get(at.number, 0), field="loss")
    trials = list(study(tmp_path, world, pruner=PrunerConfig("median", startup_trials=2), score="loss").go_on(4))
    assert [trial.state.name for trial in trials] == ["COMPLETE", "COMPLETE", "PRUNED", "COMPLETE"]


def test_what_is_trained_to_its_end_is_complete(tmp_path: Path) -> None:
    """Also where it is worse than the others only then."""
    world = World(lambda at: 0.0 if at.number == 3 and at.step == 30 else at.step)
    trials = list(study(tmp_path, world, pruner=PrunerConfig("median", startup_trials=2)).go_on(4))
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 4
    assert trials[3].value == 20


def test_what_has_lost_its_patience_is_complete(tmp_path: Path) -> None:
    """Its last validation is worse than the others', and its training has ended by then."""
    world = World(lambda at: 9.0 if at.number < 3 else 8.0 if at.step == 10 else 7.0, steps=(10, 20))
    patience = {"training.max_steps": 90, "training.patience": 1}
    pruner = PrunerConfig("median", startup_trials=2, warmup_steps=20)
    trials = list(study(tmp_path, world, options=patience, pruner=pruner).go_on(4))
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 4


def test_a_loss_that_rises_has_lost_its_patience_too(tmp_path: Path) -> None:
    world = World(lambda at: 1.0 if at.number < 3 else at.step / 5, steps=(10, 20), field="loss")
    patience = {"training.max_steps": 90, "training.patience": 1}
    pruner = PrunerConfig("median", startup_trials=2, warmup_steps=20)
    trials = list(study(tmp_path, world, options=patience, pruner=pruner, score="loss").go_on(4))
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 4


def test_a_score_that_is_no_number_costs_patience(tmp_path: Path) -> None:
    world = World(lambda at: 9.0 if at.number < 3 else {10: 8.0, 20: None, 30: 7.0}[at.step])
    patience = {"training.max_steps": 90, "training.patience": 2}
    pruner = PrunerConfig("median", startup_trials=2, warmup_steps=30)
    trials = list(study(tmp_path, world, options=patience, pruner=pruner).go_on(4))
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 4


@pytest.mark.parametrize("bound", ["minutes", "epochs"])
def test_what_has_reached_another_bound_is_complete(tmp_path: Path, bound: str) -> None:
    world = World(lambda at: 9.0 if at.number < 3 else 7.0, steps=(10, 20))
    options = {"training.max_steps": 90, f"training.max_{bound}": 2}
    pruner = PrunerConfig("median", startup_trials=2, warmup_steps=20)
    trials = list(study(tmp_path, world, options=options, pruner=pruner).go_on(4))
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 4


def test_what_an_orphan_has_trained_to_its_end_is_complete(tmp_path: Path) -> None:
    """However bad it was: there is nothing left to be given up."""
    world = World(falling)
    pruner = PrunerConfig("median", startup_trials=1)
    world.events["tiny-1", 10] = raising(KilledError)
    with pytest.raises(KilledError):
        list(study(tmp_path, world, pruner=pruner).go_on(2))
    orphan = FakeTraining(world, "tiny-1", world.options["tiny-1"][0])
    assert len(list(orphan.validations())) == 3
    (trial,) = study(tmp_path, world, pruner=pruner).go_on(2)
    assert (trial.number, trial.state) == (1, TrialState.COMPLETE)


def failing(*numbers: int) -> World:
    world = World(rising)
    for number in numbers:
        world.events[f"tiny-{number}", 20] = raising(ValueError, f"the training tiny-{number} failed: out of memory")
    return world


def test_a_failure_is_remembered_and_the_study_goes_on(tmp_path: Path) -> None:
    world = failing(1, 2, 4, 5)
    trials = list(study(tmp_path, world).go_on(3))
    assert [trial.state.name for trial in trials] == ["COMPLETE", *["FAIL"] * 2, "COMPLETE", *["FAIL"] * 2, "COMPLETE"]
    assert trials[1].user_attrs["why"] == "the training tiny-1 failed: out of memory"
    assert not world.held


def test_three_failures_in_a_row_stop_it(tmp_path: Path) -> None:
    found: list[FrozenTrial] = []
    with pytest.raises(ValueError, match="3 trials in a row failed"):
        found.extend(study(tmp_path, failing(0, 2, 3, 4)).go_on(9))
    assert [trial.state.name for trial in found] == ["FAIL", "COMPLETE", "FAIL", "FAIL", "FAIL"]


def test_a_training_without_a_finite_score_has_failed(tmp_path: Path) -> None:
    world = World(lambda at: None if at.step > 10 or at.number == 0 else 1.0)
    failed, complete = study(tmp_path, world).go_on(1)
    assert failed.state == TrialState.FAIL
    assert failed.user_attrs["why"] == "no validation has a finite bleu"
    assert (complete.value, complete.intermediate_values) == (1, {10: 1})


def test_two_processes_share_a_study(tmp_path: Path) -> None:
    """Neither trains what the other one does, nor draws the same, though both began with one seed."""
    world, sampler = World(rising), SamplerConfig(startup_trials=99)
    alone = drawn(list(study(tmp_path / "alone", World(rising), sampler=sampler).go_on(4)))
    theirs: list[FrozenTrial] = []

    def meanwhile() -> None:
        assert world.held == {"tiny-0"}
        theirs.extend(islice(study(tmp_path, world, sampler=sampler).go_on(4), 2))

    world.events["tiny-0", 20] = meanwhile
    ours = list(study(tmp_path, world, sampler=sampler).go_on(4))
    assert [trial.number for trial in theirs] == [1, 2]
    assert [trial.number for trial in ours] == [0, 3]
    assert drawn([ours[0], *theirs, ours[1]]) == alone
    assert len({str(params) for params in alone}) == 4


def test_who_comes_last_waits_for_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one is killed at last, and its trial is gone on with."""
    world = World(rising)
    said: list[str] = []
    looks: list[float] = []
    world.events["tiny-0", 20] = raising(KilledError)
    with pytest.raises(KilledError):
        list(study(tmp_path, world).go_on(1))
    world.held.add("tiny-0")

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            world.held.clear()

    monkeypatch.setattr(time, "sleep", sleep)
    (trial,) = study(tmp_path, world).go_on(1, said.append)
    assert (trial.number, trial.state) == (0, TrialState.COMPLETE)
    assert said == ["waiting for trial 0, which another process is training"]
    assert len(looks) == 3


def test_what_was_begun_is_left_alone_where_enough_is_finished(tmp_path: Path) -> None:
    world = World(rising)
    world.events["tiny-1", 20] = raising(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        list(study(tmp_path, world).go_on(2))
    assert list(study(tmp_path, world).go_on(1)) == []
    assert len(world.options["tiny-1"]) == 1


def test_a_trial_that_was_never_drawn_whole_is_nobodys(tmp_path: Path) -> None:
    world = World(rising)
    begun = study(tmp_path, world)
    begun._optuna.ask({"model.d_ff": CONFIG.space["model.d_ff"].distribution})
    (trial,) = study(tmp_path, world).go_on(1)
    assert trial.number == 1
    assert [one.state for one in begun.trials()] == [TrialState.FAIL, TrialState.COMPLETE]


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({"space": {"model.d_ff": Choices((16, 32))}}, "space.optimizer.peak_lr.low was 0.001 and is gone"),
        ({"space": CONFIG.space | {"model.dropout": Range(0.0, 0.1)}}, "space.model.dropout.low is new"),  # type: ignore[operator]
        (
            {"space": CONFIG.space | {"optimizer.peak_lr": Range(0.001, 0.2, log=True)}},  # type: ignore[operator]
            "space.optimizer.peak_lr.high was 0.1 and is 0.2",
        ),
        ({"options": {"training.max_steps": 60}}, "options.training.max_steps was 30 and is 60"),
        ({"score": "chrf"}, "score was bleu and is chrf"),
        ({"preset": Path("const/preset/tanaka_ja_en.yaml")}, "preset.name was demo and is tanaka_ja_en"),
    ],
    ids=["without", "more", "wider", "longer", "score", "preset"],
)
def test_what_would_not_be_comparable_is_refused(tmp_path: Path, changed: dict[str, Any], difference: str) -> None:
    study(tmp_path, World(rising))
    with pytest.raises(ValueError, match=f"tiny was started with other settings: {difference}: rename this one"):
        study(tmp_path, World(rising), **changed)


def test_how_the_next_are_chosen_may_change(tmp_path: Path) -> None:
    list(study(tmp_path, World(rising)).go_on(1))
    changed = study(
        tmp_path, World(rising), sampler=SamplerConfig(startup_trials=99), pruner=PrunerConfig("median"), seed=7
    )
    assert [trial.number for trial in changed.go_on(2)] == [1]


def test_seeds_that_follow_each_other_draw_otherwise(tmp_path: Path) -> None:
    first, second = (drawn(list(study(tmp_path / str(seed), World(rising), seed=seed).go_on(3))) for seed in (1, 2))
    assert not any(params in first for params in second)
    again = drawn(list(study(tmp_path / "again", World(rising), seed=1).go_on(3)))
    assert again == first


def save_run(root: Path, config: AnyConfig) -> Path:
    """What a training of trial 0 has left, and the study knows nothing of."""
    folder = root / "tiny-study" / "runs" / "tiny-0-20260101-000000"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "step-00000010.pt").touch()
    replace(config, name="tiny-0").save(folder / "config.yaml")
    return folder


def test_the_run_of_another_trial_is_not_taken(tmp_path: Path) -> None:
    searched = study(tmp_path, World(rising))
    run = save_run(tmp_path, searched.config.settings({"optimizer.peak_lr": 0.5, "model.d_ff": 16}))
    with pytest.raises(ValueError, match=r"not a run of trial 0: .* was .* and is .*: remove that folder") as caught:
        list(searched.go_on(1))
    assert str(run) in str(caught.value)
    assert "\n" not in str(caught.value)
    run.rename(tmp_path / "elsewhere")
    assert [trial.number for trial in study(tmp_path, World(rising)).go_on(1)] == [0]


@pytest.mark.parametrize("preset", ["demo", "kftt_category_ja"])
def test_the_run_of_a_trial_is_gone_on_with(tmp_path: Path, preset: str) -> None:
    """Also where it has the architecture of a BERT, of which the study says only where it is."""
    changed: dict[str, Any] = {
        "preset": Path(f"const/preset/{preset}.yaml"),
        "options": {"model.init_encoder": "pickles/bert"},
        "space": {"optimizer.peak_lr": CONFIG.space["optimizer.peak_lr"]},
    }
    (before,) = study(tmp_path / "before", World(rising), **changed).go_on(1)
    searched = study(tmp_path, World(rising), **changed)
    config = searched.config.settings(searched.values(before))
    if isinstance(config, ClassificationConfig):
        save_run(tmp_path, replace(config, model=replace(config.model, d_model=48)))
    else:
        assert isinstance(config, TranslationConfig)
        save_run(tmp_path, replace(config, model=replace(config.model, bert=BertConfig(d_model=48))))
    assert [trial.number for trial in searched.go_on(1)] == [0]


def test_a_torn_line_of_the_journal_is_forgotten(tmp_path: Path) -> None:
    before = list(study(tmp_path, World(rising)).go_on(2))
    with (tmp_path / "tiny-study" / "journal.log").open("ab") as journal:
        journal.write(b'{"op_code":5,"worker')
    again = study(tmp_path, World(rising))
    assert [trial.number for trial in again.go_on(3)] == [2]
    assert study(tmp_path, World(rising)).trials()[:2] == before


def test_what_decides_is_important(tmp_path: Path) -> None:
    searched = study(tmp_path, World(rising), sampler=SamplerConfig(startup_trials=99))
    list(searched.go_on(3))
    assert searched.importance() == {}
    list(searched.go_on(30))
    importance = searched.importance()
    assert sum(importance.values()) == pytest.approx(1)
    assert importance["optimizer.peak_lr"] > 0.8


def test_it_says_how_each_trial_gets_on(tmp_path: Path) -> None:
    told: list[tuple[int, int, float]] = []
    searched = study(tmp_path, World(lambda at: 2.0 * at.step))
    list(searched.go_on(1, on_validation=lambda *facts: told.append(facts)))
    assert told == [(0, 10, 20), (0, 20, 40), (0, 30, 60)]
