"""What is done when a training has ended."""

import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from const.path import ROOT
from evaluate import build_parser as evaluate_parser
from serve import build_parser as serve_parser
from translate import build_parser as translate_parser
from utils.dataset.batch import AnyBatch
from utils.run import WEIGHTS
from utils.task.task import try_average, what_next
from utils.training.checkpoint import WeightStore, read_n_averaged, read_score, read_weights, write_weights
from utils.training.plan import Progress
from utils.training.report import Judge, Validation


class Trained:
    """A single weight, scored by how near 3 it is."""

    def __init__(self) -> None:
        self.net = nn.Linear(1, 1, bias=False)
        self.progress = Progress()

    def test(self, batches: Sequence[AnyBatch], judge: Judge) -> Validation:
        assert not batches
        return judge(abs(self.net.weight.item() - 3))


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


def test_without_kept_weights_nothing_is_averaged(tmp_path: Path) -> None:
    assert not concluded(tmp_path, (), 5.0)
    assert read_score(tmp_path / WEIGHTS) == 5.0


@pytest.mark.parametrize("sentence", ["寺がある", "-5 度", "it's"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_is_proposed_works_as_it_stands(
    sentence: str, elsewhere: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path if elsewhere else ROOT)
    parsers = {"translate.py": translate_parser(), "serve.py": serve_parser(), "evaluate.py": evaluate_parser()}
    _, *wishes = what_next(Path("pickles/my run"), sentence)
    commands = [shlex.split(wish.split("\n")[1]) for wish in wishes]
    assert all(Path(python).is_file() and Path(program).is_file() for python, program, *_ in commands)
    asked = [parsers[Path(program).name].parse_args(words) for _, program, *words in commands]
    assert [translation.texts for translation in asked[:3]] == [[sentence], [sentence], []]
    assert [translation.run for translation in asked[:3]] == [["pickles/my run"]] * 3
    assert len(asked) == 5
