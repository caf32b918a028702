"""Server-sent events, written by one task for each stream.

Rules of this file:
- Pushing an event is synchronous and cheap; whatever was pushed before the writer gets its turn
  goes out in one send.
- Status 200 is sent with the first event or the first ping, never earlier: a failure before it
  can still become a real error answer.
- After silence the writer sends a comment; the timer looks at a clock instead of being set anew
  for each event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import Send

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def data_event(json_text: str) -> bytes:
    """One event. `json_text` is ASCII, so it holds nothing that a reader takes for a line end."""
    return b"data: " + json_text.encode("ascii") + b"\n\n"


class EventStream:
    """One streamed answer. Belongs to the event loop's thread."""

    def __init__(self, send: Send, *, ping_s: float, on_broken: Callable[[], None]) -> None:
        """`ping_s`: silence before a comment, 0 for never. `on_broken` is called when the
        connection turns out to be closed."""
        self._send = send
        self._ping_s = ping_s
        self._on_broken = on_broken
        self._loop = asyncio.get_running_loop()
        self._waiting: list[bytes] = []
        self._wake = asyncio.Event()
        self._closed = False
        self._last_push = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self.begun = False
        """True once something was pushed: from then on an error is an event."""
        if ping_s > 0:
            self._timer = self._loop.call_later(ping_s, self._check_silence)
        self._writer = self._loop.create_task(self._write())

    def push(self, event: bytes) -> None:
        """Hands over one event or several; never waits."""
        self.begun = True
        self._waiting.append(event)
        self._last_push = self._loop.time()
        self._wake.set()

    async def close(self) -> None:
        """Sends what is waiting and ends the answer."""
        self._stop_timer()
        self._closed = True
        self._wake.set()
        await self._writer

    def abandon(self) -> None:
        """Drops what is waiting; nothing more is sent."""
        self._stop_timer()
        self._writer.cancel()

    def _check_silence(self) -> None:
        silence_s = self._loop.time() - self._last_push
        if silence_s >= self._ping_s:
            self.push(PING)
            silence_s = 0.0
        self._timer = self._loop.call_later(self._ping_s - silence_s, self._check_silence)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _write(self) -> None:
        try:
            await self._wake.wait()
            await self._send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            ended = False
            while not ended:
                if not self._waiting and not self._closed:
                    self._wake.clear()
                    await self._wake.wait()
                chunk, ended = b"".join(self._waiting), self._closed
                self._waiting.clear()
                await self._send(
                    {"type": "http.response.body", "body": chunk, "more_body": not ended}
                )
        except OSError:
            self._on_broken()
