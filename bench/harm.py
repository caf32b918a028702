"""Whether one client can harm another: hostile inputs beside running streams.

    python -m bench.harm [--only NAME ...] [--repetitions 1] [--out bench/results/harm.md]
    python -m bench.harm --list

Four clients stream long answers. Beside them each input of `harm_inputs` is sent, and what the
others notice is compared with what they notice when nothing is sent. The bounds: a stream is
silent for at most twice the quiet time and 100 ms, /health answers within 100 ms, memory grows by
at most 256 MiB, the engine lives and no stream breaks. The exit code is 1 if one is broken.

A hostile client leaves after 8 s. A server that has ended, or does not come to rest once they all
have left, is started anew, and one that grows by 4 GiB is killed; the table says so. Run it on a
machine that does nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import httpx
import psutil

from bench.hangups import all_slots_are_free, wait_until
from bench.harm_clients import LETHAL_MIB, Seen, summary, watch
from bench.harm_inputs import SMALL, SMALL_CONTEXT, TEXT, VISION, Input, inputs
from bench.servers import IDLE_SHARE, SELF, Server, idle_share
from selfserve.cli.chat_stream import parse_address
from selfserve.cli.child_server import child_server
from selfserve.errors import SelfError

NUM_SLOTS = 10
"""Four streams, four hostile requests that generate, the newcomer, one more."""
CACHE_RAM_MIB = 64
"""Memory for prompts counts as growth until it is full."""
OPTIONS = ["--parallel", str(NUM_SLOTS), "--cache-ram", str(CACHE_RAM_MIB)]
SERVERS = {
    TEXT: ["smollm2:135m", "--context-size", "8192"],
    SMALL: ["smollm2:135m", "--context-size", str(SMALL_CONTEXT)],
    VISION: ["smollm2-vision:135m", "--context-size", "4096"],
}
QUIET_ROUNDS = 5
SILENCE_FACTOR, SILENCE_MORE_S = 2.0, 0.1
HEALTH_S = 0.1
GROWTH_MIB = 256.0
REST_LIMIT_S = 15.0


class Host:
    """The server under test; one at a time runs, and a new one in place of one that is broken."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._kind = ""
        self._server: Server | None = None

    def server(self, kind: str) -> Server:
        """A running server of this kind."""
        if self._server is None or kind != self._kind:
            self.close()
            command = [sys.executable, "-m", "selfserve", "serve", *SERVERS[kind], *OPTIONS]
            child = self._stack.enter_context(child_server([*command, "--port", "0"]))
            self._kind, self._server = kind, Server(SELF, parse_address(child.url), child.pid)
        return self._server

    def close(self) -> None:
        self._server = None
        self._stack.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What an input did, once."""

    silence_ms: float
    health_ms: float
    newcomer_ms: float | None
    newcomer: str
    growth_mib: float
    late_ms: float
    answered: str
    harm: tuple[str, ...] = ()
    """What happened to engine and streams, if anything."""
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Run:
    """All that was measured."""

    quiet: dict[str, Row] = field(default_factory=dict)
    """Kind of server → medians of its quiet rounds."""
    rows: dict[str, list[Row]] = field(default_factory=dict)
    """Name of an input → each time that it was sent."""
    inputs: dict[str, Input] = field(default_factory=dict)

    def broken_bounds(self, name: str) -> list[str]:
        """The bounds that an input broke, by its medians."""
        row, quiet = median(self.rows[name]), self.quiet[self.inputs[name].server]
        bounds = {
            "silence": row.silence_ms <= SILENCE_FACTOR * quiet.silence_ms + SILENCE_MORE_S * 1e3,
            "health": row.health_ms <= HEALTH_S * 1e3,
            "memory": row.growth_mib <= GROWTH_MIB,
            "engine": not row.harm,
        }
        return [bound for bound, is_met in bounds.items() if not is_met]


def median(rows: Sequence[Row]) -> Row:
    """The medians of what was measured, figure by figure; all that was said."""
    newcomers = [row.newcomer_ms for row in rows if row.newcomer_ms is not None]

    def every(texts: Iterator[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(filter(None, texts)))

    return Row(
        silence_ms=statistics.median(row.silence_ms for row in rows),
        health_ms=statistics.median(row.health_ms for row in rows),
        newcomer_ms=statistics.median(newcomers) if newcomers else None,
        newcomer="; ".join(every(row.newcomer for row in rows)),
        growth_mib=statistics.median(row.growth_mib for row in rows),
        late_ms=statistics.median(row.late_ms for row in rows),
        answered="; ".join(every(row.answered for row in rows)),
        harm=every(text for row in rows for text in row.harm),
        notes=every(text for row in rows for text in row.notes),
    )


# --- measuring ----------------------------------------------------------------------------


def measure_quiet(host: Host, kind: str) -> Row:
    """What the watched clients notice when nothing is sent."""
    server = host.server(kind)
    random = Random(f"quiet {kind}")
    rounds = [
        asyncio.run(watch(server.address, server.pid, (), random)) for _ in range(QUIET_ROUNDS + 1)
    ]
    return median([_row(seen) for seen in rounds[1:]])  # the first one warms up


def measure(host: Host, one: Input, repetition: int) -> Row:
    """Sends an input once, and leaves a server that is at rest, or none."""
    requests = one.make()
    server = host.server(one.server)
    engine = engine_of(server.pid)
    random = Random(f"{one.name} {repetition}")
    try:
        seen = asyncio.run(watch(server.address, server.pid, requests, random))
    except TimeoutError:
        seen = Seen(newcomer="no stream began")
    harm = []
    if seen.was_killed:
        harm.append(f"killed at +{LETHAL_MIB:.0f} MiB")
    elif not _is_running(server.pid):
        harm.append("server ended")
    elif engine is None or engine_of(server.pid) != engine:
        harm.append("engine ended")
    elif not seen.is_ready:
        harm.append("not ready")
    if seen.num_broken:
        harm.append(f"{seen.num_broken} streams broke")
    notes = []
    if fault := _unrest(server):
        notes.append(f"{fault}, started anew")
        host.close()
    return _row(seen, harm, notes)


def _row(seen: Seen, harm: Sequence[str] = (), notes: Sequence[str] = ()) -> Row:
    return Row(
        silence_ms=seen.silence_s * 1e3,
        health_ms=seen.health_s * 1e3,
        newcomer_ms=None if seen.newcomer_s is None else seen.newcomer_s * 1e3,
        newcomer=seen.newcomer,
        growth_mib=seen.growth_mib,
        late_ms=seen.late_s * 1e3,
        answered=summary(seen.outcomes),
        harm=tuple(harm),
        notes=tuple(notes),
    )


def engine_of(pid: int) -> int | None:
    """The server's child that holds the model."""
    with contextlib.suppress(psutil.Error):
        children = psutil.Process(pid).children()
        return (
            max(children, key=lambda each: float(each.memory_info().rss)).pid if children else None
        )
    return None


