"""The benchmark finds the faults that it is made to find; the trainings themselves are run where time is no matter."""

import copy
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import faults
from bench.faults import (
    DAMAGES,
    SETTINGS,
    Outcome,
    TinyTraining,
    build_parser,
    compare,
    differences,
    mount_small_disk,
    survive_damage,
    survive_kills,
)
from utils.training.checkpoint import CheckpointStore, load_checkpoint

CPU = torch.device("cpu")
SHORT = SETTINGS.replace("max_steps: 60", "max_steps: 12").replace("validate_every: 5", "validate_every: 3")


def state(step: int) -> dict[str, Any]:
    weight = torch.arange(4000.0) + step
    return {"step": step, "net": {"weight": weight}, "moments": [weight * 2, weight / 3], "seconds": 1.0}


@pytest.fixture
def checkpoints(tmp_path: Path) -> list[Path]:
    store = CheckpointStore(tmp_path / "whole", 2)
    for step in (10, 20):
        store.save(state(step), step)
    return sorted((tmp_path / "whole").iterdir())


def test_every_damage_is_refused_and_the_older_one_gone_on_from(checkpoints: list[Path], tmp_path: Path) -> None:
    assert survive_damage(checkpoints, tmp_path / "damaged", 200, 1) == {"damages": 200, "refused": 200}


def test_a_store_that_believes_everything_is_found_out(
    checkpoints: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = load_checkpoint(checkpoints[-1], CPU)
    monkeypatch.setattr("utils.training.checkpoint.load_checkpoint", lambda *_: newest)
    with pytest.raises(ValueError, match=r"damage 0 \(truncate\) was accepted"):
        survive_damage(checkpoints, tmp_path / "damaged", 5, 1)


def test_a_store_that_gives_something_else_is_found_out(
    checkpoints: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(path: Path, _: torch.device) -> dict[str, Any]:
        found = load_checkpoint(path, CPU)
        found["moments"][1][7] += len(list(path.parent.iterdir())) - 1
        return found

    monkeypatch.setattr("utils.training.checkpoint.load_checkpoint", careless)
    with pytest.raises(ValueError, match=r"damage 0 \(truncate\) was accepted: \.moments\[1\]"):
        survive_damage(checkpoints, tmp_path / "damaged", 5, 1)


def test_zeros_in_place_of_zeros_are_no_damage(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "whole", 2)
    for step in (10, 20):
        store.save({**state(step), "zeros": torch.zeros(50_000)}, step)
    checkpoints = sorted((tmp_path / "whole").iterdir())
    assert survive_damage(checkpoints, tmp_path / "damaged", 40, 1)["refused"] == 40


def test_an_error_of_another_kind_is_found_out(
    checkpoints: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: Path, device: torch.device) -> dict[str, Any]:
        if path.name == checkpoints[-1].name:
            raise RuntimeError("the archive is odd")
        return load_checkpoint(path, device)

    monkeypatch.setattr("utils.training.checkpoint.load_checkpoint", broken)
    with pytest.raises(ValueError, match="was fatal"):
        survive_damage(checkpoints, tmp_path / "damaged", 5, 1)


@pytest.mark.parametrize("hurt", DAMAGES, ids=lambda hurt: hurt.__name__)
def test_a_damage_is_one(hurt: Any) -> None:
    draw, whole = random.Random(0), random.Random(1).randbytes(10_000)
    kinds = Counter(hurt(whole, draw) == whole for _ in range(50))
    assert kinds[False] == 50


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("checkpoint", "net", "weight"), torch.nextafter(torch.ones(3), torch.zeros(3))),
        (("checkpoint", "net", "weight"), torch.ones(3).view(torch.int32)),
        (("checkpoint", "net", "weight"), torch.ones(1, 3)),
        (("checkpoint", "progress", "step"), 8),
        (("checkpoint", "progress", "more"), 8),
        (("checkpoint", "moments", 1), torch.zeros(2)),
        (("checkpoint", "moments"), []),
        (("weights", "zero"), torch.tensor([-0.0])),
        (("log", 1, "loss"), 0.5000001),
        (("log",), []),
    ],
    ids=str,
)
def test_one_bit_is_a_difference(path: tuple[Any, ...], value: object) -> None:
    def outcome() -> Any:
        checkpoint = {"net": {"weight": torch.ones(3)}, "progress": {"step": 7, "seconds": 1.0}}
        log = [{"step": 1, "minutes": 0.1, "loss": float("nan")}, {"step": 2, "loss": 0.5, "tokens_per_second": 9.0}]
        return Outcome(
            {"zero": torch.zeros(1)}, {**checkpoint, "moments": [torch.ones(2), torch.tensor([float("nan")] * 2)]}, log
        )._asdict()

    ours, theirs = outcome(), outcome()
    ours["checkpoint"]["progress"]["seconds"] = 99.0  # times are ignored
    ours["log"][0]["minutes"] = ours["log"][1]["tokens_per_second"] = 99.0
    assert not list(differences(ours, theirs))
    place = ours
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = copy.copy(value)
    assert list(differences(ours, theirs))
    with pytest.raises(ValueError, match="differ from the undisturbed training"):
        compare(Outcome(**ours), Outcome(**theirs))


@pytest.mark.slow
def test_killed_trainings_end_as_undisturbed_ones(tmp_path: Path) -> None:
    training = TinyTraining(tmp_path / "reference", SHORT)
    training.finish()
    monkey = pytest.MonkeyPatch()
    with monkey.context() as context:
        context.setattr(faults, "TinyTraining", lambda folder: TinyTraining(folder, SHORT))
        context.setattr(faults, "KILLS_A_TRAINING", 2)
        figures = survive_kills(tmp_path, 2, training.outcome(), 15.0, 1)
    assert figures["kills"] == 2


@pytest.mark.slow
def test_a_small_disk_is_small_where_it_may_be_mounted(tmp_path: Path) -> None:
    if not mount_small_disk(tmp_path / "disk", 8192):
        pytest.skip("nothing may be mounted here")
    try:
        with pytest.raises(OSError, match="No space left"):
            (tmp_path / "disk" / "large").write_bytes(bytes(9000))
    finally:
        faults.unmount(tmp_path / "disk")


def test_the_examples_of_the_help_are_understood() -> None:
    examples = re.findall(r"^ +python -m bench.faults(.*)$", build_parser().format_help(), re.M)
    assert len(examples) == 2
    for example in examples:
        build_parser().parse_args(re.split(r" {3,}", example)[0].split())
