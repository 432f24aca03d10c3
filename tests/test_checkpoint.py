"""What a training leaves on disk: read back bit for bit, or refused; the newest, the best and the average."""

import errno
import math
import multiprocessing
import os
import pickle
import random
import time
import zipfile
from collections.abc import Mapping, Sequence
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_model
from torch import Tensor, nn

from config.training import CheckpointConfig
from models.transformer import Transformer
from tests.tiny import MODEL, lively
from utils.dataset.batch import AnyBatch
from utils.file import sweep_drafts
from utils.run import WEIGHTS
from utils.task.task import try_average
from utils.training import checkpoint
from utils.training.checkpoint import (
    ABSENT,
    FORMAT,
    CheckpointKeeper,
    CheckpointStore,
    DamagedError,
    WeightStore,
    average,
    changed_settings,
    difference,
    first_difference,
    load_checkpoint,
    read_n_averaged,
    read_score,
    read_weights,
    save_checkpoint,
    write_weights,
)
from utils.training.plan import Progress
from utils.training.report import Validate, Validation

CPU = torch.device("cpu")


def state() -> dict[str, Any]:
    return {
        "format": FORMAT,
        "net": {"weight": torch.arange(12.0).view(3, 4), "half": torch.ones(5, dtype=torch.bfloat16)},
        "progress": {"step": 3, "best_score": float("-inf"), "betas": (0.9, 0.98), "name": "都", "bound": None},
    }


def same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    tensors = all(a["net"][name].equal(tensor) for name, tensor in b["net"].items())
    return tensors and a["progress"] == b["progress"] and a["format"] == b["format"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "step-00000003.pt"
    save_checkpoint(state(), path)
    return path


def complaint(path: Path) -> str:
    with pytest.raises(DamagedError) as caught:
        load_checkpoint(path, CPU)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(path.name)
    return message


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_what_is_saved_is_read_back(path: Path) -> None:
    assert same(load_checkpoint(path, CPU), state())
    assert names(path.parent) == [path.name]


def test_others_tools_read_it_too(path: Path) -> None:
    assert same(torch.load(path, weights_only=True), state())
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.comment.startswith(b"miyako sha256 ")


def test_a_truncated_one_is_refused_wherever_it_ends(path: Path) -> None:
    whole = path.read_bytes()
    for end in [0, 1, *range(40, len(whole), 31), len(whole) - 1]:
        path.write_bytes(whole[:end])
        assert "damaged" in complaint(path), end


def test_every_byte_counts(path: Path) -> None:
    """Also those that no checksum of a zip archive covers: names, lengths, dates, padding, the directory, the seal."""
    whole = path.read_bytes()
    for place in [*range(0, len(whole) - 150, 11), *range(len(whole) - 150, len(whole))]:
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        assert "damaged" in complaint(path), place


@pytest.mark.parametrize("more", [b"\0", b"PK\x05\x06" + bytes(18), bytes(100_000)])
def test_nothing_may_follow(path: Path, more: bytes) -> None:
    path.write_bytes(path.read_bytes() + more)
    assert "damaged" in complaint(path)


def test_what_is_damaged_never_reaches_torch(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("torch read it"))
    complaint(path)


def test_a_file_of_torch_without_a_seal_is_not_taken_for_one_of_ours(path: Path) -> None:
    torch.save(state(), path)
    assert "not written by this project" in complaint(path)


class Malice:
    def __init__(self, traces: Path) -> None:
        self.traces = traces

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.traces,))


@pytest.mark.parametrize("sealed", [True, False])
def test_code_in_a_checkpoint_is_refused_and_does_not_run(path: Path, sealed: bool) -> None:
    traces = path.with_name("traces")
    if sealed:
        save_checkpoint({**state(), "progress": Malice(traces)}, path)
        assert "weights_only" not in complaint(path)  # torch's advice how to run it
    else:
        path.write_bytes(pickle.dumps(Malice(traces)) + bytes(100))
        complaint(path)
    assert not traces.exists()


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), OSError(errno.EMFILE, "Too many open files")]
)
def test_what_may_succeed_another_time_is_no_damage(
    error: Exception, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    for owner, name in ((torch, "load"), (Path, "read_bytes")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail)
            with pytest.raises(type(error)):
                load_checkpoint(path, CPU)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOENT])
