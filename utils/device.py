"""Where to compute, in which precision, and what to do about memory."""

import ctypes
import os
import re
import sys
import time
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path

import torch
from torch import nn

from config.training import Device, Precision
from layers.decoder_block import DecoderBlock
from layers.encoder_block import EncoderBlock
from layers.feed_forward import FeedForward
from layers.packed import packed

_DTYPE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
WORTH_IT = 1.2  # times as fast as in single precision: for less, nobody should have to think of rounding


def pick_device(wanted: Device = "auto", precision: Precision = "auto") -> torch.device:
    """Return the requested device, by default CUDA if available, else the CPU; refuse a precision that it lacks."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ValueError("device=cuda, but CUDA is not available here: use device=cpu, or leave it at auto")
    device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if wanted == "auto" else wanted)
    require_precision(device, precision)
    return device


def require_precision(device: torch.device, precision: Precision) -> None:
    """Refuse a precision that a device cannot compute in at a useful speed."""
    if precision == "fp16" and device.type == "cpu":
        raise ValueError("precision=fp16 needs CUDA: use bf16 or fp32 on a CPU")


@cache
def bf16_speedup(d_model: int, learning: bool) -> float:
    """Return how many times as fast as in single precision this CPU is in bfloat16, for a network of this width.

    Its list of instructions does not tell: a processor may have those for bfloat16 and be half as fast in it. So a
    feed-forward layer is measured for some 50 milliseconds, forward and backward (learning), or packed and forward for
    as many rows as a search has. The time counted is that of one thread, which other processes do not lengthen.
    """
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    layer = FeedForward(d_model, d_model)
    x = torch.ones(max(64, 2**24 // d_model**2) if learning else 64, d_model)
    kinds = {dtype: layer if learning else packed(layer, dtype) for dtype in (torch.float32, torch.bfloat16)}
    seconds: dict[torch.dtype, list[float]] = {dtype: [] for dtype in kinds}
    for i in range(4):
        for dtype, kind in kinds.items():
            begin = time.thread_time()
            with torch.set_grad_enabled(learning), torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16):
                y = kind(x)
            if learning:
                y.sum().backward()
            seconds[dtype].append(time.thread_time() - begin)
        if i and sum(seconds[torch.bfloat16]) > 0.1:  # without instructions for it
            break
    torch.set_num_threads(n_threads)
    fp32, bf16 = (min(times[1:]) for times in seconds.values())  # the first compiled
    return fp32 / bf16


def resolve_precision(precision: Precision, device: torch.device, d_model: int, learning: bool = False) -> Precision:
    """Return the precision of matrix products: as requested, or (auto) bf16 where it is worth it, else fp32."""
    if precision != "auto":
        return precision
    if device.type == "cuda":
        return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp32"
    return "bf16" if bf16_speedup(d_model, learning) >= WORTH_IT else "fp32"


def product_dtype(precision: Precision) -> torch.dtype:
    """Return the type of matrix products in a precision that is not auto."""
    return _DTYPE[precision]


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[None]:
    """Run the block's matrix products in this precision, which is not auto."""
    dtype = product_dtype(precision)
    if dtype == torch.float32:
        return torch.autocast(device.type, enabled=False)
    return torch.autocast(device.type, dtype)


def compile_blocks(net: nn.Module) -> None:
    """Have each block compiled at its first call, for batches of any shape; equal ones share what was compiled."""
    for part in net.modules():
        if isinstance(part, EncoderBlock | DecoderBlock):
            part.compile(dynamic=True)


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def keep_compiled_kernels() -> None:
    """Have oneDNN cache more of the kernels that it compiles for bfloat16, unless the user sets how many.

    It compiles a kernel for each shape, some forty for each new shape of a batch: 15 to 20 ms of a single core. Its
    default of about a thousand is fewer than an epoch needs; this many covers most of them, for a gigabyte and a half
    at worst. To be called before the first matrix product, which creates the cache.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "4096")


# the CPU allocator, the CUDA driver and cuBLAS report it as a RuntimeError with one of these phrases
_PHRASES = re.compile(r"can't allocate memory|not enough memory|out of memory|ALLOC_FAILED|std::bad_alloc", re.I)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether this is the error of a device that has no memory left; torch's own is a RuntimeError, too."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and _PHRASES.search(str(error)) is not None


# The heap of a process on Linux: how much freed memory glibc keeps, and the size of its pages.

_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25  # from mman.h; Python's mmap has the first, too, but only for its own maps
_LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")


def keep_freed_memory() -> None:
    """Have glibc hold on to memory that was freed; on other systems this does nothing.

    Every training step on a CPU, and every step of a search, frees and allocates the same megabytes, up to hundreds. If
    they go back to the kernel in between, each page is mapped and zeroed again: a fifth of a training step.
    """
    if (libc := _glibc()) is not None:
        trim_threshold, top_pad, mmap_max = -1, -2, -4  # names and numbers from malloc.h
        libc.mallopt(mmap_max, 0)
        libc.mallopt(trim_threshold, -1)  # never
        libc.mallopt(top_pad, 64 * 2**20)
        _prefer_large_pages(libc)


def return_freed_memory() -> None:
    """Return the freed memory that glibc has kept to the kernel; on other systems this does nothing.

    The kernels that oneDNN compiles for each new shape of a batch stay in memory between the blocks that a step frees;
    the blocks of later steps do not quite fit into the gaps, and hours of training would hold gigabytes of unused
    memory.
    """
    if (libc := _glibc()) is not None:
        libc.malloc_trim(0)
        _prefer_large_pages(libc)
        _restore_large_pages(libc)


def _prefer_large_pages(libc: ctypes.CDLL) -> None:
    """Have Linux use pages of two megabytes for the heap, where it does so on request (madvise).

    A step goes through gigabytes. With pages of four kilobytes, the processor has to look up most page addresses in
    memory, the more so the longer a training has scattered them: a tenth of a step. The heap is made to grow by half of
    the memory at once and its addresses are marked; no memory is taken before it is needed.
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
    """Have Linux put the heap into large pages again where gaps were returned; before Linux 6.1 this does nothing.

    A large page with returned gaps is split into five hundred small ones, and memory taken there later comes in small
    pages, too: a training was a quarter slower after its first validation. Pages that are wholly empty stay with the
    kernel, and make it stop working on the range of a call: hence a call for each page.
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
    """Return when Linux uses large pages: always, on request (madvise) or never; None if it has none."""
    enabled = _LARGE_PAGES / "enabled"
    chosen = re.search(r"\[(\w+)\]", enabled.read_text(encoding="ascii")) if enabled.is_file() else None
    return chosen[1] if chosen else None


def _glibc() -> ctypes.CDLL | None:
    libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    if libc is None or not hasattr(libc, "mallopt"):  # musl does not have it
        return None
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc
