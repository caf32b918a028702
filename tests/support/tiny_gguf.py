"""Writes GGUF files that are small, valid, and hold whatever metadata and tensors a test wants."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

STRING, ARRAY = 8, 9
U32, I32, F32, BOOL, U64 = 4, 5, 6, 7, 10
_LAYOUTS = {U32: "<I", I32: "<i", F32: "<f", BOOL: "<?", U64: "<Q"}

Value = int | float | bool | str | Sequence[int] | Sequence[float] | Sequence[str]
ALIGNMENT = 32


class Signed(int):
    """A number that is written as a signed one, as some keys demand."""


def packed_string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _kind(value: object) -> int:
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, int):
        return I32 if value < 0 or isinstance(value, Signed) else U32
    return F32 if isinstance(value, float) else STRING


def _scalar(value: object, kind: int) -> bytes:
    return packed_string(str(value)) if kind == STRING else struct.pack(_LAYOUTS[kind], value)


def packed_value(value: Value) -> bytes:
    """A metadata value with its type in front; lists become arrays."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        kind = _kind(value)
        return struct.pack("<I", kind) + _scalar(value, kind)
    kind = _kind(value[0]) if value else U32
    head = struct.pack("<IIQ", ARRAY, kind, len(value))
    return head + b"".join(_scalar(item, kind) for item in value)


def gguf_bytes(
    metadata: Mapping[str, Value] | None = None,
    tensors: Mapping[str, tuple[int, ...]] | None = None,
    *,
    version: int = 3,
    padding: int = 0,
) -> bytes:
    """A whole file: F32 tensors of the given shapes filled with zeros, `padding` bytes behind."""
    values = {"general.architecture": "llama", **(metadata or {})}
    shapes = dict(tensors or {})
    body = b"".join(packed_string(key) + packed_value(value) for key, value in values.items())
    infos, data_size = b"", 0
    for name, shape in shapes.items():
        infos += packed_string(name) + struct.pack("<I", len(shape))
        infos += struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", 0, data_size)
        count = 1
        for length in shape:
            count *= length
        data_size += -(-4 * count // ALIGNMENT) * ALIGNMENT
    head = b"GGUF" + struct.pack("<IQQ", version, len(shapes), len(values)) + body + infos
    head += bytes(-len(head) % ALIGNMENT)
    return head + bytes(data_size + padding)


def write_gguf(
    path: Path,
    metadata: Mapping[str, Value] | None = None,
    tensors: Mapping[str, tuple[int, ...]] | None = None,
    *,
    padding: int = 0,
) -> Path:
    """Writes `gguf_bytes` to `path`, with its folders, and returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gguf_bytes(metadata, tensors, padding=padding))
    return path