def test_what_the_disk_has_lost_is_damage(number: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "read_bytes", fail)
    assert complaint(path) == f"{path.name} is damaged: {os.strerror(number)}"


def save_more(path: Path) -> None:
    save_checkpoint({**state(), "big": torch.zeros(2**18)}, path)


def write_more(path: Path) -> None:
    write_weights({"big": torch.zeros(2**18)}, path, 1.0)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, None])
@pytest.mark.parametrize("save", [save_more, write_more])
def test_a_write_that_fails_says_what_is_missing_and_leaves_the_file_before_it(
    path: Path, number: int | None, save: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_bytes

    def half(self: Path, data: bytes) -> int:
        write(self, data[:1000])
        raise KeyboardInterrupt if number is None else OSError(number, os.strerror(number))

    before = path.read_bytes()
    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(KeyboardInterrupt if number is None else OSError) as caught:
        save(path)
    if number is not None:
        message = str(caught.value)
        assert os.strerror(number) in message
        assert ("it needs 1.0" in message and f"are free in {path.parent}" in message) is (number != errno.EIO)
        assert "\n" not in message
    assert path.read_bytes() == before
    assert names(path.parent) == [path.name]


# whether it fits


WANTED = {
    "format": FORMAT,
    "model": {"d_model": 512, "norm_first": True, "activation": "relu", "decoder": {"n_layers": 6, "window": None}},
    "vocabulary": {"src": 6000, "tgt": 6000},
}


def changed(key: str, value: object) -> dict[str, Any]:
    """What was wanted, but for one setting; None takes it out."""
    saved: dict[str, Any] = pickle.loads(pickle.dumps(WANTED))
    *above, last = key.split(".")
    group = saved
    for name in above:
        group = group[name]
    if value is None:
        del group[last]
    else:
        group[last] = value
    return saved


def test_the_same_settings_have_no_difference() -> None:
    assert difference(WANTED, WANTED) is None
    assert difference({**WANTED, "net": {"weight": torch.ones(3)}, "step": 7}, WANTED) is None
    assert difference({"format": 1, "betas": [1, 2]}, {"format": 1, "betas": (1, 2)}) is None


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("model.d_model", 256, "model.d_model is 256 in the checkpoint and 512 in the settings"),
        ("model.norm_first", 1, "model.norm_first is 1 in the checkpoint and true in the settings"),
        ("model.decoder.window", 8, "model.decoder.window is 8 in the checkpoint and not set in the settings"),
        ("model.decoder", 6, "model.decoder is 6 in the checkpoint and unknown to this version"),
        ("model.d_model", None, "model.d_model is unknown to the checkpoint and 512 in the settings"),
        ("vocabulary", None, "vocabulary.src is unknown to the checkpoint and 6000 in the settings"),
        ("format", 99, f"the checkpoint has format 99 and this version reads {FORMAT}: resume with the version that"),
    ],
)
def test_a_difference_is_named(key: str, value: object, words: str) -> None:
    found = difference(changed(key, value), WANTED)
    assert found is not None
    assert found.startswith(words)


def test_a_long_difference_is_cut_and_torchs_own_is_one_line() -> None:
    found = difference({"format": 1, "words": "a" * 900}, {"format": 1, "words": "b" * 900})
    assert found is not None
    assert len(found) < 200
    with pytest.raises(RuntimeError) as caught:
        nn.Linear(3, 4).load_state_dict(nn.Linear(5, 4).state_dict())
    assert "size mismatch for weight" in first_difference(caught.value)
    assert "\n" not in first_difference(caught.value)