def _is_running(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def _unrest(server: Server) -> str:
    """Why nothing can be measured on this server any more; empty if it is at rest and answers."""
    if not _is_running(server.pid):
        return "ended"
    url = f"http://{server.address.host}:{server.address.port}"
    with httpx.Client(base_url=url, timeout=REST_LIMIT_S, trust_env=False) as http:

        def answers() -> bool:
            with contextlib.suppress(httpx.HTTPError):
                request = {"prompt": "a", "n_predict": 1}
                return http.post("/completion", json=request).status_code == 200
            return False

        def is_free() -> bool:
            with contextlib.suppress(httpx.HTTPError):
                return all_slots_are_free(http)
            return False

        if not wait_until(answers, REST_LIMIT_S):
            return f"unanswered {REST_LIMIT_S:.0f} s later"
        if not wait_until(is_free, REST_LIMIT_S):
            return f"slots taken {REST_LIMIT_S:.0f} s later"
    try:
        share = idle_share(server)
    except psutil.Error:
        return "ended"
    return f"busy with {share:.1f} processors 20 s later" if share > IDLE_SHARE else ""


# --- telling ------------------------------------------------------------------------------

HEAD = "| input | sent | answered | silence | `/health` | newcomer | memory | engine | bounds |"


def as_markdown(run: Run) -> str:
    return "\n".join(
        [*_introduction(run), HEAD, "|---|---|---|--:|--:|--:|--:|---|---|", *_lines(run)]
    )


def _introduction(run: Run) -> Iterator[str]:
    broken = [name for name in run.rows if run.broken_bounds(name)]
    yield "# What hostile inputs do to others"
    yield ""
    yield (
        f"{datetime.date.today()}; {os.cpu_count()} processors, {NUM_SLOTS} slots, four streams. "
        "Times in ms: longest silence of a stream, slowest `/health`, first token of a newcomer; "
        "growth of memory in MiB. "
        f"Bounds: silence {SILENCE_FACTOR:g} × the quiet one + {SILENCE_MORE_S * 1e3:.0f} ms, "
        f"`/health` {HEALTH_S * 1e3:.0f} ms, memory +{GROWTH_MIB:.0f} MiB, "
        "engine alive and streams whole. "
        f"{len(run.rows)} inputs, {len(broken)} of them break a bound."
    )
    yield ""
    for kind, row in run.quiet.items():
        yield f"- quiet, server `{kind}`: {_figures(row)}"
    yield ""


def _figures(row: Row) -> str:
    newcomer = "–" if row.newcomer_ms is None else f"{row.newcomer_ms:.0f}"
    return (
        f"silence {row.silence_ms:.0f} ms, `/health` {row.health_ms:.0f} ms, newcomer "
        f"{newcomer} ms, memory +{row.growth_mib:.0f} MiB"
    )


def _lines(run: Run) -> Iterator[str]:
    for name in run.rows:
        yield line(run, name)


def line(run: Run, name: str) -> str:
    row = median(run.rows[name])
    newcomer = row.newcomer or "–" if row.newcomer_ms is None else f"{row.newcomer_ms:.0f}"
    broken = run.broken_bounds(name)
    late = [f"this program was {row.late_ms:.0f} ms late"] if row.late_ms > HEALTH_S * 1e3 else []
    cells = [
        f"`{name}`",
        run.inputs[name].says,
        row.answered,
        f"{row.silence_ms:.0f}",
        f"{row.health_ms:.0f}",
        newcomer.replace("|", "/"),
        f"{row.growth_mib:+.0f}",
        ", ".join([*row.harm, *row.notes, *late]) or "alive",
        f"**not met: {', '.join(broken)}**" if broken else "met",
    ]
    return f"| {' | '.join(cells)} |"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- the command --------------------------------------------------------------------------


def chosen(every: Sequence[Input], only: Sequence[str]) -> list[Input]:
    """The inputs whose name is, or begins with, one of `only`; all if there is none."""
    return [one for one in every if not only or any(one.name.startswith(name) for name in only)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="or its beginning")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--out", type=Path, help="file for the table")
    parser.add_argument("--list", action="store_true", help="only name the inputs")
    arguments = parser.parse_args()
    run, host = Run(), Host()
    try:
        _run(run, host, arguments)
    except KeyboardInterrupt:
        say("interrupted; this is what was measured")
    finally:
        host.close()
    if run.rows:
        print(as_markdown(run))
        sys.exit(1 if any(run.broken_bounds(name) for name in run.rows) else 0)


def _run(run: Run, host: Host, arguments: argparse.Namespace) -> None:
    address = host.server(TEXT).address
    url = f"http://{address.host}:{address.port}/openapi.json"
    document = httpx.get(url, trust_env=False).raise_for_status().json()
    every = chosen(inputs(document), arguments.only)
    if arguments.list:
        print("\n".join(f"{one.name:<48} {one.says}" for one in every))
        return
    begin_s = time.monotonic()
    for one in every:
        if one.server not in run.quiet:
            run.quiet[one.server] = measure_quiet(host, one.server)
            say(f"quiet, {one.server}: {_figures(run.quiet[one.server])}")
        run.inputs[one.name] = one
        rows: list[Row] = []
        for repetition in range(arguments.repetitions):
            try:
                rows.append(measure(host, one, repetition))
            except SelfError as error:
                say(f"{one.name}: {error}")
                host.close()
        if not rows:
            continue
        run.rows[one.name] = rows
        say(f"{time.monotonic() - begin_s:5.0f} s {line(run, one.name)}")
        if arguments.out is not None:
            arguments.out.write_text(as_markdown(run) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
