"""Charts are valid SVG, and points lie where their values say."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from selfserve.cli.chart import Series, bar_chart, line_chart

SVG = "{http://www.w3.org/2000/svg}"


def points(svg: str) -> list[list[tuple[float, float]]]:
    lines = ET.fromstring(svg).iter(f"{SVG}polyline")
    return [
        [tuple(map(float, p.split(","))) for p in line.attrib["points"].split()] for line in lines
    ]  # type: ignore[misc]


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter(f"{SVG}text")]


def test_a_line_chart_is_to_scale() -> None:
    svg = line_chart("t", "x", "y", [Series("a", [(1, 0), (2, 50), (3, 100)])])
    [[low, middle, high]] = points(svg)
    assert middle[0] - low[0] == pytest.approx(high[0] - middle[0], abs=0.2)
    assert low[1] - middle[1] == pytest.approx(middle[1] - high[1], abs=0.2)
    assert high[1] < low[1]


def test_a_logarithmic_axis_spaces_powers_of_two_evenly() -> None:
    svg = line_chart("t", "x", "y", [Series("a", [(1, 1), (2, 1), (4, 1)])], log_x=True)
    [[first, second, third]] = points(svg)
    assert second[0] - first[0] == pytest.approx(third[0] - second[0], abs=0.2)


def test_names_are_escaped_and_shown() -> None:
    svg = line_chart("a < b", "x", "y", [Series("q&a", [(1, 1)])])
    assert {"a < b", "q&a", "x", "y"} <= set(texts(svg))


def test_one_point_and_nothing_at_all_are_drawn_without_an_error() -> None:
    assert points(line_chart("t", "x", "y", [Series("a", [(5, 0)])]))
    assert points(line_chart("t", "x", "y", [], log_x=True)) == []


def test_bars_are_to_scale() -> None:
    svg = bar_chart("t", [("half", 0.5), ("double", 2.0)], mark=1)
    bars = [r for r in ET.fromstring(svg).iter(f"{SVG}rect") if "x" in r.attrib]
    narrow, wide = (float(bar.attrib["width"]) for bar in bars)
    assert wide == pytest.approx(4 * narrow, rel=0.01)
    assert {"half", "double", "1"} <= set(texts(svg))
