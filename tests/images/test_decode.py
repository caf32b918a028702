from __future__ import annotations

import hashlib
import io
import struct
from dataclasses import replace

import pytest
from PIL import Image, ImageDraw, ImageOps
from tests.support.picture_files import (
    GREY,
    PALETTE,
    RGB,
    RGBA,
    encoded,
    png_chunk,
    png_file,
    without_segments,
)

from selfserve.errors import ImageTooLarge, UnsupportedImage
from selfserve.images.decode import decode, inspect
from selfserve.images.limits import ImageLimits
from selfserve.request import Picture

PARAM = "messages[0].content[0].image_url.url"
EXACT = ImageLimits(min_side=1)
"""No padding: the pixels are those of the file."""


def read(data: bytes, limits: ImageLimits = EXACT) -> Picture:
    return decode(inspect(data, param=PARAM, limits=limits), param=PARAM, limits=limits)


def pixels(data: bytes) -> list[tuple[int, ...]]:
    rgb = read(data).rgb
    return [tuple(rgb[at : at + 3]) for at in range(0, len(rgb), 3)]


def as_image(picture: Picture) -> Image.Image:
    return Image.frombytes("RGB", (picture.width, picture.height), picture.rgb)


def photo(width: int = 40, height: int = 24) -> Image.Image:
    """A smooth picture whose four corners differ."""
    across = Image.linear_gradient("L").resize((height, width)).transpose(Image.Transpose.ROTATE_90)
    down = Image.linear_gradient("L").resize((width, height))
    return Image.merge("RGB", [across, down, Image.new("L", (width, height), 90)])


def damaged(data: bytes) -> None:
    """Asserts that the file is refused as unsupported or damaged."""
    with pytest.raises(UnsupportedImage, match="unsupported or damaged image") as caught:
        read(data)
    assert caught.value.param == PARAM
    assert caught.value.status == 400


# The formats


@pytest.mark.parametrize(
    ("file_format", "options"),
    [
        ("PNG", {}),
        ("PNG", {"compress_level": 0}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"quality": 90}),
        ("JPEG", {"quality": 90}),
        ("JPEG", {"progressive": True}),
        ("JPEG", {"subsampling": "4:2:0", "optimize": True}),
    ],
)
def test_pixels_are_those_that_pillow_reads(file_format: str, options: dict[str, object]) -> None:
    data = encoded(photo(), file_format, **options)
    picture = read(data)
    assert (picture.width, picture.height) == (40, 24)
    assert picture.rgb == Image.open(io.BytesIO(data)).convert("RGB").tobytes()


def test_the_digest_covers_size_and_pixels_and_nothing_else() -> None:
    picture = read(encoded(photo(), "PNG"))
    assert picture.digest == hashlib.sha256(b"40x24:" + picture.rgb).hexdigest()
    assert read(encoded(photo(), "WEBP", lossless=True, exact=True)) == picture
    tall = Image.frombytes("RGB", (24, 40), picture.rgb)
    assert read(encoded(tall, "PNG")).digest != picture.digest
    other = photo()
    other.putpixel((39, 23), (1, 2, 3))
    assert read(encoded(other, "PNG")).digest != picture.digest


def test_only_the_first_frame_of_a_webp_counts() -> None:
    frames = [Image.new("RGB", (5, 4), colour) for colour in ("red", "lime", "blue")]
    data = encoded(
        frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True, duration=50
    )
    assert pixels(data) == [(255, 0, 0)] * 20


def test_only_the_default_picture_of_an_animated_png_counts() -> None:
    frames = [Image.new("RGB", (5, 4), colour) for colour in ("red", "lime", "blue")]
    data = encoded(frames[0], "PNG", save_all=True, append_images=frames[1:], duration=50)
    assert b"acTL" in data
    assert pixels(data) == [(255, 0, 0)] * 20


def test_a_jpeg_with_a_second_picture_behind_it_is_the_first() -> None:
    red, blue = Image.new("RGB", (16, 16), "red"), Image.new("RGB", (16, 16), "blue")
    data = encoded(red, "MPO", save_all=True, append_images=[blue])
    assert read(data) == read(encoded(red, "JPEG"))
    assert read(data + b"\xff\xda" * 1000) == read(data)


