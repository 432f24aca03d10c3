"""The work is looked at through trainings that take no time; one real one is in tests/bench/test_ablation.py."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.utils.experiment.tiny_ablation import result, tiny_ablation
from utils.experiment.ablation import Ablation, Alternative, Result, Results, Work
from utils.experiment.trial import BusyError

NAMES = [f"tiny-{slug}-{seed}" for seed in (1, 2) for slug in ("base", "norm-last", "dropout-0.3")]


@dataclass
class World:
    """What several processes share: who is at which training, and what has been done."""

    ablation: Ablation
    results: Results
    root: Path
    events: list[str] = field(default_factory=list)
    busy: dict[str, Callable[[], object]] = field(default_factory=dict)  # by name: happens when somebody asks for it
    breaks: dict[str, BaseException] = field(default_factory=dict)
    stamp: str = ""  # of runs, other ones after the folder of runs is lost

    def begin(self, name: str, arguments: Sequence[str], folder: Path, root: Path) -> "FakeTraining":
        assert (folder, root) == (self.root / "ablation-tiny", self.root)
        assert arguments == next(t.arguments for t in self.ablation.trainings() if t.name == name)
        return FakeTraining(self, name)

    def score(self, run: Path, ablation: Ablation, alternative: Alternative, seed: int) -> Result:
        self.events.append(f"score {run.name} as {alternative.slug}")
        return result(ablation, alternative, seed, 30.0, run=run.name)

    def work(self) -> Work:
        return Work(self.results, self.root, self.begin, self.score, poll=0.0)

    def files(self) -> list[str]:
        return sorted(file.name for file in self.results.folder.glob("*"))

    def trained(self) -> list[str]:
        return [event.removeprefix("train ") for event in self.events if event.startswith("train ")]


class FakeTraining:
    def __init__(self, world: World, name: str) -> None:
        self.world, self.name, self.run = world, name, world.root / (name + world.stamp)

    def __enter__(self) -> Self:
        if self.name in self.world.busy:
            self.world.busy[self.name]()
            raise BusyError(self.name)
        return self

    def validations(self) -> Iterator[dict[str, Any]]:
        self.world.events.append(f"train {self.name}")
        yield {"step": 1000, "bleu": 12.5}
        if error := self.world.breaks.get(self.name):
            raise error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.world.events.append(f"leave {self.name}")


@pytest.fixture(scope="module")
def ablation(tmp_path_factory: pytest.TempPathFactory) -> Ablation:
    return tiny_ablation(tmp_path_factory.mktemp("ablation"))


@pytest.fixture
def world(ablation: Ablation, tmp_path: Path) -> World:
    return World(ablation, Results(ablation, tmp_path / "results"), tmp_path / "pickles")


def test_everything_is_trained_once_and_scored_while_it_is_held(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.work().finish()
    assert world.trained() == NAMES
    assert world.events[:5] == [
        "train tiny-base-1",
        *(f"score tiny-base-1 as {slug}" for slug in ("base", "beam-1-greedy", "beam-2")),
        "leave tiny-base-1",
    ]
    assert len(world.files()) == 2 * 5
    said = capsys.readouterr().out.splitlines()
    assert "norm last, seed 2: dev BLEU 30.00, chrF2 50.00; test BLEU 31.00; 6.0 min" in said
    assert sum(", seed " in line for line in said) == 2 * 5
    world.events.clear()
    world.work().finish()
    assert world.events == []


def test_what_is_missing_alone_is_made(world: World) -> None:
    """A beam that was added later needs the base's weights, and no other result anew where these are still there."""
    world.work().finish()
    world.events.clear()
    (world.results.folder / "beam-2-2.json").unlink()
    world.work().finish()
    assert world.events == ["train tiny-base-2", "score tiny-base-2 as beam-2", "leave tiny-base-2"]


def of_base(seed: int, stamp: str) -> list[str]:
    """What happens when all that translates with the base's weights is scored anew."""
    scored = [f"score tiny-base-{seed}{stamp} as {slug}" for slug in ("base", "beam-1-greedy", "beam-2")]
    return [f"train tiny-base-{seed}", *scored, f"leave tiny-base-{seed}"]


