import errno
import math
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_model
from torch import Tensor, nn

from models.transformer import Transformer
from tests.tiny import MODEL, lively
from utils.training.checkpoint import WeightStore, average, read_score, read_weights, write_weights


def weights(value: float) -> dict[str, Tensor]:
    return {"a.weight": torch.full((2, 3), value), "b.bias": torch.full((4,), -value)}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(a[name].equal(b[name]) and a[name].dtype == b[name].dtype for name in a)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "step-00000003.safetensors"
    write_weights(weights(3), path, 12.5)
    return path


# a file


def test_what_is_written_is_read_back(path: Path) -> None:
    assert same(read_weights(path), weights(3))
    assert read_score(path) == 12.5
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("score", [0.1 + 0.2, -7.25, 1e-300, float("-inf"), float("inf")])
def test_a_score_keeps_every_digit(path: Path, score: float) -> None:
    write_weights(weights(3), path, score)
    assert read_score(path) == score


def test_a_score_that_is_no_number_is_the_worst(path: Path) -> None:
    write_weights(weights(3), path, math.nan)
    assert read_score(path) == float("-inf")


def test_other_types_and_shapes_are_kept(path: Path) -> None:
    odd = {
        "half": torch.randn(3, dtype=torch.bfloat16),
        "number": torch.tensor(2.0),
        "none": torch.zeros(0, 4),  # what is empty lies nowhere, and there is more than one of it there
        "neither": torch.zeros(3, 0),
        "nor": torch.zeros(5, 0),
        "whole": torch.arange(3),
        "turned": torch.arange(6.0).view(2, 3).T,
    }
    write_weights(odd, path, 1.0)
    assert same(read_weights(path), odd)


def test_tied_weights_are_written_once_and_read_under_all_names(path: Path) -> None:
    net: Transformer = lively(MODEL, 20, 30)
    write_weights(net.state_dict(), path, 1.0)
    found = read_weights(path)
    assert same(found, dict(net.state_dict()))
    assert found["output.weight"] is found["tgt_embedding.weight"]
    assert path.stat().st_size < 4 * sum(p.numel() for p in net.parameters()) + 10_000
    with safe_open(path, "pt") as file:
        assert len(list(file.keys())) == len(list(net.parameters()))
    fresh = lively(MODEL, 20, 30, seed=2)
    load_model(fresh, path)  # how translate.py reads it
    assert same(dict(fresh.state_dict()), dict(net.state_dict()))


def test_of_a_damaged_file_nothing_is_believed(path: Path) -> None:
    whole, draw = path.read_bytes(), random.Random(0)
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        try:
            assert same(read_weights(path), weights(3)), place  # a blank in the header, say
        except ValueError as error:
            assert str(path) in str(error)  # noqa: PT017
            assert "\n" not in str(error)  # noqa: PT017
        read_score(path)
    data = whole.index(b"}}") + 2  # no bit of a tensor is without an owner
    for place in range(data + 8, len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(ValueError, match="damaged"):
            read_weights(path)


@pytest.mark.parametrize("content", [b"", b"\xff" * 50, b"\x10" + bytes(7) + b"not even json..."])
def test_what_is_no_file_of_weights_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"^{path} cannot be read \([^\n]+\)$"):
        read_weights(path)
    assert read_score(path) == float("-inf")
    path.unlink()
    with pytest.raises(ValueError, match="cannot be read"):
        read_weights(path)


