"""Bytes of a JPEG, PNG or WebP file to upright, opaque RGB.

All functions block and are safe in any thread. They work on strips of rows, so that no single
call holds the interpreter for long and no second copy of a large picture is made.
"""

from __future__ import annotations

import hashlib
import io
import math
import struct

import numpy as np
from PIL import Image, ImageChops
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from selfserve.errors import OutOfMemory, UnsupportedImage
from selfserve.images.formats import Source, read_source
from selfserve.images.limits import ImageLimits
from selfserve.request import Picture

_DECODERS: dict[str, type[ImageFile]] = {
    "JPEG": JpegImageFile,
    "PNG": PngImageFile,
    "WEBP": WebPImageFile,
}
_STRIP_PIXELS = 1 << 20
_WHITE = (255, 255, 255)

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What undoes each EXIF orientation."""


def inspect(data: bytes, *, param: str | None, limits: ImageLimits) -> Source:
    """Reads a file's header and checks it against the limits; decodes nothing.

    Raises UnsupportedImage or ImageTooLarge.
    """
    limits.check_source(len(data), param=param)
    try:
        source = read_source(data)
    except (ValueError, IndexError, struct.error) as error:
        raise _unsupported(param) from error
    limits.check_size(source.width, source.height, param=param)
    return source


def decode(source: Source, *, param: str | None, limits: ImageLimits) -> Picture:
    """Decodes the first frame: upright, alpha on white, 8 bits a channel.

    A large picture is reduced, a tiny or a thin one padded, as `limits` says. Peak memory is about
    4 bytes for each stored pixel (WebP: 16) and 7 for each kept one. Raises UnsupportedImage if
    the file is damaged.
    """
    try:
        image = _load(source)
        factor = max(1, math.isqrt(source.width * source.height // limits.kept_pixels))
        opaque = _to_rgb(image, source, factor)
        image.close()
        del image
        opaque = _reduced(opaque, limits)
        if source.orientation in _UPRIGHT:
            opaque = opaque.transpose(_UPRIGHT[source.orientation])
        opaque = _reduced(_pad(opaque, limits), limits)
        rgb = opaque.tobytes()
    except MemoryError as error:
        raise OutOfMemory("not enough memory to decode the picture", param=param) from error
    except _Damaged as error:
        raise _unsupported(param) from error
    digest = hashlib.sha256(f"{opaque.width}x{opaque.height}:".encode())
    digest.update(rgb)
    return Picture(width=opaque.width, height=opaque.height, rgb=rgb, digest=digest.hexdigest())


class _Damaged(Exception):
    pass


def _unsupported(param: str | None) -> UnsupportedImage:
    return UnsupportedImage(
        "unsupported or damaged image: it must be a whole JPEG, PNG or WebP file", param=param
    )


def _load(source: Source) -> ImageFile:
    """Opens the file with the decoder of its format, without Pillow's guessing and warnings."""
    try:
        image = _DECODERS[source.format](io.BytesIO(source.stream))
        if image.size == (source.width, source.height):
            image.load()
            return image
    except MemoryError:
        raise
    except Exception as error:  # decoders raise a dozen types, SyntaxError among them
        raise _Damaged from error
    raise _Damaged("the decoder sees another size than the header has")


def _to_rgb(image: Image.Image, source: Source, factor: int) -> Image.Image:
    """An opaque copy, both sides divided by `factor` (rounded up) by averaging."""
    width, height = image.size
    out = Image.new("RGB", (-(-width // factor), -(-height // factor)))
    rows = max(1, _STRIP_PIXELS // (width * factor)) * factor
    for top in range(0, height, rows):
        strip = image.crop((0, top, width, min(top + rows, height)))
        opaque = _flatten(strip, source)
        out.paste(opaque.reduce(factor) if factor > 1 else opaque, (0, top // factor))
    return out


def _flatten(strip: Image.Image, source: Source) -> Image.Image:
    if strip.mode == "I;16":  # little-endian samples: their high bytes are the 8-bit picture
        strip = Image.frombytes("L", strip.size, strip.tobytes()[1::2])
    elif strip.mode == "CMYK" and not source.adobe:  # Pillow takes every CMYK for Adobe's
        strip = ImageChops.invert(strip)
    if strip.has_transparency_data:
        layer = strip.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, _WHITE), layer).convert("RGB")
    rgb = strip.convert("RGB")
    if source.transparent is not None:
        rgb.paste(_WHITE, mask=_equals(rgb, source.transparent))
    return rgb


def _equals(rgb: Image.Image, colour: tuple[int, int, int]) -> Image.Image:
    """A mask of the pixels that have `colour`: 255 there, 0 elsewhere."""
    red, green, blue = (
        band.point([255 if value == wanted else 0 for value in range(256)])
        for band, wanted in zip(rgb.split(), colour, strict=True)
    )
    return ImageChops.darker(ImageChops.darker(red, green), blue)


def _reduced(image: Image.Image, limits: ImageLimits) -> Image.Image:
    """The whole picture in at most `kept_pixels`."""
    width, height = image.size
    if width * height <= limits.kept_pixels:
        return image
    scale = math.sqrt(limits.kept_pixels / (width * height))
    size = (max(1, int(width * scale)), max(1, int(height * scale)))
    return image.resize(size, Image.Resampling.BICUBIC)


def _pad(image: Image.Image, limits: ImageLimits) -> Image.Image:
    """Repeats the edge pixels outwards up to the least sides: a red dot becomes a red square."""
    least = max(limits.min_side, -(-max(image.size) // limits.ratio))
    wide, high = max(0, least - image.width), max(0, least - image.height)
    if not wide and not high:
        return image
    around = ((high // 2, high - high // 2), (wide // 2, wide - wide // 2), (0, 0))
    return Image.fromarray(np.pad(np.asarray(image), around, mode="edge"))