def test_all_that_translates_with_a_base_trained_anew_is_scored_anew(world: World) -> None:
    """Results are committed and runs are not: a beam added later must not be paired with a base of other weights."""
    world.work().finish()
    world.events.clear()
    world.stamp = "-anew"
    (world.results.folder / "beam-2-2.json").unlink()
    world.work().finish()
    assert world.events == of_base(2, "-anew")
    assert {world.results.run(a, 2) for a in world.ablation.trainings()[3].translating} == {"tiny-base-2-anew"}
    world.events.clear()
    world.work().finish()
    assert world.events == []


def test_results_of_two_runs_are_made_those_of_one(world: World) -> None:
    """As somebody leaves them who is stopped between two scores."""
    world.work().finish()
    world.events.clear()
    beam = world.ablation.alternatives[2]
    world.results.write(beam, 1, result(world.ablation, beam, 1, 30.0, run="another"))
    world.work().finish()
    assert world.events == ["train tiny-base-1", "score tiny-base-1 as beam-2", "leave tiny-base-1"]


def test_what_another_process_is_at_is_left_to_it_and_waited_for(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other one is at the first seed's base, and is done when it is asked for the fourth time."""
    asked: list[int] = []

    def other() -> None:
        asked.append(len(world.trained()))
        if len(asked) == 4:
            del world.busy["tiny-base-1"]
            for alternative in world.ablation.trainings()[0].translating:
                world.results.write(alternative, 1, result(world.ablation, alternative, 1, 30.0))

    world.busy["tiny-base-1"] = other
    world.work().finish()
    assert world.trained() == NAMES[1:]
    assert asked == [0, 5, 5, 5]  # it went on with the others meanwhile
    assert len(world.files()) == 2 * 5
    assert capsys.readouterr().out.count("other processes are running tiny-base-1\n") == 1


def test_what_another_process_has_dropped_is_gone_on_with(world: World) -> None:
    world.busy["tiny-norm-last-1"] = lambda: world.busy.clear()
    world.work().finish()
    assert sorted(world.trained()) == sorted(NAMES)
    assert world.trained()[-1] == "tiny-norm-last-1"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            ValueError("the training tiny-norm-last-1 failed: no gradient"),
            "the training tiny-norm-last-1 failed: no gr",
        ),
        (OSError(28, "No space left on device"), "tiny-norm-last-1: [Errno 28] No space left on device"),
        (RuntimeError("no memory:\n 3 GiB wanted"), "tiny-norm-last-1: no memory: 3 GiB wanted"),
    ],
)
def test_a_failure_is_told_and_the_others_are_trained(
    world: World, capsys: pytest.CaptureFixture[str], error: Exception, told: str
) -> None:
    world.breaks["tiny-norm-last-1"] = error
    with pytest.raises(ValueError, match=re.escape(f"1 of 6 trainings failed: {told}")):
        world.work().finish()
    assert world.trained() == NAMES
    assert len(world.files()) == 2 * 5 - 1
    assert f"failed: {told}" in capsys.readouterr().out


def test_who_stops_it_stops_the_training_that_runs_and_begins_no_other(world: World) -> None:
    world.breaks["tiny-norm-last-1"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        world.work().finish()
    assert world.trained() == NAMES[:2]
    assert world.events[-1] == "leave tiny-norm-last-1"
    assert world.files() == ["base-1.json", "beam-1-greedy-1.json", "beam-2-1.json"]


def test_results_of_other_settings_are_refused_before_anything_is_trained(world: World) -> None:
    last = world.ablation.alternatives[-1]
    other = result(world.ablation, last, 2, 30.0)
    other["config"]["model"]["dropout"] = 0.9
    world.results.write(last, 2, other)
    with pytest.raises(ValueError, match=r"dropout-0\.3-2\.json is of other settings \(model\.dropout is 0\.9, not"):
        world.work().finish()
    assert world.events == []
