"""Recognising that memory has run out, whatever reports it."""

import re

# the CPU allocator, the CUDA driver and cuBLAS report it as a RuntimeError with one of these phrases
_PHRASES = re.compile(r"can't allocate memory|not enough memory|out of memory|ALLOC_FAILED|std::bad_alloc", re.I)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether this is the error of a device that has no memory left; torch's own is a RuntimeError, too."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and _PHRASES.search(str(error)) is not None
