"""Reads how much memory this process has allocated, and gives back what it has freed."""

from __future__ import annotations

import ctypes

_FIELDS = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
)  # fmt: skip


class _Usage(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]


def _allocator() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None)
    try:
        library.mallinfo2.restype = _Usage
        library.malloc_trim.argtypes = [ctypes.c_size_t]
    except AttributeError:  # not glibc, or one before 2.33
        return None
    return library


_ALLOCATOR = _allocator()


def allocated_bytes() -> int:
    """Returns the bytes that all threads have allocated and not freed; 0 where the C library does not say."""
    if _ALLOCATOR is None:
        return 0
    usage = _ALLOCATOR.mallinfo2()
    return int(usage.uordblks + usage.hblkhd)


def give_back() -> None:
    """Returns freed memory to the system: compiling allocates much more than what is kept."""
    if _ALLOCATOR is not None:
        _ALLOCATOR.malloc_trim(0)
