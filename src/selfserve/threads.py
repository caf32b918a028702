"""Threads for work that would hold the event loop up, and how such work is told to stop.

Rules of this file
- Work that nobody waits for any more never begins; work that has begun ends at its next call of
  `check_wanted`.
- Large work has fewer threads than there are, so that small work always finds one.
- The threads are daemons: a process that ends does not wait for what they are doing.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from selfserve.errors import ShuttingDown

P = ParamSpec("P")
R = TypeVar("R")

NICENESS = 10
"""Of the claim on the processors of work that can wait."""
IDLE_S = 10.0
"""After so long without work a thread ends."""


class Unwanted(BaseException):
    """Nobody waits for this work any more. Not an Exception: nothing may take it for a failure."""


class _Job:
    """One call, made by a thread for a task of the event loop."""

    def __init__(self, call: Callable[[], Any], *, is_large: bool) -> None:
        self.is_large = is_large
        self._call = call
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self._loop.create_future()
        self.is_wanted = True

    def run(self) -> None:
        try:
            result, error = self._call(), None
        except Unwanted:
            return
        except BaseException as found:
            result, error = None, found
        finally:
            del self._call  # its arguments may be large
        try:
            self._loop.call_soon_threadsafe(self.end, result, error)
        except RuntimeError:  # the loop is closed, and with it whoever waited
            return

    def end(self, result: Any, error: BaseException | None) -> None:
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class _Current(threading.local):
    job: _Job | None = None


_current = _Current()


def check_wanted() -> None:
    """Raises Unwanted if the work of this thread is wanted no more. Cheap; to be called between
    pieces of work. Outside of WorkerThreads it does nothing."""
    job = _current.job
    if job is not None and not job.is_wanted:
        raise Unwanted


def collect_seldom() -> None:
    """Makes Python's search for cycles rare, and leaves out what exists now. Requests are trees,
    which are freed without it, while a search through a large one holds every thread up."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def yield_to_others() -> None:
    """Gives this thread the lowest claim on the processors, where the system can do that for a
    single thread: what it does may take as long as it likes, decoding may not."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


class WorkerThreads:
    """A pool. `run`, `run_large` and `close` belong to one event loop's thread."""

    def __init__(self, num_threads: int, num_large: int, *, name: str) -> None:
        """At most `num_large` of the threads do large work at a time."""
        self._name = name
        self._num_threads, self._num_large = num_threads, num_large
        self._changed = threading.Condition()
        self._small: deque[_Job] = deque()
        self._large: deque[_Job] = deque()
        self._running: set[_Job] = set()
        self._num_started = self._num_idle = self._num_large_running = 0
        self._is_closed = False

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """The result of the call. A cancelled caller leaves the work without anyone who wants it.
        Raises ShuttingDown after `close`."""
        found: R = await self._do(_Job(lambda: function(*args, **kwargs), is_large=False))
        return found

    async def run_large(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """As `run`, for work whose size a client chose."""
        found: R = await self._do(_Job(lambda: function(*args, **kwargs), is_large=True))
        return found

    def close(self) -> None:
        """Ends what waits and what runs with ShuttingDown; does not wait for threads."""
        with self._changed:
            self._is_closed = True
            jobs = [*self._small, *self._large, *self._running]
            self._small.clear()
            self._large.clear()
            self._changed.notify_all()
        for job in jobs:
            job.is_wanted = False
            job.end(None, _closed())

    async def _do(self, job: _Job) -> Any:
        with self._changed:
            if self._is_closed:
                raise _closed()
            (self._large if job.is_large else self._small).append(job)
            if self._num_idle < len(self._small) + len(self._large):
                self._start_thread()
            self._changed.notify()
        try:
            return await job.future
        finally:
            job.is_wanted = False

    def _start_thread(self) -> None:
        if self._num_started < self._num_threads:
            self._num_started += 1
            threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _work(self) -> None:
        while job := self._next():
            _current.job = job
            try:
                job.run()
            finally:
                _current.job = None
                with self._changed:
                    self._running.discard(job)
                    self._num_large_running -= job.is_large
                    self._changed.notify_all()
                del job

    def _next(self) -> _Job | None:
        """The next job to do; None if this thread is to end."""
        with self._changed:
            while True:
                if job := self._take():
                    self._running.add(job)
                    return job
                self._num_idle += 1
                was_woken = self._changed.wait(IDLE_S)
                self._num_idle -= 1
                if self._is_closed or not (was_woken or self._small or self._large):
                    self._num_started -= 1
                    return None

    def _take(self) -> _Job | None:
        while self._small:
            if (job := self._small.popleft()).is_wanted:
                return job
        while self._large and self._num_large_running < self._num_large:
            if (job := self._large.popleft()).is_wanted:
                self._num_large_running += 1
                return job
        return None


def _closed() -> ShuttingDown:
    return ShuttingDown("the server is shutting down")
