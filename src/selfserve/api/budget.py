"""A number of bytes that all requests share: who finds no room waits in line, and not for ever."""

from __future__ import annotations

import asyncio
from collections import deque

from selfserve.errors import QueueFull


class ByteBudget:
    """Belongs to the event loop's thread."""

    def __init__(self, capacity: int, *, wait_s: float, what: str) -> None:
        """`what` is named when the wait was too long, as in "too many {what}"."""
        self.capacity = capacity
        self.used = 0
        self._wait_s = wait_s
        self._what = what
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()

    def share(self) -> ByteShare:
        """What one request has of it, nothing at first."""
        return ByteShare(self)

    async def take(self, size: int, *, first: bool = False) -> None:
        """Waits for room, behind those who wait already, or `first`. Raises QueueFull after
        `wait_s`."""
        if (first or not self._line) and self.used + size <= self.capacity:
            self.used += size
            return
        place = (size, asyncio.get_running_loop().create_future())
        if first:
            self._line.appendleft(place)
        else:
            self._line.append(place)
        try:
            async with asyncio.timeout(self._wait_s):
                await place[1]
        except BaseException as error:
            if place in self._line:
                self._line.remove(place)
                self._advance()  # it may have kept smaller ones waiting
            elif place[1].done() and not place[1].cancelled():
                self.give(size)  # its turn came in the same moment
            if isinstance(error, TimeoutError):
                raise QueueFull(
                    f"there are too many {self._what}: {self.used} bytes of at most "
                    f"{self.capacity}",
                    retry_after_s=max(1, int(self._wait_s)),
                ) from error
            raise

    def give(self, size: int) -> None:
        """Gives back what was taken."""
        self.used -= size
        self._advance()

    def _advance(self) -> None:
        while self._line and self.used + self._line[0][0] <= self.capacity:
            size, turn = self._line.popleft()
            if not turn.done():
                self.used += size
                turn.set_result(None)


class ByteShare:
    """The bytes that one request holds; `close` gives them back, once or several times."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self.size = 0

    async def grow(self, size: int) -> None:
        """Holds at least `size` bytes, or all there are. Raises QueueFull."""
        more = min(size, self._budget.capacity) - self.size
        if more > 0:
            # Who has begun goes first: others would wait for what only they can give back.
            await self._budget.take(more, first=self.size > 0)
            self.size += more

    def shrink(self, size: int) -> None:
        """Holds at most `size` bytes."""
        if size < self.size:
            less, self.size = self.size - size, size
            self._budget.give(less)

    def give(self, size: int) -> None:
        """Gives back `size` bytes, or what is left."""
        self.shrink(max(0, self.size - size))

    def close(self) -> None:
        self.shrink(0)
