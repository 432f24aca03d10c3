"""On a text of one document, a language model that has learned nothing."""

import json
import math
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.tiny import TEXT
from tests.utils.task.tiny_run import language_run
from utils.dataset.monolingual import MonolingualConfig, prepare_monolingual
from utils.dataset.stream import StreamConfig, StreamSampler
from utils.run import TrainedLanguageModel, load_language_model
from utils.task import perplexity
from utils.task.perplexity import remember, text_loss


@pytest.fixture
def model(tmp_path: Path) -> TrainedLanguageModel:
    """It tests on the last lines of its text."""
    text = tmp_path / "my.en"
    text.write_text("".join(line + "\n" for line in TEXT.tgt), encoding="utf-8")
    folder = language_run(tmp_path / "pickles")
    found = load_language_model(folder)
    training = replace(found.config.training, precision="fp32", device="cpu")
    data = MonolingualConfig(text=text, language="en", held_out=6)
    config = replace(found.config, data=data, training=training)
    config.save(folder / "config.yaml")
    return found._replace(config=config)


def test_segments_do_not_matter_to_whom_remembers_all(model: TrainedLanguageModel, tmp_path: Path) -> None:
    (in_pieces,), (at_once,) = (list(remember(model, "test", n, [1000], tmp_path)) for n in (5, 1000))
    assert tuple(in_pieces) == pytest.approx(tuple(at_once), rel=1e-4)
    (forgetful,) = remember(model, "test", 5, [0], tmp_path)
    assert forgetful.perplexity != pytest.approx(at_once.perplexity, rel=1e-3)


def test_perplexities_are_of_the_same_nats(model: TrainedLanguageModel, tmp_path: Path) -> None:
    """By the token and by the word: held out are six sentences, each of seven words, a full stop and an end."""
    (found,) = remember(model, "test", 7, [9], tmp_path)
    n_tokens = sum(len(ids) + 1 for ids in model.tokenizer.encode(TEXT.tgt[-6:]))
    words = sum(len(line.removesuffix(".").split()) + 2 for line in TEXT.tgt[-6:])
    assert math.log(found.word_ppl) * words == pytest.approx(math.log(found.perplexity) * n_tokens, rel=1e-6)


def test_the_loss_is_that_of_one_long_reading(model: TrainedLanguageModel, tmp_path: Path) -> None:
    corpus = prepare_monolingual(model.config.data, tmp_path)
    tokens = corpus.tokens("dev", model.tokenizer, print, tmp_path)
    (batch,) = StreamSampler(tokens, StreamConfig(1, 1000)).all()
    hidden, _ = model.net(batch.ids, model.net.start(1, torch.device("cpu")))
    real = batch.target[0] != 0
    logits = model.net.project(hidden[0, real])
    expected = torch.nn.functional.cross_entropy(logits, batch.target[0, real]).item()
    pieces = StreamSampler(tokens, StreamConfig(1, 4)).all()
    assert text_loss(model, pieces, 1000) == pytest.approx(expected, rel=1e-5)


@pytest.mark.usefixtures("model")
def test_the_command_prints_writes_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder,) = (tmp_path / "pickles").iterdir()
    monkeypatch.setattr(perplexity, "remember", partial(remember, root=tmp_path))
    files = ["--json", str(tmp_path / "m.json"), "--picture", str(tmp_path / "m.png")]
    monkeypatch.setattr(sys, "argv", ["perplexity", "--run", str(folder), "--memory_lengths", "0", "8", *files])
    perplexity.main()
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("  ")][1:]
    found = json.loads((tmp_path / "m.json").read_text())[folder.name]
    printed = [[int(memory), float(by_token), float(by_word)] for memory, by_token, by_word in rows]
    assert printed == [[round(number, 2) for number in point.values()] for point in found]
    assert [point["memory_length"] for point in found] == [0, 8]
    with Image.open(tmp_path / "m.png") as image:
        assert image.width > 400


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--memory_lengths", "-1"], r"^--memory_lengths -1: give 0"),
        (["--segment_length", "0"], r"^--segment_length 0: give 1 or more"),
        (["--run", "one/xl", "other/xl"], r"^two runs are named xl: give one of them"),
        (["--json", "one"], r"^one exists and is not a file: give another name"),
        (["--run", "one/xl", "one/xl"], r"^two runs are named xl: give one of them"),
    ],
)
def test_what_says_nothing_is_refused(
    options: list[str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one/xl", "other/xl", "xl"):
        Path(name).mkdir(parents=True)
    monkeypatch.setattr(sys, "argv", ["perplexity", *(options if "--run" in options else ["--run", "xl", *options])])
    with pytest.raises(ValueError, match=complaint):
        perplexity.main()
