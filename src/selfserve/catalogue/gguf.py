"""The header of a GGUF file: metadata and tensor list, read without loading the model.

A file may come from anywhere, so nothing in it is believed: every count and length is checked
against the file's size before memory is taken, and at most MAX_HEADER_BYTES are read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from selfserve.errors import ModelLoadError, shown

MAGIC = b"GGUF"
MAX_HEADER_BYTES = 128 << 20
"""The largest vocabularies in use make headers of about 30 MiB."""
MAX_KEPT_ITEMS = 4096
"""Longer arrays (the vocabulary) are passed over; per-layer arrays are far below."""
_MAX_DIMS = 4
_READ_BYTES = 1 << 20

Scalar = int | float | bool | str
Value = Scalar | tuple[Scalar, ...]

_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_STRING, _ARRAY = 8, 9
_U32, _U64 = _SCALARS[4], _SCALARS[10]

TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}
"""ggml's tensor types by number: (name, values of a block, bytes of a block)."""

FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K",
    11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S",
    17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS",
    23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0",
    38: "MXFP4", 39: "NVFP4", 40: "Q1_0", 41: "Q2_0",
}  # fmt: skip
"""`general.file_type` → the name of the quantization; the numbers are those of `llama_ftype`."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One entry of the tensor list. `shape` has the contiguous dimension first."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int
    """Bytes from the start of the data section."""
    num_bytes: int | None
    """None: a type that this version does not know."""


@dataclass(frozen=True, slots=True)
class Header:
    """What stands before the weights of one GGUF file."""

    version: int
    metadata: dict[str, Value]
    """Arrays of more than MAX_KEPT_ITEMS items are left out; see `array_lengths`."""
    array_lengths: dict[str, int]
    """Length of every array, kept or left out."""
    tensors: tuple[Tensor, ...]
    data_offset: int
    file_size: int

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    @property
    def file_type(self) -> str:
        """Name of the quantization, such as `Q4_K_M`; empty if the file does not say."""
        number = self.metadata.get("general.file_type")
        return FILE_TYPES.get(number, "") if isinstance(number, int) else ""

    @property
    def is_projector(self) -> bool:
        """True for the picture half of a model, which cannot be served alone."""
        return self.architecture == "clip"

    @property
    def num_parts(self) -> int:
        """Files that make up the model together; 1 if it is not split."""
        count = self.metadata.get("split.count", 1)
        return count if isinstance(count, int) and count > 1 else 1


def trouble_with_magic(head: bytes) -> str | None:
    """What a file is that begins with `head`, if it is no GGUF file; None if it is one."""
    if head[:4] == MAGIC:
        return None
    magic = f"not a GGUF (magic {shown(head[:4])})"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return f"an HTML page, {magic}"
    if text.startswith(b"version https://git-lfs"):
        return f"a Git LFS pointer instead of the file it points to, {magic}"
    return magic


def read_header(path: Path) -> Header:
    """Reads the header of `path`. Blocks on the disk, about 0.2 s for a large vocabulary.

    Raises ModelLoadError for a file that is missing, is no GGUF file, is damaged or is cut off.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            trouble = trouble_with_magic(file.read(64))
            if trouble is not None:
                raise ModelLoadError(f"{path}: {trouble}")
            file.seek(0)
            return _parse(_Reader(file, size), size)
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror or error}") from error
    except _Damaged as error:
        raise ModelLoadError(f"{path}: damaged GGUF header: {error}") from error


class _Damaged(Exception):
    """What is wrong with the header, in words."""


