"""Reads the outside of a picture file: which format it is, how large, what must be decoded.

Nothing is decompressed here. Of a JPEG or PNG only the parts that make up the first picture are
passed on, so colour profiles, comments, previews, animations and whatever else a file carries
are never parsed by anyone.
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass
from typing import Literal

_MAX_PARTS = 1 << 16
"""Chunks or segments of one file. Real files have at most some thousands."""

_MAX_SCANS = 100
"""Scans of a progressive JPEG; usual files have about ten. Each costs a pass over all pixels, and
a scan of a few bytes is enough, so a small file could keep a core busy for hours."""

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_KEPT = {b"IHDR", b"PLTE", b"IDAT", b"IEND"}
_PNG_GREY, _PNG_RGB, _PNG_PALETTE = 0, 2, 3

_JPEG_SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_SOS, _JPEG_EOI = 0xDA, 0xD9
_JPEG_BARE = frozenset({0x00, 0x01, *range(0xD0, 0xD9)})
"""Markers without a segment: stuffed bytes, TEM, restarts, SOI."""
_JPEG_DROPPED = frozenset({*range(0xE1, 0xEE), 0xEF, 0xFE})
"""APP1 to APP13, APP15 and comments. APP0 (JFIF) and APP14 (Adobe) decide how colours are read."""
_JPEG_MARKER_IN_SCAN = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")

_ORIENTATION_TAG = 0x0112
_TIFF_SHORT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A picture file whose header was read. `stream` is what the decoder gets."""

    format: Literal["JPEG", "PNG", "WEBP"]
    width: int
    height: int
    """As stored, before the orientation is applied."""
    stream: bytes
    orientation: int = 1
    """EXIF orientation, 1 to 8."""
    transparent: tuple[int, int, int] | None = None
    """The one colour of a grey or RGB PNG that is transparent, in 8 bits."""
    adobe: bool = False
    """True if a JPEG says that it follows Adobe's conventions: CMYK is stored inverted."""


def read_source(data: bytes) -> Source:
    """Reads the header of a JPEG, PNG or WebP file, told by its first bytes.

    Raises ValueError, IndexError or struct.error if the file is another one, damaged or cut off.
    """
    if data.startswith(b"\xff\xd8\xff"):
        source = _read_jpeg(data)
    elif data.startswith(_PNG_SIGNATURE):
        source = _read_png(data)
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        source = _read_webp(data)
    else:
        raise ValueError("no JPEG, PNG or WebP")
    if source.width < 1 or source.height < 1:
        raise ValueError("a picture without pixels")
    return source


def _read_jpeg(data: bytes) -> Source:
    kept = [b"\xff\xd8"]
    size: tuple[int, int] | None = None
    orientation, adobe, num_scans, pos = 1, False, 0, 2
    for _ in range(_MAX_PARTS):
        pos = data.index(b"\xff", pos) + 1
        marker = data[pos]
        if marker == 0xFF or marker in _JPEG_BARE:
            continue
        if marker == _JPEG_EOI:
            kept.append(b"\xff\xd9")
            break
        (length,) = struct.unpack_from(">H", data, pos + 1)
        body = data[pos + 3 : pos + 1 + length]
        end = pos + 1 + length
        if marker in _JPEG_SOF:
            height, width = struct.unpack_from(">HH", body, 1)
            size = (width, height)
        elif marker == _JPEG_SOS:
            num_scans += 1
            end = _end_of_scan(data, end)
        elif marker == 0xE1 and body.startswith(b"Exif\0\0"):
            orientation = _read_orientation(body)
        elif marker == 0xEE and body.startswith(b"Adobe"):
            adobe = True
        if marker not in _JPEG_DROPPED:
            kept.append(data[pos - 1 : end])
        pos = end
    else:
        raise ValueError("too many segments")
    if size is None or not 1 <= num_scans <= _MAX_SCANS:
        raise ValueError(f"a JPEG without a size, or of {num_scans} scans")
    return Source(
        format="JPEG",
        width=size[0],
        height=size[1],
        stream=b"".join(kept),
        orientation=orientation,
        adobe=adobe,
    )


