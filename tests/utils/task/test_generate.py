"""What a language model says behind a prompt: one that has learned nothing, and one that always says the same."""

import sys
from functools import partial
from pathlib import Path

import pytest

from const.token import BOS_ID, EOS_ID
from tests.tiny import TEXT
from tests.utils.task.tiny_run import XL, bert_run, english, language_run
from utils.command import run_command
from utils.run import TrainedLanguageModel, find_run, load_language_model
from utils.search.sampling import SamplingConfig
from utils.task import language as command_module
from utils.task.language import continuations, generate

ENGLISH = english()
PROMPT = "There is an old"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return language_run(tmp_path_factory.mktemp("pickles"))


@pytest.fixture(scope="module")
def trained(folder: Path) -> TrainedLanguageModel:
    return load_language_model(folder)


@pytest.mark.parametrize("sampling", [None, SamplingConfig(4, 0.8, 20, 0.9, 3)])
def test_the_text_is_the_prompt_and_what_the_model_says_behind_it(
    trained: TrainedLanguageModel, sampling: SamplingConfig | None
) -> None:
    ids = [BOS_ID, *ENGLISH.encode([PROMPT])[0]]  # no </s>: the sentence goes on
    said = generate(trained.net, ids, 9, 2, sampling, 4)
    found = continuations(trained, PROMPT, 9, 2, sampling, 4)
    assert found == ENGLISH.decode([ids + more for more in said])
    assert all(text.startswith(PROMPT) and len(text) > len(PROMPT) for text in found)
    assert len(set(found)) == (4 if sampling else 1)


def test_it_remembers_as_far_back_as_training_looked(trained: TrainedLanguageModel) -> None:
    sampling = SamplingConfig(3)
    own = continuations(trained, TEXT.tgt[5], 20, 9, sampling)
    # the last of 5 positions had 4 of its segment and 20 of memory before it
    assert own == continuations(trained, TEXT.tgt[5], 20, 9, sampling, 24)
    assert own != continuations(trained, TEXT.tgt[5], 20, 9, sampling, XL.memory_length)


def test_an_empty_prompt_begins_a_document(trained: TrainedLanguageModel) -> None:
    assert continuations(trained, "", 8, 1, None, 5) == ENGLISH.decode(generate(trained.net, [BOS_ID], 8, 1, None, 5))


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> object:
    monkeypatch.setattr(sys, "argv", ["generate", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        run_command("generate", command_module.main)
    return ended.value.code


def test_the_command_says_what_the_newest_language_model_finds_likely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    probs = [0.0] * len(ENGLISH)
    dot = ENGLISH.encode(["."])[0][-1]
    probs[dot], probs[EOS_ID] = 0.75, 0.25
    folder = language_run(tmp_path, probs)
    bert_run(tmp_path)  # newer, and of another task
    monkeypatch.setattr(command_module, "find_run", partial(find_run, root=tmp_path))
    assert command(monkeypatch, PROMPT, "--greedy", "--tokens", 4) == 0
    assert capsys.readouterr() == (PROMPT + "....\n", "")
    assert command(monkeypatch, PROMPT, "--greedy", "--tokens", 4, "--run", folder.name) == 0
    assert capsys.readouterr() == (PROMPT + "....\n", "")
    assert command(monkeypatch, PROMPT, "--samples", 40, "--seed", 7, "--sentences", 1) == 0
    lines = capsys.readouterr().out.splitlines()
    n_dots = [len(line) - len(PROMPT) for line in lines]
    assert [line.rstrip(".") for line in lines] == [PROMPT] * 40
    assert len(set(n_dots)) > 3
    assert 2 < sum(n_dots) / 40 < 5  # 3 are expected
    assert command(monkeypatch, PROMPT, "--samples", 40, "--seed", 7, "--sentences", 2) == 0
    longer = [len(line) - len(PROMPT) for line in capsys.readouterr().out.splitlines()]
    assert all(more >= fewer for more, fewer in zip(longer, n_dots, strict=True))
    assert sum(longer) > sum(n_dots)


def test_every_option_of_sampling_is_heard(
    folder: Path,
    trained: TrainedLanguageModel,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sampling = SamplingConfig(3, 0.7, 11, 0.9, 5)
    given = {"samples": 3, "temperature": 0.7, "top_k": 11, "top_p": 0.9, "seed": 5}
    options = [part for name, value in given.items() for part in (f"--{name}", value)]
    more = ["--tokens", 12, "--sentences", 2, "--memory_length", 6]
    assert command(monkeypatch, PROMPT, "--run", folder, *options, *more) == 0
    found = capsys.readouterr().out.splitlines()
    assert found == continuations(trained, PROMPT, 12, 2, sampling, 6)
    for i in range(0, len(options), 2):
        assert command(monkeypatch, PROMPT, "--run", folder, *options[:i], *options[i + 2 :], *more) == 0
        assert capsys.readouterr().out.splitlines() != found, options[i]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--tokens", 0], "--tokens 0: give 1 or more"),
        (["--sentences", 0], "--sentences 0: give 1 or more"),
        (["--samples", 0], "--samples 0: give 1 to 10000"),
        (["--temperature", 0], "--temperature 0.0: give more than 0, or use --greedy instead"),
        (["--memory_length", -1], "--memory_length -1: give 0 or more"),
        (["--top_p", 1.5], "--top_p 1.5: give more than 0 and at most 1 (all tokens)"),
        *(
            (["--greedy", option, value], f"--greedy and {option} {value} cannot be combined: leave one out")
            for option, value in (
                ("--samples", 1),
                ("--temperature", 1.0),
                ("--top_k", 0),
                ("--top_p", 0.5),
                ("--seed", 2),
            )
        ),
    ],
)
def test_a_mistake_is_answered_with_a_line(
    folder: Path,
    options: list[object],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command(monkeypatch, PROMPT, "--run", folder, *options) == 2
    assert capsys.readouterr() == ("", f"generate: error: {complaint}\n")


def test_a_run_of_another_task_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, PROMPT, "--run", bert_run(tmp_path)) == 2
    assert "is of task masked_language, but language is needed here" in capsys.readouterr().err
