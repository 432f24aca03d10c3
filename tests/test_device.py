"""Where to compute, in which precision, and whether freed memory stays where it should.

Memory is asked of the system, in processes of their own.
"""

import ctypes
import os
import platform
import re
import subprocess
import sys
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
