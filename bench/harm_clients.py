"""The clients of `bench.harm`: those that are watched, and those that mean harm.

The watched ones run in one event loop, which does nothing else. The hostile ones are threads that
send bytes made before and throw away what they read, so that they leave the processor to the
server.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import psutil

from bench.hangups import hang_up
from bench.harm_inputs import MIB, Hostile
from bench.texts import SAMPLED, body, cold
from selfserve.cli.chat_stream import Address, Answer, ChatStream, RequestFailed, chat

NUM_STREAMS = 4
STREAM_TOKENS = 3000
STREAM_WORDS = 20
STARTED_EVENTS = 10
"""Of each stream, before anything is measured."""
POLL_S = 0.05
NEWCOMER_AFTER_S = 0.3
NEWCOMER_TOKENS = 4
NEWCOMER_WORDS = 30
AFTER_S = 1.0
"""Watched beyond the end of the last hostile request and of the newcomer."""
LEAST_S = 3.0
PATIENCE_S = 8.0
"""What the newcomer has beyond the hostile clients."""
MAX_AT_ONCE = 64
"""Hostile clients; others come when one has left."""
LETHAL_MIB = 4096.0
"""Growth at which the server is killed, before it takes what the machine needs."""
KEPT = 4096
"""Bytes that are kept of an answer's beginning and end: enough for an error."""
ERROR = re.compile(rb'"error": ?\{.*?"type": ?"([a-z_]+)"')
RECEIVE_BUFFER = 4096
"""Of a client that does not read; the system makes it a little larger."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a hostile client saw."""

    kind: str
    """Status and error type, or how else it ended."""
    seconds: float


@dataclass(slots=True)
class Seen:
    """What the watched clients saw; times in seconds."""

    silence_s: float = 0.0
    """Longest, of any stream."""
    health_s: float = 0.0
    """Slowest answer."""
    newcomer_s: float | None = None
    """To its first token; None: it got none."""
    newcomer: str = ""
    """Why it got none."""
    growth_mib: float = 0.0
    """Highest memory of the server's processes over that before."""
    was_killed: bool = False
    """Because of LETHAL_MIB."""
    is_ready: bool = True
    """As /health says, all the time."""
    num_broken: int = 0
    """Streams that ended before their end."""
    late_s: float = 0.0
    """By how much this program itself was late at worst: silence up to that may be its own."""
    outcomes: list[Outcome] = field(default_factory=list)


async def watch(address: Address, pid: int, requests: Sequence[Hostile], random: Random) -> Seen:
    """Lets `requests` loose beside four streams and a newcomer."""
    seen = Seen()
    clients = [StreamClient(address, random.randrange(2**31)) for _ in range(NUM_STREAMS)]
    streams = [asyncio.create_task(client.run()) for client in clients]
    try:
        await asyncio.wait_for(asyncio.gather(*(each.started() for each in clients)), 30)
        before_mib = memory_mib(pid)
        begin_s = time.perf_counter()
        polls = [
            asyncio.create_task(_poll_health(address, seen)),
            asyncio.create_task(_poll_memory(pid, before_mib, seen)),
            asyncio.create_task(_watch_itself(seen)),
        ]
        newcomer = asyncio.create_task(_newcomer(address, random, seen))
        seen.outcomes = await _attack_at_once(address, requests)
        await asyncio.wait({newcomer}, timeout=PATIENCE_S)
        if not newcomer.done():
            seen.newcomer = f"none in {time.perf_counter() - begin_s - NEWCOMER_AFTER_S:.0f} s"
        await asyncio.sleep(max(AFTER_S, begin_s + LEAST_S - time.perf_counter()))
        end_s = time.perf_counter()
        await _cancel(*polls, newcomer)
    finally:
        await _cancel(*streams)
        for client in clients:
            client.close()
    for client in clients:
        silence_s, is_broken = client.silence(begin_s, end_s)
        seen.silence_s = max(seen.silence_s, silence_s)
        seen.num_broken += is_broken
    return seen


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class StreamClient:
    """A client that always has a long answer running, until one breaks."""

    def __init__(self, address: Address, seed: int) -> None:
        self._address = address
        self._random = Random(seed)
        self._streams: list[ChatStream] = []
        self._is_open = asyncio.Event()
        self._is_broken = False

    async def run(self) -> None:
        while not self._is_broken:
            sampled = SAMPLED | {"seed": self._random.randrange(2**31)}
            request = body(cold(self._random, STREAM_WORDS), STREAM_TOKENS, **sampled)
            try:
                stream = await ChatStream.open(self._address, request)
            except RequestFailed:
                self._is_broken = True
                break
            self._streams.append(stream)
            self._is_open.set()
            await stream.finish()
            answer = _answer(stream)
            self._is_broken = answer is None or answer.finish_reason is None

    async def started(self) -> None:
        await self._is_open.wait()
        await self._streams[0].wait_events(STARTED_EVENTS)

    def close(self) -> None:
        for stream in self._streams:
            stream.close()

    def silence(self, begin_s: float, end_s: float) -> tuple[float, bool]:
        """Longest silence of an answer between the two times, and whether one broke off."""
        longest_s = 0.0
        for stream in self._streams:
            answer = _answer(stream)
            times = list(answer.times_s) if answer is not None else [stream.sent_s]
            if answer is None or answer.finish_reason is None:
                times.append(end_s)
            longest_s = max(longest_s, longest_gap(times, begin_s, end_s))
        return longest_s, self._is_broken


def longest_gap(times: Sequence[float], begin: float, end: float) -> float:
    """Longest time between two neighbours in `times` that lies at least partly in the window."""
    gaps = [b - a for a, b in pairwise(times) if b > begin and a < end]
    return max(gaps, default=0.0)


