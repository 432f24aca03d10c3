import gzip
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from pathlib import Path

import pytest

from const.corpora import CORPORA, CorpusSpec
from utils.dataset import download as module
from utils.dataset.download import blob_hash, install, take
from utils.file import sweep_drafts

Files = dict[str, bytes]
Write = Callable[[Path, Files], Path]


def files_in(folder: Path) -> Files:
    """All but the stamp."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != ".verified.json"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def nothing_left(folder: Path) -> bool:
    return not folder.parent.exists() or not list(folder.parent.iterdir())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "corpus" / "toy"


@pytest.fixture
def archive(tmp_path: Path, toy_files: Files, write_tar: Write) -> Path:
    return write_tar(tmp_path / "toy-1.0.tar.xz", toy_files | {"README": b"read me"})


def test_what_a_killed_one_left_is_swept(
    archive: Path, toy: CorpusSpec, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = list[Path]()

    def killed(*_: object) -> None:
        left.extend(folder.parent.iterdir())
        copies.append(shutil.copytree(left[0], tmp / left[0].name))
        raise KeyboardInterrupt

    tmp, copies = folder.parent.parent / "left", list[Path]()
    monkeypatch.setattr(module, "take", killed)
    with pytest.raises(KeyboardInterrupt):
        install(toy, archive, folder)
    assert sweep_drafts(tmp) == copies


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries follow at once, and a proxy that the machine may be behind is not asked for 127.0.0.1."""
    monkeypatch.setattr("pooch.core.time.sleep", lambda _: None)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Serves tmp_path/served; its address."""
    (tmp_path / "served").mkdir()
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


def test_blob_hash_is_gits(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(3_000_000))
    assert blob_hash(path) == subprocess.check_output(["git", "hash-object", path], text=True).strip()


def test_an_archive_and_its_folder_give_the_same_corpus(
    toy: CorpusSpec, tmp_path: Path, folder: Path, archive: Path, toy_files: Files, write_tree: Write
) -> None:
    install(toy, archive, folder)
    install(toy, write_tree(tmp_path / "toy-1.0", toy_files), tmp_path / "corpus" / "again")
    assert files_in(folder) == files_in(tmp_path / "corpus" / "again") == toy_files
    assert sorted(path.name for path in folder.parent.iterdir()) == ["again", "toy"]


def test_the_further_files_may_be_absent(
    toy: CorpusSpec, tmp_path: Path, folder: Path, toy_files: Files, write_tar: Write
) -> None:
    needed = {path: content for path, content in toy_files.items() if path.startswith("orig/")}
    install(toy, write_tar(tmp_path / "orig.tar.gz", needed), folder)
    assert files_in(folder) == needed


def test_a_verified_corpus_is_neither_fetched_nor_hashed_again(
    toy: CorpusSpec, folder: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(toy, archive, folder)
    archive.unlink()
    monkeypatch.setattr(module, "blob_hash", lambda path: pytest.fail(f"{path} hashed again"))
    install(toy, archive, folder)
    install(toy, None, folder)


@pytest.mark.parametrize("path", ["orig/toy-train.en", "orig/toy-test.ja", "tok/toy-test.en"])
def test_another_text_is_refused_and_leaves_nothing(
    path: str, toy: CorpusSpec, tmp_path: Path, folder: Path, toy_files: Files, write_tar: Write
) -> None:
    expected = blob_hash_of(tmp_path, toy_files[path])
    toy_files[path] = toy_files[path].replace(b"i", b"I").replace("川".encode(), "河".encode())
    found = blob_hash_of(tmp_path, toy_files[path])
    archive = write_tar(tmp_path / "toy.tar.gz", toy_files)
    message = f"toy: {path} has git blob hash {found}, expected {expected}: {archive} is not toy as published, "
    with pytest.raises(ValueError, match="^" + message + "get it from http://toy.example$"):
        install(toy, archive, folder)
    assert nothing_left(folder)


def blob_hash_of(tmp_path: Path, content: bytes) -> str:
    (tmp_path / "content").write_bytes(content)
    return blob_hash(tmp_path / "content")


def test_a_text_with_a_line_less_is_refused_with_both_counts(
    toy: CorpusSpec, tmp_path: Path, folder: Path, toy_files: Files, write_tar: Write
) -> None:
    toy_files["orig/toy-train.en"] = b"capital\nthe capital Kyo\n"
    with pytest.raises(
        ValueError, match=r"^toy: orig/toy-train\.en has 2 lines, expected 3: .*toy\.tar\.gz is not toy"
    ):
        install(toy, write_tar(tmp_path / "toy.tar.gz", toy_files), folder)
    assert nothing_left(folder)


def test_the_wrong_archive_is_refused(toy: CorpusSpec, tmp_path: Path, folder: Path, write_tar: Write) -> None:
    archive = write_tar(tmp_path / "other.tar.gz", {"orig/other-train.ja": b"1\n"})
    with pytest.raises(
        ValueError, match=r"^toy: orig/toy-train\.ja is missing: .*other\.tar\.gz is not toy as published"
    ):
        install(toy, archive, folder)
    assert nothing_left(folder)


def test_a_damaged_archive_leaves_nothing(toy: CorpusSpec, folder: Path, archive: Path) -> None:
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    with pytest.raises(ValueError, match=r"toy-1\.0\.tar\.xz is truncated"):
        install(toy, archive, folder)
    assert nothing_left(folder)


def test_a_half_unpacked_folder_does_not_count_but_is_kept(
    toy: CorpusSpec,
    folder: Path,
    archive: Path,
    toy_files: Files,
    write_tree: Write,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for n in (1, 2):
        theirs = {"orig/toy-train.ja": toy_files["orig/toy-train.ja"], "orig/toy-train.en": b"capit", "mine": b"%d" % n}
        write_tree(folder, theirs)
        install(toy, archive, folder)
        assert files_in(folder) == toy_files
        aside = folder.with_name(f"toy-before-{n}")
        assert files_in(aside) == theirs
        assert capsys.readouterr().err == f"{folder} was not installed by this command: it is now {aside}\n"
        shutil.rmtree(folder)
    assert len(list(folder.parent.iterdir())) == 2


def test_a_verified_corpus_that_was_edited_is_refused(toy: CorpusSpec, folder: Path, archive: Path) -> None:
    install(toy, archive, folder)
    (folder / "orig/toy-test.en").write_bytes(b"brigde\nriver\n")
    with pytest.raises(
        ValueError, match=rf"^toy: orig/toy-test\.en has git .*: delete {folder} to have it fetched again$"
    ):
        install(toy, archive, folder)
    (folder / "orig/toy-test.en").unlink()
    with pytest.raises(ValueError, match=r"^toy: orig/toy-test\.en is missing: delete"):
        install(toy, archive, folder)


def test_a_verified_corpus_that_was_only_touched_is_stamped_anew(
    toy: CorpusSpec, folder: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(toy, archive, folder)
    os.utime(folder / "orig/toy-test.en", (1, 1))
    install(toy, None, folder)
    monkeypatch.setattr(module, "blob_hash", lambda path: pytest.fail(f"{path} hashed again"))
    install(toy, None, folder)


def test_an_archive_is_downloaded_and_verified(
    toy: CorpusSpec, tmp_path: Path, folder: Path, server: str, toy_files: Files, write_tar: Write
) -> None:
    write_tar(tmp_path / "served" / "toy.tar.gz", toy_files)
    install(replace(toy, url=f"{server}/toy.tar.gz"), None, folder)
    assert files_in(folder) == toy_files
    assert [path.name for path in folder.parent.iterdir()] == ["toy"]


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_files_are_downloaded_one_by_one(
    ending: str, toy: CorpusSpec, tmp_path: Path, folder: Path, server: str, toy_files: Files, write_tree: Write
) -> None:
    served = {path + ending: gzip.compress(data) if ending else data for path, data in toy_files.items()}
    write_tree(tmp_path / "served" / "data", served)
    install(replace(toy, url=f"{server}/data/{{file}}{ending}"), None, folder)
    assert files_in(folder) == {path: data for path, data in toy_files.items() if path.startswith("orig/")}


def test_a_download_with_other_content_is_refused(
    toy: CorpusSpec, tmp_path: Path, folder: Path, server: str, toy_files: Files, write_tar: Write
) -> None:
    toy_files["orig/toy-dev.en"] = b"shrine\n"
    write_tar(tmp_path / "served" / "toy.tar.gz", toy_files)
    with pytest.raises(
        ValueError, match=rf"^toy: orig/toy-dev\.en has git blob hash .*: {server}/toy\.tar\.gz is not toy"
    ):
        install(replace(toy, url=f"{server}/toy.tar.gz"), None, folder)
    assert nothing_left(folder)


def test_an_address_that_is_gone_is_reported_with_its_status(toy: CorpusSpec, folder: Path, server: str) -> None:
    with pytest.raises(ValueError, match=r"^could not fetch toy from http://127.*/gone\.tar\.gz \(404 Client Error"):
        install(replace(toy, url=f"{server}/gone.tar.gz"), None, folder)
    assert nothing_left(folder)


@pytest.mark.parametrize("name", ["kftt", "tanaka", "multi30k"])
def test_without_a_network_the_ways_on_are_named(name: str, folder: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]  # bound, but nobody listens
        spec = replace(CORPORA[name], url=f"http://127.0.0.1:{port}/archive.tar.gz")
        with pytest.raises(ValueError, match=rf"^could not fetch {name} from http://127.* refused\)") as caught:
            install(spec, None, folder)
    message = str(caught.value)
    assert "\n" not in message
    assert all(way in message for way in ("--data.archive PATH", ".tar.xz", "--config demo"))
    assert nothing_left(folder)


def test_who_comes_second_keeps_what_the_first_has_put_there(
    toy: CorpusSpec, folder: Path, archive: Path, toy_files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take_while_another_finishes(source: Path, paths: list[str], into: Path) -> None:
        monkeypatch.setattr(module, "take", take)
        install(toy, archive, folder)
        (folder / "first").touch()
        take(source, paths, into)

    monkeypatch.setattr(module, "take", take_while_another_finishes)
    install(toy, archive, folder)
    assert files_in(folder) == toy_files | {"first": b""}
    assert [path.name for path in folder.parent.iterdir()] == ["toy"]


def test_processes_that_prepare_at_once_all_end_with_a_whole_corpus(
    toy: CorpusSpec, folder: Path, archive: Path, toy_files: Files, write_tree: Write
) -> None:
    write_tree(folder, {"orig/toy-train.ja": b"half"})
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        for future in [pool.submit(install, toy, archive, folder) for _ in range(16)]:
            future.result(timeout=60)
    assert files_in(folder) == toy_files
    assert sorted(path.name for path in folder.parent.iterdir()) == ["toy", "toy-before-1"]


def test_a_further_file_that_was_edited_is_refused(toy: CorpusSpec, folder: Path, archive: Path) -> None:
    install(toy, archive, folder)
    (folder / "tok/toy-test.en").write_bytes(b"brigde\nriver .\n")
    with pytest.raises(ValueError, match=rf"^toy: tok/toy-test\.en has git .*: delete {folder} to have it"):
        install(toy, None, folder)
