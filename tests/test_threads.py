"""Worker threads: small work always finds one, and nobody works for clients that left."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from selfserve.errors import ShuttingDown
from selfserve.threads import WorkerThreads, check_wanted

PATIENCE_S = 5.0


def play(scene: Callable[[WorkerThreads], Coroutine[Any, Any, None]]) -> None:
    """Plays a scene with four threads, two of which do large work."""

    async def main() -> None:
        threads = WorkerThreads(4, 2, name="test")
        try:
            async with asyncio.timeout(PATIENCE_S):
                await scene(threads)
        finally:
            threads.close()

    asyncio.run(main())


class Gate:
    """Work that does not end before it is let go, or is wanted no more."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.num_begun = 0
        self.num_ended = 0
        self._lock = threading.Lock()

    def work(self) -> str:
        with self._lock:
            self.num_begun += 1
        try:
            while not self.opened.wait(0.001):
                check_wanted()
        finally:
            with self._lock:
                self.num_ended += 1
        return "done"


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_results_and_errors_come_back() -> None:
    async def scene(threads: WorkerThreads) -> None:
        assert await threads.run(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await threads.run_large(divmod, 7, 0)

    play(scene)


def test_large_work_leaves_threads_for_small_work() -> None:
    async def scene(threads: WorkerThreads) -> None:
        gate = Gate()
        large = [asyncio.ensure_future(threads.run_large(gate.work)) for _ in range(10)]
        await until(lambda: gate.num_begun == 2)
        for _ in range(5):
            assert await threads.run(int, "5") == 5
        assert gate.num_begun == 2
        gate.opened.set()
        assert await asyncio.gather(*large) == ["done"] * 10

    play(scene)


def test_work_of_clients_that_left_never_begins_and_what_has_begun_ends() -> None:
    async def scene(threads: WorkerThreads) -> None:
        gate = Gate()
        tasks = [asyncio.ensure_future(threads.run_large(gate.work)) for _ in range(10)]
        await until(lambda: gate.num_begun == 2)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until(lambda: gate.num_ended == 2)
        assert await threads.run_large(int, "5") == 5
        assert gate.num_begun == 2

    play(scene)


def test_closing_ends_what_waits_and_what_runs_with_an_error() -> None:
    async def scene(threads: WorkerThreads) -> None:
        gate = Gate()
        tasks = [asyncio.ensure_future(threads.run_large(gate.work)) for _ in range(5)]
        await until(lambda: gate.num_begun == 2)
        threads.close()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(error) for error in found] == [ShuttingDown] * 5
        with pytest.raises(ShuttingDown):
            await threads.run(int, "5")
        await until(lambda: gate.num_ended == 2)

    play(scene)


def test_work_is_always_wanted_outside_of_the_threads() -> None:
    check_wanted()


def test_a_process_ends_while_a_thread_is_busy() -> None:
    program = (
        "import asyncio, threading\n"
        "from selfserve.threads import WorkerThreads\n"
        "async def main():\n"
        "    begun = threading.Event()\n"
        "    def work(): begun.set(); threading.Event().wait()\n"
        "    task = asyncio.ensure_future(WorkerThreads(1, 1, name='x').run(work))\n"
        "    await asyncio.to_thread(begun.wait)\n"
        "    task.cancel()\n"
        "asyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
