"""The worker threads of the HTTP side: everything that would hold the event loop up."""

from __future__ import annotations

from selfserve.threads import WorkerThreads

NUM_THREADS = 4
NUM_LARGE = 2
"""Threads for requests with large bodies; small requests always find another one."""


class Workers(WorkerThreads):
    """A small pool: most of the work is short, and holds the GIL now and then."""

    def __init__(self, num_threads: int = NUM_THREADS, num_large: int = NUM_LARGE) -> None:
        super().__init__(num_threads, num_large, name="self-api")
