"""The command that trains what a classifier must beat."""

import sys
from functools import partial
from pathlib import Path

import pytest

from tests.tiny import TEXT, TOKENIZER
from tests.utils.task.tiny_run import JAPANESE, LABELS, bert_run, classifier_run
from utils.command_line import run_command
from utils.config import ClassificationConfig
from utils.dataset import labelled, line_cache
from utils.dataset.labelled import LabelledConfig
from utils.run import find_run
from utils.task import bag_of_words as command_module
from utils.task import classification

THINGS = {"橋": "bridge", "庭": "garden", "川": "river"}


@pytest.fixture
def data(tmp_path: Path) -> LabelledConfig:
    """Which of three things is spoken of: of the training text half is of a garden, of dev a third."""
    pairs = [(text, label) for text in TEXT.src for thing, label in THINGS.items() if thing in text]
    train, dev = pairs[:36], pairs[36:]
    splits = {"train": train + [pair for pair in train if pair[1] == "garden"], "dev": dev}
    splits["test"] = [pair for pair in splits["dev"] if pair[1] != "garden"]
    for split, chosen in splits.items():
        for i, part in enumerate(("text", "labels")):
            lines = "".join(pair[i] + "\n" for pair in chosen)
            (tmp_path / f"{split}.{part}").write_text(lines, encoding="utf-8")
    return LabelledConfig(*(tmp_path / f"{split}.{part}" for split in splits for part in ("text", "labels")))


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> object:
    monkeypatch.setattr(sys, "argv", ["bag_of_words", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        run_command("bag_of_words", command_module.main)
    return ended.value.code


def test_what_a_classifier_must_beat(
    data: LabelledConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cached = partial(line_cache.cached_lines, root=tmp_path)
    monkeypatch.setattr(
        labelled, "cached_lines", lambda name, text, tokenizer, say, _: cached(name, text, tokenizer, say)
    )
    monkeypatch.setattr(classification, "cached_tokenizer", partial(line_cache.cached_tokenizer, root=tmp_path))
    pickles = tmp_path / "pickles"
    folder = classifier_run(pickles, data=data)
    assert command(monkeypatch, "--run", folder) == 0
    *before, head, always, bayes, regression = capsys.readouterr().out.splitlines()
    n_train = len(data.text.read_text(encoding="utf-8").splitlines())
    assert f"{n_train} texts, 3 labels, {len(JAPANESE)} tokens" in before
    assert head.split() == ["accuracy", "dev", "test"]
    assert always.split() == ["always", "garden", "33.33", "0.00"]
    assert bayes.split() == ["naive", "Bayes", "100.00", "100.00"]
    assert regression.split()[-2:] == ["100.00", "100.00"]
    assert [line for line in before if line.startswith("logistic regression, l2 1e-06: dev 100.00")]

    bert_run(pickles)  # newer, and of another task
    monkeypatch.setattr(command_module, "find_run", partial(find_run, root=pickles))
    assert command(monkeypatch) == 0
    assert capsys.readouterr().out.splitlines()[-4:] == [head, always, bayes, regression]

    settings = tmp_path / "settings.yaml"
    ClassificationConfig(data=data, tokenizer=TOKENIZER).save(settings)
    assert command(monkeypatch, "--config", settings) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-3:] == [always, bayes, regression]
    assert "Learning the vocabulary" in out


def test_the_labels_are_those_of_the_run(data: LabelledConfig) -> None:
    assert sorted(set(data.labels.read_text(encoding="utf-8").split())) == list(LABELS)


def test_a_mistake_is_answered_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = classifier_run(tmp_path)
    for arguments, complaint in (
        (["--run", folder], "nowhere.a"),
        (["--run", bert_run(tmp_path)], "task masked_language, but classification is needed here"),
        (["--run", folder, "--config", tmp_path], "cannot be combined: give one of them"),
        (["--config", tmp_path / "none.yaml"], f"no settings {tmp_path / 'none.yaml'}: "),
    ):
        assert command(monkeypatch, *arguments) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("bag_of_words: error: ")
        assert complaint in err
        assert err.count("\n") == 1