@pytest.mark.parametrize("file_format", ["GIF", "BMP", "TIFF", "AVIF", "PPM", "ICO", "PDF", "TGA"])
def test_other_formats_are_refused(file_format: str) -> None:
    damaged(encoded(photo(), file_format))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"\xff\xd8\xff",
        b"\x89PNG\r\n\x1a\n",
        b"RIFF\x04\0\0\0WEBP",
        b"<html><body>404 Not Found</body></html>",
        b'<svg xmlns="http://www.w3.org/2000/svg" width="10" height="10"/>',
        b"%PDF-1.7\n",
        b"\0\0\0\x18ftypheic\0\0\0\0mif1heic",
        b"\0" * 1000,
    ],
)
def test_what_is_no_picture_is_refused(data: bytes) -> None:
    damaged(data)


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "WEBP"])
def test_a_file_cut_off_anywhere_is_refused(file_format: str) -> None:
    data = encoded(photo(), file_format, **({"lossless": True} if file_format == "WEBP" else {}))
    for end in range(0, len(data) - 1, 7):
        damaged(data[:end])


@pytest.mark.parametrize("level", [0, 9])
def test_a_png_whose_bits_flipped_is_refused(level: int) -> None:
    data = bytearray(encoded(photo(), "PNG", compress_level=level))
    data[data.index(b"IDAT") + 40] ^= 1
    damaged(bytes(data))


def test_a_png_with_too_few_pixels_is_refused() -> None:
    damaged(png_file(8, 8, depth=8, colour=GREY, row=b"\x80" * 7))


def test_headers_that_disagree_are_refused() -> None:
    data = encoded(photo(), "JPEG")
    start = data.index(b"\xff\xc0")
    frame = data[start : start + 2 + int.from_bytes(data[start + 2 : start + 4], "big")]
    larger = frame[:5] + struct.pack(">HH", 9000, 4000) + frame[9:]
    damaged(data[:start] + larger + data[start:])
    damaged(data[:start] + frame + larger + data[start + len(frame) :])


def test_a_decoder_that_sees_another_size_than_was_checked_is_not_trusted() -> None:
    for file_format in ("PNG", "JPEG", "WEBP"):
        source = inspect(encoded(photo(), file_format), param=PARAM, limits=EXACT)
        with pytest.raises(UnsupportedImage):
            decode(replace(source, width=39), param=PARAM, limits=EXACT)


# Colours


def test_alpha_is_laid_on_white_and_hidden_colours_never_show() -> None:
    stripes = Image.new("RGBA", (12, 12), (0, 0, 0, 0))
    draw = ImageDraw.Draw(stripes)
    for x in range(0, 12, 2):
        draw.line([(x, 0), (x, 11)], fill=(255, 0, 255, 0))
    stripes.putpixel((3, 3), (255, 0, 0, 255))
    stripes.putpixel((4, 3), (255, 0, 0, 128))
    expected = [(255, 255, 255)] * 144
    expected[3 * 12 + 3] = (255, 0, 0)
    expected[3 * 12 + 4] = (255, 127, 127)
    assert pixels(encoded(stripes, "PNG")) == expected
    assert pixels(encoded(stripes, "WEBP", lossless=True, exact=True)) == expected


def test_grey_with_alpha_is_laid_on_white() -> None:
    image = Image.new("LA", (3, 1))
    image.putdata([(0, 0), (100, 255), (0, 51)])
    assert pixels(encoded(image, "PNG")) == [(255,) * 3, (100,) * 3, (204,) * 3]


def palette_image() -> Image.Image:
    image = Image.new("P", (4, 1))
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9])
    image.putdata([0, 1, 2, 3])
    return image


def test_a_palette_is_looked_up() -> None:
    assert pixels(encoded(palette_image(), "PNG")) == [
        (255, 0, 0),
        (0, 255, 0),
        (0, 0, 255),
        (9, 9, 9),
    ]


