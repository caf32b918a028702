"""Giving back the memory of a mapped file."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest

from selfserve.native import mapped_file


def resident_kib(path: Path) -> int:
    """Of the mappings of a file in this process."""
    total, is_wanted = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.endswith(str(path)):
            is_wanted = True
        elif is_wanted and line.startswith("Rss:"):
            total += int(line.split()[1])
            is_wanted = False
    return total


@pytest.mark.skipif(sys.platform != "linux", reason="does nothing elsewhere")
def test_a_mapped_file_takes_no_memory_afterwards_and_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a file with spaces.gguf"
    content = bytes(range(256)) * 4096
    path.write_bytes(content)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert bytes(mapped) == content
        assert resident_kib(path) >= len(content) // 1024
        mapped_file.release(path)
        assert resident_kib(path) == 0
        assert bytes(mapped) == content
