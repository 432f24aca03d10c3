import builtins
import readline
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from utils.terminal.input import history_file, kept_history, typed_lines


@pytest.fixture(autouse=True)
def own_history() -> Iterator[None]:
    readline.clear_history()
    yield
    readline.clear_history()


def test_the_history_lies_where_the_specification_wants_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert history_file() == tmp_path / "miyako" / "history"
    for unset in ("", None):
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.setenv("XDG_STATE_HOME", "") if unset == "" else monkeypatch.delenv("XDG_STATE_HOME")
        assert history_file() == tmp_path / "home" / ".local" / "state" / "miyako" / "history"


def test_who_has_no_home_has_no_history(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    assert history_file() is None
    with kept_history(None):
        readline.add_history("京都は")
        assert readline.get_history_item(1) == "京都は"


def test_what_was_typed_is_there_the_next_time(tmp_path: Path) -> None:
    file = tmp_path / "state" / "history"
    with kept_history(file):
        readline.add_history("京都は")
    readline.clear_history()
    with suppress(KeyboardInterrupt), kept_history(file):
        assert readline.get_history_item(1) == "京都は"
        readline.add_history("奈良は")
        raise KeyboardInterrupt
    assert file.read_text(encoding="utf-8").splitlines()[-2:] == ["京都は", "奈良は"]


def test_a_history_that_cannot_be_kept_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with kept_history(tmp_path / "file" / "history"):
        readline.add_history("京都は")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_blank_lines_are_passed_over_and_the_end_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = iter(["a", "", "  ", "b"])
    asked = []

    def typed(prompt: str) -> str:
        asked.append(prompt)
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(builtins, "input", typed)
    assert list(typed_lines("? ")) == ["a", "b"]
    assert asked == ["? "] * 5
    assert capsys.readouterr().out == ""