def test_a_palette_with_transparency_is_laid_on_white() -> None:
    one = encoded(palette_image(), "PNG", transparency=1)
    assert pixels(one) == [(255, 0, 0), (255, 255, 255), (0, 0, 255), (9, 9, 9)]
    graded = encoded(palette_image(), "PNG", transparency=bytes([0, 255, 51, 255]))
    assert pixels(graded) == [(255, 255, 255), (0, 255, 0), (204, 204, 255), (9, 9, 9)]


def test_one_bit_is_black_and_white() -> None:
    data = png_file(8, 1, depth=1, colour=GREY, row=b"\xa5")
    assert pixels(data) == [(255 * int(bit),) * 3 for bit in "10100101"]


@pytest.mark.parametrize(
    ("depth", "row", "expected"),
    [
        (2, b"\x1b", [0, 85, 170, 255]),
        (4, b"\x0f\x5a", [0, 255, 85, 170]),
        (8, b"\x00\x7f\x80\xff", [0, 127, 128, 255]),
        (16, b"\0\0\x7f\xff\x80\0\xff\xff", [0, 127, 128, 255]),
    ],
)
def test_grey_of_every_depth_is_scaled(depth: int, row: bytes, expected: list[int]) -> None:
    data = png_file(4, 1, depth=depth, colour=GREY, row=row)
    assert pixels(data) == [(grey,) * 3 for grey in expected]


def test_colours_of_16_bits_are_scaled() -> None:
    row = struct.pack(">6H", 0xFFFF, 0x8000, 0x00FF, 0x1234, 0, 0x7FFF)
    data = png_file(2, 1, depth=16, colour=RGB, row=row)
    assert pixels(data) == [(255, 128, 0), (0x12, 0, 0x7F)]


def test_colours_of_16_bits_with_alpha_are_laid_on_white() -> None:
    row = struct.pack(">8H", 0xFFFF, 0, 0, 0xFFFF, 0, 0, 0, 0)
    data = png_file(2, 1, depth=16, colour=RGBA, row=row)
    assert pixels(data) == [(255, 0, 0), (255, 255, 255)]


@pytest.mark.parametrize(
    ("depth", "row", "key", "expected"),
    [
        (1, b"\x50", 0, [255, 255, 255, 255]),
        (1, b"\x50", 1, [0, 255, 0, 255]),
        (2, b"\x1b", 1, [0, 255, 170, 255]),
        (4, b"\x0f\x5a", 5, [0, 255, 255, 170]),
        (8, b"\x00\x7f\x80\xff", 0x7F, [0, 255, 128, 255]),
        (16, b"\0\0\x7f\xff\x80\0\xff\xff", 0x8000, [0, 127, 255, 255]),
    ],
)
def test_a_transparent_grey_is_white(depth: int, row: bytes, key: int, expected: list[int]) -> None:
    extra = png_chunk(b"tRNS", struct.pack(">H", key))
    data = png_file(4, 1, depth=depth, colour=GREY, row=row, extra=extra)
    assert pixels(data) == [(grey,) * 3 for grey in expected]


def test_a_transparent_colour_is_white_and_its_neighbours_stay() -> None:
    row = bytes([1, 2, 3, 1, 2, 4, 0, 2, 3])
    extra = png_chunk(b"tRNS", struct.pack(">HHH", 1, 2, 3))
    data = png_file(3, 1, depth=8, colour=RGB, row=row, extra=extra)
    assert pixels(data) == [(255, 255, 255), (1, 2, 4), (0, 2, 3)]


