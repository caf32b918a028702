"""The worker threads of the HTTP side: everything that would hold the event loop up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

NUM_THREADS = 4


class Workers:
    """A small pool: the work is short, and most of it holds the GIL now and then."""

    def __init__(self, num_threads: int = NUM_THREADS) -> None:
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="self-api")

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls `function` in a thread. Cancelling gives the result up; the call itself ends when
        it ends."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: function(*args, **kwargs))

    def close(self) -> None:
        """Drops what has not begun; does not wait for what has."""
        self._pool.shutdown(wait=False, cancel_futures=True)
