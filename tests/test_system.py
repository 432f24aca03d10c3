"""Files that are complete or absent, locks, drafts of killed processes; the device, its precision, its memory."""

import ctypes
import errno
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal
from unittest.mock import Mock, call

import pytest
import torch
from torch import Tensor

from config.training import Precision
from const.path import ROOT
from layers.feed_forward import FeedForward
from layers.packed import Int8Linear
from utils import device as device_module
from utils.device import keep_compiled_kernels, pick_device, resolve_precision, speedup
from utils.file import (
    atomic_file,
    atomic_folder,
    draft_suffix,
    from_here,
    locked,
    read_json,
    require_outputs,
    require_writable,
    sweep_drafts,
    write_json,
    write_lines,
    write_text,
)
from utils.memory import keep_freed_memory, return_freed_memory


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_file_appears_when_it_is_whole_and_the_old_one_stays_until_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run" / "test.json"
    for text, before in ("first", None), ("second", "first"):
        with atomic_file(path) as draft:
            draft.write_text(text)
            assert (path.read_text() if path.exists() else None) == before
            assert draft.parent == path.parent  # a rename is atomic on one disk only
            assert draft.name.startswith(".")
            assert draft.suffix != path.suffix
        assert path.read_text() == text
    with atomic_file(path) as ours:
        ours.write_text("ours")
        monkeypatch.setattr(os, "getpid", lambda: -1)  # another process
        with atomic_file(path) as theirs:
            theirs.write_text("theirs")
        assert path.read_text() == "theirs"
    assert path.read_text() == "ours"
    assert names(path.parent) == ["test.json"]


def test_a_link_and_permissions_stay_as_they_were(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    real.chmod(0o600)
    link.symlink_to(real)
    write_text(link, "new")
    assert (link.is_symlink(), real.read_text(), real.stat().st_mode & 0o777) == (True, "new", 0o600)


def write_and_fail(writing: AbstractContextManager[Path], error: BaseException) -> None:
    with writing as draft:
        (draft / "inner" if draft.is_dir() else draft).write_bytes(bytes(2**20))
        raise error


@pytest.mark.parametrize("broken", [ValueError, KeyboardInterrupt])
def test_a_broken_write_leaves_the_old_file_and_no_draft(tmp_path: Path, broken: type[BaseException]) -> None:
    path = tmp_path / "test.json"
    path.write_text("old")
    for writing in (atomic_file(path), atomic_folder(tmp_path / "toy")):
        with pytest.raises(broken):
            write_and_fail(writing, broken())
    assert path.read_text() == "old"
    assert names(tmp_path) == ["test.json"]


def test_texts_are_written_in_utf8_with_their_own_line_ends_and_what_json_does_not_know_is_not(tmp_path: Path) -> None:
    path = tmp_path / "test.json"
    write_text(path, "京都\r\nnara\n")
    assert path.read_bytes() == "京都\r\nnara\n".encode()
    write_lines(path, ["京都", "nara"])
    assert path.read_bytes() == "京都\nnara\n".encode()
    write_json(path, {"bleu": 1.5, "place": "京都"})
    with pytest.raises(TypeError):
        write_json(path, {"bleu": 2.5, "place": tmp_path})
    assert path.read_text(encoding="utf-8") == '{\n "bleu": 1.5,\n "place": "京都"\n}\n'
    assert read_json(path) == {"bleu": 1.5, "place": "京都"}
    path.write_text('{"都": ', encoding="utf-8")
    with pytest.raises(ValueError, match=r"/test\.json is damaged \(Expecting value.*\): copy it again, or remove it"):
        read_json(path)


def test_what_is_no_file_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="/pipe exists and is not a file"), atomic_file(tmp_path / "pipe"):
        pytest.fail("begun")
    assert names(tmp_path) == ["pipe"]
    require_outputs({"--json": tmp_path / "new"})


def test_a_lock_is_waited_for_or_refused_and_goes_with_its_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "deep" / "lock"
    hold = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); input()"
    with locked(path, "taken"):
        pass
    with subprocess.Popen([sys.executable, "-c", hold, str(path)], stdin=-1, stdout=-1) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(ValueError, match="taken"):
            locked(path, "taken").__enter__()
        threading.Timer(0.2, other.kill).start()
        assert not capsys.readouterr().err
        with locked(path):
            assert other.wait() < 0
        assert capsys.readouterr().err == f"waiting for another process, which holds {path}\n"


