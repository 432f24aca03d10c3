"""Classes of texts: of a network that has learned nothing, and of one whose answer is known."""

import io
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from const.token import BOS_ID, EOS_ID
from tests.tiny import TEXT
from tests.utils.task.tiny_run import JAPANESE, LABELS, bert_run, classifier_run
from utils.command import run_command
from utils.evaluation.judge import ClassAccuracy
from utils.run import TrainedClassifier, find_run, load_classifier
from utils.task import classification as command_module
from utils.task.classification import classify, confusion, labelled_batches, summary


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return classifier_run(tmp_path_factory.mktemp("pickles"))


@pytest.fixture(scope="module")
def classifier(folder: Path) -> TrainedClassifier:
    return load_classifier(folder)


@torch.no_grad()
def test_classes_come_with_the_networks_probabilities(classifier: TrainedClassifier) -> None:
    orders = set()
    texts = [*TEXT.src[::7], TEXT.src[0] * 2]
    for text in texts:
        ids = [BOS_ID, *JAPANESE.encode([text])[0][:10], EOS_ID]  # no more than 12 are learned from
        probs = classifier.net(torch.tensor([ids]))[0].softmax(-1)
        found = classify(classifier, text, 2)
        likely = probs.argsort(descending=True)[:2].tolist()
        assert [label for label, _ in found] == [LABELS[i] for i in likely]
        assert [p for _, p in found] == pytest.approx(probs[likely].tolist(), rel=1e-4)
        orders.add(tuple(likely))
    assert len(orders) > 1
    assert max(map(len, JAPANESE.encode(texts))) > 10
    assert sum(p for _, p in classify(classifier, "", 9)) == pytest.approx(1)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    texts, labels = tmp_path / "text", tmp_path / "labels"
    texts.write_text("".join(line + "\n" for line in TEXT.src[:50]), encoding="utf-8")
    labels.write_text("".join(f"{LABELS[i % 3]}\n" for i in range(50)), encoding="utf-8")
    return texts, labels


def test_a_file_is_counted_as_text_by_text(classifier: TrainedClassifier, files: tuple[Path, Path]) -> None:
    expected = torch.zeros(3, 3, dtype=torch.long)
    for i, text in enumerate(TEXT.src[:50]):
        expected[i % 3, LABELS.index(classify(classifier, text, 1)[0].label)] += 1
    batches = labelled_batches(classifier, *files)
    assert len(batches) > 3
    found = confusion(classifier.net, batches, 3)
    torch.testing.assert_close(found, expected)
    assert int((expected.sum(0) > 0).sum()) > 1
    accuracy = ClassAccuracy(classifier.net, batches)(0.0).scores["accuracy"]
    assert summary(found, LABELS)[0] == f"accuracy {accuracy:.2f} % of 50 texts"


def test_the_summary_names_what_is_most_often_confused() -> None:
    taken = torch.tensor([[900, 7, 0], [30, 50, 1], [0, 12, 0]])
    assert summary(taken, LABELS) == [
        "accuracy 95.00 % of 1,000 texts",
        "most often confused: garden taken for bridge (30), river taken for garden (12), bridge taken for garden (7), "
        "garden taken for river (1)",
    ]
    assert summary(torch.eye(3, dtype=torch.long), LABELS) == ["accuracy 100.00 % of 3 texts"]


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> object:
    monkeypatch.setattr(sys, "argv", ["classify", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        run_command("classify", command_module.main)
    return ended.value.code


def test_the_command_shows_the_newest_classifiers_answer(
    tmp_path: Path, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    classifier_run(tmp_path, [0.125, 0.25, 0.625])
    bert_run(tmp_path)  # newer, and of another task
    monkeypatch.setattr(command_module, "find_run", partial(find_run, root=tmp_path))
    answer = ["  river   62.5%", "  garden  25.0%"]
    assert command(monkeypatch, "寺", "橋がある", "--top", 2) == 0
    assert capsys.readouterr().out.splitlines() == ["寺", *answer, "橋がある", *answer]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("寺\n\n".encode())))
    assert command(monkeypatch) == 0
    answer.append("  bridge  12.5%")
    assert capsys.readouterr().out.splitlines() == ["寺", *answer, "", *answer]
    texts, labels = files
    assert command(monkeypatch, "--texts", texts, "--labels", labels) == 0
    assert capsys.readouterr().out.splitlines() == [
        "accuracy 32.00 % of 50 texts",
        "most often confused: bridge taken for river (17), garden taken for river (17)",
    ]


def test_a_mistake_is_answered_with_a_line(
    folder: Path,
    files: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def complaint(*arguments: object) -> str:
        assert command(monkeypatch, *arguments, "--run", folder) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        return err.removeprefix("classify: error: ").strip()

    texts, labels = files
    assert complaint("寺", "--top", 0) == "--top 0: give 1 or more"
    assert complaint("--texts", texts) == "--texts and --labels belong together: give both"
    assert complaint("寺", "--labels", labels) == "--texts and --labels belong together: give both"
    assert complaint("寺", "--texts", texts, "--labels", labels).endswith("cannot be combined: give one of them")
    few = tmp_path / "few"
    few.write_text("river\nbridge\n", encoding="utf-8")
    assert complaint("--texts", texts, "--labels", few) == (
        f"{texts} has 50 lines but {few} has 2: give a label for each"
    )
    few.write_text("river\nharbour\n", encoding="utf-8")
    assert "line 2: label 'harbour' is not among" in complaint("--texts", texts, "--labels", few)
    assert command(monkeypatch, "寺", "--run", bert_run(tmp_path)) == 2
    assert "is of task masked_language, but classification is needed here" in capsys.readouterr().err
