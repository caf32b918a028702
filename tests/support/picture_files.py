"""Picture files made by hand: what an encoder would not write."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

from PIL import Image

GREY, RGB, PALETTE, GREY_ALPHA, RGBA = 0, 2, 3, 4, 6
"""PNG colour types."""


def encoded(image: Image.Image, file_format: str, **options: Any) -> bytes:
    """`image` as Pillow writes it."""
    out = io.BytesIO()
    image.save(out, file_format, **options)
    return out.getvalue()


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png_file(
    width: int,
    height: int,
    *,
    depth: int,
    colour: int,
    row: bytes,
    extra: bytes = b"",
    after: bytes = b"",
) -> bytes:
    """A PNG whose rows are all `row` (packed samples); `extra` chunks stand before the pixels."""
    squeeze = zlib.compressobj(9)
    lines = (b"\0" + row) * min(height, 500)
    pixels = b"".join(squeeze.compress(lines) for _ in range(height // 500))
    pixels += squeeze.compress((b"\0" + row) * (height % 500)) + squeeze.flush()
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + png_chunk(b"IHDR", header)
        + extra
        + png_chunk(b"IDAT", pixels)
        + after
        + png_chunk(b"IEND", b"")
    )


def without_segments(jpeg: bytes, marker: int) -> bytes:
    """A JPEG without its segments of one kind, such as 0xEE (Adobe)."""
    kept, pos = [jpeg[:2]], 2
    while jpeg[pos + 1] != 0xDA:
        end = pos + 2 + int.from_bytes(jpeg[pos + 2 : pos + 4], "big")
        if jpeg[pos + 1] != marker:
            kept.append(jpeg[pos:end])
        pos = end
    return b"".join(kept) + jpeg[pos:]