def near(found: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return all(abs(a - b) <= 3 for a, b in zip(found, wanted, strict=True))


def test_cmyk_as_adobe_stores_it_keeps_its_colours() -> None:
    for ink, colour in [
        ((0, 255, 255, 0), (255, 0, 0)),
        ((255, 0, 255, 0), (0, 255, 0)),
        ((0, 0, 0, 255), (0, 0, 0)),
        ((0, 0, 0, 0), (255, 255, 255)),
    ]:
        data = encoded(Image.new("CMYK", (8, 8), ink), "JPEG", quality=95)
        assert b"Adobe" in data
        assert near(pixels(data)[0], colour)


def test_cmyk_that_is_not_adobes_is_not_inverted() -> None:
    stored = Image.new("CMYK", (8, 8), (255, 0, 0, 255))  # Pillow writes it inverted
    data = without_segments(encoded(stored, "JPEG", quality=95), 0xEE)
    assert near(pixels(data)[0], (255, 0, 0))


def test_a_grey_jpeg_has_three_equal_channels() -> None:
    assert near(pixels(encoded(Image.new("L", (8, 8), 77), "JPEG"))[0], (77, 77, 77))


# Orientation


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "WEBP"])
def test_the_orientation_is_applied(file_format: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if file_format == "WEBP" else {}
    data = encoded(photo(), file_format, exif=exif, **options)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    picture = read(data)
    assert (picture.width, picture.height) == upright.size
    assert picture.rgb == upright.tobytes()


def test_exif_in_both_byte_orders_is_read() -> None:
    for order, mark in (("<", b"II*\0"), (">", b"MM\0*")):
        tiff = mark + struct.pack(f"{order}IHHHIHH", 8, 1, 0x0112, 3, 1, 6, 0)
        extra = png_chunk(b"eXIf", tiff)
        data = png_file(4, 2, depth=8, colour=GREY, row=b"\1\2\3\4", extra=extra)
        assert (read(data).width, read(data).height) == (2, 4)


@pytest.mark.parametrize(
    "tiff",
    [
        b"",
        b"II*\0",
        b"II*\0\xff\xff\xff\xff",
        b"MM\0*\0\0\0\x08\xff\xff\x01\x12",
        b"II*\0" + struct.pack("<IHHHIHH", 8, 1, 0x0112, 3, 1, 9, 0),
        b"II*\0" + struct.pack("<IHHHIHH", 8, 1, 0x0112, 3, 2**32 - 1, 6, 0),
        b"II*\0" + struct.pack("<IHHHIHH", 8, 1, 0x0112, 3, 0, 6, 0),
        b"II*\0" + struct.pack("<IHHHIHH", 8, 1, 0x0112, 3, 1, 0, 0),
        b"junk" * 10,
    ],
)
def test_damaged_exif_spoils_no_picture(tiff: bytes) -> None:
    data = png_file(4, 2, depth=8, colour=GREY, row=b"\1\2\3\4", extra=png_chunk(b"eXIf", tiff))
    assert (read(data).width, read(data).height) == (4, 2)
    plain = encoded(photo(), "JPEG")
    body = b"Exif\0\0" + tiff
    segment = b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body
    assert read(plain[:2] + segment + plain[2:]) == read(plain)


def test_exif_with_a_wrong_checksum_is_ignored() -> None:
    tiff = b"II*\0" + struct.pack("<IHHHIHH", 8, 1, 0x0112, 3, 1, 6, 0)
    chunk = png_chunk(b"eXIf", tiff)
    for extra, size in ((chunk, (2, 4)), (chunk[:-1] + bytes([chunk[-1] ^ 1]), (4, 2))):
        picture = read(png_file(4, 2, depth=8, colour=GREY, row=b"\1\2\3\4", extra=extra))
        assert (picture.width, picture.height) == size


# Sizes


def test_a_tiny_picture_is_padded_with_its_edges() -> None:
    dot = read(encoded(Image.new("RGB", (1, 1), "red"), "PNG"), ImageLimits(min_side=16))
    assert (dot.width, dot.height) == (16, 16)
    assert dot.rgb == b"\xff\0\0" * 256
    pair = Image.new("RGB", (2, 20), "red")
    pair.paste("blue", (1, 0, 2, 20))
    wide = read(encoded(pair, "PNG"), ImageLimits(min_side=6))
    assert (wide.width, wide.height) == (6, 20)
    assert wide.rgb == (b"\xff\0\0" * 3 + b"\0\0\xff" * 3) * 20


def test_a_picture_of_the_shortest_side_is_left_alone() -> None:
    data = encoded(photo(16, 17), "PNG")
    assert read(data, ImageLimits()) == read(data)


def test_a_large_picture_is_reduced_to_the_kept_size_by_averaging() -> None:
    whole = photo(102, 80)
    kept = ImageLimits(kept_pixels=51 * 40, min_side=1)
    assert as_image(read(encoded(whole, "PNG"), kept)).tobytes() == whole.reduce(2).tobytes()
    assert read(encoded(whole, "PNG"), ImageLimits(kept_pixels=102 * 80)).rgb == whole.tobytes()


@pytest.mark.parametrize("size", [(101, 79), (79, 50), (33, 31), (1000, 70), (1, 2000), (2000, 3)])
def test_no_picture_has_more_than_the_kept_pixels(size: tuple[int, int]) -> None:
    picture = read(encoded(photo(*size), "PNG"), ImageLimits(kept_pixels=1000, min_side=4))
    assert picture.width * picture.height <= 1000
    assert len(picture.rgb) == 3 * picture.width * picture.height
    ratio = min(16.0, max(size) / min(size))
    assert max(picture.width, picture.height) / min(picture.width, picture.height) == (
        pytest.approx(ratio, rel=0.2)
    )


@pytest.mark.parametrize("size", [(1, 1000), (12000, 1), (16, 4000)])
def test_a_thin_picture_is_padded_until_something_of_it_can_be_seen(size: tuple[int, int]) -> None:
    picture = read(encoded(Image.new("RGB", size, "red"), "PNG"), ImageLimits())
    sides = (picture.width, picture.height)
    assert max(sides) <= 16 * min(sides)
    assert (sides[0] < sides[1]) == (size[0] < size[1])
    assert picture.rgb == b"\xff\0\0" * (sides[0] * sides[1])


def test_a_picture_of_many_strips_is_whole() -> None:
    image = Image.effect_noise((2500, 1000), 50).convert("RGB")
    assert read(encoded(image, "PNG", compress_level=1)).rgb == image.tobytes()


def test_a_picture_of_many_strips_is_reduced_as_one() -> None:
    image = Image.effect_noise((2502, 999), 50).convert("RGB")
    picture = read(encoded(image, "PNG", compress_level=1), ImageLimits(kept_pixels=834 * 333))
    assert (picture.width, picture.height) == (834, 333)
    assert picture.rgb == image.reduce(3).tobytes()


def test_limits_hold_to_the_pixel_and_the_byte() -> None:
    data = encoded(Image.new("RGB", (30, 20)), "PNG")
    fits = ImageLimits(source_bytes=len(data), pixels=600, side=30, min_side=1)
    assert read(data, fits).width == 30
    for limits in (
        ImageLimits(source_bytes=len(data) - 1),
        ImageLimits(pixels=599),
        ImageLimits(side=29),
    ):
        with pytest.raises(ImageTooLarge) as caught:
            read(data, limits)
        assert (caught.value.status, caught.value.param) == (413, PARAM)


@pytest.mark.parametrize(
    "size", [(19000, 19000), (1, 60000), (60000, 1), (12001, 1), (6400, 6400), (2**31, 2**31)]
)
def test_the_size_is_refused_from_the_header_alone(size: tuple[int, int]) -> None:
    header = struct.pack(">IIBBBBB", *size, 8, PALETTE, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header)
    with pytest.raises(ImageTooLarge):
        read(png + png_chunk(b"IDAT", b"") + png_chunk(b"IEND", b""))


def test_the_size_of_each_kind_of_webp_is_read_from_its_header() -> None:
    def webp(kind: bytes, body: bytes) -> bytes:
        chunk = kind + struct.pack("<I", len(body)) + body
        return b"RIFF" + struct.pack("<I", len(chunk) + 4) + b"WEBP" + chunk

    lossless = struct.pack("<I", 12000 | 12000 << 14)
    lossy = b"\x9d\x01\x2a" + struct.pack("<HH", 12001, 9)
    extended = bytes(4) + (12000).to_bytes(3, "little") + (9).to_bytes(3, "little")
    for data in (
        webp(b"VP8L", b"\x2f" + lossless + bytes(9)),
        webp(b"VP8 ", b"\x10\0\0" + lossy),
        webp(b"VP8X", extended),
    ):
        with pytest.raises(ImageTooLarge, match="got 12001 x"):
            read(data)
