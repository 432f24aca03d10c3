"""The heap of a process on Linux: how much freed memory glibc keeps, and the size of its pages; without torch.

Variables such as MALLOC_TRIM_THRESHOLD_ or GLIBC_TUNABLES would say the half of it, but are read before Python starts.
"""

import ctypes
import os
import re
import sys
from contextlib import suppress
from pathlib import Path

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # from malloc.h
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25  # from mman.h; Python's mmap has the first, too, but only for its own maps
_LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")
_ROOM = 0.25  # of the memory of the machine


def keep_freed_memory() -> None:
    """Have glibc hold on to memory that was freed; on other systems this does nothing.

    Every training step on a CPU, and every step of a search, frees and allocates the same megabytes, up to hundreds. If
    they go back to the kernel in between, each page is mapped and zeroed again: a fifth of a training step.
    """
    if (libc := _glibc()) is not None:
        libc.mallopt(_MMAP_MAX, 0)
        libc.mallopt(_TRIM_THRESHOLD, -1)  # never
        libc.mallopt(_TOP_PAD, 64 * 2**20)
        _prefer_large_pages(libc)


def return_freed_memory() -> None:
    """Return the freed memory that glibc has kept to the kernel; on other systems this does nothing.

    The kernels that oneDNN compiles for each new shape of a batch stay in memory between the blocks that a step frees;
    the blocks of later steps do not quite fit into the gaps, and hours of training would hold gigabytes of unused
    memory. Gaps in large pages stay with the process, which is then faster, until it holds a quarter of all memory.
    """
    if (libc := _glibc()) is not None:
        resident = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        libc.malloc_trim(0)
        _prefer_large_pages(libc)
        if resident < _ROOM * os.sysconf("SC_PHYS_PAGES"):
            _restore_large_pages(libc)


def trim_memory() -> None:
    """Return whole pages of freed memory to the kernel, and change nothing else; on other systems this does nothing."""
    if (libc := _glibc()) is not None:
        libc.malloc_trim(0)


def _prefer_large_pages(libc: ctypes.CDLL) -> None:
    """Have Linux use pages of two megabytes for the heap, where it does so on request (madvise).

    A step goes through gigabytes. With pages of four kilobytes, the processor has to look up most page addresses in
    memory, the more so the longer a training has scattered them: a tenth of a step. The heap is made to grow by half of
    the memory at once and its addresses are marked; no memory is taken before it is needed.
    """
    page, n_pages = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
    size = n_pages // 2 * page
    if _large_pages() == "madvise" and (block := libc.malloc(size)):
        begin = -(-block // page) * page
        libc.madvise(begin, (block + size - begin) // page * page, _MADV_HUGEPAGE)
        libc.free(block)


def _restore_large_pages(libc: ctypes.CDLL) -> None:
    """Have Linux put the heap into large pages again where gaps were returned; before Linux 6.1 this does nothing.

    A large page with returned gaps is split into five hundred small ones, and memory taken there later comes in small
    pages, too: a training was a quarter slower after its first validation. Pages that are wholly empty stay with the
    kernel, and make it stop working on the range of a call: hence a call for each page.
    """
    if _large_pages() == "never":
        return
    size = int((_LARGE_PAGES / "hpage_pmd_size").read_text(encoding="ascii"))
    for area in Path("/proc/self/maps").read_bytes().splitlines():
        if area.endswith(b"[heap]"):
            begin, end = (int(address, 16) for address in area.split()[0].split(b"-"))
            for page in range(-(-begin // size) * size, end - size + 1, size):
                libc.madvise(page, size, _MADV_COLLAPSE)


def _large_pages() -> str:
    """Return when Linux uses large pages: always, on request (madvise) or never, as where it has none."""
    with suppress(OSError, LookupError):
        return re.findall(r"\[(\w+)\]", (_LARGE_PAGES / "enabled").read_text(encoding="ascii"))[0]
    return "never"


def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux") or not hasattr(libc := ctypes.CDLL(None), "mallopt"):  # as of musl
        return None
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc
