import subprocess
from datetime import UTC, datetime
from pathlib import Path

import torch

from const.corpora import VERSION
from const.path import CORPUS, PICKLES, ROOT
from utils.run import commit, machine, portable, provenance


def git(folder: Path, *words: str) -> str:
    named = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    return subprocess.run(["git", "-C", folder, *named, *words], capture_output=True, text=True, check=True).stdout


def test_a_commit_is_named_and_so_is_that_files_differ_from_it(tmp_path: Path) -> None:
    assert commit(tmp_path) == f"version {VERSION}"
    git(tmp_path, "init")
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-m", "a")
    revision = git(tmp_path, "rev-parse", "HEAD").strip()
    (tmp_path / "new").write_text("no part of it")
    assert commit(tmp_path) == revision
    for text in ("README.md", "docs/page.md", "figure/results/run.json"):  # they say what comes out, and change nothing
        (tmp_path / text).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / text).write_text("before")
        git(tmp_path, "add", text)
        git(tmp_path, "commit", "-m", "text")
        (tmp_path / text).write_text("after")
    revision = git(tmp_path, "rev-parse", "HEAD").strip()
    assert commit(tmp_path) == revision
    (tmp_path / "a").write_text("2")
    assert commit(tmp_path) == f"{revision}, changed"
    (tmp_path / "copy").mkdir()
    assert commit(tmp_path / "copy") == f"version {VERSION}"


def test_time_machine_and_packages_are_there() -> None:
    begin = datetime.now(UTC).replace(microsecond=0)
    found = provenance(torch.device("cpu"))
    assert begin <= datetime.fromisoformat(found["finished"]) <= datetime.now(UTC)
    assert found["machine"] == machine(torch.device("cpu"))
    assert found["machine"].endswith(f", {torch.get_num_threads()} threads")
    assert len(found["machine"]) > len(", 2 threads")
    assert f"torch {torch.__version__.partition('+')[0]}" in found["versions"]


def test_a_path_is_written_as_on_any_machine(tmp_path: Path) -> None:
    assert portable(CORPUS / "kftt" / "train.ja") == "corpus/kftt/train.ja"
    assert portable(PICKLES / "bert-1") == "pickles/bert-1"
    assert portable(ROOT / "texts" / "my.ja") == "texts/my.ja"
    assert portable(tmp_path / "my.ja") == "my.ja"
    assert portable(Path("texts/my.ja")) == "texts/my.ja"
