"""Who may compute: the engine's steps, or a prompt that a side thread reads.

Both use all threads of the processor, so one at a time. Without turns the system would share the
processor between them: their threads meet after every operation, and the late ones make both wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class ComputeTurns:
    """Gives the processor to the engine's thread and to one side thread in turn.

    The side keeps its turn until it ends it, or until `pause` finds that the engine waits and that
    the turn has lasted long enough: the time that a step may add to decoding, or as long as the
    engine's last turn took where that is more. So decoding is never silent for much longer than
    that time, and neither of two prompts starves the other.
    """

    def __init__(self, turn_s: float, clock: Callable[[], float] = time.perf_counter) -> None:
        """`turn_s`: what the side may take before the engine's turn comes."""
        self._turn_s = turn_s
        self._clock = clock
        self._changed = threading.Condition()
        self._engine_wants = False
        self._side_wants = False
        self._side_has = False
        self._side_began_s = 0.0
        self._engine_took_s = 0.0

    @contextmanager
    def engine(self) -> Iterator[None]:
        """The engine's turn. Blocks until the side's ends."""
        with self._changed:
            self._engine_wants = True
            self._changed.wait_for(lambda: not self._side_has)
        begin_s = self._clock()
        try:
            yield
        finally:
            self._engine_took_s = self._clock() - begin_s
            with self._changed:
                self._engine_wants = False
                # Handed over here: an engine that decodes comes back before the side wakes up.
                if self._side_wants:
                    self._give_to_side()
                self._changed.notify_all()

    @contextmanager
    def side(self) -> Iterator[None]:
        """The side's turn. Blocks until the engine's ends."""
        with self._changed:
            self._wait_for_turn()
        try:
            yield
        finally:
            with self._changed:
                self._side_has = False
                self._changed.notify_all()

    def pause(self) -> None:
        """Called by the side within its turn, often: lets the engine have its turn if it is due."""
        if not self._engine_wants:
            return
        if self._clock() - self._side_began_s < max(self._turn_s, self._engine_took_s):
            return
        with self._changed:
            self._side_has = False
            self._changed.notify_all()
            self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        if not self._engine_wants:
            self._give_to_side()
            return
        self._side_wants = True
        self._changed.wait_for(lambda: self._side_has)

    def _give_to_side(self) -> None:
        self._side_wants = False
        self._side_has = True
        self._side_began_s = self._clock()
