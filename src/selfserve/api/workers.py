"""The worker threads of the HTTP side: everything that would hold the event loop up."""

from __future__ import annotations

from selfserve.resources import available_cpus
from selfserve.threads import WorkerThreads

NUM_LARGE = max(1, available_cpus() // 2)
"""Threads for requests that may take long; the others always find another one, the event loop and
the engine a processor."""
NUM_THREADS = max(4, NUM_LARGE + 2)


class Workers(WorkerThreads):
    """A small pool: most of the work is short, and holds the GIL now and then."""

    def __init__(self, num_threads: int = NUM_THREADS, num_large: int = NUM_LARGE) -> None:
        super().__init__(num_threads, num_large, name="self-api")