def _end_of_scan(data: bytes, start: int) -> int:
    marker = _JPEG_MARKER_IN_SCAN.search(data, start)
    if marker is None:
        raise ValueError("cut off inside a scan")
    return marker.start()


def _read_png(data: bytes) -> Source:
    kept = [_PNG_SIGNATURE]
    width, height, depth, colour = struct.unpack_from(">IIBB", data, 16)
    if depth not in (1, 2, 4, 8, 16):
        raise ValueError(f"a PNG of {depth} bits")
    orientation, transparent, pos = 1, None, len(_PNG_SIGNATURE)
    for _ in range(_MAX_PARTS):
        (length,) = struct.unpack_from(">I", data, pos)
        kind, end = data[pos + 4 : pos + 8], pos + 12 + length
        if end > len(data):
            raise ValueError("cut off inside a chunk")
        body = data[pos + 8 : end - 4]
        if kind == b"tRNS" and colour in (_PNG_GREY, _PNG_RGB):
            transparent = _transparent_colour(body, depth, colour)
        elif kind in _PNG_KEPT or (kind == b"tRNS" and colour == _PNG_PALETTE):
            kept.append(data[pos:end])
        elif kind == b"eXIf" and zlib.crc32(kind + body) == int.from_bytes(data[end - 4 : end]):
            orientation = _read_orientation(body)
        elif not kind[0] & 0x20:
            raise ValueError("an unknown critical chunk")
        pos = end
        if kind == b"IEND":
            break
    else:
        raise ValueError("too many chunks")
    return Source(
        format="PNG",
        width=width,
        height=height,
        stream=b"".join(kept),
        orientation=orientation,
        transparent=transparent,
    )


def _transparent_colour(body: bytes, depth: int, colour: int) -> tuple[int, int, int]:
    """The transparent colour as the decoder will show it: 16-bit samples keep their high byte."""
    values = struct.unpack_from(">H" if colour == _PNG_GREY else ">HHH", body)
    if depth == 16:
        scaled = [value >> 8 for value in values]
    else:
        scaled = [(value & ((1 << depth) - 1)) * 255 // ((1 << depth) - 1) for value in values]
    red, green, blue = scaled if len(scaled) == 3 else scaled * 3
    return red, green, blue


def _read_webp(data: bytes) -> Source:
    end = 8 + int.from_bytes(data[4:8], "little")
    if end > len(data):
        raise ValueError("cut off")
    width, height = _webp_size(data)
    orientation, pos = 1, 12
    for _ in range(_MAX_PARTS):
        if pos + 8 > end:
            break
        (length,) = struct.unpack_from("<I", data, pos + 4)
        if data[pos : pos + 4] == b"EXIF":
            orientation = _read_orientation(data[pos + 8 : pos + 8 + length])
        pos += 8 + length + length % 2
    else:
        raise ValueError("too many chunks")
    return Source(
        format="WEBP",
        width=width,
        height=height,
        stream=data[:end],
        orientation=orientation,
    )


def _webp_size(data: bytes) -> tuple[int, int]:
    kind = data[12:16]
    if kind == b"VP8X":
        wide, high = data[24:27], data[27:30]
        return int.from_bytes(wide, "little") + 1, int.from_bytes(high, "little") + 1
    if kind == b"VP8L" and data[20] == 0x2F:
        (bits,) = struct.unpack_from("<I", data, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    raise ValueError("a WebP of unknown kind")


def _read_orientation(exif: bytes) -> int:
    """The orientation in an EXIF block, 1 where there is none. Damaged EXIF spoils no picture.

    Read here and not by Pillow, whose reader complains about odd blocks by process-wide warnings.
    """
    tiff = exif.removeprefix(b"Exif\0\0")
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None:
        return 1
    try:
        (start,) = struct.unpack_from(f"{order}I", tiff, 4)
        (num_entries,) = struct.unpack_from(f"{order}H", tiff, start)
        for entry in range(start + 2, start + 2 + 12 * num_entries, 12):
            tag, kind, count, value = struct.unpack_from(f"{order}HHIH", tiff, entry)
            if tag == _ORIENTATION_TAG and kind == _TIFF_SHORT:
                return value if count == 1 and 1 <= value <= 8 else 1
    except struct.error:
        pass
    return 1
