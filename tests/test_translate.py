"""translate.py in this process, on a run that has learned nothing: what goes in, what comes out, what is refused."""

import io
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

import translate
from tests.tiny import TEXT, run
from utils.command_line import run_command
from utils.run import Run, load_run, newest_run
from utils.search.hypothesis import SearchConfig
from utils.search.translator import Translator

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


def test_a_lot_is_written_before_the_next_one_is_read(
    command: Command, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translate, "LINES_AT_ONCE", 2)
    found = command(stdin=as_file(LINES * 2).encode())
    assert found.out == as_file(expected * 2)
    broken = command(stdin=as_file(LINES[:3]).encode() + b"\xff\n")
    assert broken.status == 2
    assert broken.out == as_file(expected[:2])


def test_a_lot_is_handed_on_while_the_next_one_is_waited_for(
    folder: Path, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, seen = io.BytesIO(), []
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(pipe, encoding="utf-8"))

    def lots() -> Iterator[list[str]]:
        yield LINES[:2]
        seen.append(pipe.getvalue().decode())
        yield LINES[2:]

    translate.write(load_run(folder, torch.device("cpu")).translator(), lots(), None)
    assert [*seen, pipe.getvalue().decode()] == [as_file(expected[:2]), as_file(expected)]


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
    used: list[SearchConfig | None] = []
    translator = Run.translator

    def watched(self: Run, search: SearchConfig | None = None) -> Translator:
        used.append(search)
        return translator(self, search)

    monkeypatch.setattr(Run, "translator", watched)
    outs = [
        command(*TEXT.src[:20]).out,
        command(*TEXT.src[:20], "--beam", "1").out,
        command("寺", "--length_penalty", "-3").out,
        command("寺", "--beam", "3", "--length_penalty", "2").out,
    ]
    assert used == [SearchConfig(2), SearchConfig(1), SearchConfig(2, -3.0), SearchConfig(3, 2.0)]
    assert outs[0] != outs[1]


def test_a_prompt_ends_with_an_empty_line(command: Command, expected: list[str], folder: Path) -> None:
    found = command(stdin=as_file([LINES[0], LINES[2], "", "寺"]).encode(), typed=True)
    assert found.out.replace("> ", "") == as_file([expected[0], expected[2]])
    assert f"{folder.name}: ja → en" in found.err
    found = command(stdin=as_file([LINES[0]]).encode(), typed=True)
    assert (found.status, found.out.replace("> ", "")) == (0, as_file(expected[:1]))


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
