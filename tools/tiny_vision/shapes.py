"""Made pictures with true labels, and what libmtmd does to a picture before the encoder sees it.

The areas of the colours are disjoint in HSV (no dark orange, no wine red), so that every picture
has one true answer. The colours of CSS and Pillow with these names lie inside the areas.
"""

from __future__ import annotations

import colorsys
import io
import math
import random
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

Rgb = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Area:
    """Where a colour lies: ranges of hue (degrees), saturation and value, and colours in it that
    people like to use."""

    hue: tuple[float, float]
    saturation: tuple[float, float]
    value: tuple[float, float]
    anchors: tuple[str, ...]


COLORS = {
    "red": Area((-8, 8), (0.80, 1), (0.78, 1), ("ff0000", "dc143c", "e02020")),
    "green": Area((95, 150), (0.60, 1), (0.42, 1), ("008000", "00ff00", "228b22")),
    "blue": Area((212, 245), (0.70, 1), (0.60, 1), ("0000ff", "1e60ff", "0000cd")),
    "yellow": Area((52, 62), (0.75, 1), (0.86, 1), ("ffff00", "ffff00", "ffee22")),
    "black": Area((0, 360), (0, 1), (0, 0.07), ("000000", "000000", "0a0a0a")),
    "white": Area((0, 360), (0, 0.03), (0.96, 1), ("ffffff", "ffffff", "fafafa")),
    "orange": Area((25, 39), (0.88, 1), (0.92, 1), ("ffa500", "ff8c00", "ff8000")),
    "purple": Area((268, 302), (0.60, 1), (0.42, 0.75), ("800080", "6a0dad", "9932cc")),
    "pink": Area((325, 352), (0.22, 0.62), (0.93, 1), ("ffc0cb", "ff69b4", "ffb6c1")),
    "brown": Area((15, 30), (0.60, 0.95), (0.32, 0.60), ("8b4513", "a52a2a", "964b00")),
    "gray": Area((0, 360), (0, 0.05), (0.38, 0.66), ("808080", "808080", "696969")),
}
NAMES = tuple(COLORS)
SHAPES = ("circle", "square", "triangle", "star")
SOLID = "solid"
"""The label of a picture with no shape on it."""
SIZE = 96
"""Pixels of the encoder's side."""
MIN_CONTRAST = 110
"""Sum of the channels' differences; below it a person could not tell two colours apart."""


@dataclass(frozen=True, slots=True)
class Label:
    """What is true of a picture. The background of a solid one is its colour."""

    color: str
    shape: str
    background: str


def every_label() -> list[Label]:
    """All that a picture can show."""
    shaped = [Label(c, s, b) for c in NAMES for s in SHAPES for b in NAMES if b != c]
    return shaped + [Label(c, SOLID, c) for c in NAMES]


def random_label(rng: random.Random) -> Label:
    color = rng.choice(NAMES)
    if rng.random() < 0.15:
        return Label(color, SOLID, color)
    return Label(color, rng.choice(SHAPES), rng.choice([n for n in NAMES if n != color]))


def make(rng: random.Random, *, shape: str | None = None) -> tuple[Image.Image, Label]:
    """A picture of random size, place, noise and compression; `shape` may be SOLID."""
    shape = shape or (SOLID if rng.random() < 0.15 else rng.choice(SHAPES))
    color = rng.choice(NAMES)
    label, ink, paper = _colors(rng, color, shape)
    image = Image.new("RGB", _size(rng), paper)
    if shape != SOLID:
        _draw(rng, image, shape, ink)
    if rng.random() < 0.4:
        image = _noisy(rng, image)
    if rng.random() < 0.4:
        image = _compressed(rng, image)
    return image, label


def _colors(rng: random.Random, color: str, shape: str) -> tuple[Label, Rgb, Rgb]:
    while True:
        ink = _pick(rng, color)
        if shape == SOLID:
            return Label(color, SOLID, color), ink, ink
        background = rng.choice([n for n in NAMES if n != color])
        paper = _pick(rng, background)
        if sum(abs(a - b) for a, b in zip(ink, paper, strict=True)) > MIN_CONTRAST:
            return Label(color, shape, background), ink, paper


def _pick(rng: random.Random, name: str) -> Rgb:
    area = COLORS[name]
    if rng.random() < 0.4:
        red, green, blue = bytes.fromhex(rng.choice(area.anchors))
        return red, green, blue
    hue = rng.uniform(*area.hue) % 360 / 360
    r, g, b = colorsys.hsv_to_rgb(hue, rng.uniform(*area.saturation), rng.uniform(*area.value))
    return round(255 * r), round(255 * g), round(255 * b)


def _size(rng: random.Random) -> tuple[int, int]:
    """Squares mostly; others are padded with black bars by libmtmd."""
    width = height = rng.randint(64, 320)
    if rng.random() < 0.4:
        width, height = rng.randint(64, 320), rng.randint(64, 320)
        width, height = max(width, height // 2), max(height, width // 2)
    return width, height


def _draw(rng: random.Random, image: Image.Image, shape: str, ink: Rgb) -> None:
    width, height = image.size
    radius = rng.uniform(0.15, 0.40) * min(width, height)
    margin = 1.2 * radius + 2
    x, y = (rng.uniform(margin, max(margin, side - margin)) for side in (width, height))
    if rng.random() < 0.3:
        x, y = width / 2, height / 2
    draw = ImageDraw.Draw(image)
    if shape == "circle":
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=ink)
    else:
        draw.polygon(_corners(rng, shape, x, y, radius), fill=ink)


def _corners(
    rng: random.Random, shape: str, x: float, y: float, radius: float
) -> list[tuple[float, float]]:
    if shape == "square":
        count, radii = 4, [radius * 1.2]
        turn = math.pi / 4 + rng.choice([0, 0, rng.uniform(-0.25, 0.25)])
    elif shape == "triangle":
        count, radii = 3, [radius * 1.15]
        turn = -math.pi / 2 + rng.choice([0, 0, rng.uniform(-0.5, 0.5), math.pi])
    else:
        count, radii = 10, [radius * 1.2, radius * rng.uniform(0.44, 0.56)]
        turn = -math.pi / 2 + rng.choice([0, 0, rng.uniform(-0.3, 0.3)])
    angles = [turn + 2 * math.pi * i / count for i in range(count)]
    reach = [radii[i % len(radii)] for i in range(count)]
    return [(x + r * math.cos(a), y + r * math.sin(a)) for r, a in zip(reach, angles, strict=True)]


def _noisy(rng: random.Random, image: Image.Image) -> Image.Image:
    pixels = np.asarray(image, np.float64)
    generator = np.random.default_rng(rng.getrandbits(32))
    noisy = pixels + generator.normal(0, rng.uniform(2, 12), pixels.shape)
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def _compressed(rng: random.Random, image: Image.Image) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=rng.randint(40, 95))
    return Image.open(buffer).convert("RGB")


def preprocess(image: Image.Image) -> npt.NDArray[np.uint8]:
    """Fitted by bicubic filtering, centred, on black: (SIZE, SIZE, 3)."""
    scale = min(SIZE / image.width, SIZE / image.height)
    fitted = (
        min(math.ceil(image.width * scale), SIZE),
        min(math.ceil(image.height * scale), SIZE),
    )
    square = Image.new("RGB", (SIZE, SIZE))
    if image.size != fitted:
        image = image.resize(fitted, Image.Resampling.BICUBIC)
    square.paste(image, ((SIZE - fitted[0]) // 2, (SIZE - fitted[1]) // 2))
    return np.asarray(square)