def test_changed_settings_are_named_in_order_and_types_make_a_difference() -> None:
    old = {"a": {"b": 1, "c": {"d": 2}}, "e": None, "gone": "x", "same": [1, None]}
    new = {"first": 0, "e": "null", "a": {"c": {"d": 3}, "b": 1}, "same": [1, None]}
    found = changed_settings(old, new)
    assert list(found.items()) == [
        ("a.c.d", (2, 3)),
        ("e", (None, "null")),
        ("gone", ("x", ABSENT)),
        ("first", (ABSENT, 0)),
    ]
    assert changed_settings({"a": 1, "b": 1, "c": [0]}, {"a": 1.0, "b": True, "c": [False]}).keys() == {"a", "b", "c"}
    assert changed_settings({"a": None}, {"a": {"b": 1}}) == {"a": (None, ABSENT), "a.b": (ABSENT, 1)}


# the newest checkpoints


def at_step(step: int) -> dict[str, Any]:
    return {"step": step, "weight": torch.full((3,), float(step))}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run" / "checkpoints"


def filled(folder: Path, *steps: int, keep_last: int = 9) -> CheckpointStore:
    store = CheckpointStore(folder, keep_last)
    for step in steps:
        store.save(at_step(step), step)
    return store


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
        store.save(at_step(step), step)
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
            store.save(at_step(15), 15)
    assert names(folder) == before


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
    store.save(at_step(15), 15)
    assert names(folder) == ["step-00000010.pt", "step-00000015.pt"]
    store.save(at_step(20), 20)
    assert names(folder) == ["step-00000015.pt", "step-00000020.pt"]
    assert loaded(CheckpointStore(folder, 2)) == (20, [])


def test_what_was_just_saved_stays_whatever_is_beside_it(folder: Path) -> None:
    filled(folder, 10, 20)
    damage(folder, 20)
    store = CheckpointStore(folder, 1)
    assert loaded(store)[0] == 10
    store.save(at_step(20), 20)  # the same name as the damaged one
    assert names(folder) == ["step-00000020.pt"]
    assert loaded(CheckpointStore(folder, 1)) == (20, [])
    store.save(at_step(3), 3)
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
        store.save({**at_step(step), "big": torch.zeros(50_000)}, step)


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


@pytest.mark.parametrize(("name", "value"), [("keep_last", 0), ("keep_best", -1), ("average_last", -1)])
def test_settings_that_keep_nothing_are_refused(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=rf"^checkpoint\.{name}={value}: give at least {value + 1}$"):
        CheckpointConfig(**{name: value})


# weights


def weights(value: float) -> dict[str, Tensor]:
    return {"a.weight": torch.full((2, 3), value), "b.bias": torch.full((4,), -value)}


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(a[name].equal(b[name]) and a[name].dtype == b[name].dtype for name in a)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    kept = tmp_path / "step-00000003.safetensors"
    write_weights(weights(3), kept, 12.5)
    return kept


def test_weights_are_read_back(kept: Path) -> None:
    assert equal(read_weights(kept), weights(3))
    assert read_score(kept) == 12.5
    assert [file.name for file in kept.parent.iterdir()] == [kept.name]
    assert kept.stat().st_mode & 0o777 == 0o644


def test_other_types_and_shapes_are_kept(kept: Path) -> None:
    odd = {
        "half": torch.randn(3, dtype=torch.bfloat16),
        "number": torch.tensor(2.0),
        "none": torch.zeros(0, 4),  # what is empty lies nowhere, and there is more than one of it there
        "neither": torch.zeros(3, 0),
        "nor": torch.zeros(5, 0),
        "whole": torch.arange(3),
        "turned": torch.arange(6.0).view(2, 3).T,
    }
    write_weights(odd, kept, 1.0)
    assert equal(read_weights(kept), odd)


