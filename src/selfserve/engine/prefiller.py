"""Reads a long prompt beside the engine's loop, in a memory of its own.

Rules of this file
    A job's thread computes only in its turns (see `turns`), and copies memory outside them.
    It ends with its job: libgomp counts the threads of each thread that ever computed, and with
    more of them than processors all wait in their sleep, which makes decoding a third slower.
    What was read in part is never handed out: a job ends with its whole memory or with nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from selfserve.engine.runner import Blob
from selfserve.engine.turns import ComputeTurns
from selfserve.logs import get_logger

log = get_logger("engine")


class SideMemory(Protocol):
    """A model's memory of one sequence apart from the slots. Belongs to the side thread."""

    @property
    def size(self) -> int:
        """Tokens that it has room for."""
        ...

    def clear(self) -> None: ...

    def restore(self, blob: Blob, length: int) -> bool:
        """Brings it to a saved state of `length` tokens. False: it is empty now."""
        ...

    def compute(self, tokens: list[int], position: int) -> bool:
        """Computes tokens from `position` on. Blocks; False: it failed, or was told to stop."""
        ...

    def save(self) -> Blob | None:
        """A copy of it in the form that a slot of the runner can be restored from."""
        ...

    def close(self) -> None: ...


OpenMemory = Callable[[int, Callable[[], bool]], SideMemory]
"""Makes a memory for at least so many tokens. It calls what it is given every few operations of a
computation, which may wait there, and stops computing once that returns False. May raise
SelfError."""


@dataclass(slots=True, eq=False)
class Job:
    """A part of a prompt that is to be read."""

    request_id: str
    tokens: list[int]
    """Those to compute."""
    start: int
    """How many tokens come before them."""
    piece: int
    """Tokens to compute at once."""
    blob: Blob | None
    """The memory of what comes before; None: there is nothing, or the side has just read it."""
    num_prompt: int
    """Tokens of the whole prompt, which the memory must have room for."""
    num_computed: int = 0
    """How many tokens the side's memory holds, those before included."""
    result: Blob | None = None
    """The memory after `end` tokens, once the job is done; None: it failed."""
    is_done: bool = False
    is_cancelled: bool = False

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


class Prefiller:
    """One job at a time, each on a thread of its own, and their memory, which is made when a job
    first needs so much.

    All methods belong to the engine's thread, and none waits for a job but
    `close`.
    """

    def __init__(
        self,
        open_memory: OpenMemory,
        copy_slot: Callable[[int], Blob | None],
        turns: ComputeTurns,
        wake: Callable[[], None],
    ) -> None:
        """`copy_slot` copies a slot's memory for `SideMemory.restore`. `wake` is called on the
        side thread whenever a job has come further."""
        self.copy_slot = copy_slot
        self._open_memory = open_memory
        self._turns = turns
        self._wake = wake
        self._thread: threading.Thread | None = None
        self._memory: SideMemory | None = None
        self.job: Job | None = None
        """The one that was begun last and not collected yet."""
        self._held: tuple[str, int] | None = None
        """Request and length of what the memory held when the last job was collected."""
        self.is_broken = False
        """Whether a memory could not be made: then no job should be begun any more."""

    def holds(self, request_id: str, length: int) -> bool:
        """Whether the memory is just after the first `length` tokens of this request's prompt."""
        return self._held == (request_id, length)

    def begin(self, job: Job) -> None:
        """Starts a job. The one before must have been collected."""
        assert self.job is None
        self.job, self._held = job, None
        self._thread = threading.Thread(target=self._do, args=(job,), name="prefill", daemon=True)
        self._thread.start()

    def collect(self) -> Job | None:
        """The job that was begun last, once it is done."""
        job = self.job
        if job is None or not job.is_done:
            return None
        self._end_thread()
        self.job = None
        if job.result is not None and not job.is_cancelled:
            self._held = job.request_id, job.end
        return job

    def cancel(self) -> None:
        """Nobody wants the job that was begun last any more; it still has to be collected."""
        if self.job is not None:
            self.job.is_cancelled = True

    def close(self) -> None:
        """Ends the job within a few operations, and frees the memory."""
        self.cancel()
        self._end_thread()
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def _end_thread(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    # --- on the job's thread --------------------------------------------------------------

    def _do(self, job: Job) -> None:
        try:
            job.result = self._read(job)
        except Exception:
            log.exception("a prompt could not be read beside the engine's steps")
        job.is_done = True
        self._wake()

    def _read(self, job: Job) -> Blob | None:
        memory = self._ready_memory(job)
        if memory is None:
            return None
        job.num_computed = job.start
        for begin in range(0, len(job.tokens), job.piece):
            piece = job.tokens[begin : begin + job.piece]
            with self._turns.side():
                done = memory.compute(piece, job.start + begin)
            if not done:  # a cancelled job is stopped within its computation
                return None
            job.num_computed += len(piece)
            self._wake()
        return memory.save()

    def _ready_memory(self, job: Job) -> SideMemory | None:
        """The memory, holding what comes before the job's tokens."""
        if self._memory is None or self._memory.size < job.num_prompt:
            self.is_broken = True
            if self._memory is not None:
                self._memory.close()
                self._memory = None
            self._memory = self._open_memory(job.num_prompt, self._go_on)
            self.is_broken = False
        memory = self._memory
        if job.blob is not None:
            return memory if memory.restore(job.blob, job.start) else None
        if job.start == 0:
            memory.clear()
        return memory

    def _go_on(self) -> bool:
        """Called within a computation: waits for the next turn, and tells whether to go on."""
        self._turns.pause()
        return self.job is not None and not self.job.is_cancelled
