"""Several streams of events as one, in the order in which the events come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

E = TypeVar("E")

MAX_AHEAD = 16
"""Events that are taken from the streams before somebody asks for them."""


async def merged(streams: Sequence[AsyncGenerator[E, None]]) -> AsyncGenerator[tuple[int, E], None]:
    """(index of the stream, event) until all streams have ended. The first failure of a stream is
    raised. All streams are closed by the time it ends, however it ends."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for event in only:
                yield 0, event
        return
    arrivals: asyncio.Queue[tuple[int, E] | Exception | None] = asyncio.Queue(MAX_AHEAD)

    async def pump(index: int) -> None:
        try:
            async with aclosing(streams[index]) as stream:
                async for event in stream:
                    await arrivals.put((index, event))
        except Exception as error:
            await arrivals.put(error)
        else:
            await arrivals.put(None)

    tasks = [asyncio.create_task(pump(index)) for index in range(len(streams))]
    try:
        num_open = len(streams)
        while num_open:
            arrival = await arrivals.get()
            if isinstance(arrival, Exception):
                raise arrival
            if arrival is None:
                num_open -= 1
            else:
                yield arrival
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