class _Reader:
    """Takes little-endian values off the front of a file, never past its end."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._limit = min(size, MAX_HEADER_BYTES)
        self._buffer = bytearray()
        self.offset = 0

    def _advance(self, num_bytes: int) -> int:
        """Makes the next `num_bytes` available and returns where they start."""
        start, end = self.offset, self.offset + num_bytes
        if end > self._limit:
            raise _Damaged(f"it needs {end} bytes, the file or the limit ends at {self._limit}")
        while len(self._buffer) < end:
            data = self._file.read(max(_READ_BYTES, end - len(self._buffer)))
            if not data:
                raise _Damaged(f"the file ends at byte {len(self._buffer)}")
            self._buffer += data
        self.offset = end
        return start

    def number(self, layout: struct.Struct) -> Scalar:
        value: Scalar = layout.unpack_from(self._buffer, self._advance(layout.size))[0]
        return value

    def count(self) -> int:
        """An unsigned 64-bit count of things that take at least a byte each."""
        value = int(self.number(_U64))
        if value > self._limit:
            raise _Damaged(f"a count of {value} in a file of {self._limit} bytes")
        return value

    def string(self) -> str:
        length = self.count()
        start = self._advance(length)
        return bytes(self._buffer[start : start + length]).decode("utf-8", "replace")

    def skip_strings(self, count: int) -> None:
        for _ in range(count):
            self._advance(int(_U64.unpack_from(self._buffer, self._advance(8))[0]))

    def skip(self, num_bytes: int) -> None:
        self._advance(num_bytes)


def _parse(reader: _Reader, file_size: int) -> Header:
    reader.skip(len(MAGIC))
    version = int(reader.number(_U32))
    if version & 0xFFFF == 0:
        raise _Damaged("it is big-endian")
    if version not in (2, 3):
        raise _Damaged(f"version {version}, known are 2 and 3")
    num_tensors, num_values = reader.count(), reader.count()
    metadata: dict[str, Value] = {}
    array_lengths: dict[str, int] = {}
    for _ in range(num_values):
        key = reader.string()
        value = _value(reader, int(reader.number(_U32)), key, array_lengths)
        if value is not None:
            metadata[key] = value
    tensors = tuple(_tensor(reader) for _ in range(num_tensors))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
        raise _Damaged(f"alignment {shown(alignment)}")
    data_offset = -(-reader.offset // alignment) * alignment
    header = Header(version, metadata, array_lengths, tensors, data_offset, file_size)
    _check_complete(header)
    return header


def _value(reader: _Reader, kind: int, key: str, array_lengths: dict[str, int]) -> Value | None:
    """One metadata value; None for an array that is too long to keep."""
    if kind == _STRING:
        return reader.string()
    if kind in _SCALARS:
        return reader.number(_SCALARS[kind])
    if kind != _ARRAY:
        raise _Damaged(f"value type {kind} of {shown(key)}")
    item = int(reader.number(_U32))
    count = array_lengths[key] = reader.count()
    if item == _STRING:
        if count <= MAX_KEPT_ITEMS:
            return tuple(reader.string() for _ in range(count))
        reader.skip_strings(count)
        return None
    layout = _SCALARS.get(item)
    if layout is None:
        raise _Damaged(f"array of type {item} in {shown(key)}")
    if count <= MAX_KEPT_ITEMS:
        return tuple(reader.number(layout) for _ in range(count))
    reader.skip(count * layout.size)
    return None


def _tensor(reader: _Reader) -> Tensor:
    name = reader.string()
    num_dims = int(reader.number(_U32))
    if num_dims > _MAX_DIMS:
        raise _Damaged(f"tensor {shown(name)} has {num_dims} dimensions, at most {_MAX_DIMS}")
    shape = tuple(int(reader.number(_U64)) for _ in range(num_dims))
    kind, offset = int(reader.number(_U32)), int(reader.number(_U64))
    num_bytes = None
    if kind in TENSOR_TYPES:
        _, block, block_bytes = TENSOR_TYPES[kind]
        num_values = 1
        for length in shape:
            num_values *= length
        num_bytes = -(-num_values // block) * block_bytes
    return Tensor(name, shape, kind, offset, num_bytes)


def _ends(header: Header) -> Iterator[int]:
    for tensor in header.tensors:
        yield header.data_offset + tensor.offset + (tensor.num_bytes or 0)


def _check_complete(header: Header) -> None:
    """A file that was cut off has a perfect header; its tensors end past its end."""
    needed = max(_ends(header), default=0)
    if needed > header.file_size:
        raise _Damaged(f"its tensors end at byte {needed}, the file at {header.file_size}")
