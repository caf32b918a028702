"""A prefiller without a thread: its job is done at a poll of the scheduler's, in a memory that may
be scripted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tests.support.scripted_runner import ScriptedRunner

from selfserve.engine.prefiller import Job, Prefiller
from selfserve.engine.runner import Blob
from selfserve.engine.turns import ComputeTurns
from selfserve.errors import ModelLoadError


class InlinePrefiller(Prefiller):
    """Does a job within the `polls`-th call of `collect` after it was begun."""

    def __init__(
        self, open_memory: Any, copy_slot: Callable[[int], Blob | None], *, polls: int = 3
    ) -> None:
        super().__init__(open_memory, copy_slot, ComputeTurns(0.05), lambda: None)
        self._polls = polls
        self._polls_left = 0
        self.jobs: list[Job] = []

    def begin(self, job: Job) -> None:
        assert self.job is None
        self.job, self._held = job, None
        self.jobs.append(job)
        self._polls_left = self._polls

    def collect(self) -> Job | None:
        self._polls_left -= 1
        if self.job is not None and self._polls_left <= 0:
            self._do(self.job)
        return super().collect()


class ScriptedSideMemory:
    """Holds tokens in the form in which a ScriptedRunner saves them."""

    def __init__(self, size: int, between: Callable[[], bool]) -> None:
        self.size = size
        self.tokens: list[int] = []
        self.fails = False
        self._between = between

    def clear(self) -> None:
        self.tokens = []

    def restore(self, blob: Blob, length: int) -> bool:
        was_partial, *tokens = blob.view(np.int64).tolist()
        assert not was_partial
        assert len(tokens) == length
        self.tokens = tokens
        return True

    def compute(self, tokens: list[int], position: int) -> bool:
        assert position == len(self.tokens)
        assert position + len(tokens) <= self.size
        if self.fails or not self._between():
            self.tokens = []
            return False
        self.tokens += tokens
        return True

    def save(self) -> Blob | None:
        blob: Blob = np.array([0, *self.tokens], dtype=np.int64).view(np.uint8)
        return blob

    def close(self) -> None:
        pass


def scripted_prefiller(
    runner: ScriptedRunner, polls: int = 3, *, fails: str = ""
) -> InlinePrefiller:
    """`fails`: `open` or `compute`, to see what becomes of it."""

    def open_memory(size: int, between: Callable[[], bool]) -> ScriptedSideMemory:
        if fails == "open":
            raise ModelLoadError("there is too little memory")
        memory = ScriptedSideMemory(size, between)
        memory.fails = fails == "compute"
        return memory

    return InlinePrefiller(open_memory, runner.save, polls=polls)
