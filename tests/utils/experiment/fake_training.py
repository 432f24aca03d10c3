"""Trainings that take no time, and whose scores follow from what they are told: a study is looked at through them."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from utils.experiment.trial import BusyError


class KilledError(BaseException):
    """The process that held the study is gone, and could do nothing about it."""


class At(NamedTuple):
    """A validation that is scored."""

    number: int  # of the trial
    step: int
    rate: float  # that it has drawn


class World:
    """What outlives a process: how far each training has come, and who holds it.

    Args:
        score: of a validation.
        steps: at which a training validates.
        field: what the score is called.
    """

    def __init__(
        self, score: Callable[[At], float | None], steps: Sequence[int] = (10, 20, 30), field: str = "bleu"
    ) -> None:
        self.score = score
        self.steps = steps
        self.field = field
        self.saved: dict[str, list[dict[str, Any]]] = {}  # validations by name
        self.options: dict[str, list[dict[str, str]]] = {}  # of each time that it was begun or gone on with
        self.held: set[str] = set()
        self.ended: set[str] = set()  # tested, too, which comes after the last validation
        self.stopped: list[str] = []
        self.events: dict[tuple[str, int], Callable[[], object]] = {}  # happen once, before this validation

    def train(self, name: str, options: Sequence[str], folder: Path, root: Path) -> "FakeTraining":
        assert root == folder / "runs"
        assert options[0] == "--config"
        return FakeTraining(self, name, dict(option.removeprefix("--").split("=") for option in options[2:]))


class FakeTraining:
    def __init__(self, world: World, name: str, options: dict[str, str]) -> None:
        self.world = world
        self.name = name
        self.options = options
        self.is_stopped = False

    @property
    def has_ended(self) -> bool:
        return self.name in self.world.ended

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
            assert not self.is_stopped
            self.world.events.pop((self.name, step), int)()
            score = self.world.score(
                At(int(self.name.rpartition("-")[2]), step, float(self.options["optimizer.peak_lr"]))
            )
            log.append(
                {"kind": "dev", "step": step, "epoch": step // 10, "minutes": step / 10, self.world.field: score}
            )
            yield log[-1]
        self.world.ended.add(self.name)

    def stop(self) -> None:
        self.is_stopped = True
        self.world.stopped.append(self.name)


def raising(error: type[BaseException], text: str = "") -> Callable[[], None]:
    def happen() -> None:
        raise error(text)

    return happen