def test_tied_weights_are_written_once_and_read_under_all_names(kept: Path) -> None:
    net: Transformer = lively(MODEL, 20, 30)
    write_weights(net.state_dict(), kept, 1.0)
    found = read_weights(kept)
    assert equal(found, dict(net.state_dict()))
    assert found["output.weight"] is found["tgt_embedding.weight"]
    assert kept.stat().st_size < 4 * sum(p.numel() for p in net.parameters()) + 10_000
    with safe_open(kept, "pt") as file:
        assert len(list(file.keys())) == len(list(net.parameters()))
    fresh = lively(MODEL, 20, 30, seed=2)
    load_model(fresh, kept)  # how translate.py reads it
    assert equal(dict(fresh.state_dict()), dict(net.state_dict()))


def test_of_a_damaged_file_nothing_is_believed(kept: Path) -> None:
    whole, draw = kept.read_bytes(), random.Random(0)
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << draw.randrange(8)
        kept.write_bytes(changed)
        try:
            assert equal(read_weights(kept), weights(3)), place  # a blank in the header, say
        except ValueError as error:
            assert str(kept) in str(error)  # noqa: PT017
            assert "\n" not in str(error)  # noqa: PT017
        read_score(kept)
    data = whole.index(b"}}") + 2  # no bit of a tensor is without an owner
    for place in range(data + 8, len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1
        kept.write_bytes(changed)
        with pytest.raises(ValueError, match="damaged"):
            read_weights(kept)


@pytest.mark.parametrize("content", [b"", b"\xff" * 50, b"\x10" + bytes(7) + b"not even json..."])
def test_what_is_no_file_of_weights_is_refused(kept: Path, content: bytes) -> None:
    kept.write_bytes(content)
    with pytest.raises(ValueError, match=rf"^{kept} cannot be read \([^\n]+\)$"):
        read_weights(kept)
    assert read_score(kept) == float("-inf")
    kept.unlink()
    with pytest.raises(ValueError, match="cannot be read"):
        read_weights(kept)


def test_memory_that_runs_out_is_no_damage(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_weights({"w": torch.ones(2)}, kept, 1.0)

    def starve(*_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr("utils.training.checkpoint.safe_open", starve)
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        average([kept], print)


def test_a_changed_score_is_damage(kept: Path) -> None:
    kept.write_bytes(kept.read_bytes().replace(b'"12.5"', b'"92.5"'))
    with pytest.raises(ValueError, match="its checksum is wrong"):
        read_weights(kept)


def files(folder: Path, *values: dict[str, Tensor]) -> list[Path]:
    paths = [folder / f"{i}.safetensors" for i in range(len(values))]
    for kept, value in zip(paths, values, strict=True):
        write_weights(value, kept, 0.0)
    return paths


def test_the_average_is_the_mean(tmp_path: Path) -> None:
    draws = [{"w": torch.randn(50, 7), "b": torch.randn(7)} for _ in range(5)]
    found, n = average(files(tmp_path, *draws), pytest.fail)
    assert n == 5
    for name in ("w", "b"):
        exact = torch.stack([draw[name].double() for draw in draws]).mean(0).float()
        assert found[name].equal(exact)
        assert found[name].dtype == torch.float32


def test_an_average_fits_a_network_with_tied_weights(tmp_path: Path) -> None:
    nets = [lively(MODEL, 20, 30, seed) for seed in range(3)]
    found = average(files(tmp_path, *(dict(net.state_dict()) for net in nets)), pytest.fail)[0]
    assert found["output.weight"] is found["tgt_embedding.weight"]
    fresh = lively(MODEL, 20, 30, seed=9)
    fresh.load_state_dict(found)
    for name, parameter in fresh.named_parameters():
        stacked = torch.stack([dict(net.named_parameters())[name].detach() for net in nets])
        assert parameter.allclose(stacked.mean(0))
    assert isinstance(fresh.output, nn.Linear)


def test_damaged_files_are_left_out_with_a_line(tmp_path: Path) -> None:
    paths = files(tmp_path, weights(1), weights(99), weights(3), weights(5))
    paths[1].write_bytes(paths[1].read_bytes()[:-1] + b"\x7f")
    paths[0].write_bytes(b"")
    said: list[str] = []
    found, n = average(paths, said.append)
    assert equal(found, weights(4))
    assert n == 2
    assert len(said) == 2
    assert all(line.startswith("Left out of the average: ") for line in said)
    assert str(paths[0]) in said[0]
    assert str(paths[1]) in said[1]


@pytest.mark.parametrize("other", [{"w": torch.zeros(3)}, {"v": torch.zeros(2)}, {}], ids=["shape", "name", "none"])
def test_weights_of_other_networks_are_not_averaged(tmp_path: Path, other: dict[str, Tensor]) -> None:
    paths = files(tmp_path, {"w": torch.zeros(2)}, other)
    with pytest.raises(ValueError, match=rf"^{paths[1]} is of another network than {paths[0]}"):
        average(paths, pytest.fail)


COURSE = [(10, 1.0), (20, 5.0), (30, 3.0), (40, 5.0), (50, 2.0)]


def after(folder: Path, keep_best: int, keep_last: int, course: list[tuple[int, float]] = COURSE) -> WeightStore:
    store = WeightStore(folder, keep_best, keep_last, 0)
    for step, score in course:
        store.save(weights(step), step, score)
    return store


def steps(folder: Path) -> list[int]:
    return sorted(int(kept.stem[5:]) for kept in folder.iterdir())


@pytest.mark.parametrize(
    ("keep_best", "keep_last", "left"),
    [
        (1, 0, [20]),  # of equal ones the earlier
        (2, 0, [20, 40]),
        (3, 0, [20, 30, 40]),
        (0, 2, [40, 50]),
        (1, 2, [20, 40, 50]),
        (9, 9, [10, 20, 30, 40, 50]),
    ],
)
def test_the_best_and_the_last_stay(tmp_path: Path, keep_best: int, keep_last: int, left: list[int]) -> None:
    store = after(tmp_path, keep_best, keep_last)
    assert steps(tmp_path) == left
    for kept in tmp_path.iterdir():
        assert equal(read_weights(kept), weights(int(kept.stem[5:])))
    ranking = [20, 40, 30, 50, 10]
    assert [int(kept.stem[5:]) for kept in store.best()] == ranking[:keep_best]
    assert [int(kept.stem[5:]) for kept in store.last()] == [10, 20, 30, 40, 50][max(0, 5 - keep_last) :]


@pytest.mark.parametrize(
    ("scores", "left"),
    [((math.nan, -2.0), 20), ((-2.0, math.nan), 10), ((math.nan, -1e300, math.nan, math.nan), 20)],
)
def test_a_score_that_is_no_number_takes_no_place_from_one(
    tmp_path: Path, scores: tuple[float, ...], left: int
) -> None:
    after(tmp_path, 1, 0, [(10 * i, score) for i, score in enumerate(scores, 1)])
    assert steps(tmp_path) == [left]


def test_what_would_go_at_once_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = after(tmp_path, 1, 0)
    written: list[Any] = []
    monkeypatch.setattr("utils.training.checkpoint.write_weights", lambda *given: written.append(given))
    store.save(weights(60), 60, 5.0)
    assert not written
    store.save(weights(60), 60, 5.1)
    assert len(written) == 1


@pytest.mark.parametrize("n", range(len(COURSE)))
def test_which_are_best_survives_a_new_start(tmp_path: Path, n: int) -> None:
    after(tmp_path, 2, 1, COURSE[:n])
    store = WeightStore(tmp_path, 2, 1, COURSE[n - 1][0] if n else 0)
    for step, score in COURSE[n:]:
        store.save(weights(step), step, score)
    assert steps(tmp_path) == [20, 40, 50]


def test_weights_of_steps_that_were_lost_go(tmp_path: Path) -> None:
    after(tmp_path, 9, 0)
    (tmp_path / "notes.txt").touch()
    WeightStore(tmp_path, 9, 0, 30)
    (tmp_path / "notes.txt").unlink()
    assert steps(tmp_path) == [10, 20, 30]


def test_a_validation_that_is_repeated_replaces_itself(tmp_path: Path) -> None:
    store = after(tmp_path, 1, 1)
    assert steps(tmp_path) == [20, 50]
    store.save(weights(8), 50, 1.0)
    assert steps(tmp_path) == [20, 50]
    assert equal(read_weights(tmp_path / "step-00000050.safetensors"), weights(8))
    store.save(weights(7), 20, 0.5)  # once the best
    assert steps(tmp_path) == [50]


def test_a_damaged_file_is_never_the_best(tmp_path: Path) -> None:
    store = after(tmp_path, 2, 0)
    (tmp_path / "step-00000020.safetensors").write_bytes(b"")
    store.save(weights(60), 60, 1.5)
    assert steps(tmp_path) == [40, 60]


# a validation is saved


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


# the average of the last validations


class Trained:
    """A single weight, scored by how near 3 it is."""

    def __init__(self) -> None:
        self.net = nn.Linear(1, 1, bias=False)
        self.progress = Progress()

    def test(self, batches: Sequence[AnyBatch], validate: Validate) -> Validation:
        assert not batches
        return validate(abs(self.net.weight.item() - 3))


def concluded(folder: Path, weights: Sequence[float], best: float, select_by: str = "bleu") -> str:
    """Validations with these weights, the best of which, or what was best before, has this score."""
    store = WeightStore(folder / "weights", 0, 3, 0)
    for step, weight in enumerate(weights, 1):
        store.save({"weight": torch.tensor([[weight]])}, step, 10 - abs(weight - 3))
    write_weights({"weight": torch.tensor([[99.0]])}, folder / WEIGHTS, best)
    said: list[str] = []

    def judge(loss: float) -> Validation:
        return Validation(loss, {"bleu": 10 - loss})

    try_average(Trained(), store, folder, select_by, [], judge, said.append)
    return "".join(said)


@pytest.mark.parametrize(
    ("best", "weight"),
    [
        (9.0, 3.0),  # of the three, which were 2, 3.5 and 3.5
        (10.0, 3.0),  # that which was found before, and is found again
        (10.5, 99.0),
    ],
)
def test_an_average_takes_the_place_of_what_is_no_better(tmp_path: Path, best: float, weight: float) -> None:
    said = concluded(tmp_path, (7.0, 2.0, 3.5, 3.5), best)
    assert read_weights(tmp_path / WEIGHTS)["weight"].item() == weight
    assert read_score(tmp_path / WEIGHTS) == max(best, 10.0)
    assert read_n_averaged(tmp_path / WEIGHTS) == (1 if weight == 99 else 3)
    used = "not used" if weight == 99 else "used"
    assert said == (
        "\nAverage of the weights of the last 3 validations: "
        f"dev bleu 10.00 against {best:.2f} for the best weights: {used}"
    )


@pytest.mark.parametrize(("best", "used"), [(-0.75, "used"), (-0.25, "not used")])
def test_a_loss_is_shown_as_one_and_the_lower_is_the_better(tmp_path: Path, best: float, used: str) -> None:
    said = concluded(tmp_path, (2.0, 3.0, 5.5), best, "loss")
    assert said.endswith(f": dev loss 0.50 against {-best:.2f} for the best weights: {used}")


def test_kept_weights_that_cannot_be_read_are_no_reason_to_end_without_a_test(tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "weights", 0, 3, 0)
    store.save({"weight": torch.tensor([[3.0]])}, 1, 10.0)
    (kept,) = store.last()
    kept.write_bytes(kept.read_bytes()[:20])
    write_weights({"weight": torch.tensor([[99.0]])}, tmp_path / WEIGHTS, 5.0)
    said: list[str] = []
    try_average(Trained(), store, tmp_path, "bleu", [], lambda loss: Validation(loss, {"bleu": 10.0}), said.append)
    assert said[-1] == "\nNo average of weights: no weights to average: none of 1 files can be read"
    assert read_score(tmp_path / WEIGHTS) == 5.0
