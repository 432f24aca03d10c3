"""What a training leaves on disk: read back bit for bit, or refused; the newest, the best and the average."""

import errno
import math
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_model
from torch import Tensor, nn

from config.reader import ABSENT, changed_settings
from models.transformer import Transformer
from tests.test_training import same
from tests.tiny import MODEL, lively
from utils.run import WEIGHTS
from utils.training import checkpoint
from utils.training.checkpoint import (
    FORMAT,
    CheckpointKeeper,
    CheckpointStore,
    DamagedError,
    WeightStore,
    average,
    difference,
    load_checkpoint,
    read_n_averaged,
    read_rank,
    read_weights,
    save_checkpoint,
    step_of,
    write_weights,
)
from utils.training.report import Validation
from utils.training.schedule import Progress, Rank

CPU = torch.device("cpu")


def state() -> dict[str, Any]:
    return {
        "format": FORMAT,
        "net": {"weight": torch.arange(12.0).view(3, 4), "half": torch.ones(5, dtype=torch.bfloat16)},
        "progress": {"step": 3, "best_score": float("-inf"), "betas": (0.9, 0.98), "name": "都", "bound": None},
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "step-00000003.pt"
    save_checkpoint(state(), path)
    return path


def complaint(path: Path) -> str:
    with pytest.raises(DamagedError) as caught:
        load_checkpoint(path, CPU)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def flipped(whole: bytes, place: int, bit: int) -> bytes:
    content = bytearray(whole)
    content[place] ^= 1 << bit
    return bytes(content)


def test_what_is_saved_is_read_back_and_by_others_tools_too(path: Path) -> None:
    assert same(load_checkpoint(path, CPU), state(), set())
    assert same(torch.load(path, weights_only=True), state(), set())
    assert names(path.parent) == [path.name]
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None


def test_every_byte_counts_and_what_is_damaged_never_reaches_torch(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also bytes that no checksum of a zip archive covers: names, lengths, padding, the directory, the seal."""
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("torch read it"))
    whole = path.read_bytes()
    damaged = [flipped(whole, place, place % 8) for place in [*range(0, len(whole), 41), *range(-150, 0)]]
    damaged += [whole[:end] for end in (0, 1, *range(40, len(whole), 97), len(whole) - 1)]
    damaged += [whole + more for more in (b"\0", b"PK\x05\x06" + bytes(18), bytes(100_000))]
    for content in damaged:
        path.write_bytes(content)
        assert "damaged" in complaint(path)


class Malice:
    def __init__(self, traces: Path) -> None:
        self.traces = traces

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.traces,))


def test_code_in_a_checkpoint_is_refused_and_does_not_run(path: Path) -> None:
    traces = path.with_name("traces")
    save_checkpoint({**state(), "progress": Malice(traces)}, path)
    assert "weights_only" not in complaint(path)  # torch's advice how to run it
    torch.save(state(), path)
    assert "damaged" in complaint(path)  # not written by this project
    assert not traces.exists()


def test_what_may_succeed_another_time_is_no_damage(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what the disk has lost is."""
    for number, error_type in ((errno.EMFILE, OSError), (errno.EIO, DamagedError)):
        monkeypatch.setattr(Path, "read_bytes", Mock(side_effect=OSError(number, "")))
        with pytest.raises(error_type):
            load_checkpoint(path, CPU)


def test_a_difference_is_named() -> None:
    model = {"d_model": 512, "norm_first": True, "decoder": {"n_layers": 6, "window": None}}
    wanted: dict[str, Any] = {"format": FORMAT, "model": model, "words": {"src": 60}}
    for changed, words in (
        ({"net": {"weight": torch.ones(3)}, "step": 7}, None),
        ({"model": model | {"d_model": 256}}, "model.d_model is 256 in the checkpoint and 512 in the settings"),
        ({"model": model | {"norm_first": 1}}, "model.norm_first is 1 in the checkpoint and true in the settings"),
        ({"model": model | {"decoder": {"n_layers": 6, "window": 8}}}, "model.decoder.window is 8 in .* and not set"),
        ({"words": {}}, "words.src is not set in the checkpoint and 60 in the settings"),
        ({"format": 99}, f"the checkpoint has format 99 and this version reads {FORMAT}: resume with the version that"),
    ):
        message = difference(wanted | changed, wanted)
        assert message is None if words is None else re.match(words, str(message))


def test_changed_settings_are_named_in_order_and_types_make_a_difference() -> None:
    old = {"a": {"b": 1, "c": {"d": 2}}, "e": None, "gone": "x", "same": [1, None], "number": 1}
    new = {"first": 0, "e": "null", "a": {"c": {"d": 3}, "b": 1}, "same": [1, None], "number": 1.0}
    assert list(changed_settings(old, new).items()) == [
        ("a.c.d", (2, 3)),
        ("e", (None, "null")),
        ("gone", ("x", ABSENT)),
        ("number", (1, 1.0)),
        ("first", (ABSENT, 0)),
    ]
    assert changed_settings({"a": None}, {"a": {"b": 1}}) == {"a": (None, ABSENT), "a.b": (ABSENT, 1)}


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
    state = store.load(CPU, said.append)
    assert state["weight"].equal(torch.full((3,), float(state["step"])))
    return state["step"], said


def test_the_newest_stay_and_other_files_are_left_alone(folder: Path) -> None:
    folder.mkdir(parents=True)
    others = ["notes.txt", "step-00000009 (copy).pt", "step-3.safetensors"]
    for name in others:
        (folder / name).touch()
    with pytest.raises(ValueError, match="has not saved one yet; start it again"):
        CheckpointStore(folder, 2).load(CPU, print)
    for step in (5, 10, 15, 99_999_999, 123_456_789):
        filled(folder, step, keep_last=2)
        assert loaded(CheckpointStore(folder, 2)) == (step, [])
    assert names(folder) == sorted(["step-99999999.pt", "step-123456789.pt", *others])


def test_damaged_ones_are_passed_over_with_a_line_each(folder: Path) -> None:
    filled(folder, 5, 10, 15, 20)
    damage(folder, 20)
    (folder / "step-00000015.pt").write_bytes(b"")
    step, said = loaded(CheckpointStore(folder, 9))
    assert step == 10
    assert [re.findall(r"step-\d+", line) for line in said] == [
        ["step-00000020", "step-00000010"],
        ["step-00000015", "step-00000010"],
    ]
    damage(folder, 5)
    damage(folder, 10)
    with pytest.raises(ValueError, match=r"^no checkpoint in .* is intact .*step-00000005.*train from scratch$"):
        CheckpointStore(folder, 9).load(CPU, pytest.fail)


def test_the_one_that_was_resumed_from_stays_until_two_good_ones_are_there(folder: Path) -> None:
    """A damaged one does not count, though its number is higher."""
    filled(folder, 10, 20)
    damage(folder, 20)
    store, single = CheckpointStore(folder, 2), CheckpointStore(folder, 1)
    assert loaded(store)[0] == loaded(single)[0] == 10
    store.save(at_step(15), 15)
    assert names(folder) == ["step-00000010.pt", "step-00000015.pt"]
    store.save(at_step(20), 20)
    assert names(folder) == ["step-00000015.pt", "step-00000020.pt"]
    single.save(at_step(20), 20)  # the same name as the damaged one
    assert names(folder) == ["step-00000020.pt"]
    single.save(at_step(3), 3)  # what was just saved stays whatever is beside it
    assert names(folder) == ["step-00000003.pt", "step-00000020.pt"]


def weights(value: float) -> dict[str, Tensor]:
    return {"a.weight": torch.full((2, 3), value), "b.bias": torch.full((4,), -value)}


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    kept = tmp_path / "step-00000003.safetensors"
    write_weights(weights(3), kept, Rank(12.5))
    return kept


def test_weights_of_all_types_and_shapes_are_read_back(kept: Path) -> None:
    assert same(read_weights(kept), weights(3), set())
    assert read_rank(kept) == Rank(12.5)
    assert kept.stat().st_mode & 0o777 == 0o644
    odd = {
        "half": torch.randn(3, dtype=torch.bfloat16),
        "number": torch.tensor(2.0),
        "none": torch.zeros(0, 4),  # what is empty lies nowhere, and there is more than one of it there
        "neither": torch.zeros(3, 0),
        "whole": torch.arange(3),
        "turned": torch.arange(6.0).view(2, 3).T,
    }
    write_weights(odd, kept, Rank(1.0))
    assert same(read_weights(kept), odd, set())


def test_matrices_in_eight_bits_keep_their_values_to_half_a_step_of_each_row(kept: Path) -> None:
    matrix = torch.randn(30, 64) * torch.logspace(-6, 3, 30).unsqueeze(1)
    matrix[4] = 0
    vector = torch.randn(64)
    write_weights({"m": matrix, "tied": matrix, "v": vector}, kept, Rank(1.0), in_int8=True)
    read = read_weights(kept)
    assert read.keys() == {"m", "tied", "v"}
    assert read["v"].equal(vector)
    assert read["tied"] is read["m"]
    assert read["m"].dtype == matrix.dtype
    step = matrix.abs().amax(1, keepdim=True) / 127
    assert ((read["m"] - matrix).abs() <= 0.5001 * step).all()
    assert (read["m"][4] == 0).all()
    data = bytearray(kept.read_bytes())
    data[-1] ^= 1
    kept.write_bytes(data)
    with pytest.raises(ValueError, match="its checksum is wrong"):
        read_weights(kept)


def test_tied_weights_are_written_once_and_read_under_all_names(kept: Path) -> None:
    net: Transformer = lively(MODEL, 20, 30)
    write_weights(net.state_dict(), kept, Rank(1.0))
    assert same(read_weights(kept), dict(net.state_dict()), set())
    with safe_open(kept, "pt") as file:
        assert len(list(file.keys())) == len(list(net.parameters()))
    fresh = lively(MODEL, 20, 30, seed=2)
    load_model(fresh, kept)  # safetensors' own
    assert same(dict(fresh.state_dict()), dict(net.state_dict()), set())


def test_of_a_damaged_file_nothing_is_believed(kept: Path) -> None:
    whole = kept.read_bytes()
    data = whole.index(b"}}") + 10  # from here on no bit is without an owner
    for place in [*range(0, data, 3), *range(data, len(whole))]:
        kept.write_bytes(flipped(whole, place, place % 8))
        read_rank(kept)
        try:
            assert same(read_weights(kept), weights(3), set()), place  # a blank in the header, say
            assert place < data
        except ValueError as error:
            assert str(kept) in str(error)  # noqa: PT017
            assert "\n" not in str(error)  # noqa: PT017
    for content in (b"", b"\xff" * 50, b"\x10" + bytes(7) + b"not even json..."):
        kept.write_bytes(content)
        with pytest.raises(ValueError, match=rf"^{kept} cannot be read \([^\n]+\)$"):
            read_weights(kept)
        assert read_rank(kept) == Rank()
    kept.write_bytes(whole.replace(b'"12.5"', b'"92.5"'))
    with pytest.raises(ValueError, match="its checksum is wrong"):
        read_weights(kept)


def files(folder: Path, *values: dict[str, Tensor]) -> list[Path]:
    paths = [folder / f"{i}.safetensors" for i in range(len(values))]
    for kept, value in zip(paths, values, strict=True):
        write_weights(value, kept, Rank(0.0))
    return paths


def test_the_average_is_the_mean_and_fits_a_network_with_tied_weights(tmp_path: Path) -> None:
    nets = [lively(MODEL, 20, 30, seed) for seed in range(3)]
    mean, n = average(files(tmp_path, *(dict(net.state_dict()) for net in nets)), pytest.fail)
    assert n == 3
    fresh = lively(MODEL, 20, 30, seed=9)
    fresh.load_state_dict(mean)
    for name, parameter in fresh.named_parameters():
        exact = torch.stack([net.get_parameter(name).detach().double() for net in nets]).mean(0).float()
        assert parameter.equal(exact)


def test_damaged_files_are_left_out_of_the_average_with_a_line(tmp_path: Path) -> None:
    paths, said = files(tmp_path, weights(1), weights(99), weights(3), weights(5)), list[str]()
    paths[1].write_bytes(paths[1].read_bytes()[:-1] + b"\x7f")
    paths[0].write_bytes(b"")
    mean, n = average(paths, said.append)
    assert n == 2
    assert same(mean, weights(4), set())
    assert [str(path) in line for path, line in zip(paths[:2], said, strict=True)] == [True, True]
    assert average(paths[:2], print) == ({}, 0)


COURSE = [(10, 1.0), (20, 5.0), (30, 3.0), (40, 5.0), (50, 2.0)]


def after(folder: Path, keep_best: int, keep_last: int, course: list[tuple[int, float]] = COURSE) -> WeightStore:
    store = WeightStore(folder, keep_best, keep_last, 0)
    for step, score in course:
        store.save(weights(step), step, Rank(score))
    return store


def steps(folder: Path) -> list[int]:
    return sorted(map(step_of, folder.iterdir()))


def test_the_best_and_the_last_stay(tmp_path: Path) -> None:
    for keep_best, keep_last, left in (
        (1, 0, [20]),  # of equal ones the earlier
        (3, 0, [20, 30, 40]),
        (0, 2, [40, 50]),
        (1, 2, [20, 40, 50]),
    ):
        folder = tmp_path / f"{keep_best}-{keep_last}"
        store = after(folder, keep_best, keep_last)
        assert steps(folder) == left
        assert all(same(read_weights(kept), weights(step_of(kept)), set()) for kept in folder.iterdir())
        assert [*map(step_of, store.last())] == [40, 50][2 - keep_last :]


def test_a_damaged_file_and_a_score_that_is_no_number_are_never_the_best(tmp_path: Path) -> None:
    for i, (scores, left) in enumerate((((math.nan, -2.0), 20), ((-2.0, math.nan), 10), ((math.nan, -1e300), 20))):
        after(tmp_path / str(i), 1, 0, [(10, scores[0]), (20, scores[1])])
        assert steps(tmp_path / str(i)) == [left]
    store = after(tmp_path / "damaged", 2, 0)
    (tmp_path / "damaged" / "step-00000020.safetensors").write_bytes(b"")
    store.save(weights(60), 60, Rank(1.5))
    assert steps(tmp_path / "damaged") == [40, 60]


def test_weights_of_steps_that_were_lost_go_and_a_repeated_validation_replaces_itself(tmp_path: Path) -> None:
    after(tmp_path, 9, 0)
    store = WeightStore(tmp_path, 1, 1, 30)
    assert steps(tmp_path) == [10, 20, 30]
    for step, score in COURSE[3:]:  # which are the best survives a new start
        store.save(weights(step), step, Rank(score))
    store.save(weights(8), 50, Rank(1.0))
    assert steps(tmp_path) == [20, 50]
    assert same(read_weights(tmp_path / "step-00000050.safetensors"), weights(8), set())
    store.save(weights(7), 20, Rank(0.5))  # once the best
    assert steps(tmp_path) == [50]


class Training:
    """Each step's weight is its number."""

    def __init__(self, folder: Path, progress: Progress | None = None, scoring: str | None = None) -> None:
        self.folder, self.best, self.progress = folder, folder / WEIGHTS, progress or Progress()
        self.store = CheckpointStore(folder / "checkpoints", 2)
        self.keeper = CheckpointKeeper(
            self.store,
            WeightStore(folder / "weights", 1, 2, self.progress.step, scoring),
            self.best,
            lambda: {"step": self.progress.step},
            lambda: {"w": torch.tensor([float(self.progress.step)])},
            "bleu",
        )

    def validate(self, *course: tuple[int, float], loss: float = 1.0) -> None:
        for step, bleu in course:
            self.progress.step = step
            self.progress.note(Rank(bleu, -loss))
            self.keeper.on_validation(self.progress, Validation(loss, {"bleu": bleu}))

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())


def test_of_equal_scores_the_one_with_less_loss_is_the_best(tmp_path: Path) -> None:
    training = Training(tmp_path)
    for step, loss in ((10, 9.0), (20, 4.0), (30, 4.0), (40, 5.0)):
        training.validate((step, 0.0), loss=loss)
    assert read_weights(training.best)["w"].item() == 20
    assert (training.progress.best_step, training.progress.stale) == (20, 2)
    assert steps(tmp_path / "weights") == [20, 30, 40]  # the best, and the last two


def test_weights_of_a_validation_that_does_not_count_are_used_until_one_counts(tmp_path: Path) -> None:
    training = Training(tmp_path)
    for step in (2, 4):
        training.progress.step = step
        training.keeper.on_validation(training.progress, Validation(1.0, {"bleu": 50.0}))
        assert read_weights(training.best)["w"].item() == step
        assert training.store.load(CPU, pytest.fail) == {"step": step}
    assert not (tmp_path / "weights").exists()
    training.validate((10, 8.0), loss=9.0)
    assert read_weights(training.best)["w"].item() == 10


def test_scores_of_another_scoring_do_not_compare(tmp_path: Path) -> None:
    before = Training(tmp_path, scoring="300 sentences")
    before.validate((10, 50.0), (20, 40.0))
    same = Training(tmp_path, before.progress, "300 sentences")
    same.validate((30, 45.0))
    assert read_weights(same.best)["w"].item() == 10
    before.progress.forget_scores()
    other = Training(tmp_path, before.progress, "all sentences")
    other.validate((40, 8.0), (50, 7.0), (60, 6.0))
    assert read_weights(other.best)["w"].item() == 40
    assert steps(tmp_path / "weights") == [40, 50, 60]
    assert read_rank(other.best) == read_rank(other.best, "all sentences") == Rank(8.0, -1.0)
    assert read_rank(other.best, "300 sentences") == Rank()


def test_each_validation_is_saved_and_the_best_apart(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.validate((10, 5.0), (20, 8.0), (30, 7.0), (40, 6.0))
    assert training.store.load(CPU, pytest.fail) == {"step": 40}
    assert read_weights(training.best)["w"].item() == 20
    assert read_rank(training.best).score == 8.0
    checkpoints = [f"checkpoints/step-000000{step}.pt" for step in (30, 40)]
    kept = [*checkpoints, WEIGHTS, *(f"weights/step-000000{step}.safetensors" for step in (20, 30, 40))]
    assert training.files() == kept
    for name in kept:  # what killed processes left half-written goes at the start
        file = tmp_path / name
        file.with_name(f".{file.name}.999999999.part").write_bytes(b"half")
    assert Training(tmp_path, Progress(step=40)).files() == kept


def test_a_better_average_of_an_earlier_end_stays(tmp_path: Path) -> None:
    """A training has ended with an average of 9, and goes on: a validation of 8 is its best, and worse."""
    training = Training(tmp_path)
    write_weights({"w": torch.tensor([-1.0])}, training.best, Rank(9.0))
    for course, kept in ((((10, 5.0), (20, 8.0)), -1), (((50, 9.5),), 50)):
        training.validate(*course)
        assert read_weights(training.best)["w"].item() == kept


@pytest.mark.parametrize("dies_in", ["weights", "best", "checkpoint"])
def test_a_validation_that_was_saved_in_part_is_saved_whole_by_the_next_process(
    tmp_path: Path, dies_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(tmp_path)
    training.validate((10, 5.0))
    targets: dict[str, tuple[Any, str]] = {
        "weights": (WeightStore, "save"),
        "best": (checkpoint, "write_weights"),
        "checkpoint": (CheckpointStore, "save"),
    }
    with monkeypatch.context() as context:
        context.setattr(*targets[dies_in], Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            training.validate((20, 8.0))
    assert training.store.load(CPU, pytest.fail) == {"step": 10}  # so that step 20 is validated again
    resumed, whole = Training(tmp_path, Progress(step=10, best_step=10, best_score=5.0)), Training(tmp_path / "whole")
    resumed.validate((20, 8.0))
    whole.validate((10, 5.0), (20, 8.0))
    assert [file for file in resumed.files() if not file.startswith("whole")] == whole.files()
    assert read_weights(resumed.best)["w"].item() == 20


@pytest.mark.parametrize(
    ("by", "weights", "best", "used"),
    [
        ("bleu", (7.0, 2.0, 3.5, 3.5), 9.0, True),  # of the last three
        ("bleu", (7.0, 2.0, 3.5, 3.5), 10.0, True),  # as good
        ("bleu", (7.0, 2.0, 3.5, 3.5), 10.5, False),
        ("loss", (2.0, 3.0, 5.5), -0.75, True),
        ("bleu", (), 5.0, None),  # no validation was kept
    ],
)
def test_an_average_takes_the_place_of_what_is_no_better(
    tmp_path: Path, by: str, weights: Sequence[float], best: float, used: bool | None
) -> None:
    """A single weight is the better the nearer it is to 3; the best before has this score."""
    store, net, said = WeightStore(tmp_path / "weights", 0, 3, 0), nn.Linear(1, 1, bias=False), list[str]()
    for step, weight in enumerate(weights, 1):
        store.save({"weight": torch.tensor([[weight]])}, step, Rank(10 - abs(weight - 3)))
    write_weights({"weight": torch.tensor([[99.0]])}, tmp_path / WEIGHTS, Rank(best))

    def validate() -> Validation:
        loss = abs(net.weight.item() - 3)
        return Validation(loss, {"bleu": 10 - loss})

    keeper = CheckpointKeeper(CheckpointStore(tmp_path, 1), store, tmp_path / WEIGHTS, dict, dict, by)
    keeper.try_average(net, validate, said.append)
    best_weight = read_weights(tmp_path / WEIGHTS)["weight"].item()
    assert best_weight == pytest.approx(sum(weights[-3:]) / 3 if used else 99.0)
    assert read_n_averaged(tmp_path / WEIGHTS) == (3 if used else 1)
    shown = {"bleu": "bleu 10.00", "loss": "loss 0.50"}[by]
    line = f"dev {shown} against {abs(best):.2f} .*: {'used' if used else 'not used'}"
    assert not said if used is None else re.search(line, said[0])
