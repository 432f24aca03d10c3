"""A corpus of a few lines, made like the published ones."""

import tarfile
from collections.abc import Callable
from hashlib import sha1
from pathlib import Path

import pytest

from const.corpora import CORPORA, CorpusSpec, SplitSpec

Files = dict[str, bytes]
Write = Callable[[Path, Files], Path]

_FILES = {
    "orig/toy-train.ja": "都\n京の都\n古い都\n".encode(),
    "orig/toy-train.en": b"capital\nthe capital Kyo\nan old capital\n",
    "orig/toy-dev.ja": "寺\n".encode(),
    "orig/toy-dev.en": b"temple\n",
    "orig/toy-test.ja": "橋\n川\n".encode(),
    "orig/toy-test.en": b"bridge\nriver\n",
    "tok/toy-test.ja": "橋\n川 。\n".encode(),
    "tok/toy-test.en": b"bridge\nriver .\n",
}


def _split(pattern: str) -> SplitSpec:
    files = {lang: _FILES[pattern.format(lang=lang)] for lang in ("ja", "en")}
    blobs = {lang: (sha1(b"blob %d\0%b" % (len(data), data)).hexdigest(),) for lang, data in files.items()}
    return SplitSpec(pattern, files["ja"].count(b"\n"), blobs)


@pytest.fixture
def toy_files() -> Files:
    """Path and content of the toy corpus' files; those under tok/ are the further ones."""
    return dict(_FILES)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> CorpusSpec:
    """The toy corpus' description; it stands for "tanaka" while the test runs."""
    spec = CorpusSpec(
        name="toy",
        homepage="http://toy.example",
        url="http://127.0.0.1:9/toy-1.0.tar.gz",
        download_mb=0.1,
        licence="CC0",
        train=_split("orig/toy-train.{lang}"),
        dev=_split("orig/toy-dev.{lang}"),
        test=_split("orig/toy-test.{lang}"),
        extra=(_split("tok/toy-test.{lang}"),),
    )
    monkeypatch.setitem(CORPORA, "tanaka", spec)
    return spec


def _write_tree(folder: Path, files: Files) -> Path:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


@pytest.fixture
def write_tree() -> Write:
    """Writes files into a folder; returns the folder."""
    return _write_tree


@pytest.fixture
def write_tar(tmp_path: Path) -> Write:
    """Writes files into a tar archive, below top folders as the published ones have; returns the archive."""

    def write(archive: Path, files: Files) -> Path:
        folder = _write_tree(tmp_path / f"{archive.name}-content", files)
        with tarfile.open(archive, f"w:{archive.suffix[1:]}" if archive.suffix != ".tar" else "w") as tar:  # type: ignore[call-overload]
            tar.add(folder, "toy-1.0/data")
        return archive

    return write
