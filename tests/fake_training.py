"""Trainings that take no time, and whose scores follow from what they are told."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from utils.experiment.trial import BusyError


class KilledError(BaseException):
    """The process is gone, and could do nothing about it."""


class At(NamedTuple):
    """A validation that is scored."""

    number: int  # at the end of the run's name
    step: int
    rate: float


class World:
    """What outlives a process: how far each training has come, and who holds it."""

    def __init__(
        self,
        score: Callable[[At], float | None] = lambda at: float(at.step),
        steps: Sequence[int] = (10, 20, 30),
        field: str = "bleu",
    ) -> None:
        self.score, self.steps, self.field = score, steps, field
        self.saved: dict[str, list[dict[str, Any]]] = {}  # validations by name
        self.options: dict[str, list[dict[str, str]]] = {}  # of each time that it was begun or resumed
        self.held: set[str] = set()
        self.stopped: list[str] = []
        self.events: dict[tuple[str, int], Callable[[], object]] = {}  # happen once, before this validation
        self.stamp = ""  # of runs

    def training(self, name: str, options: Sequence[str], folder: Path, root: Path) -> "FakeTraining":
        assert options[0] == "--config"
        given = dict(option.removeprefix("--").split("=") for option in options[2:])
        return FakeTraining(self, name, given, folder / f"{name}.log", root / (name + self.stamp))


class FakeTraining:
    def __init__(self, world: World, name: str, options: dict[str, str], output: Path, run: Path) -> None:
        self.world, self.name, self.options, self.output, self.run = world, name, options, output, run

    def __enter__(self) -> Self:
        if self.name in self.world.held:
            raise BusyError(self.name)
        self.world.held.add(self.name)
        self.world.options.setdefault(self.name, []).append(self.options)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.world.held.remove(self.name)

    def validations(self) -> Iterator[dict[str, Any]]:
        log = self.world.saved.setdefault(self.name, [])
        yield from list(log)
        for step in self.world.steps[len(log) :]:
            assert self.name not in self.world.stopped
            self.world.events.pop((self.name, step), int)()
            at = At(int(self.name.rpartition("-")[2]), step, float(self.options.get("optimizer.peak_lr", 0)))
            log.append({"step": step, "epoch": 0, "minutes": step / 10, self.world.field: self.world.score(at)})
            yield log[-1]

    def stop(self) -> None:
        self.world.stopped.append(self.name)


def raising(error: BaseException) -> Callable[[], None]:
    def happen() -> None:
        raise error

    return happen
