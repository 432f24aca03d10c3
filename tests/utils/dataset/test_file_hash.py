import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from utils.dataset import ids as module
from utils.dataset.ids import file_hash


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "hashes.json"


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were read; every file counts as large, and one that was written just now as settled."""
    monkeypatch.setattr(module, "_LARGE", 0)
    monkeypatch.setattr(module, "_RESOLUTION", 0.0)
    found: list[Path] = []
    whole = module._hash

    def watched(path: Path) -> str:
        found.append(path)
        return whole(path)

    monkeypatch.setattr(module, "_hash", watched)
    return found


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_file_that_nobody_touched_is_read_once(tmp_path: Path, hashed: list[Path]) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text("capital")
    b.write_text("bridge")
    for _ in range(3):
        assert [file_hash(path, tmp_path) for path in (a, b)] == [sha256(a), sha256(b)]
    assert hashed == [a, b]


def rewrite(path: Path) -> None:
    path.write_text("CAPITAL")


def rewrite_and_hide_it(path: Path) -> None:
    """The same size, and the time of change set back, as `cp -p` and archives do."""
    stat = path.stat()
    time.sleep(0.02)  # the file system's clock ticks every few milliseconds
    path.write_text("CAPITAL")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def replace(path: Path) -> None:
    stat = path.stat()
    other = path.with_name("other")
    other.write_text("CAPITAL")
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize("change", [rewrite, rewrite_and_hide_it, replace])
def test_a_changed_file_is_read_anew(change: Callable[[Path], None], tmp_path: Path, hashed: list[Path]) -> None:
    path = tmp_path / "a"
    path.write_text("capital")
    before = file_hash(path, tmp_path)
    change(path)
    assert file_hash(path, tmp_path) == sha256(path) != before
    assert len(hashed) == 2


def test_a_file_that_has_just_changed_is_waited_for(
    tmp_path: Path, memory: Path, hashed: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be changed once more within the same tick of the clock."""
    slept: list[float] = []
    monkeypatch.setattr(module, "_RESOLUTION", 60.0)
    monkeypatch.setattr(time, "sleep", slept.append)
    path = tmp_path / "a"
    path.write_text("capital")
    for _ in range(2):
        file_hash(path, tmp_path)
    assert slept == pytest.approx([60, 60], abs=10)
    assert len(hashed) == 2
    assert not memory.exists()  # it did not really wait
    os.utime(path, (time.time() + 1000, time.time() + 1000))  # another machine's clock
    file_hash(path, tmp_path)
    assert slept[2] == 60


def test_small_files_are_simply_read(tmp_path: Path, memory: Path) -> None:
    path = tmp_path / "a"
    path.write_text("capital")
    assert file_hash(path, tmp_path) == sha256(path)
    assert not memory.exists()


@pytest.mark.parametrize(
    "damaged", ["", "{", "[]", "null", '{"NAME": 3}', '{"NAME": [1, 2, 3, 4, "xyz"]}', '{"NAME": []}']
)
def test_a_damaged_memory_is_no_memory(damaged: str, tmp_path: Path, memory: Path, hashed: list[Path]) -> None:
    path = tmp_path / "a"
    path.write_text("capital")
    memory.parent.mkdir()
    memory.write_text(damaged.replace("NAME", str(path)))
    assert file_hash(path, tmp_path) == file_hash(path, tmp_path) == sha256(path)
    assert len(hashed) == 1
    assert list(json.loads(memory.read_text())) == [str(path)]
