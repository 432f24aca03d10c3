"""Where to compute, and in which precision."""

import ctypes
import os
import re
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

import torch

_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25  # of mman.h; Python's mmap knows the first too, but only for maps of its own
_LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")

Precision = Literal["auto", "fp32", "bf16", "fp16"]
Device = Literal["auto", "cpu", "cuda"]


def pick_device(wanted: Device = "auto") -> torch.device:
    """CUDA where it is there, else the CPU.

    Raises:
        ValueError: CUDA is asked for and not there.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ValueError("device=cuda, but this machine offers no CUDA: use device=cpu, or leave it at auto")
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(wanted)


def has_fast_bf16(device: torch.device) -> bool:
    """Whether matrix products in bfloat16 are faster than in single precision there."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()  # torch before 2.12 cannot tell
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def product_dtype(device: torch.device, precision: Precision = "auto") -> torch.dtype:
    """What matrix products are made in: what is asked for, or (auto) bfloat16 where it is fast."""
    if precision == "auto":
        return torch.bfloat16 if has_fast_bf16(device) else torch.float32
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def autocast(device: torch.device, precision: Precision = "auto") -> AbstractContextManager[None]:
    """Matrix products in lower precision inside this block, where that is asked for, or fast (auto)."""
    dtype = product_dtype(device, precision)
    if dtype == torch.float32:
        return torch.autocast(device.type, enabled=False)
    return torch.autocast(device.type, dtype)


def inference_dtype(device: torch.device, precision: Precision = "auto") -> torch.dtype:
    """What the matrix products of a model that no longer learns are made in.

    Raises:
        ValueError: half precision is asked of a CPU.
    """
    if precision == "fp16" and device.type == "cpu":
        raise ValueError("precision=fp16 needs CUDA: use bf16 or fp32 on a CPU")
    return product_dtype(device, precision)


def synchronize(device: torch.device) -> None:
    """Wait until all that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def keep_freed_memory() -> None:
    """Have glibc hold on to memory that was freed; elsewhere this does nothing.

    Every training step on a CPU frees and takes the same hundreds of megabytes. Given back to the kernel in
    between, each page of them is mapped and zeroed anew: a fifth of a step.
    """
    if (libc := _glibc()) is not None:
        trim_threshold, top_pad, mmap_max = -1, -2, -4  # names and numbers of malloc.h
        libc.mallopt(mmap_max, 0)
        libc.mallopt(trim_threshold, -1)  # never
        libc.mallopt(top_pad, 64 * 2**20)
        _prefer_large_pages(libc)


def return_freed_memory() -> None:
    """Give the kernel back what glibc kept of freed memory, for good or until it is next needed; elsewhere: nothing.

    Kernels that oneDNN compiles for each new shape of a batch live on between the blocks that a step frees; the blocks
    of later steps do not quite fit into the gaps, and hours of training would keep gigabytes that nobody uses.
    """
    if (libc := _glibc()) is not None:
        libc.malloc_trim(0)
        _prefer_large_pages(libc)
        _restore_large_pages(libc)


def _prefer_large_pages(libc: ctypes.CDLL) -> None:
    """Have Linux put two megabytes into a page where it does so for those who ask.

    A step goes through gigabytes. In pages of four kilobytes, the processor looks most of them up in memory first, the
    more so the longer a training has scattered them: a tenth of a step. The heap is asked to grow over half of the
    memory at once, its addresses are marked, and nothing of them is taken before it is needed.
    """
    if _large_pages() != "madvise":
        return
    page, n_pages = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
    size = n_pages // 2 * page
    if block := libc.malloc(size):
        begin = -(-block // page) * page
        libc.madvise(begin, (block + size - begin) // page * page, _MADV_HUGEPAGE)
        libc.free(block)


def _restore_large_pages(libc: ctypes.CDLL) -> None:
    """Have Linux put the heap into large pages again where gaps have been given back; before Linux 6.1: nothing.

    A large page that has lost its gaps is five hundred small ones, and what is taken there later comes in small ones
    too: a training was a quarter slower after its first validation. What is wholly empty stays with the kernel, and
    ends what it does for one call: hence a call for each page.
    """
    if _large_pages() not in ("always", "madvise"):
        return
    size = int((_LARGE_PAGES / "hpage_pmd_size").read_text(encoding="ascii"))
    for area in Path("/proc/self/maps").read_bytes().splitlines():
        if area.endswith(b"[heap]"):
            begin, end = (int(address, 16) for address in area.split()[0].split(b"-"))
            for page in range(-(-begin // size) * size, end - size + 1, size):
                libc.madvise(page, size, _MADV_COLLAPSE)


def _large_pages() -> str | None:
    """To whom Linux gives large pages: always, to those who ask (madvise), or never; None where it has none."""
    enabled = _LARGE_PAGES / "enabled"
    chosen = re.search(r"\[(\w+)\]", enabled.read_text(encoding="ascii")) if enabled.is_file() else None
    return chosen[1] if chosen else None


def keep_compiled_kernels() -> None:
    """Have oneDNN remember more of the kernels that it compiles for bfloat16, unless the user says how many.

    It compiles one for each shape, some forty for each new shape of a batch: 15 to 20 ms of a single core. The
    thousand that it remembers are fewer than the shapes of an epoch; these are most of them, for a gigabyte and a half
    at worst. To be called before the first product, which makes the cache.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "4096")


def _glibc() -> ctypes.CDLL | None:
    libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    if libc is None or not hasattr(libc, "mallopt"):  # musl has none
        return None
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc
