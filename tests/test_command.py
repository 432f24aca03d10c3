"""What all commands share: exit statuses, one-line errors, option names, durations."""

import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock, call

import pytest

from const.path import ROOT
from utils.command import Parser, confirm, duration, needing_group, run_command
from utils.file import atomic_file


def raising(error: BaseException) -> Callable[[], None]:
    def main() -> None:
        raise error

    return main


def options() -> Parser:
    parser = Parser(prog="verb.py")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--resume", type=str)
    parser.add_argument("--model.d_model", type=int, default=512)
    return parser


CUDA = "CUDA out of memory. Tried to allocate 2 GiB"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("d_model=3 does not split\ninto  n_heads=2"), "d_model=3 does not split into n_heads=2"),
        (FileNotFoundError(2, "No such file", "a.ja"), "[Errno 2] No such file: 'a.ja'"),
        (MemoryError(), "out of memory (MemoryError): free some, or ask for less at a time"),
        (RuntimeError(f"{CUDA}\nmore"), f"out of memory ({CUDA}): free some, or ask for less at a time"),
    ],
)
def test_what_a_user_can_mend_is_one_line_and_2(
    capsys: pytest.CaptureFixture[str], error: Exception, line: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run_command("verb.py", raising(error))
    assert capsys.readouterr() == ("", f"verb.py: error: {line}\n")


@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        (lambda: None, 0, ""),
        (raising(KeyboardInterrupt()), 130, "verb.py: interrupted\n"),
        (lambda: sys.exit(3), 3, ""),
    ],
)
def test_a_command_ends_with_the_status_that_a_shell_knows(
    capsys: pytest.CaptureFixture[str], end: Callable[[], None], status: int, said: str
) -> None:
    with pytest.raises(SystemExit, match=str(status)):
        run_command("verb.py", end)
    assert capsys.readouterr() == ("", said)


def test_our_own_mistakes_keep_their_traceback() -> None:
    with pytest.raises(RuntimeError, match="shapes"):
        run_command("verb.py", raising(RuntimeError("shapes")))


def test_python_in_development_mode_tells_where_a_mistake_came_from() -> None:
    code = "from utils.command import run_command; run_command('verb.py', lambda: int('x'))"
    ends = []
    for mode in ([], ["-X", "dev"]):
        process = subprocess.run([sys.executable, *mode, "-c", code], cwd=ROOT, capture_output=True, text=True)
        ends.append("Traceback" in process.stderr)
    assert ends == [False, True]


@pytest.mark.parametrize("name", ["stdin", "stdout", "stderr"])
def test_what_the_caller_has_closed_is_empty(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def main() -> None:
        assert sys.stdin.isatty() is False
        print("said", file=sys.stderr)
        print("said")

    monkeypatch.setattr(sys, name, None)
    with pytest.raises(SystemExit, match="0"):
        run_command("verb.py", main)


@pytest.mark.parametrize(
    ("said", "goes_on"),
    [("y", True), (" Yes ", True), ("", False), ("n", False), (EOFError, False), (KeyboardInterrupt, False)],
)
def test_a_question_is_asked_on_a_terminal_only_and_enter_is_no(
    said: str | type[BaseException], goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Mock(side_effect=[said])
    monkeypatch.setattr("builtins.input", asked)
    for n_terminals in range(3):
        monkeypatch.setattr(sys, "stdin", Mock(isatty=lambda n=n_terminals: n > 0))
        monkeypatch.setattr(sys, "stdout", Mock(isatty=lambda n=n_terminals: n > 1))
        with nullcontext() if goes_on or n_terminals < 2 else pytest.raises(KeyboardInterrupt):
            confirm("Go on?")
        assert asked.call_args_list == [call("Go on? [y/N] ")] * (n_terminals == 2)


def test_sigterm_leaves_nothing_half_written(tmp_path: Path) -> None:
    def main() -> None:
        with atomic_file(tmp_path / "out") as draft:
            draft.write_text("half")
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit, match="143"):
        run_command("verb.py", main)
    assert not list(tmp_path.iterdir())


def test_a_pipe_that_closes_leaves_no_trace() -> None:
    code = "from utils.command import run_command; run_command('verb.py', lambda: [print(i) for i in range(99999)])"
    command, pipe = [sys.executable, "-c", code], subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe) as verb:
        assert verb.stdout is not None
        assert verb.stderr is not None
        assert verb.stdout.readline() == b"0\n"
        verb.stdout.close()
        assert verb.stderr.read() == b""
        assert verb.wait() == 0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--bem", "3"], "unknown option bem: did you mean --beam?"),
        (["--model.dmodel", "3"], "unknown option model.dmodel: did you mean --model.d_model?"),
        (["--qqqqq", "3"], "unknown option qqqqq: see --help"),
        (["--resum", "run"], "unknown option resum: did you mean --resume?"),  # no option may be abbreviated
        (["--beam", "wide"], "argument --beam: invalid int value: 'wide'"),
        (["stray"], "unrecognized argument stray"),
    ],
)
def test_an_option_that_is_wrong_is_named_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        options().parse_args(arguments)
    assert capsys.readouterr() == ("", f"verb.py: error: {line}\n")


@pytest.mark.parametrize("option", ["--length_penalty", "--length-penalty"])
@pytest.mark.parametrize("declared", ["--length_penalty", "--length-penalty"])
def test_the_words_of_an_option_are_joined_by_either_sign(declared: str, option: str) -> None:
    parser = options()
    parser.add_argument(declared, type=float)
    for given in ([option, "-0.5"], [f"{option}=-0.5"]):
        found = parser.parse_args(["--resume", "a_b", "--model.d_model=8", *given])
        assert (found.length_penalty, found.resume, found["model.d_model"]) == (-0.5, "a_b", 8)


def test_a_group_that_is_not_installed_is_named() -> None:
    with (
        pytest.raises(ValueError, match=r"^no_such_package cannot be loaded \(.*\): `poetry install --with extra`$"),
        needing_group("extra"),
    ):
        import no_such_package.part  # type: ignore[import-not-found]  # noqa: F401


def test_durations_are_said_in_a_unit_that_reads_well() -> None:
    for seconds, text in ((59, "59 s"), (60, "1.0 min"), (5400, "1.5 h"), (172_799, "48.0 h"), (172_800, "2.0 days")):
        assert duration(seconds) == text
