"""translate.py in this process, on a run that has learned nothing: what goes in, what comes out, what is refused."""

import argparse
import io
import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import translate
from tests.tiny import TEXT, run
from utils.command_line import run_command
from utils.run import Run, build_translator, load_run, newest_run
from utils.search.hypothesis import SearchConfig
from utils.search.sampling import SamplingConfig
from utils.search.translator import Candidate, Translation, Translator

LINES = [TEXT.src[0], "", TEXT.src[77], "寺", "  "]


class Typed(io.TextIOWrapper):
    """Standard input that is a terminal."""

    def isatty(self) -> bool:
        return True


class Outcome:
    def __init__(self, status: object, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    @property
    def complaint(self) -> str:
        """The one line that a mistake is answered with."""
        assert self.status == 2
        assert not self.out
        assert self.err.startswith("translate.py: error: ")
        assert self.err.count("\n") == 1
        return self.err


Command = Callable[..., Outcome]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("pickles"))


@pytest.fixture
def command(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs translate.py; the only run there is is the tiny one."""
    monkeypatch.setattr(translate, "newest_run", partial(newest_run, root=folder.parent))

    def run_it(*arguments: str | Path, stdin: bytes = b"", typed: bool = False) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["translate.py", *map(str, arguments)])
        kind = Typed if typed else io.TextIOWrapper
        monkeypatch.setattr(sys, "stdin", kind(io.BytesIO(stdin), encoding="utf-8"))
        with pytest.raises(SystemExit) as ended:
            run_command("translate.py", translate.main)
        out, err = capsys.readouterr()
        return Outcome(ended.value.code, out, err)

    return run_it


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[str]:
    """What the run makes of `LINES`."""
    return [t.text for t in load_run(folder, torch.device("cpu")).translator().translate(LINES)]


def as_file(lines: list[str]) -> str:
    return "".join(line + "\n" for line in lines)


def test_the_lines_differ(expected: list[str]) -> None:
    assert len(set(expected)) == 4
    assert [not line for line in expected] == [False, True, False, False, True]


def test_texts_are_translated_one_a_line(command: Command, expected: list[str], folder: Path) -> None:
    assert command(*LINES).out == as_file(expected)
    assert command(LINES[0], "--run", folder).out == as_file(expected[:1])


def test_a_text_with_a_line_end_stays_one_line(command: Command) -> None:
    found = command(f"{LINES[0]}\n{LINES[2]}", "寺")
    assert found.status == 0
    assert found.out.count("\n") == 2
    assert found.out == command(f"{LINES[0]} {LINES[2]}", "寺").out


def test_standard_input_is_translated_line_by_line(command: Command, expected: list[str]) -> None:
    for text in (as_file(LINES), as_file(LINES)[:-1], "\ufeff" + as_file(LINES), as_file(LINES).replace("\n", "\r\n")):
        found = command(stdin=text.encode())
        assert (found.status, found.out) == (0, as_file(expected))
    assert command(stdin=b"").out == ""


def test_a_file_becomes_a_file(command: Command, expected: list[str], tmp_path: Path) -> None:
    (tmp_path / "in").write_text(as_file(LINES), encoding="utf-8")
    found = command("--input", tmp_path / "in", "--output", tmp_path / "out")
    assert (found.status, found.out) == (0, "")
    assert (tmp_path / "out").read_text(encoding="utf-8") == as_file(expected)
    assert command("--input", tmp_path / "in").out == as_file(expected)
    assert {file.name for file in tmp_path.iterdir()} == {"in", "out"}


def test_an_unusual_line_separator_ends_no_line(command: Command) -> None:
    found = command(stdin="寺\u2028がある\n橋\n".encode())
    assert found.out.count("\n") == 2


def test_many_lines_come_in_lots_and_in_order(command: Command, expected: list[str]) -> None:
    translate_lots = command(stdin=as_file(LINES * 3).encode())
    assert translate_lots.out == as_file(expected * 3)


def test_what_is_before_a_wrong_line_is_translated(
    command: Command, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = command(stdin=as_file(LINES[:3]).encode() + b"\xff\n")
    assert (broken.status, broken.out) == (2, as_file(expected[:3]))
    monkeypatch.setattr(translate, "LINES_AT_ONCE", 2)
    assert command(stdin=as_file(LINES * 2).encode()).out == as_file(expected * 2)
    broken = command(stdin=as_file(LINES[:3]).encode() + b"\xff\n")
    assert (broken.status, broken.out) == (2, as_file(expected[:3]))


def test_a_line_is_handed_on_while_the_next_one_is_waited_for(
    folder: Path, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (there, mouth), (ear, back) = os.pipe(), os.pipe()
    heard: list[str] = []

    def converse() -> None:
        with os.fdopen(mouth, "wb", buffering=0) as speak, os.fdopen(ear, encoding="utf-8") as listen:
            for line in LINES:
                speak.write(f"{line}\n".encode())
                heard.append(listen.readline())

    person = threading.Thread(target=converse)
    person.start()
    with os.fdopen(there, encoding="utf-8") as stdin, os.fdopen(back, "w", encoding="utf-8") as stdout:
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setattr(sys, "argv", ["translate.py", "--run", str(folder)])
        translate.main()
    person.join()
    assert heard == [line + "\n" for line in expected]


class Endless(io.BufferedIOBase):
    """Very many lines, made as they are read."""

    def __init__(self, n_lines: int) -> None:
        self.n_lines, self.n_read = n_lines, 0

    def read1(self, size: int = -1, /) -> bytes:
        n = min(size // 2, self.n_lines - self.n_read)
        self.n_read += n
        return b"a\n" * n


def test_of_very_many_lines_few_are_held(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, n_done, most_held = Endless(100_000), 0, 0

    def translate_at_once(_self: Translator, texts: Sequence[str], *_: object) -> list[Translation]:
        nonlocal n_done, most_held
        most_held = max(most_held, lines.n_read - n_done)
        n_done += len(texts)
        return [Translation([Candidate(text, 0.0, [])], 1, 0, False) for text in texts]

    monkeypatch.setattr(Translator, "translate", translate_at_once)
    monkeypatch.setattr(sys, "stdin", argparse.Namespace(buffer=lines, isatty=lambda: False))
    monkeypatch.setattr(sys, "argv", ["translate.py", "--run", str(folder)])
    translate.main()
    assert capsys.readouterr().out.count("a\n") == n_done == 100_000
    assert most_held < 40_000


def test_input_that_is_not_utf8_names_the_line_and_leaves_no_file(command: Command, tmp_path: Path) -> None:
    found = command("--output", tmp_path / "out", stdin="寺\n橋\n".encode() + "川\n".encode("euc-jp"))
    assert "standard input, line 3: byte 0xc0 is not UTF-8" in found.complaint
    (tmp_path / "in").write_bytes(b"\x93\x73\n")
    found = command("--input", tmp_path / "in", "--output", tmp_path / "out")
    assert f"{tmp_path / 'in'}, line 1: byte 0x93 is not UTF-8" in found.complaint
    assert [file.name for file in tmp_path.iterdir()] == ["in"]


def test_a_failure_leaves_the_file_that_was_there(command: Command, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("before")
    assert command("--output", tmp_path / "out", stdin=b"\xff").status == 2
    assert (tmp_path / "out").read_text() == "before"


def test_the_search_is_that_of_the_run_until_told_otherwise(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[SearchConfig, SamplingConfig | None, bool, str]] = []

    def watched(
        runs: list[Run], search: SearchConfig, sampling: SamplingConfig | None, risk: bool, precision: Any
    ) -> Translator:
        used.append((search, sampling, risk, precision))
        return build_translator(runs, search, sampling, risk, precision)

    monkeypatch.setattr(translate, "build_translator", watched)
    wide, greedy = command(*TEXT.src[:20]).out, command(*TEXT.src[:20], "--beam", "1").out
    assert wide != greedy
    command("寺", "--length_penalty", "-3", "--normalization", "length", "--precision", "bf16")
    command("寺", "--beam", "3", "--minimum_bayes_risk", "--no_repeat_ngram", "2")
    command("寺", "--sample", "--n_best", "3", "--seed", "5")
    assert used == [
        (SearchConfig(2), None, False, "fp32"),
        (SearchConfig(1), None, False, "fp32"),
        (SearchConfig(2, -3.0, "length"), None, False, "bf16"),
        (SearchConfig(3, no_repeat_ngram=2), None, True, "fp32"),
        (SearchConfig(2), SamplingConfig(3, seed=5), False, "fp32"),
    ]


def test_what_a_reader_must_know_is_said_with_its_line(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translate, "LINES_AT_ONCE", 2)
    long, endless = "".join(TEXT.src[:8]), "京都に古い寺" * 20
    found = command(stdin=as_file(["寺", "😀", long, endless]).encode())
    unknown, pieces, lost = found.err.splitlines()
    assert unknown == "line 2: nothing in it is in the vocabulary; left as it is"
    assert pieces.startswith("line 3: long, translated in ")
    assert lost.startswith("line 4: a sentence is longer than the model's window; ")
    assert found.out.splitlines()[1] == "😀"


def test_without_a_run_the_demo_is_named(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translate, "newest_run", partial(newest_run, root=tmp_path))
    assert "python train.py --config const/preset/demo.yaml" in command("寺").complaint
    assert f"no run {tmp_path / 'x'}: " in command("寺", "--run", tmp_path / "x").complaint


def test_a_run_is_found_by_its_name_alone(
    command: Command, folder: Path, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translate, "PICKLES", folder.parent)
    assert command(LINES[0], "--run", folder.name).out == as_file(expected[:1])
    assert (
        f"no run {folder.name[:-1]}: did you mean {folder.name}?" in command("寺", "--run", folder.name[:-1]).complaint
    )


def test_a_run_without_weights_says_when_they_come(command: Command, folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        if file.name != "model.safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    assert "it appears with the first validation" in command("寺", "--run", tmp_path).complaint


@pytest.mark.parametrize("width", ["0", "-2"])
def test_a_beam_of_nothing_is_refused(command: Command, width: str) -> None:
    assert f"--beam {width}: give 1 (greedy) or more" in command("寺", "--beam", width).complaint


def test_texts_and_a_file_at_once_are_refused(command: Command, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("寺\n")
    assert "give one of them" in command("寺", "--input", tmp_path / "in").complaint


def test_a_missing_file_is_named(command: Command, tmp_path: Path) -> None:
    found = command("--input", tmp_path / "nowhere", "--output", tmp_path / "out")
    assert f"no such file: {tmp_path / 'nowhere'}" in found.complaint
    assert not any(tmp_path.iterdir())


def test_an_unknown_option_names_the_nearest(command: Command) -> None:
    assert "unknown option beem: did you mean --beam?" in command("寺", "--beem", "3").complaint
