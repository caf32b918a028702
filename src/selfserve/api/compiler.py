"""Grammars and schemas of requests, compiled where they disturb nobody.

Compiling is work of the interpreter, of up to seconds for the largest that are allowed. In a thread
of this process it would hold the interpreter up for the event loop and take a processor from the
engine. So it has a process of its own, with the lowest claim on the processors.

Rules of this file
    One compilation at a time; it is bounded by counted work (see `text/fuel`), not by time.
    Whoever nobody waits for any more leaves at once; the process ends that compilation by itself.
    The process ends when this one does: its end of the pipe is the only other one.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from selfserve.errors import InternalError, SelfError, from_name
from selfserve.logs import get_logger
from selfserve.request import Constraint
from selfserve.text.grammar import gbnf_constraint
from selfserve.text.schema import json_schema_constraint
from selfserve.threads import NICENESS, check_wanted

log = get_logger("api")

POLL_S = 0.02
"""Between two looks whether anybody still waits."""


class Compiler(Protocol):
    """Belongs to worker threads. Both methods block and raise InvalidRequest."""

    def json_schema(self, schema: Any, *, param: str) -> Constraint: ...

    def gbnf(self, text: str, *, param: str) -> Constraint: ...


class ThreadCompiler:
    """Compiles in the thread that asks: for tests, and where no process can be made."""

    def json_schema(self, schema: Any, *, param: str) -> Constraint:
        return json_schema_constraint(schema, param=param, check=check_wanted)

    def gbnf(self, text: str, *, param: str) -> Constraint:
        return gbnf_constraint(text, param=param, check=check_wanted)


Question = tuple[int, str, Any, str]
"""Number, method, what to compile, path of the field."""
Answer = tuple[int, str | None, tuple[str, str, str | None] | None]
"""Number of the question; the constraint's text, or class, message and param of an error."""


class ProcessCompiler:
    """Compiles in a process of its own, which is made when it is first needed. Close it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._number = 0
        self._is_closed = False

    def json_schema(self, schema: Any, *, param: str) -> Constraint:
        return self._ask("json_schema", schema, param)

    def gbnf(self, text: str, *, param: str) -> Constraint:
        return self._ask("gbnf", text, param)

    def start(self) -> None:
        """Makes the process, so that no request waits for it. Blocks for some milliseconds."""
        with self._lock:
            self._ready_pipe()

    def close(self) -> None:
        """Ends the process, whatever it does, and waits for its end. Any thread may call it."""
        self._is_closed = True
        process = self._process
        if process is not None:
            process.kill()
            process.join()

    def _ask(self, method: str, what: Any, param: str) -> Constraint:
        while not self._lock.acquire(timeout=POLL_S):
            check_wanted()
        try:
            text, error = self._answer(method, what, param)
        except (EOFError, OSError) as failure:
            self._forget()
            raise InternalError("the grammar could not be compiled") from failure
        finally:
            self._lock.release()
        if error is not None:
            name, message, at = error
            raise from_name(name, message, param=at)
        assert text is not None
        return Constraint(text=text)

    def _answer(self, method: str, what: Any, param: str) -> tuple[str | None, Any]:
        pipe = self._ready_pipe()
        self._number += 1
        number = self._number
        pipe.send((number, method, what, param))
        while True:
            while not pipe.poll(POLL_S):
                check_wanted()
            answer: Answer = pipe.recv()
            if answer[0] == number:  # else of somebody who did not wait for it
                return answer[1], answer[2]

    def _ready_pipe(self) -> Connection:
        if self._is_closed:
            raise OSError("the compiler is closed")
        if self._pipe is None or self._process is None or not self._process.is_alive():
            self._forget()
            spawn = multiprocessing.get_context("spawn")
            self._pipe, theirs = spawn.Pipe()
            self._process = spawn.Process(
                target=_serve, args=(theirs,), name="self-compiler", daemon=True
            )
            self._process.start()
            theirs.close()
        assert self._pipe is not None
        return self._pipe

    def _forget(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
        if self._process is not None and self._process.is_alive():
            self._process.kill()
        self._pipe = self._process = None


def _serve(pipe: Connection) -> None:
    """The process: answers until its parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends Ctrl-C to all processes
    with contextlib.suppress(OSError, AttributeError):
        os.nice(NICENESS)
    compiler = ThreadCompiler()
    while True:
        try:
            number, method, what, param = pipe.recv()
        except (EOFError, OSError):
            return
        text, error = None, None
        try:
            text = getattr(compiler, method)(what, param=param).text
        except SelfError as found:
            error = (type(found).__name__, found.message, found.param)
        except Exception:
            log.exception("a grammar could not be compiled")
            error = (InternalError.__name__, "the grammar could not be compiled", None)
        with contextlib.suppress(OSError):
            pipe.send((number, text, error))