def test_memory_that_runs_out_is_no_damage(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_weights({"w": torch.ones(2)}, path, 1.0)

    def starve(*_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr("utils.training.checkpoint.safe_open", starve)
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        average([path], print)


def test_a_changed_score_is_damage(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"12.5"', b'"92.5"'))
    with pytest.raises(ValueError, match="its checksum is wrong"):
        read_weights(path)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES])
def test_a_disk_that_takes_no_more_is_an_error_of_one_line(
    path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise SafetensorError(f"Error while serializing: I/O error: {os.strerror(number)} (os error {number})")

    monkeypatch.setattr("utils.training.checkpoint.save_file", full)
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        write_weights({"big": torch.zeros(2**19)}, path, 1.0)
    assert str(path.name) in str(caught.value)
    assert ("needs 2.00 MiB, and " in str(caught.value)) is (number != errno.EACCES)
    assert same(read_weights(path), weights(3))
    assert [file.name for file in path.parent.iterdir()] == [path.name]


# averaging


def files(folder: Path, *values: dict[str, Tensor]) -> list[Path]:
    paths = [folder / f"{i}.safetensors" for i in range(len(values))]
    for path, value in zip(paths, values, strict=True):
        write_weights(value, path, 0.0)
    return paths


def test_the_average_is_the_mean(tmp_path: Path) -> None:
    draws = [{"w": torch.randn(50, 7), "b": torch.randn(7)} for _ in range(5)]
    found, n = average(files(tmp_path, *draws), pytest.fail)
    assert n == 5
    for name in ("w", "b"):
        exact = torch.stack([draw[name].double() for draw in draws]).mean(0).float()
        assert found[name].equal(exact)
        assert found[name].dtype == torch.float32


def test_an_average_of_one_or_of_equals_changes_no_bit(tmp_path: Path) -> None:
    draw = {"w": torch.randn(50, 7)}
    for n in (1, 3, 7):
        assert same(average(files(tmp_path, *[draw] * n), pytest.fail).weights, draw)


def test_large_weights_do_not_swallow_small_ones(tmp_path: Path) -> None:
    values = [1e8, 1.0, -1e8, 1.0]
    found = average(files(tmp_path, *({"w": torch.tensor([value])} for value in values)), pytest.fail).weights
    assert found["w"].item() == 0.5


def test_an_average_fits_a_network_with_tied_weights(tmp_path: Path) -> None:
    nets = [lively(MODEL, 20, 30, seed) for seed in range(3)]
    found = average(files(tmp_path, *(dict(net.state_dict()) for net in nets)), pytest.fail).weights
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
    assert same(found, weights(4))
    assert n == 2
    assert len(said) == 2
    assert all(line.startswith("Left out of the average: ") for line in said)
    assert str(paths[0]) in said[0]
    assert str(paths[1]) in said[1]


def test_an_average_of_nothing_is_refused(tmp_path: Path) -> None:
    for paths in ([], [tmp_path / "none.safetensors"]):
        with pytest.raises(ValueError, match=rf"no weights to average: none of {len(paths)} files"):
            average(paths, lambda _: None)


@pytest.mark.parametrize("other", [{"w": torch.zeros(3)}, {"v": torch.zeros(2)}, {}], ids=["shape", "name", "none"])
def test_weights_of_other_networks_are_not_averaged(tmp_path: Path, other: dict[str, Tensor]) -> None:
    paths = files(tmp_path, {"w": torch.zeros(2)}, other)
    with pytest.raises(ValueError, match=rf"^{paths[1]} is of another network than {paths[0]}"):
        average(paths, pytest.fail)


# a folder

COURSE = [(10, 1.0), (20, 5.0), (30, 3.0), (40, 5.0), (50, 2.0)]


def after(folder: Path, keep_best: int, keep_last: int, course: list[tuple[int, float]] = COURSE) -> WeightStore:
    store = WeightStore(folder, keep_best, keep_last, 0)
    for step, score in course:
        store.save(weights(step), step, score)
    return store


def steps(folder: Path) -> list[int]:
    return sorted(int(path.stem[5:]) for path in folder.iterdir())


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
    for path in tmp_path.iterdir():
        assert same(read_weights(path), weights(int(path.stem[5:])))
    ranking = [20, 40, 30, 50, 10]
    assert [int(path.stem[5:]) for path in store.best()] == ranking[:keep_best]
    assert [int(path.stem[5:]) for path in store.last()] == [10, 20, 30, 40, 50][max(0, 5 - keep_last) :]


@pytest.mark.parametrize(
    ("scores", "left"),
    [((math.nan, -2.0), 20), ((-2.0, math.nan), 10), ((math.nan, -1e300, math.nan, math.nan), 20)],
)
def test_a_score_that_is_no_number_takes_no_place_from_one(
    tmp_path: Path, scores: tuple[float, ...], left: int
) -> None:
    after(tmp_path, 1, 0, [(10 * i, score) for i, score in enumerate(scores, 1)])
    assert steps(tmp_path) == [left]


def test_where_nothing_is_to_be_kept_nothing_is_written(tmp_path: Path) -> None:
    after(tmp_path / "none", 0, 0)
    assert not (tmp_path / "none").exists()


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
    assert same(read_weights(tmp_path / "step-00000050.safetensors"), weights(8))
    store.save(weights(7), 20, 0.5)  # once the best
    assert steps(tmp_path) == [50]


def test_a_validation_that_is_repeated_is_no_rival_of_its_own(tmp_path: Path) -> None:
    after(tmp_path, 1, 0).save(weights(7), 20, 5.0)
    assert same(read_weights(tmp_path / "step-00000020.safetensors"), weights(7))


def test_a_damaged_file_is_never_the_best(tmp_path: Path) -> None:
    store = after(tmp_path, 2, 0)
    (tmp_path / "step-00000020.safetensors").write_bytes(b"")
    store.save(weights(60), 60, 1.5)
    assert steps(tmp_path) == [40, 60]
