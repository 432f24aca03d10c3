"""Whether freed memory stays where it should, and in large pages: asked of the system, in processes of their own."""

import ctypes
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from const.path import ROOT
from utils.device import keep_freed_memory, return_freed_memory

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
