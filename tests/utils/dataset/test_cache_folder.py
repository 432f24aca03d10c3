import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from utils.dataset.ids import cached_folder, remove_cached


def never(_: Path | str) -> NoReturn:
    raise AssertionError("made or said without need")


def filled(folder: Path) -> None:
    (folder / "a").write_bytes(b"capital" * 1000)
    (folder / "empty").write_bytes(b"")


def test_a_folder_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "x"
    assert cached_folder(path, filled, never) == path
    assert cached_folder(path, never, never) == path
    assert {file.name for file in path.iterdir()} == {"a", "empty", "checksums.json"}


@pytest.mark.parametrize(
    ("file", "content", "fault"),
    [
        ("a", b"capital" * 999, "a has 6,993 bytes, not 7,000"),
        ("a", b"capitak" + b"capital" * 999, "a differs from what was written"),
        ("a", None, "a is missing"),
        ("empty", b"!", "empty has 1 bytes, not 0"),
        ("empty", None, "empty is missing"),
        ("checksums.json", None, "checksums.json is missing"),
        ("checksums.json", b"", "checksums.json cannot be read: "),
        ("checksums.json", b"[1]", "checksums.json cannot be read: "),
        ("checksums.json", b'{"a": 7}', "checksums.json cannot be read: "),
        ("checksums.json", b"\xff", "checksums.json cannot be read: "),
    ],
)
def test_damage_is_found_said_and_repaired(tmp_path: Path, file: str, content: bytes | None, fault: str) -> None:
    path = cached_folder(tmp_path / "x", filled, never)
    if content is None:
        (path / file).unlink()
    else:
        (path / file).write_bytes(content)
    said: list[str] = []
    cached_folder(path, filled, said.append)
    (line,) = said
    assert line.startswith(f"{path} is damaged ({fault}")
    assert line.endswith("): rebuilding it")
    assert cached_folder(path, never, never)


def test_damage_is_found_wherever_in_a_large_file_it_is(tmp_path: Path) -> None:
    def large(folder: Path) -> None:
        (folder / "a").write_bytes(bytes(5 << 19))

    path, said = cached_folder(tmp_path / "x", large, never), list[str]()
    with (path / "a").open("r+b") as file:
        file.write(b"!")
    cached_folder(path, large, said.append)
    assert said == [f"{path} is damaged (a differs from what was written): rebuilding it"]


def test_what_fails_leaves_nothing_and_is_tried_again(tmp_path: Path) -> None:
    def failing(folder: Path) -> None:
        filled(folder)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        cached_folder(tmp_path / "x", failing, never)
    assert [entry.name for entry in tmp_path.iterdir()] == [".locks"]
    assert cached_folder(tmp_path / "x", filled, never).is_dir()


def waits_for_the_maker(folder: Path, act: Callable[[], object]) -> None:
    """One thread makes the folder while another begins to act; wait until both are done."""
    begun, go = threading.Event(), threading.Event()

    def slow(made: Path) -> None:
        filled(made)
        begun.set()
        go.wait(120)

    first = threading.Thread(target=cached_folder, args=(folder, slow, never))
    second = threading.Thread(target=act)
    first.start()
    assert begun.wait(120)
    second.start()
    second.join(0.1)
    assert second.is_alive()
    go.set()
    first.join(120)
    second.join(120)
    assert not second.is_alive()


def test_who_comes_second_waits_and_makes_nothing(tmp_path: Path) -> None:
    waits_for_the_maker(tmp_path / "x", lambda: cached_folder(tmp_path / "x", never, never))
    assert (tmp_path / "x" / "a").is_file()


def test_nothing_is_removed_while_it_is_made(tmp_path: Path) -> None:
    waits_for_the_maker(tmp_path / "x", lambda: remove_cached(tmp_path / "x"))
    assert not (tmp_path / "x").exists()


def test_others_do_not_wait(tmp_path: Path) -> None:
    def nested(folder: Path) -> None:
        filled(folder)
        cached_folder(tmp_path / "y", filled, never)

    cached_folder(tmp_path / "x", nested, never)
    assert (tmp_path / "y" / "a").is_file()