def test_a_folder_appears_when_it_is_whole_and_the_faster_of_two_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cache" / "toy"
    with atomic_folder(path) as draft:
        assert names(draft) == []
        (draft / "inner").mkdir()
        (draft / "inner" / "a").write_text("theirs")
        assert not path.exists()
    monkeypatch.setattr(Path, "exists", lambda _: False)  # it may appear after any look
    with atomic_folder(path) as ours:
        (ours / "a").write_text("ours")
    assert (path / "inner" / "a").read_text() == "theirs"
    assert names(path.parent) == ["toy"]
    assert path.stat().st_mode & 0o777 == 0o755  # others may read it


def test_a_folder_to_write_to_is_tried_out(tmp_path: Path) -> None:
    require_writable(tmp_path / "new" / "folder", "give another")
    assert list(tmp_path.rglob("*")) == [tmp_path / "new", tmp_path / "new" / "folder"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match=rf"^cannot write to {tmp_path / 'file'} \(File exists\): give another$"):
        require_writable(tmp_path / "file", "give another")
    with pytest.raises(ValueError, match=r"^cannot write to /proc \(.+\): give another$"):
        require_writable(Path("/proc"), "give another")


def test_a_full_disk_is_told_in_one_line(tmp_path: Path) -> None:
    message = r"^no room for test.json .*: it needs more than 1.00 MiB, and .* MiB are free"
    with pytest.raises(OSError, match=message):
        write_and_fail(atomic_file(tmp_path / "test.json"), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


# what killed processes leave


def gone() -> int:
    """The number of a process that lives no more."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_drafts_of_the_dead_are_swept_and_those_of_the_living_stay_for_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below, host = tmp_path / "run" / "checkpoints", socket.gethostname()
    below.mkdir(parents=True)
    swept = [f".dead.{gone()}.part", f".ours{draft_suffix()}", f".nobody.{10**30}.part"]
    old = [f".alive.{os.getppid()}.part", f".elsewhere.elsewhere@{gone()}.part"]
    kept = [
        f".young.{os.getppid()}.part",
        f".elsewhere-2.elsewhere@{gone()}.part",
        f".container.{host}-1@{gone()}.part",
    ]
    kept += ["step-1.pt", ".hidden", "x.part", ".no-number.part"]
    for name in (*swept, *old, *kept):
        (below / name).touch()
    for name in old:
        os.utime(below / name, (time.time() - 90_000,) * 2)
    folder = below / f".cache.abc.{gone()}.part"
    folder.mkdir()
    (folder / "file").touch()
    assert {path.name for path in sweep_drafts(tmp_path)} == {*swept, *old, folder.name}
    assert names(below) == sorted(kept)
    with atomic_file(tmp_path / "a") as file, atomic_folder(tmp_path / "b") as own:
        monkeypatch.setattr(os, "getpid", lambda: -1)
        assert not sweep_drafts(tmp_path)  # of another process
        file.touch()
        assert own.is_dir()


def test_a_path_is_shown_as_one_would_type_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = [from_here(path) for path in (tmp_path / "a/b", Path("a/b"), tmp_path.parent / "a", Path("../a"), tmp_path)]
    assert shown == [Path("a/b"), Path("a/b"), tmp_path.parent / "a", Path("../a"), Path()]


CPU = torch.device("cpu")


def test_cuda_is_taken_where_it_is_unless_the_cpu_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [pick_device(wanted).type for wanted in ("auto", "cpu", "cuda")] == ["cuda", "cpu", "cuda"]
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == CPU
    with pytest.raises(ValueError, match=r"^device=cuda, but CUDA is not available here: use device=cpu"):
        pick_device("cuda")
    with pytest.raises(ValueError, match=r"^precision=fp16 needs CUDA: use bf16 or fp32 on a CPU$"):
        pick_device("cpu", "fp16")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ValueError, match=r"^precision=int8 is for a CPU: use bf16 or fp16 on a GPU$"):
        pick_device("auto", "int8")


@pytest.mark.processor
@pytest.mark.parametrize(
    ("wanted", "times", "chosen"),
    [("auto", 1.3, "bf16"), ("auto", 1.1, "fp32"), ("fp32", 2.0, "fp32"), ("bf16", 0.1, "bf16")],
)
def test_auto_is_what_was_measured_to_be_fast(
    monkeypatch: pytest.MonkeyPatch, wanted: Precision, times: float, chosen: Precision
) -> None:
    for learning in (True, False):
        measure = Mock(return_value=times)
        monkeypatch.setattr(device_module, "speedup", measure)
        assert resolve_precision(wanted, CPU, 32, learning) == chosen
        assert measure.call_args_list == [call("bf16", 32, learning)] * (wanted == "auto")
    for version, expected in (((6, 1), "fp32"), ((7, 5), "fp16"), ((8, 0), "bf16"), ((12, 0), "bf16")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, capability=version: capability)
        assert resolve_precision("auto", torch.device("cuda"), 32) == expected


@pytest.mark.processor
@pytest.mark.parametrize("slower", [True, False])
@pytest.mark.parametrize(("precision", "learning"), [("bf16", True), ("bf16", False), ("int8", False)])
def test_the_speed_of_a_precision_is_measured(
    monkeypatch: pytest.MonkeyPatch, slower: bool, precision: Literal["bf16", "int8"], learning: bool
) -> None:
    now = 0.0

    def pass_time(layer: FeedForward, _x: tuple[Tensor], y: Tensor) -> None:
        nonlocal now
        other = y.dtype == torch.bfloat16 if precision == "bf16" else isinstance(layer.widen, Int8Linear)
        now += 0.03 if other == slower else 0.01

    def measured(d_model: int, d_ff: int) -> FeedForward:
        layer = FeedForward(d_model, d_ff)
        layer.register_forward_hook(pass_time)
        return layer

    monkeypatch.setattr(device_module, "FeedForward", measured)
    monkeypatch.setattr(time, "thread_time", lambda: now)
    threads = torch.get_num_threads()
    assert speedup.__wrapped__(precision, 32, learning) == pytest.approx(1 / 3 if slower else 3)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("module", "user", "spins"),
    [
        *((module, {}, "3000") for module in ("train", "translate", "serve", "bench.train")),
        ("train", {"GOMP_SPINCOUNT": "7"}, "7"),
        ("train", {"OMP_WAIT_POLICY": "active"}, "None"),
    ],
)
def test_threads_spin_shortly_unless_the_user_says_how(module: str, user: dict[str, str], spins: str) -> None:
    """Which torch reads when it is imported."""
    code = f"""
import importlib.abc, os, sys
class Torch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *_):
        if name == "torch":
            print(os.environ.get("GOMP_SPINCOUNT"))
            os._exit(0)
