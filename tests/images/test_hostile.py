"""Files that cost little to send and much to decode: time and peak memory stay small."""

from __future__ import annotations

import contextlib
import io
import struct
import subprocess
import sys
import time
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tests.support.picture_files import GREY, PALETTE, RGB, encoded, png_chunk, png_file

from selfserve.errors import ImageTooLarge, UnsupportedImage
from selfserve.images.decode import decode, inspect
from selfserve.images.limits import ImageLimits

MIB = 1 << 20

CHILD = """
import resource, sys
from selfserve.errors import RequestError
from selfserve.images.decode import decode, inspect
from selfserve.images.limits import ImageLimits
data = sys.stdin.buffer.read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    source = inspect(data, param=None, limits=ImageLimits())
    picture = decode(source, param=None, limits=ImageLimits())
    outcome = f"{picture.width}x{picture.height}"
except RequestError as error:
    outcome = type(error).__name__
print(outcome, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux")


def outcome_and_memory(data: bytes) -> tuple[str, int]:
    """What became of the file in a fresh process, and by how many bytes its peak memory rose."""
    command = [sys.executable, "-W", "error", "-c", CHILD]
    done = subprocess.run(command, input=data, capture_output=True, check=True)
    outcome, kib = done.stdout.decode().split()
    return outcome, int(kib) * 1024


def test_a_bomb_of_361_megapixels_is_refused_without_decoding() -> None:
    bomb = png_file(19000, 19000, depth=1, colour=GREY, row=bytes(2375))
    assert len(bomb) < 100_000
    outcome, memory = outcome_and_memory(bomb)
    assert outcome == "ImageTooLarge"
    assert memory < 10 * MIB


def test_a_strip_of_60000_pixels_is_refused_without_decoding() -> None:
    outcome, memory = outcome_and_memory(png_file(1, 60000, depth=8, colour=RGB, row=bytes(3)))
    assert outcome == "ImageTooLarge"
    assert memory < 10 * MIB


@pytest.mark.parametrize(
    ("depth", "colour", "row", "extra"),
    [
        (1, GREY, b"\x55" * 788, b""),
        (8, PALETTE, bytes(6300), png_chunk(b"PLTE", bytes(3)) + png_chunk(b"tRNS", b"\0")),
        (8, RGB, bytes(18900), png_chunk(b"tRNS", bytes(6))),
    ],
    ids=["one bit", "palette", "colour"],
)
def test_the_largest_picture_that_is_taken_costs_less_than_200_mb(
    depth: int, colour: int, row: bytes, extra: bytes
) -> None:
    data = png_file(6300, 6300, depth=depth, colour=colour, row=row, extra=extra)
    outcome, memory = outcome_and_memory(data)
    assert outcome == "2048x2048"
    assert memory < 200_000_000


@pytest.mark.parametrize("place", ["extra", "after"])
def test_compressed_text_and_profiles_in_a_png_are_never_unpacked(place: str) -> None:
    packed = zlib.compress(bytes(64 * MIB))
    chunks = png_chunk(b"zTXt", b"k\0\0" + packed) + png_chunk(b"iCCP", b"k\0\0" + packed)
    chunks += png_chunk(b"iTXt", b"k\0\1\0\0\0" + packed)
    row = b"\x80" * 20
    options = {place: chunks}
    bomb = png_file(20, 20, depth=8, colour=GREY, row=row, **options)  # type: ignore[arg-type]
    outcome, memory = outcome_and_memory(bomb)
    assert outcome == "20x20"
    assert memory < 20 * MIB


def refused_within(data: bytes, seconds: float) -> None:
    limits = ImageLimits()
    start = time.perf_counter()
    with pytest.raises(UnsupportedImage):
        decode(inspect(data, param=None, limits=limits), param=None, limits=limits)
    assert time.perf_counter() - start < seconds


def test_a_gif_of_5000_frames_is_refused_at_once() -> None:
    frames = [Image.new("P", (2, 2), n % 2) for n in range(50)]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    refused_within(data[:-1] + data[200:-1] * 100 + b";", 1)


def test_a_jpeg_of_thousands_of_scans_is_refused_at_once() -> None:
    data = encoded(Image.new("RGB", (2000, 2000)), "JPEG", progressive=True)
    last = data[data.rindex(b"\xff\xda") : -2]
    refused_within(data[:-2] + last * 5000 + b"\xff\xd9", 2)


def test_a_png_of_countless_empty_chunks_is_refused_at_once() -> None:
    empty = png_chunk(b"IDAT", b"") * 200_000
    refused_within(png_file(2, 2, depth=8, colour=GREY, row=bytes(2), after=empty), 2)


def test_a_webp_of_countless_empty_chunks_is_refused_at_once() -> None:
    data = encoded(Image.new("RGB", (8, 8)), "WEBP", lossless=True)
    data += (b"JUNK" + bytes(4)) * 200_000
    refused_within(data[:4] + struct.pack("<I", len(data) - 8) + data[8:], 2)


def test_frames_after_the_first_are_never_decoded() -> None:
    frames = [Image.effect_noise((40, 40), 90).convert("RGB") for _ in range(2)]
    whole = encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    second = whole.rindex(b"VP8L") + 8
    data = whole[: second + 5] + b"\xff" * (len(whole) - second - 5)
    image = Image.open(io.BytesIO(data))
    image.seek(1)
    with pytest.raises(OSError, match="failed to read next frame"):
        image.load()
    limits = ImageLimits()
    picture = decode(inspect(data, param=None, limits=limits), param=None, limits=limits)
    assert picture.rgb == frames[0].tobytes()


def sample_files() -> list[bytes]:
    """One small file of each kind, with the parts that the header reader looks into."""
    exif = Image.Exif()
    exif[0x0112] = 6
    image = Image.linear_gradient("L").resize((9, 7))
    key = png_chunk(b"tRNS", b"\0\x05")
    return [
        encoded(image, "JPEG", exif=exif),
        encoded(image, "JPEG", progressive=True),
        encoded(image.convert("CMYK"), "JPEG"),
        encoded(image, "PNG", exif=exif),
        png_file(4, 2, depth=8, colour=GREY, row=b"\1\2\3\4", extra=key),
        encoded(image.convert("P"), "PNG", transparency=b"\0\x09"),
        encoded(image.convert("RGBA"), "WEBP", lossless=True, exif=exif),
        encoded(image.convert("RGB"), "WEBP"),
    ]


@given(data=st.data())
def test_a_file_with_wrong_bytes_is_decoded_or_refused(data: st.DataObject) -> None:
    file = bytearray(data.draw(st.sampled_from(SAMPLES)))
    edits = st.tuples(st.integers(0, min(len(file), 200) - 1), st.integers(0, 255))
    for at, value in data.draw(st.lists(edits, min_size=1, max_size=4)):
        file[at] = value
    limits = ImageLimits(pixels=100_000)
    with contextlib.suppress(UnsupportedImage, ImageTooLarge):
        source = inspect(bytes(file), param=None, limits=limits)
        picture = decode(source, param=None, limits=limits)
        assert len(picture.rgb) == 3 * picture.width * picture.height


SAMPLES = sample_files()
