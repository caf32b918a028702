"""Gives back the memory of a mapped file after its contents were copied."""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path


def release(path: Path) -> None:
    """Takes the pages of a file that this process has mapped out of its resident memory.

    They come back from the system's cache when they are used, so this is always safe. Does
    nothing except on Linux with a mounted /proc. Does not block for long; never raises.
    """
    maps = Path("/proc/self/maps")
    if sys.platform != "linux" or not maps.exists():
        return
    real = str(path.resolve())
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in maps.read_text(errors="surrogateescape").splitlines():
        addresses, *_, name = line.split(maxsplit=5)
        if name == real:
            begin, end = (int(part, 16) for part in addresses.split("-"))
            madvise(begin, end - begin, mmap.MADV_DONTNEED)
