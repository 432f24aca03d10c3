"""Files that are complete or absent, locks, drafts of killed processes; the device, its precision, its memory."""

import ctypes
import errno
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from config.training import Device, Precision
from const.path import ROOT
from utils import device as device_module
from utils.device import (
    autocast,
    has_fast_bf16,
    inference_dtype,
    keep_compiled_kernels,
    keep_freed_memory,
    pick_device,
    return_freed_memory,
)
from utils.file import (
    atomic_file,
    atomic_folder,
    draft_suffix,
    from_here,
    locked,
    read_json,
    require_file,
    require_writable,
    sweep_drafts,
    write_json,
    write_lines,
    write_text,
)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_file_appears_when_it_is_whole_and_the_old_one_stays_until_then(tmp_path: Path) -> None:
    path = tmp_path / "run" / "test.json"
    for text, before in ("first", None), ("second", "first"):
        with atomic_file(path) as draft:
            draft.write_text(text)
            assert (path.read_text() if path.exists() else None) == before
            assert draft.parent == path.parent  # a rename is atomic on one disk only
            assert draft.name.startswith(".")
            assert draft.suffix != path.suffix
        assert path.read_text() == text
        assert names(path.parent) == ["test.json"]


def test_a_link_and_permissions_stay_as_they_were(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    real.chmod(0o600)
    link.symlink_to(real)
    with atomic_file(link) as draft:
        draft.write_text("new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert real.stat().st_mode & 0o777 == 0o600


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


def test_what_json_does_not_know_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "test.json"
    write_json(path, {"bleu": 1.5, "place": "京都"})
    with pytest.raises(TypeError):
        write_json(path, {"bleu": 2.5, "place": tmp_path})
    assert path.read_text(encoding="utf-8") == '{\n "bleu": 1.5,\n "place": "京都"\n}\n'
    assert read_json(path) == {"bleu": 1.5, "place": "京都"}
    path.write_text('{"都": ', encoding="utf-8")
    with pytest.raises(ValueError, match=r"/test\.json is damaged \(Expecting value.*\): copy it again, or remove it"):
        read_json(path)


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


def test_what_is_no_file_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        with (
            pytest.raises(ValueError, match=rf"/{name} exists and is not a file: give another name"),
            atomic_file(tmp_path / name),
        ):
            pytest.fail("begun")
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "pipe"}
    require_file(tmp_path / "new")


def test_a_text_is_written_in_utf8_with_its_own_line_ends(tmp_path: Path) -> None:
    write_text(tmp_path / "text", "京都\r\nnara\n")
    assert (tmp_path / "text").read_bytes() == "京都\r\nnara\n".encode()
    write_lines(tmp_path / "lines", ["京都", "nara"])
    assert (tmp_path / "lines").read_bytes() == "京都\nnara\n".encode()


def test_a_lock_is_waited_for_or_refused_and_goes_with_its_process(tmp_path: Path) -> None:
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
        with locked(path):
            assert other.wait() < 0


def test_a_folder_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "toy"
    with atomic_folder(path) as draft:
        assert names(draft) == []
        (draft / "inner").mkdir()
        (draft / "inner" / "a").write_text("a")
        assert not path.exists()
    assert (path / "inner" / "a").read_text() == "a"
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


@pytest.mark.parametrize("late", [False, True], ids=["in the block", "while syncing"])
def test_a_full_disk_is_told_in_one_line_and_the_old_file_stays(
    tmp_path: Path, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "test.json"
    path.write_text("old")
    if late:
        monkeypatch.setattr("utils.file._sync", fail)

    def write() -> None:
        with atomic_file(path) as draft:
            draft.write_bytes(bytes(2**20))
            if not late:
                fail(draft)

    with pytest.raises(OSError, match=r"^no room for test.json .*: it needs more than 1.00 MiB, and .* MiB are free"):
        write()
    assert path.read_text() == "old"
    assert names(tmp_path) == ["test.json"]


def test_other_errors_keep_their_words(tmp_path: Path) -> None:
    def write() -> None:
        with atomic_file(tmp_path / "a") as draft:
            draft.touch()
            raise PermissionError(errno.EACCES, "not yours")

    with pytest.raises(PermissionError, match="not yours"):
        write()
    assert names(tmp_path) == []


# what killed processes leave


@pytest.fixture
def stranger() -> Iterator[int]:
    """The number of a living process."""
    process = subprocess.Popen(["sleep", "60"])
    yield process.pid
    process.kill()
    process.wait()


def gone() -> int:
    """The number of a process that lives no more."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_drafts_of_the_dead_are_swept_and_those_of_the_living_stay(tmp_path: Path, stranger: int) -> None:
    below = tmp_path / "run" / "checkpoints"
    below.mkdir(parents=True)
    dead, alive, ours = (f".step-1.pt.{pid}.part" for pid in (gone(), stranger, os.getpid()))
    for name in (dead, alive, ours, "step-1.pt", ".hidden", "x.part", ".no-number.part"):
        (below / name).touch()
    folder = below / f".cache.abc.{gone()}.part"
    folder.mkdir()
    (folder / "file").touch()
    swept = sweep_drafts(tmp_path)
    assert names(below) == sorted([alive, "step-1.pt", ".hidden", "x.part", ".no-number.part"])
    assert len(swept) == 3
    assert below / ours in swept


def test_an_old_draft_goes_whoever_has_its_number_now(tmp_path: Path, stranger: int) -> None:
    for name, hours in (("old", 25), ("young", 23)):
        draft = tmp_path / f".{name}.{stranger}.part"
        draft.touch()
        then = time.time() - hours * 3600
        os.utime(draft, (then, then))
    sweep_drafts(tmp_path)
    assert names(tmp_path) == [f".young.{stranger}.part"]


def test_a_draft_of_another_host_stays_for_a_day(tmp_path: Path) -> None:
    """On a shared disk, whoever has its number here."""
    young, old = (tmp_path / f".{name}.elsewhere@{gone()}.part" for name in ("young", "old"))
    (tmp_path / f".container.{socket.gethostname()}-1@{gone()}.part").touch()  # of the same name, but other pids
    ours = tmp_path / f".ours{draft_suffix()}"
    for draft in (young, old, ours):
        draft.touch()
    os.utime(old, (time.time() - 90_000,) * 2)
    assert set(sweep_drafts(tmp_path)) == {old, ours}


def test_numbers_that_no_process_can_have_are_of_the_dead_and_those_of_others_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(_pid: int, _signal: int) -> None:
        raise PermissionError

    (tmp_path / f".a.{10**30}.part").touch()
    assert len(sweep_drafts(tmp_path)) == 1
    monkeypatch.setattr(os, "kill", deny)  # a process of somebody else
    (tmp_path / ".a.4242.part").touch()
    assert not sweep_drafts(tmp_path)
    assert not sweep_drafts(tmp_path / "not there")


def test_what_is_swept_are_the_drafts_of_this_module(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "a") as file, atomic_folder(tmp_path / "b") as folder:
        file.touch()
        (folder / "c").touch()
        assert set(sweep_drafts(tmp_path)) == {file, folder}
        file.touch()
        folder.mkdir()


def test_a_path_is_shown_as_one_would_type_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = [from_here(path) for path in (tmp_path / "a/b", Path("a/b"), tmp_path.parent / "a", Path("../a"), tmp_path)]
    assert shown == [Path("a/b"), Path("a/b"), tmp_path.parent / "a", Path("../a"), Path()]


CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("wanted", "there", "picked"),
    [("auto", True, "cuda"), ("auto", False, "cpu"), ("cpu", True, "cpu"), ("cuda", True, "cuda")],
)
def test_cuda_is_taken_where_it_is_unless_the_cpu_is_wanted(
    monkeypatch: pytest.MonkeyPatch, wanted: Device, there: bool, picked: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert pick_device(wanted) == torch.device(picked)


def test_what_a_device_does_not_have_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"^device=cuda, but CUDA is not available here: use device=cpu"):
        pick_device("cuda")
    with pytest.raises(ValueError, match=r"^precision=fp16 needs CUDA: use bf16 or fp32 on a CPU$"):
        inference_dtype(CPU, "fp16")


@pytest.mark.parametrize(
    ("precision", "fast", "dtype"),
    [
        ("fp32", True, torch.float32),
        ("fp32", False, torch.float32),
        ("bf16", True, torch.bfloat16),
        ("bf16", False, torch.bfloat16),
        ("auto", True, torch.bfloat16),
        ("auto", False, torch.float32),
    ],
)
def test_matrix_products_run_in_the_precision_that_is_wanted(
    monkeypatch: pytest.MonkeyPatch, precision: Precision, fast: bool, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(device_module, "has_fast_bf16", lambda _: fast)
    x = torch.ones(2, 2)
    with autocast(CPU, precision):
        assert (x @ x).dtype == dtype
    assert inference_dtype(CPU, precision) == dtype
    assert (x @ x).dtype == torch.float32


def test_single_precision_inside_a_lower_one_is_single() -> None:
    x = torch.ones(2, 2)
    with autocast(CPU, "bf16"), autocast(CPU, "fp32"):
        assert (x @ x).dtype == torch.float32


@pytest.mark.parametrize(
    ("capabilities", "fast"),
    [
        ({"avx512_bf16": True, "amx_bf16": False}, True),
        ({"amx_bf16": True}, True),
        ({"bf16": True}, True),  # Arm
        ({"avx512_bf16": False, "avx512_f": True}, False),
        ({}, False),
    ],
)
def test_a_cpu_is_fast_in_bf16_if_it_has_instructions_for_it(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, bool], fast: bool
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert has_fast_bf16(CPU) is fast


def test_an_older_torch_does_not_know_its_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert not has_fast_bf16(CPU)


@pytest.mark.parametrize(("capability", "fast"), [((7, 5), False), ((8, 0), True), ((9, 0), True), ((12, 0), True)])
def test_a_gpu_is_fast_in_bf16_from_ampere_on(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], fast: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert has_fast_bf16(torch.device("cuda")) is fast


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
from utils.device import keep_freed_memory, return_freed_memory
def show() -> None:
    (line,) = (line for line in open("/proc/self/smaps_rollup") if line.startswith("{field}:"))
    print(int(line.split()[1]) // 1024)
keep_freed_memory()
"""
    command = [sys.executable, "-c", begin + code]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return [int(each) for each in found.split()]


def megabytes_in_large_pages(code: str) -> list[int]:
    """The same of large pages."""
    if not HUGE.is_file() or "[madvise]" not in HUGE.read_text():
        pytest.skip("this Linux gives large pages to all or to none")
    return megabytes("AnonHugePages", code)


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


def test_the_heap_has_large_pages_where_they_are_to_be_asked_for() -> None:
    before, first, between, second = megabytes_in_large_pages("""
return_freed_memory()  # what Python took before is in large pages now
for _ in range(2):
    show()
    held = torch.ones(32 * 2**20)
    show()
    del held
    return_freed_memory()
""")
    assert first - before >= 120  # of 128 MB
    assert between < first - 100  # given back
    assert second - between >= 120


def test_a_heap_with_gaps_has_large_pages_again() -> None:
    if tuple(map(int, re.findall(r"\d+", platform.release())[:2])) < (6, 1):
        pytest.skip("this Linux cannot be asked to put small pages together")
    before, full, with_gaps = megabytes_in_large_pages("""
return_freed_memory()  # what Python took before is in large pages now
show()
empty = torch.ones(16 * 2**20)  # 64 MB, below the others
held = [torch.ones(2**15) for _ in range(1024)]  # 128 KB each
show()
del empty, held[::2]
return_freed_memory()
show()
""")
    assert full - before >= 180
    assert full - with_gaps >= 60  # what is wholly empty was given back
    assert with_gaps - before >= 110


def test_elsewhere_keeping_memory_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(_: object) -> None:
        raise AssertionError("no C library is looked for")

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", no_library)
    keep_freed_memory()
    return_freed_memory()


def test_a_c_library_without_the_knob_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    monkeypatch.setattr(sys, "platform", "linux")
    keep_freed_memory()
    return_freed_memory()
