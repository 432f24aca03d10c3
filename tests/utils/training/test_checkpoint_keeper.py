from pathlib import Path
from typing import Any

import pytest
import torch

from utils.training import checkpoint
from utils.training.checkpoint import (
    CheckpointKeeper,
    CheckpointStore,
    WeightStore,
    read_score,
    read_weights,
    write_weights,
)
from utils.training.plan import Progress
from utils.training.report import Validation

CPU = torch.device("cpu")


class Training:
    """Validated at 10, 20 and 30; the second time is the best."""

    def __init__(self, folder: Path, progress: Progress | None = None) -> None:
        self.folder = folder
        self.progress = progress or Progress()
        self.store = CheckpointStore(folder / "checkpoints", 2)
        weights = WeightStore(folder / "weights", 1, 2, self.progress.step)
        self.best = folder / "model.safetensors"
        self.keeper = CheckpointKeeper(
            self.store,
            weights,
            self.best,
            lambda: {"step": self.progress.step},
            lambda: {"w": torch.tensor([float(self.progress.step)])},
        )

    def validate(self, step: int, bleu: float) -> None:
        self.progress.step = step
        if bleu > self.progress.best_score:
            self.progress.best_score, self.progress.best_step = bleu, step
        self.keeper.on_validation(self.progress, Validation(1.0, {"bleu": bleu, "chrf": 0.0}))

    def go(self) -> None:
        for step, bleu in ((10, 5.0), (20, 8.0), (30, 7.0), (40, 6.0)):
            self.validate(step, bleu)


def test_each_validation_is_saved_and_the_best_apart(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.go()
    assert training.store.load(CPU, pytest.fail) == {"step": 40}
    assert read_weights(training.best)["w"].item() == 20
    assert read_score(training.best) == 8.0
    names = {
        folder: sorted(path.name for path in (tmp_path / folder).iterdir()) for folder in ("checkpoints", "weights")
    }
    assert names == {
        "checkpoints": ["step-00000030.pt", "step-00000040.pt"],
        "weights": [f"step-{step:08d}.safetensors" for step in (20, 30, 40)],
    }


def test_a_better_average_of_an_earlier_end_stays(tmp_path: Path) -> None:
    """A training has ended with an average of 9, and goes on: a validation of 8 is its best, and worse."""
    training = Training(tmp_path)
    write_weights({"w": torch.tensor([-1.0])}, training.best, 9.0)
    training.go()
    assert read_weights(training.best)["w"].item() == -1
    training.validate(50, 9.5)
    assert read_weights(training.best)["w"].item() == 50


def test_what_a_lost_step_left_as_the_best_is_replaced_by_what_is_as_good(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.validate(10, 5.0)
    write_weights({"w": torch.tensor([-1.0])}, training.best, 8.0)  # of a step 20 whose checkpoint was never written
    training.validate(20, 8.0)
    assert read_weights(training.best)["w"].item() == 20


def test_between_validations_only_the_training_is_saved(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.go()
    training.progress.step = 43
    training.keeper.save(43)
    assert training.store.load(CPU, pytest.fail) == {"step": 43}
    assert len(list((tmp_path / "weights").iterdir())) == 3


@pytest.mark.parametrize("dies_in", ["weights", "best", "checkpoint"])
def test_a_validation_that_was_saved_in_part_is_saved_whole_by_the_next_process(
    tmp_path: Path, dies_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    training = Training(tmp_path)
    training.validate(10, 5.0)
    targets: dict[str, tuple[Any, str]] = {
        "weights": (WeightStore, "save"),
        "best": (checkpoint, "write_weights"),
        "checkpoint": (CheckpointStore, "save"),
    }
    with monkeypatch.context() as context:
        context.setattr(*targets[dies_in], die)
        with pytest.raises(KeyboardInterrupt):
            training.validate(20, 8.0)
    assert training.store.load(CPU, pytest.fail) == {"step": 10}  # so that step 20 is validated again

    resumed, whole = Training(tmp_path, Progress(step=10, best_step=10, best_score=5.0)), Training(tmp_path / "whole")
    resumed.validate(20, 8.0)
    whole.validate(10, 5.0)
    whole.validate(20, 8.0)
    for name in ("weights", "checkpoints"):
        ours, theirs = (sorted(path.name for path in (t.folder / name).iterdir()) for t in (resumed, whole))
        assert ours == theirs
    assert read_weights(resumed.best)["w"].item() == 20


def test_what_killed_processes_left_half_written_goes_at_the_start(tmp_path: Path) -> None:
    Training(tmp_path).go()
    before = sorted(tmp_path.rglob("*"))
    for path in (
        "checkpoints/.step-00000050.pt",
        "weights/.step-00000050.safetensors",
        ".model.safetensors",
        ".log.jsonl",
    ):
        (tmp_path / f"{path}.999999999.part").write_bytes(b"half")
    Training(tmp_path, Progress(step=40))
    assert sorted(tmp_path.rglob("*")) == before
