import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from utils.training.checkpoint import CheckpointKeeper, load_checkpoint, save_checkpoint
from utils.training.observer import Validation
from utils.training.plan import Progress

CPU = torch.device("cpu")


def state() -> dict[str, Any]:
    return {
        "net": {"weight": torch.arange(12.0).view(3, 4)},
        "progress": {"step": 3, "best_score": float("-inf")},
        "rng": torch.arange(20, dtype=torch.uint8),
        "cuda_rng": [],
    }


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    plain = all(a.get(key) == b[key] for key in ("progress", "cuda_rng"))
    return plain and a["net"]["weight"].equal(b["net"]["weight"]) and a["rng"].equal(b["rng"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "last.pt"
    save_checkpoint(state(), path)
    return path


def complaint(path: Path) -> str:
    with pytest.raises(ValueError, match="start ") as caught:
        load_checkpoint(path, CPU)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_what_is_saved_is_read_back(path: Path) -> None:
    assert same(load_checkpoint(path, CPU), state())
    assert [file.name for file in path.parent.iterdir()] == ["last.pt"]


def test_a_missing_one_says_so(path: Path) -> None:
    path.unlink()
    assert "no checkpoint" in complaint(path)


def test_a_truncated_one_is_refused_wherever_it_ends(path: Path) -> None:
    whole = path.read_bytes()
    for end in [0, 1, *range(40, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:end])
        assert "damaged" in complaint(path), end


def test_a_flipped_bit_is_found_wherever_it_matters(path: Path) -> None:
    whole = path.read_bytes()
    refused = 0
    for place in range(0, len(whole), 3):
        flipped = bytearray(whole)
        flipped[place] ^= 1
        path.write_bytes(flipped)
        try:
            assert same(load_checkpoint(path, CPU), state()), place
        except ValueError:
            refused += 1
    assert refused > len(whole) // 9  # the rest is padding, dates and the like


class Malice:
    def __init__(self, traces: Path) -> None:
        self.traces = traces

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.traces,))


def test_code_in_a_checkpoint_is_refused_and_does_not_run(path: Path) -> None:
    traces = path.with_name("traces")
    save_checkpoint({**state(), "progress": Malice(traces)}, path)
    assert "not one of ours" in complaint(path)
    path.write_bytes(pickle.dumps(Malice(traces)))
    assert "not one of ours" in complaint(path)
    assert not traces.exists()
    pickle.loads(path.read_bytes())  # it would have done harm
    assert traces.exists()


@pytest.mark.parametrize("spoiled", [RuntimeError, KeyboardInterrupt])
def test_a_save_that_fails_leaves_the_one_before_it(
    spoiled: type[BaseException], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(_state: object, draft: Path) -> None:
        draft.write_bytes(b"PK half of a che")
        raise spoiled

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(spoiled):
        save_checkpoint({**state(), "cuda_rng": [1]}, path)
    assert same(load_checkpoint(path, CPU), state())
    assert [file.name for file in path.parent.iterdir()] == ["last.pt"]


def test_the_keeper_saves_each_validation_and_the_best_apart(tmp_path: Path) -> None:
    now, best = {"step": 0}, []
    keeper = CheckpointKeeper(tmp_path / "last.pt", lambda: dict(now), lambda: best.append(now["step"]))
    validation = Validation(1.0, 0.0, 0.0, "", "", [])
    for step, best_step in ((10, 10), (20, 10), (30, 30)):
        now["step"] = step
        keeper.on_validation(Progress(step=step, best_step=best_step), validation)
        assert load_checkpoint(tmp_path / "last.pt", CPU) == {"step": step}
    assert best == [10, 30]
    now["step"] = 33
    keeper.save()
    assert load_checkpoint(tmp_path / "last.pt", CPU) == {"step": 33}
    assert best == [10, 30]
