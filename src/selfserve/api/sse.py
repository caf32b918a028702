"""Server-sent events, written by one task for each stream.

Rules of this file:
- Pushing an event is synchronous and cheap; whatever was pushed before the writer gets its turn
  goes out in one send.
- Status 200 is sent with the first event or the first ping, never earlier: a failure before it
  can still become a real error answer.
- After silence the writer sends a comment; the timer looks at a clock instead of being set anew
  for each event.
- What a client has not taken is bounded: whoever makes events waits in `ready` before the next one.
  A client that takes nothing at all for a while is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import Send

from selfserve.limits import MAX_UNSENT, UNREAD_S

PING = b": ping\n\n"
SENT_AT_ONCE = 1 << 16
"""Bytes of one send: a client that reads slowly is seen to read."""
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
        self._waiting = bytearray()
        self._wake = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
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
        self._waiting += event
        self._last_push = self._loop.time()
        if len(self._waiting) > MAX_UNSENT:
            self._has_room.clear()
        self._wake.set()

    async def ready(self) -> None:
        """Waits until the client has taken enough of what was pushed."""
        await self._has_room.wait()

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
            if not self._waiting:  # else there is enough to read
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
                chunk = bytes(self._waiting[:SENT_AT_ONCE])
                del self._waiting[:SENT_AT_ONCE]
                ended = self._closed and not self._waiting
                async with asyncio.timeout(UNREAD_S):
                    await self._send(
                        {"type": "http.response.body", "body": chunk, "more_body": not ended}
                    )
                if len(self._waiting) <= MAX_UNSENT:
                    self._has_room.set()
        except OSError:  # closed, or too long unread: TimeoutError is one, too
            self._on_broken()
