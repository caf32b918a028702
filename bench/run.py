"""Plays scenarios on the servers in turn and collects the figures."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TypeVar

import uvloop

from bench import growth, memory
from bench.growth import Point
from bench.report import Curve, MemoryRun, Report, Row
from bench.scenario import Play, Scenario
from bench.scenarios import warm_up
from bench.servers import Server, Setting, idle_share, started
from selfserve.errors import SelfError

T = TypeVar("T")

CONTEXT = 4096
CACHE_RAM_MIB = 1024
MEMORY_CONTEXT = 1024
MEMORY_SLOTS = 8
GROWTH_LIMIT_S = 120.0
GROWTH_REPETITIONS = 3
"""At most: a curve has several places, and its shape is what counts."""
MEMORY_LIMIT_S = 3600.0
WARM_UP_LIMIT_S = 120.0


class Run:
    """One run of the benchmark; `report` fills while it goes on."""

    def __init__(
        self, servers: Sequence[str], num_threads: int, repetitions: int, is_quick: bool
    ) -> None:
        self.servers = list(servers)
        self._num_threads = num_threads
        self._repetitions = repetitions
        self._is_quick = is_quick
        self.report = Report(repetitions)
        self._begin_s = time.monotonic()

    def say(self, text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._begin_s), 60)
        print(f"{minutes:3}:{seconds:02} {text}", file=sys.stderr, flush=True)

    def scenarios(self, model: str, path: Path, scenarios: Sequence[Scenario]) -> None:
        """Plays the scenarios, those with equal numbers of slots on the same servers."""
        for num_slots in sorted({scenario.num_slots for scenario in scenarios}, reverse=True):
            setting = self._setting(path, num_slots, CONTEXT)
            with self._servers(model, setting) as servers:
                for scenario in scenarios:
                    if scenario.num_slots == num_slots:
                        self._repeat(model, scenario, servers)

    def growth(self, model: str, path: Path) -> None:
        """Measures both curves of growth."""
        wide = self._setting(path, growth.SEQUENCES[-1], growth.SEQUENCES_CONTEXT)
        self._curves(model, wide, "sequences", growth.by_sequences, growth.SEQUENCES)
        long = self._setting(path, 1, growth.CONTEXTS_CONTEXT)
        self._curves(model, long, "context", growth.by_context, growth.CONTEXTS)

    def memory(self, model: str, path: Path) -> None:
        """Measures resident memory, one server after the other."""
        setting = self._setting(path, MEMORY_SLOTS, MEMORY_CONTEXT, memory.CACHE_RAM_MIB)
        self.report.add_setting(model, setting)
        for name in self.servers:
            with started(name, setting) as server:
                play = self._play(f"{model} memory")
                samples = self._try(
                    f"{model} memory {name}", memory.resident_memory(server, play), MEMORY_LIMIT_S
                )
            if samples:
                self.say(f"{model} memory {name}: {samples[0][1]:.0f} → {samples[-1][1]:.0f} MiB")
                run = MemoryRun(model, name, setting.cache_ram_mib, samples)
                self.report.memory.append(run)

    def _setting(
        self, path: Path, num_slots: int, context: int, cache_ram_mib: int = CACHE_RAM_MIB
    ) -> Setting:
        return Setting(path, num_slots, context, self._num_threads, cache_ram_mib)

    @contextlib.contextmanager
    def _servers(self, model: str, setting: Setting) -> Iterator[list[Server]]:
        """All servers, ready and warm. They stay up together: only one of them works at a time."""
        self.report.add_setting(model, setting)
        with contextlib.ExitStack() as stack:
            servers = []
            for name in self.servers:
                self.say(
                    f"{model}: starting {name}, {setting.num_slots} slots of "
                    f"{setting.context_size} tokens, {setting.num_threads} threads"
                )
                servers.append(stack.enter_context(started(name, setting)))
            for server in servers:
                self._try(f"{model} warm-up {server.name}", warm_up(server), WARM_UP_LIMIT_S)
            for server in servers:
                share = idle_share(server)
                self.report.idle.append({"model": model, "server": server.name, "share": share})
                self.say(f"{model}: {server.name} idle, {share:.1%} of a processor")
            yield servers

    def _repeat(self, model: str, scenario: Scenario, servers: Sequence[Server]) -> None:
        rows = [Row(model, scenario.name, scenario.title, m) for m in scenario.measures]
        self.report.rows += rows
        for repetition in range(1, self._repetitions + 1):
            for server in servers:
                what = f"{model} {scenario.name} {repetition}/{self._repetitions} {server.name}"
                play = self._play(f"{model} {scenario.name} {repetition}")
                figures = self._try(what, scenario.play(server, play), scenario.limit_s)
                if figures is None:
                    continue
                parts = []
                for row in rows:
                    value = figures[row.measure.key]
                    row.values.setdefault(server.name, []).append(value)
                    parts.append(f"{row.measure.title} {value:.4g} {row.measure.unit}")
                self.say(f"{what}: {', '.join(parts)}")

    def _curves(
        self,
        model: str,
        setting: Setting,
        axis: str,
        measure: Callable[[Server, Play, int], Awaitable[Point]],
        places: Sequence[int],
    ) -> None:
        with self._servers(model, setting) as servers:
            curves = {server.name: Curve(model, server.name, axis, []) for server in servers}
            self.report.curves += curves.values()
            for place in growth.QUICK[axis] if self._is_quick else places:
                points: dict[str, list[Point]] = {name: [] for name in curves}
                for repetition in range(1, min(self._repetitions, GROWTH_REPETITIONS) + 1):
                    for server in servers:
                        what = f"{model} {place} {axis} {repetition} {server.name}"
                        play = self._play(f"{model} {axis} {place} {repetition}")
                        point = self._try(what, measure(server, play, place), GROWTH_LIMIT_S)
                        if point is not None:
                            points[server.name].append(point)
                            self.say(f"{what}: {point.tokens_per_s:.1f} tokens/s")
                for name, found in points.items():
                    if found:
                        curves[name].points.append(growth.median(found))

    def _play(self, seed: str) -> Play:
        return Play(Random(seed), self._is_quick)

    def _try(self, what: str, work: Awaitable[T], limit_s: float) -> T | None:
        """The result, or None after a failure, which is noted."""

        async def limited() -> T:
            return await asyncio.wait_for(work, limit_s)

        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(limited())
        except TimeoutError:
            failure = f"{what}: not done after {limit_s:.0f} s"
        except SelfError as error:
            failure = f"{what}: {error.message}"
        except (RuntimeError, ValueError, OSError, ArithmeticError) as error:
            failure = f"{what}: {error}"
        self.say(failure)
        self.report.failures.append(failure)
        return None