def _answer(stream: ChatStream) -> Answer | None:
    try:
        return stream.answer()
    except RequestFailed:
        return None


async def _newcomer(address: Address, random: Random, seen: Seen) -> None:
    await asyncio.sleep(NEWCOMER_AFTER_S)
    try:
        answer = await chat(address, body(cold(random, NEWCOMER_WORDS), NEWCOMER_TOKENS))
        seen.newcomer_s = answer.ttft_s
    except RequestFailed as error:
        seen.newcomer = str(error)


async def _poll_health(address: Address, seen: Seen) -> None:
    while True:
        begin_s = time.perf_counter()
        status = 0
        try:
            with contextlib.suppress(OSError):
                status = await get_status(address, "/health")
        finally:  # also where this is the last poll, and still waits
            seen.health_s = max(seen.health_s, time.perf_counter() - begin_s)
        seen.is_ready &= status == 200
        await asyncio.sleep(POLL_S)


async def _watch_itself(seen: Seen) -> None:
    while True:
        begin_s = time.perf_counter()
        await asyncio.sleep(POLL_S)
        seen.late_s = max(seen.late_s, time.perf_counter() - begin_s - POLL_S)


async def get_status(address: Address, path: str) -> int:
    """Status of a GET over a connection of its own. Raises OSError if there is none."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        host = f"{address.host}:{address.port}"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read()
    finally:
        writer.close()
    words = answer.split(b" ", 2)
    if len(words) < 2:
        raise ConnectionResetError("no answer")
    return int(words[1])


async def _poll_memory(pid: int, before_mib: float, seen: Seen) -> None:
    while True:
        growth_mib = memory_mib(pid) - before_mib
        seen.growth_mib = max(seen.growth_mib, growth_mib)
        if growth_mib > LETHAL_MIB and not seen.was_killed:
            seen.was_killed = True
            for process in _processes(pid):
                process.kill()
        await asyncio.sleep(POLL_S)


def memory_mib(pid: int) -> float:
    """Resident memory of a process and its children; of those that live."""
    total = 0
    for process in _processes(pid):
        with contextlib.suppress(psutil.Error):
            total += process.memory_info().rss
    return total / MIB


def _processes(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


async def _attack_at_once(address: Address, requests: Sequence[Hostile]) -> list[Outcome]:
    if not requests:
        return []
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(min(len(requests), MAX_AT_ONCE)) as pool:
        attacks = [loop.run_in_executor(pool, _attack, address, each) for each in requests]
        return list(await asyncio.gather(*attacks))


def _attack(address: Address, hostile: Hostile) -> Outcome:
    """Sends one hostile request and waits for its end, or leaves."""
    begin_s = time.perf_counter()
    try:
        if hostile.hangup is not None:
            hang_up(f"http://{address.host}:{address.port}", hostile.hangup)
            kind = "hung up"
        else:
            kind = _send(address, hostile, begin_s + hostile.leaves_s)
    except TimeoutError:
        kind = "left"
    except OSError as error:
        kind = type(error).__name__
    return Outcome(kind, time.perf_counter() - begin_s)


def _send(address: Address, hostile: Hostile, deadline_s: float) -> str:
    head = (
        f"POST {hostile.path} HTTP/1.1\r\nHost: {address.host}:{address.port}\r\n"
        "Content-Type: application/json\r\nConnection: close\r\n"
        f"Content-Length: {len(hostile.body)}\r\n\r\n"
    )
    with socket.socket() as client:
        if not hostile.reads:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        client.settimeout(max(0.001, deadline_s - time.perf_counter()))
        client.connect((address.host, address.port))
        with contextlib.suppress(ConnectionError):  # refused while it is sent: the answer is there
            client.sendall(head.encode())
            client.sendall(hostile.body)
        if not hostile.reads:
            time.sleep(max(0.0, deadline_s - time.perf_counter()))
            return "left, nothing read"
        return _read(client, deadline_s)


def _read(client: socket.socket, deadline_s: float) -> str:
    """Status and error type of the answer. Raises TimeoutError if it does not end in time."""
    first = last = b""
    size = 0
    while True:
        client.settimeout(max(0.001, deadline_s - time.perf_counter()))
        data = client.recv(2**18)
        if not data:
            break
        size += len(data)
        first = (first + data)[:KEPT] if len(first) < KEPT else first
        last = (last + data)[-KEPT:]
        if time.perf_counter() > deadline_s:
            raise TimeoutError
    status = first.split(b" ", 2)[1:2]
    if not status:
        return "cut off"
    error = ERROR.search(first) or ERROR.search(last)
    words = [status[0].decode("latin-1"), error[1].decode() if error else ""]
    words.append(f"{size / MIB:.0f} MiB" if size > MIB else "")
    return " ".join(filter(None, words))


def summary(outcomes: Sequence[Outcome]) -> str:
    """`400 invalid_request ×3 in 0.1–0.4 s, left ×1 after 8.0 s`."""
    parts = []
    for kind, count in Counter(outcome.kind for outcome in outcomes).most_common():
        seconds = sorted(outcome.seconds for outcome in outcomes if outcome.kind == kind)
        span = f"{seconds[0]:.1f}"
        if f"{seconds[-1]:.1f}" != span:
            span += f"–{seconds[-1]:.1f}"
        times = f" ×{count}" if count > 1 else ""
        parts.append(f"{kind}{times} {'after' if kind.startswith('left') else 'in'} {span} s")
    return ", ".join(parts) or "nothing"
