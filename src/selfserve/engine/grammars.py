"""Compiles grammars beside the engine's loop, which goes on with everybody else's tokens."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from selfserve.engine.constraint import ConstraintFactory, ConstraintState
from selfserve.errors import InternalError, SelfError
from selfserve.logs import get_logger
from selfserve.request import Constraint, Request

log = get_logger("engine")

Built = tuple[Request, ConstraintState | SelfError]


class GrammarBuilder:
    """A thread of its own that turns constraints into matchers. Made at the first grammar, since
    the vocabulary's tables that it needs take memory and up to a second to build."""

    def __init__(self, make_factory: Callable[[], ConstraintFactory], wake: Callable[[], None]):
        """`wake` is called, on the builder's thread, whenever a grammar is ready."""
        self._make_factory = make_factory
        self._wake = wake
        self._factory: ConstraintFactory | None = None
        self._thread: threading.Thread | None = None
        self._orders: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._built: queue.SimpleQueue[Built] = queue.SimpleQueue()
        self._wanted: dict[str, None] = {}
        """Ids of the requests that wait, oldest first."""

    def build(self, request: Request) -> None:
        """Starts compiling; the result comes out of `take_built`. Never blocks."""
        self._wanted[request.id] = None
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="grammars", daemon=True)
            self._thread.start()
        self._orders.put(request)

    def forget(self, request_id: str) -> None:
        """Nobody waits for this one any more."""
        self._wanted.pop(request_id, None)

    def forget_all(self) -> list[str]:
        """Nobody waits any more; the ids of the requests that did."""
        forgotten = list(self._wanted)
        self._wanted.clear()
        return forgotten

    def take_built(self) -> list[Built]:
        """What became ready since the last call: a state to own, or why there is none."""
        ready: list[Built] = []
        while not self._built.empty():
            request, result = self._built.get()
            if request.id in self._wanted:
                del self._wanted[request.id]
                ready.append((request, result))
        return ready

    def close(self) -> None:
        """Ends the thread after the grammar it works on."""
        if self._thread is not None:
            self._orders.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while (request := self._orders.get()) is not None:
            assert request.constraint is not None
            self._built.put((request, self._compile(request.constraint)))
            self._wake()

    def _compile(self, constraint: Constraint) -> ConstraintState | SelfError:
        try:
            if self._factory is None:
                self._factory = self._make_factory()
            return self._factory.compile(constraint)
        except SelfError as error:
            return error
        except Exception:
            log.exception("a grammar could not be compiled")
            return InternalError("the grammar could not be compiled")
