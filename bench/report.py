"""What a run found out: medians and ratios as a table, JSON and pictures."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.growth import Point
from bench.memory import growth_share
from bench.scenario import Measure
from bench.servers import LLAMA_CPP, PACKAGES, SELF, Setting
from selfserve.cli.chart import Series, bar_chart, line_chart
from selfserve.native import library


@dataclass(slots=True)
class Row:
    """One measure of one scenario with one model: the values of each server's repetitions."""

    model: str
    scenario: str
    title: str
    measure: Measure
    values: dict[str, list[float]] = field(default_factory=dict)

    def median(self, server: str) -> float | None:
        values = self.values.get(server)
        return statistics.median(values) if values else None

    @property
    def ratio(self) -> float | None:
        """Our median to the peer's."""
        own, peer = self.median(SELF), self.median(LLAMA_CPP)
        return own / peer if own is not None and peer else None

    @property
    def target(self) -> str:
        measure = self.measure
        if measure.own_at_most is not None:
            return f"own ≤ {measure.own_at_most:g}"
        if measure.at_least is not None:
            return f"ratio ≥ {measure.at_least:g}"
        return f"ratio ≤ {measure.at_most:.3g}"

    @property
    def is_met(self) -> bool | None:
        """None: it was not measured."""
        measure, own, ratio = self.measure, self.median(SELF), self.ratio
        if measure.own_at_most is not None:
            return None if own is None else own <= measure.own_at_most
        if ratio is None:
            return None
        if measure.at_least is not None:
            return ratio >= measure.at_least
        return measure.at_most is None or ratio <= measure.at_most

    @property
    def gain(self) -> float | None:
        """How many times better than the peer, whichever direction is better."""
        if not self.ratio:
            return None
        return self.ratio if self.measure.at_least is not None else 1 / self.ratio


@dataclass(slots=True)
class Curve:
    """A server's growth along one axis."""

    model: str
    server: str
    axis: str
    points: list[Point]


@dataclass(slots=True)
class MemoryRun:
    """Resident memory over the number of prompts."""

    model: str
    server: str
    cache_ram_mib: int
    samples: list[tuple[int, float]]


@dataclass(slots=True)
class Report:
    """Everything of one run."""

    repetitions: int
    rows: list[Row] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    memory: list[MemoryRun] = field(default_factory=list)
    settings: list[dict[str, Any]] = field(default_factory=list)
    idle: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add_setting(self, model: str, setting: Setting) -> None:
        facts = asdict(setting)
        del facts["model"]
        self.settings.append({"model": model, **facts})


def machine() -> dict[str, Any]:
    """Where and with what the run was made."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": _processor(),
        "python": platform.python_version(),
        "libllama of self": library.system_info().strip(),
        **{name: _version(name) for name in ("selfserve", "llama-cpp-python", *PACKAGES.values())},
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} × {names[0]}" if names else platform.processor()


def as_json(report: Report) -> str:
    rows = [
        {
            "model": row.model,
            "scenario": row.scenario,
            "title": f"{row.title}: {row.measure.title}",
            "unit": row.measure.unit,
            "values": row.values,
            "medians": {server: row.median(server) for server in row.values},
            "ratio": row.ratio,
            "target": row.target,
            "met": row.is_met,
        }
        for row in report.rows
    ]
    whole = {
        "machine": machine(),
        "repetitions": report.repetitions,
        "settings": report.settings,
        "idle": report.idle,
        "scenarios": rows,
        "growth": [asdict(curve) for curve in report.curves],
        "memory": [asdict(run) for run in report.memory],
        "failures": report.failures,
    }
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def as_markdown(report: Report) -> str:
    facts = machine()
    servers = [name for name in (SELF, *PACKAGES) if any(name in row.values for row in report.rows)]
    lines = [
        f"{report.repetitions} repetitions, servers in turn; medians. {facts['processor']}, "
        f"{facts['date']}; llama-cpp-python {facts['llama-cpp-python']}, "
        f"xllamacpp {facts['xllamacpp']}. The ratio is that of self to {LLAMA_CPP}.",
    ]
    if report.rows:
        lines += [
            "",
            f"| model | scenario | figure | {' | '.join(servers)} | ratio | target | met |",
            f"|---|---|---|{'--:|' * len(servers)}--:|---|---|",
            *(_table_line(row, servers) for row in report.rows),
        ]
    if report.memory:
        lines += ["", *_memory_lines(report)]
    if report.failures:
        lines += ["", "Failures:", "", *(f"- {failure}" for failure in report.failures)]
    return "\n".join(lines) + "\n"


def _table_line(row: Row, servers: Sequence[str]) -> str:
    measure = row.measure

    def shown(value: float | None) -> str:
        return "–" if value is None else f"{value:,.{measure.digits}f}"

    ratio = "–" if row.ratio is None else f"{row.ratio:.2f}"
    met = {True: "yes", False: "**no**", None: "–"}[row.is_met]
    cells = (
        *(row.model, row.title, f"{measure.title}, {measure.unit}"),
        *(shown(row.median(server)) for server in servers),
        *(ratio, row.target, met),
    )
    return f"| {' | '.join(cells)} |"


def _memory_lines(report: Report) -> list[str]:
    lines = [
        "| model | server | RSS before, MiB | after, MiB | prompts | growth after a quarter |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for run in report.memory:
        count, last = run.samples[-1]
        lines.append(
            f"| {run.model} | {run.server} | {run.samples[0][1]:,.0f} | {last:,.0f} | {count} | "
            f"{growth_share(run.samples):.1%} |"
        )
    return lines


def pictures(report: Report) -> dict[str, str]:
    """File name → SVG."""
    found: dict[str, str] = {}
    bars = [
        (f"{row.model} {row.scenario}: {row.measure.key}", row.gain)
        for row in report.rows
        if row.measure.is_compared
    ]
    measured = [(label, gain) for label, gain in bars if gain is not None]
    if measured:
        found["gain.svg"] = bar_chart("times better than llama.cpp's server", measured, mark=1)
    for model, axis in dict.fromkeys((curve.model, curve.axis) for curve in report.curves):
        curves = [c for c in report.curves if (c.model, c.axis) == (model, axis) and c.points]
        for field_name, label in (("tokens_per_s", "tokens/s"), ("step_ms", "ms a step")):
            name = f"growth-{model}-{axis}-{field_name.split('_')[0]}.svg"
            title = f"{label} by {axis}, {model}"
            found[name] = line_chart(title, axis, label, _lines(curves, field_name), log_x=True)
    for model in dict.fromkeys(run.model for run in report.memory):
        lines = [Series(r.server, r.samples) for r in report.memory if r.model == model]
        found[f"memory-{model}.svg"] = line_chart(f"RSS, {model}", "prompts", "MiB", lines)
    return found


def _lines(curves: Sequence[Curve], field_name: str) -> list[Series]:
    return [
        Series(
            curve.server,
            [(point.x, float(getattr(point, field_name))) for point in curve.points],
        )
        for curve in curves
    ]


def write(report: Report, folder: Path) -> None:
    """Writes all forms into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(as_json(report), encoding="utf-8")
    (folder / "results.md").write_text(as_markdown(report), encoding="utf-8")
    for name, svg in pictures(report).items():
        (folder / name).write_text(svg, encoding="utf-8")
