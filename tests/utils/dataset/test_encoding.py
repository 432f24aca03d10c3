import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from const.path import ROOT
from utils.dataset import ids as ids_module
from utils.dataset import text as text_module
from utils.dataset.ids import Sampling, encode_block, encoded_blocks
from utils.dataset.text import ParallelFiles, TextBlocks
from utils.text.tokenizer import SentencePieceTokenizer, TokenizerPair, WordTokenizer

LINES = [f"{n % 7} the old capital {n % 3}" for n in range(50)]


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TextBlocks:
    monkeypatch.setattr(text_module, "BLOCK", 8)
    files = ParallelFiles(tmp_path / "src", tmp_path / "tgt")
    files.src.write_text("\n".join(LINES))
    files.tgt.write_text("\n".join(line[::-1] for line in LINES))
    return TextBlocks.whole(files)


@pytest.fixture
def tokenizers() -> TokenizerPair:
    words = sorted({word for line in LINES for word in line.split()})
    return TokenizerPair(WordTokenizer(words, False), WordTokenizer([word[::-1] for word in words], False))


def children() -> list[str]:
    listed = subprocess.run(["ps", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True)
    return [line for line in listed.stdout.splitlines() if "encoding_worker" in line]


def blocks(text: TextBlocks, tokenizers: TokenizerPair) -> list[list[list[int]]]:
    return [[part.tolist() for side in block for part in side] for block in encoded_blocks(text, tokenizers)]


def test_processes_encode_what_this_one_does_in_order_and_go(
    text: TextBlocks, tokenizers: TokenizerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = blocks(text, tokenizers)
    assert [block[1] for block in expected] == [[5] * 8] * 6 + [[5] * 2]
    assert expected[3][0] == [i for ids in tokenizers.src.encode(LINES[24:32]) for i in ids]
    monkeypatch.setattr(ids_module, "_WORTH_PROCESSES", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(ids_module, "encode_block", None)  # not called here
    assert blocks(text, tokenizers) == expected
    assert not children()


def test_what_is_abandoned_half_way_leaves_no_process(
    text: TextBlocks, tokenizers: TokenizerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ids_module, "_WORTH_PROCESSES", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    before = threading.active_count()
    found = encoded_blocks(text, tokenizers)
    next(found)
    assert len(children()) == 2
    found.close()  # type: ignore[attr-defined]
    assert not children()
    assert threading.active_count() == before


def test_a_killed_process_is_said_so_in_one_line(
    text: TextBlocks, tokenizers: TokenizerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ids_module, "_WORTH_PROCESSES", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    start = subprocess.Popen.__init__

    def start_and_kill(self: subprocess.Popen[bytes], *arguments: object, **options: object) -> None:
        start(self, *arguments, **options)  # type: ignore[call-overload]
        self.kill()

    monkeypatch.setattr(subprocess.Popen, "__init__", start_and_kill)
    with pytest.raises(ValueError, match=r"^a process that encodes text ended with status -9: is there enough memory "):
        blocks(text, tokenizers)


def test_a_worker_needs_no_torch_and_ends_with_who_asks(
    text: TextBlocks, tokenizers: TokenizerPair, tmp_path: Path
) -> None:
    """So that it is small, and a killed training leaves no process behind."""
    code = "import sys, utils.dataset.encoding_worker; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
    job = tmp_path / "job"
    job.mkdir()
    ids_module._write_job(job, text, tokenizers, None)
    worker = subprocess.run(
        [sys.executable, "-m", "utils.dataset.encoding_worker", str(job)], cwd=ROOT, input=b"0\n", capture_output=True
    )
    assert (worker.returncode, worker.stderr) == (0, b"")
    assert worker.stdout


def test_every_side_of_every_block_of_every_epoch_has_its_own_seed() -> None:
    seeds = {
        Sampling(0.1, seed, epoch).block_seed(block, side)
        for seed in (1, 11)
        for epoch in (0, 1, 11)
        for block in (0, 1, 10, 11)
        for side in (0, 1)
    }
    assert len(seeds) == 2 * 3 * 4 * 2


def test_neither_two_sides_nor_two_blocks_share_their_chance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "BLOCK", 20)
    lines = [f"the old capital of {n} and the capitals of {n * 7}" for n in range(20)] * 2
    files = ParallelFiles(tmp_path / "src", tmp_path / "tgt")
    for path in files:
        path.write_text("".join(line + "\n" for line in lines))
    tokenizer = SentencePieceTokenizer.train(lines, "unigram", 40, 1.0, "identity")
    text, both = TextBlocks.whole(files), TokenizerPair(tokenizer, tokenizer)
    cut = [side.ids.tolist() for i in (0, 1) for side in encode_block(text, i, both, Sampling(0.3, 1, 0))]
    assert len({tuple(ids) for ids in cut}) == 4


def test_processes_find_the_files_from_anywhere(
    text: TextBlocks, tokenizers: TokenizerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text.files = ParallelFiles(Path("src"), Path("tgt"))
    (tmp_path / "job").mkdir()
    ids_module._write_job(tmp_path / "job", text, tokenizers, None)
    job = json.loads((tmp_path / "job" / "job.json").read_text())
    assert job["files"] == [str(tmp_path / "src"), str(tmp_path / "tgt")]


def test_ctrl_c_is_for_who_asks(text: TextBlocks, tokenizers: TokenizerPair, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    ids_module._write_job(tmp_path / "job", text, tokenizers, None)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # where it is ignored, a process inherits that
    try:
        with ids_module._Worker(tmp_path / "job") as worker:
            worker.encode(0)
            worker._process.send_signal(signal.SIGINT)
            assert worker.encode(1)[0].lengths.tolist() == [5] * 8
    finally:
        signal.signal(signal.SIGINT, before)
