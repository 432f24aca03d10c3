import os
import shutil
from pathlib import Path

import pytest

from utils.file import atomic_file, atomic_folder


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "run" / "test.json"
    with atomic_file(path) as draft:
        draft.write_text("half")
        assert not path.exists()
        draft.write_text("whole")
    assert path.read_text() == "whole"
    assert names(path.parent) == ["test.json"]


def test_the_old_file_stays_until_then_and_goes_then(tmp_path: Path) -> None:
    path = tmp_path / "test.json"
    path.write_text("old")
    with atomic_file(path) as draft:
        draft.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"


@pytest.mark.parametrize("broken", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_broken_write_leaves_the_old_file_and_no_draft(tmp_path: Path, broken: type[BaseException]) -> None:
    path = tmp_path / "test.json"
    path.write_text("old")

    def write() -> None:
        with atomic_file(path) as draft:
            draft.write_text("half")
            raise broken

    with pytest.raises(broken):
        write()
    assert path.read_text() == "old"
    assert names(tmp_path) == ["test.json"]


def test_a_draft_that_was_never_written_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "test.json"
    path.write_text("old")
    with pytest.raises(FileNotFoundError), atomic_file(path):
        pass
    assert path.read_text() == "old"


def test_a_draft_lies_beside_its_file_and_looks_unlike_it(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "model.safetensors") as draft:
        draft.touch()
        assert draft.parent == tmp_path  # a rename is atomic on one disk only
        assert not list(tmp_path.glob("*.safetensors"))
        assert draft.name.startswith(".")


def test_of_two_writers_of_a_file_the_later_one_stays_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "test.json"
    with atomic_file(path) as ours:
        ours.write_text("ours")
        monkeypatch.setattr(os, "getpid", lambda: -1)  # another process
        with atomic_file(path) as theirs:
            theirs.write_text("theirs")
        assert path.read_text() == "theirs"
    assert path.read_text() == "ours"
    assert names(tmp_path) == ["test.json"]


def test_what_appears_has_reached_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("utils.file._sync", synced.append)
    with atomic_file(tmp_path / "a") as draft:
        draft.touch()
    assert synced == [draft, tmp_path]
    synced.clear()
    with atomic_folder(tmp_path / "b") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "c").touch()
    assert set(synced) == {folder, folder / "inner", folder / "inner" / "c", tmp_path}


def test_a_folder_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "toy"
    with atomic_folder(path) as draft:
        assert names(draft) == []
        (draft / "inner").mkdir()
        (draft / "inner" / "a").write_text("a")
        assert not path.exists()
    assert (path / "inner" / "a").read_text() == "a"
    assert names(path.parent) == ["toy"]


def test_others_may_read_a_folder(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "toy") as draft:
        (draft / "a").touch()
    assert (tmp_path / "toy").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("broken", [ValueError, KeyboardInterrupt])
def test_a_broken_folder_leaves_nothing(tmp_path: Path, broken: type[BaseException]) -> None:
    def write() -> None:
        with atomic_folder(tmp_path / "toy") as draft:
            (draft / "a").write_text("half")
            raise broken

    with pytest.raises(broken):
        write()
    assert names(tmp_path) == []


def test_of_two_writers_of_a_folder_the_faster_one_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "toy"
    monkeypatch.setattr(Path, "exists", lambda _: False)  # the other one may come after any look
    with atomic_folder(path) as ours:
        (ours / "a").write_text("ours")
        with atomic_folder(path) as theirs:
            (theirs / "a").write_text("theirs")
    assert (path / "a").read_text() == "theirs"
    assert names(tmp_path) == ["toy"]


def test_a_folder_that_cannot_be_renamed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomic_folder(tmp_path / "toy") as draft:
        shutil.rmtree(draft)
    (tmp_path / "toy").write_text("a file stands there")
    with pytest.raises(NotADirectoryError), atomic_folder(tmp_path / "toy") as draft:
        (draft / "a").touch()
    assert names(tmp_path) == ["toy"]
