import multiprocessing
import random
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest
import torch

from utils.file import sweep_drafts
from utils.training.checkpoint import CheckpointConfig, CheckpointStore

CPU = torch.device("cpu")


def state(step: int) -> dict[str, Any]:
    return {"step": step, "weight": torch.full((3,), float(step))}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run" / "checkpoints"


def filled(folder: Path, *steps: int, keep_last: int = 9) -> CheckpointStore:
    store = CheckpointStore(folder, keep_last)
    for step in steps:
        store.save(state(step), step)
    return store


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def damage(folder: Path, step: int) -> None:
    path = folder / f"step-{step:08d}.pt"
    path.write_bytes(path.read_bytes()[:-9])


def loaded(store: CheckpointStore) -> tuple[int, list[str]]:
    said: list[str] = []
    found = store.load(CPU, said.append)
    assert found["weight"].equal(torch.full((3,), float(found["step"])))
    return found["step"], said


@pytest.mark.parametrize("keep_last", [1, 2, 3])
def test_the_newest_stay(folder: Path, keep_last: int) -> None:
    store = CheckpointStore(folder, keep_last)
    for step in (5, 10, 15, 99_999_999, 123_456_789):
        store.save(state(step), step)
        assert loaded(CheckpointStore(folder, keep_last)) == (step, [])
    assert names(folder) == sorted(["step-00000015.pt", "step-99999999.pt", "step-123456789.pt"][-keep_last:])


def test_an_old_one_goes_only_when_the_new_one_is_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(folder, 5, 10, keep_last=2)
    before = names(folder)

    def full(*_: object) -> None:
        raise OSError("no room")

    with monkeypatch.context() as context:
        context.setattr("utils.training.checkpoint.save_checkpoint", full)
        with pytest.raises(OSError, match="no room"):
            store.save(state(15), 15)
    assert names(folder) == before


def test_a_checkpoint_of_the_same_step_is_replaced(folder: Path) -> None:
    store = filled(folder, 5, 10, keep_last=2)
    store.save({"step": 11, "weight": torch.full((3,), 11.0)}, 10)
    assert names(folder) == ["step-00000005.pt", "step-00000010.pt"]
    assert loaded(store) == (11, [])


def test_damaged_ones_are_passed_over_with_a_line_each(folder: Path) -> None:
    filled(folder, 5, 10, 15, 20)
    damage(folder, 20)
    (folder / "step-00000015.pt").write_bytes(b"")
    step, said = loaded(CheckpointStore(folder, 9))
    assert step == 10
    assert len(said) == 2
    assert said[0].startswith("Checkpoint step-00000020.pt is damaged: ")
    assert said[1].startswith("Checkpoint step-00000015.pt is damaged: truncated at 0 bytes")
    assert all(line.endswith("; resuming from step-00000010.pt instead") and "\n" not in line for line in said)


def test_when_all_are_damaged_each_is_named(folder: Path) -> None:
    filled(folder, 5, 10)
    damage(folder, 5)
    damage(folder, 10)
    said: list[str] = []
    with pytest.raises(ValueError, match=r"no checkpoint in .* is intact") as caught:
        CheckpointStore(folder, 9).load(CPU, said.append)
    message = str(caught.value)
    assert str(folder) in message
    assert "step-00000005.pt is damaged" in message
    assert "step-00000010.pt is damaged" in message
    assert message.endswith("train from scratch")
    assert "\n" not in message
    assert not said


def test_the_one_that_was_gone_on_from_stays_until_two_good_ones_are_there(folder: Path) -> None:
    """A damaged one does not count, though its number is higher."""
    filled(folder, 10, 20)
    damage(folder, 20)
    store = CheckpointStore(folder, 2)
    assert loaded(store)[0] == 10
    store.save(state(15), 15)
    assert names(folder) == ["step-00000010.pt", "step-00000015.pt"]
    store.save(state(20), 20)
    assert names(folder) == ["step-00000015.pt", "step-00000020.pt"]
    assert loaded(CheckpointStore(folder, 2)) == (20, [])


def test_what_was_just_saved_stays_whatever_is_beside_it(folder: Path) -> None:
    filled(folder, 10, 20)
    damage(folder, 20)
    store = CheckpointStore(folder, 1)
    assert loaded(store)[0] == 10
    store.save(state(20), 20)  # the same name as the damaged one
    assert names(folder) == ["step-00000020.pt"]
    assert loaded(CheckpointStore(folder, 1)) == (20, [])
    store.save(state(3), 3)
    assert names(folder) == ["step-00000003.pt", "step-00000020.pt"]


def test_without_any_the_remedy_is_told(folder: Path) -> None:
    with pytest.raises(ValueError, match=rf"^no checkpoint in {folder}: .* has not saved one yet; start it again$"):
        CheckpointStore(folder, 2).load(CPU, print)
    folder.mkdir(parents=True)
    (folder / "notes.txt").touch()
    (folder / "step-3.safetensors").touch()
    with pytest.raises(ValueError, match="the run has not saved one yet"):
        CheckpointStore(folder, 2).load(CPU, print)


def test_a_file_that_is_only_called_like_a_checkpoint_is_none(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "step-00000009 (copy).pt").touch()
    assert loaded(filled(folder, 1, keep_last=1)) == (1, [])
    assert names(folder) == ["step-00000001.pt", "step-00000009 (copy).pt"]


def save_for_ever(folder: Path, step: int, begun: Event) -> None:
    store = CheckpointStore(folder, 2)
    begun.set()
    while True:
        step += 1
        store.save({**state(step), "big": torch.zeros(50_000)}, step)


def test_a_process_killed_at_any_moment_leaves_a_good_one(folder: Path) -> None:
    filled(folder, 0)
    # A child of this process would inherit what other tests left in it: locks of threads, gigabytes to copy.
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__])
    draw, inside, step, n = random.Random(1), 0, 0, 0
    while n < 15 or not (inside and step):  # or nothing was tried
        n += 1
        assert n < 200
        begun = processes.Event()
        child = processes.Process(target=save_for_ever, args=(folder, step, begun))
        child.start()
        assert begun.wait(60)
        time.sleep(draw.uniform(0, 0.1) + max(0, n - 15) / 20)  # longer, on a disk so slow that nothing was saved
        child.kill()
        child.join()
        inside += len(sweep_drafts(folder))
        before = step
        step, said = loaded(CheckpointStore(folder, 2))
        assert step >= before
        assert not said
        assert len(names(folder)) <= 3  # killed before it let an old one go


def test_tensors_come_to_the_device_that_is_asked_for(folder: Path) -> None:
    store = filled(folder, 3)
    assert store.load(CPU, print)["weight"].device == CPU
    assert store.load(torch.device("meta"), print)["weight"].device.type == "meta"


@pytest.mark.parametrize(("name", "value"), [("keep_last", 0), ("keep_best", -1), ("average_last", -1)])
def test_settings_that_keep_nothing_are_refused(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=rf"^checkpoint\.{name}={value}: give at least {value + 1}$"):
        CheckpointConfig(**{name: value})