sys.meta_path.insert(0, Torch())
import {module}, torch
"""
    names = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=names | user, capture_output=True, text=True)
    assert run.stdout == f"{spins}\n", run.stderr


def test_kernels_are_remembered_unless_the_user_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    monkeypatch.setenv(name, "to be restored")
    monkeypatch.delenv(name)
    keep_compiled_kernels()
    assert int(os.environ[name]) > 1024  # oneDNN's own
    monkeypatch.setenv(name, "7")
    keep_compiled_kernels()
    assert os.environ[name] == "7"


# The heap.

HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def megabytes(field: str, code: str) -> list[int]:
    """What `show()` finds of this field in a process of its own: the heap of this one has gaps from before."""
    if not hasattr(ctypes.CDLL(None), "mallopt"):
        pytest.skip("this C library is not glibc")
    begin = f"""
import torch
from utils.memory import keep_freed_memory, return_freed_memory
def show() -> None:
    (line,) = (line for line in open("/proc/self/smaps_rollup") if line.startswith("{field}:"))
    print(int(line.split()[1]) // 1024)
keep_freed_memory()
"""
    command = [sys.executable, "-c", begin + code]
    numbers = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return [int(number) for number in numbers.split()]


@pytest.mark.slow
def test_freed_memory_is_kept_in_the_process_until_it_is_returned() -> None:
    full, kept, returned = megabytes(
        "Rss",
        """
held = torch.ones(32 * 2**20)  # 128 MB
show()
del held
show()
return_freed_memory()
show()
""",
    )
    assert kept > full - 32
    assert returned < full - 32


@pytest.mark.slow
def test_the_heap_has_large_pages_where_they_are_to_be_asked_for() -> None:
    if not HUGE.is_file() or "[madvise]" not in HUGE.read_text():
        pytest.skip("this Linux gives large pages to all or to none")
    before, first, between, second = megabytes(
        "AnonHugePages",
        """
return_freed_memory()  # what Python took before is in large pages now
for _ in range(2):
    show()
    held = torch.ones(32 * 2**20)
    show()
    del held
    return_freed_memory()
""",
    )
    assert first - before >= 120  # of 128 MB
    assert between < first - 100  # given back
    assert second - between >= 120


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_a_c_library_without_the_knob_is_left_alone(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    monkeypatch.setattr(sys, "platform", platform)
    keep_freed_memory()
    return_freed_memory()
