import errno
import io
import os
import pickle
import random
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from utils.training.checkpoint import (
    FORMAT,
    DamagedError,
    difference,
    first_difference,
    load_checkpoint,
    save_checkpoint,
)

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


def test_the_same_state_gives_the_same_bytes(path: Path) -> None:
    save_checkpoint(state(), path.with_name("other.pt"))
    assert path.with_name("other.pt").read_bytes() == path.read_bytes()


def test_others_tools_read_it_too(path: Path) -> None:
    assert same(torch.load(path, weights_only=True), state())
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.comment.startswith(b"miyako sha256 ")


def test_a_missing_one_says_so(path: Path) -> None:
    path.unlink()
    assert "No such file" in complaint(path)


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


def test_code_in_a_checkpoint_is_refused_and_does_not_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traces = path.with_name("traces")
    load = torch.load
    with monkeypatch.context() as careless:  # a hostile writer seals it, and tries it out on nobody
        careless.setattr(torch, "load", lambda *_, **__: None)
        save_checkpoint({**state(), "progress": Malice(traces)}, path)
    message = complaint(path)
    assert "is refused" in message
    assert "weights_only" not in message  # torch's advice how to run it
    assert not traces.exists()
    load(path, weights_only=False)  # it would have done harm
    assert traces.exists()


def test_a_bare_pickle_is_refused_and_does_not_run(path: Path) -> None:
    traces = path.with_name("traces")
    path.write_bytes(pickle.dumps(Malice(traces)) + bytes(100))
    complaint(path)
    assert not traces.exists()
    pickle.loads(path.read_bytes())  # it would have done harm
    assert traces.exists()


def test_what_could_not_be_read_again_is_not_saved(path: Path) -> None:
    with pytest.raises(TypeError, match="tensors and plain values only"):
        save_checkpoint({**state(), "folder": path}, path)
    assert same(load_checkpoint(path, CPU), state())
    assert names(path.parent) == [path.name]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
        OSError(errno.EMFILE, "Too many open files"),
    ],
    ids=["GPU", "CPU", "Python", "files"],
)
def test_what_may_succeed_another_time_is_no_damage(
    error: Exception, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(type(error)):
        load_checkpoint(path, CPU)
    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(type(error)):
        load_checkpoint(path, CPU)


def test_what_the_disk_has_lost_is_damage(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(DamagedError, match=r"^step-00000003\.pt is damaged: Input/output error$"):
        load_checkpoint(path, CPU)


@pytest.mark.parametrize("spoiled", [RuntimeError, KeyboardInterrupt])
def test_a_save_that_fails_leaves_the_one_before_it(
    spoiled: type[BaseException], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(_state: object, file: io.BufferedWriter) -> None:
        file.write(b"PK half of a che")
        raise spoiled

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(spoiled):
        save_checkpoint({**state(), "step": 4}, path)
    assert same(load_checkpoint(path, CPU), state())
    assert names(path.parent) == [path.name]


class SmallDisk(io.FileIO):
    """Takes so many bytes, the last of them in a short write, and then no more."""

    room = 100_000
    number = errno.ENOSPC

    def write(self, data: Any) -> int:
        left = self.room - self.tell()
        if left <= 0:
            raise OSError(self.number, os.strerror(self.number))
        return super().write(memoryview(data)[:left])


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("room", [0, 100, 100_000, 2**20])
def test_a_full_disk_says_what_is_missing_and_leaves_the_one_before_it(
    path: Path, number: int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("utils.training.checkpoint.io.FileIO", SmallDisk)
    monkeypatch.setattr(SmallDisk, "number", number)
    monkeypatch.setattr(SmallDisk, "room", room)
    with pytest.raises(OSError, match="no room") as caught:
        save_checkpoint({**state(), "big": torch.zeros(2**18)}, path)
    message = str(caught.value)
    assert f"no room for {path.name} ({os.strerror(number)}): it needs 1.00 MiB, and " in message
    assert f"are free in {path.parent}" in message
    assert "\n" not in message
    assert same(load_checkpoint(path, CPU), state())
    assert names(path.parent) == [path.name]


def test_a_disk_that_fails_otherwise_says_how(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("utils.training.checkpoint.io.FileIO", SmallDisk)
    monkeypatch.setattr(SmallDisk, "number", errno.EIO)
    monkeypatch.setattr(SmallDisk, "room", 1000)
    with pytest.raises(OSError, match="Input/output error") as caught:
        save_checkpoint(state(), path)
    assert caught.value.errno == errno.EIO
    assert "no room" not in str(caught.value)
    assert same(load_checkpoint(path, CPU), state())


def test_short_writes_are_gone_on_with(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(0)

    class Hesitant(io.FileIO):
        def write(self, data: Any) -> int:
            return super().write(memoryview(data)[: draw.randint(1, 50)])

    monkeypatch.setattr("utils.training.checkpoint.io.FileIO", Hesitant)
    whole = path.read_bytes()
    save_checkpoint(state(), path)
    assert path.read_bytes() == whole


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
    ("key", "value", "said"),
    [
        ("model.d_model", 256, "model.d_model is 256 in the checkpoint and 512 in the settings"),
        ("model.norm_first", False, "model.norm_first is false in the checkpoint and true in the settings"),
        ("model.norm_first", 1, "model.norm_first is 1 in the checkpoint and true in the settings"),
        ("model.activation", "gelu", "model.activation is gelu in the checkpoint and relu in the settings"),
        (
            "model.decoder.window",
            8,
            "model.decoder.window is 8 in the checkpoint and not set in the settings",
        ),
        (
            "model.decoder",
            6,
            "model.decoder is 6 in the checkpoint and unknown to this version",
        ),
        ("model.d_model", None, "model.d_model is unknown to the checkpoint and 512 in the settings"),
        ("model.experts", 8, "model.experts is 8 in the checkpoint and unknown to this version"),
        ("vocabulary.tgt", 5000, "vocabulary.tgt is 5000 in the checkpoint and 6000 in the settings"),
        ("vocabulary", None, "vocabulary.src is unknown to the checkpoint and 6000 in the settings"),
    ],
)
def test_a_difference_is_named(key: str, value: object, said: str) -> None:
    assert difference(changed(key, value), WANTED) == said


def test_of_several_the_first_is_named() -> None:
    saved = {**changed("model.activation", "gelu"), "vocabulary": {"src": 1, "tgt": 1}}
    assert (difference(saved, WANTED) or "").startswith("model.activation")


@pytest.mark.parametrize(("key", "value"), [("format", 99), ("format", None)])
def test_another_format_comes_before_everything_else(key: str, value: object) -> None:
    saved = {**changed(key, value), "model": {"d_model": 1}}
    message = (
        f"the checkpoint has format {value} and this version reads {FORMAT}: resume with the version that wrote it"
    )
    assert difference(saved, WANTED) == message


def test_a_long_value_is_cut() -> None:
    said = difference({"format": 1, "words": "a" * 900}, {"format": 1, "words": "b" * 900})
    assert said is not None
    assert len(said) < 200


def test_torch_is_quoted_in_one_line() -> None:
    net, other = torch.nn.Linear(3, 4), torch.nn.Linear(5, 4)
    with pytest.raises(RuntimeError) as caught:
        net.load_state_dict(other.state_dict())
    said = first_difference(caught.value)
    assert "size mismatch for weight" in said
    assert "\n" not in said
