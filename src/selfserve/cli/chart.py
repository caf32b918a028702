"""Line and bar charts as SVG, readable in a browser and in a repository's file view."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 72, 24, 64, 56
COLOURS = ("#1f6feb", "#d1592a", "#2a8a4a", "#8250df", "#7a7a7a", "#b58900")
BAR, BAR_GAP = 20, 12
LABELS_WIDTH = 260


@dataclass(frozen=True, slots=True)
class Series:
    """One line: its name and its points, x rising."""

    name: str
    points: Sequence[tuple[float, float]]


def line_chart(
    title: str, x_label: str, y_label: str, series: Sequence[Series], *, log_x: bool = False
) -> str:
    """Lines over a common x axis; y begins at 0. `log_x` spaces powers of two evenly."""
    points = [point for line in series for point in line.points]
    xs = sorted({x for x, _ in points}) or [1.0]
    top = _nice(max((y for _, y in points), default=1.0))
    scale = math.log2 if log_x else float
    low, high = scale(xs[0]), scale(xs[-1])

    def at(x: float, y: float) -> tuple[float, float]:
        share = (scale(x) - low) / (high - low) if high > low else 0.5
        return (
            LEFT + share * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM),
        )

    parts = [_text(WIDTH / 2, 24, title, "middle", 16)]
    for tick in range(6):
        value = top * tick / 5
        y = at(xs[0], value)[1]
        parts.append(_line(LEFT, y, WIDTH - RIGHT, y, "#ddd"))
        parts.append(_text(LEFT - 8, y + 4, _number(value), "end"))
    for x in _spaced(xs, lambda value: at(value, 0)[0]):
        parts.append(_text(at(x, 0)[0], HEIGHT - BOTTOM + 18, _number(x), "middle"))
    parts.append(_text(WIDTH / 2, HEIGHT - 12, x_label, "middle"))
    parts.append(_text(LEFT, TOP - 10, y_label, "start"))
    for index, line in enumerate(series):
        parts += _drawn(line, _colour(index), at)
        legend_x = WIDTH - RIGHT - 130 * (len(series) - index)
        parts.append(_line(legend_x, TOP - 14, legend_x + 18, TOP - 14, _colour(index), 3))
        parts.append(_text(legend_x + 24, TOP - 10, line.name, "start"))
    return _svg(WIDTH, HEIGHT, parts)


def bar_chart(title: str, bars: Sequence[tuple[str, float]], *, mark: float) -> str:
    """One horizontal bar for each (label, value), and a line at `mark` to compare with."""
    top = _nice(max([mark, *(value for _, value in bars)]))
    height = TOP + len(bars) * (BAR + BAR_GAP) + 16
    room = WIDTH - LABELS_WIDTH - 70
    parts = [_text(WIDTH / 2, 24, title, "middle", 16)]
    for index, (label, value) in enumerate(bars):
        y = TOP + index * (BAR + BAR_GAP)
        width = room * value / top
        parts.append(_text(LABELS_WIDTH - 8, y + 14, label, "end"))
        parts.append(
            f'<rect x="{LABELS_WIDTH}" y="{y}" width="{width:.1f}" height="{BAR}" '
            f'fill="{COLOURS[0]}"/>'
        )
        parts.append(_text(LABELS_WIDTH + width + 6, y + 14, _number(value), "start"))
    x = LABELS_WIDTH + room * mark / top
    parts.append(_line(x, TOP - 8, x, height - 16, COLOURS[1], 2))
    parts.append(_text(x, TOP - 14, _number(mark), "middle"))
    return _svg(WIDTH, height, parts)


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _drawn(
    line: Series, colour: str, at: Callable[[float, float], tuple[float, float]]
) -> list[str]:
    places = [at(x, y) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in places]
    return [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>', *dots]


def _spaced(xs: Sequence[float], place: Callable[[float], float]) -> list[float]:
    """The values whose labels do not overlap."""
    shown: list[float] = []
    for x in xs:
        if not shown or place(x) - place(shown[-1]) >= 36:
            shown.append(x)
    return shown


def _nice(value: float) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is not below `value`."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _text(x: float, y: float, text: str, anchor: str, size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">'
        f"{escape(text)}</text>"
    )


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: int = 1) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke="{colour}" stroke-width="{width}"/>'
    )


def _svg(width: int, height: int, parts: Sequence[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" font-family="sans-serif" fill="#222">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            *parts,
            "</svg>\n",
        ]
    )
