"""An engine process that is none: the real loop and the real sockets on a thread, in front of a
scripted runner. What the client sees is what it would see of a process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import zmq
from tests.support.builders import Rig
from tests.support.byte_vocabulary import ByteVocabulary

from selfserve.config import EngineSettings
from selfserve.engine import channel, client
from selfserve.engine.intake import Intake
from selfserve.engine.loop import EngineLoop
from selfserve.engine.process import START_FAILED
from selfserve.engine.scheduler import failed
from selfserve.engine.stats import EngineStats
from selfserve.errors import SelfError
from selfserve.request import Ready


class Crash(BaseException):
    """Ends the engine's thread as an abort in C ends a process."""


class ThreadEngine:
    """Stands where `multiprocessing` makes processes; `install` puts it there.

    Each start makes a new engine, the newest of which is `rig`.
    """

    def __init__(self, **runner_fields: Any) -> None:
        self._runner_fields = runner_fields
        self.rig = Rig()
        self.num_starts = 0
        self.num_alive = 0
        self.load_error: SelfError | Crash | None = None
        """What happens instead of becoming ready."""
        self.gate = threading.Event()
        """Loading waits for it."""
        self.gate.set()
        self.may_connect = threading.Event()
        """Before it is set, a ready engine cannot hear its commands yet."""
        self.may_connect.set()
        self.prepare: Callable[[Rig], None] = lambda rig: None
        """Called with each new engine before it takes requests."""

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("multiprocessing.get_context", lambda method: self)
        monkeypatch.setattr(client, "load_vocabulary", lambda path: ByteVocabulary())
        monkeypatch.setattr(client, "BACK_OFF_S", 0.0)

    def Process(self, *, args: tuple[EngineSettings, str], **_: Any) -> ThreadProcess:
        return ThreadProcess(self, args[1])

    def work(self, folder: str) -> None:
        """The engine's whole life."""
        self.num_starts += 1
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        outbox = channel.EngineOutbox(context, folder)
        sockets: list[channel.EngineOutbox | channel.EngineInbox] = [outbox]
        try:
            assert self.gate.wait(20)
            if isinstance(self.load_error, Crash):
                raise self.load_error
            if self.load_error is not None:
                outbox([failed(START_FAILED, self.load_error)])
                raise Crash
            self.rig = Rig(**self._runner_fields)
            self.prepare(self.rig)
            outbox([_ready(self.rig)])
            assert self.may_connect.wait(20)
            inbox = channel.EngineInbox(context, folder)
            sockets.append(inbox)
            rig = self.rig
            intake = Intake(inbox, rig.preparation)
            intake.start()
            stats = EngineStats(rig.scheduler, rig.memory)
            try:
                EngineLoop(rig.runner, rig.scheduler, stats, intake, outbox).run()
            finally:
                intake.close()
        finally:
            for socket in sockets:
                socket.close()
            context.term()


class ThreadProcess:
    """The part of `multiprocessing.Process` that the client uses."""

    def __init__(self, engine: ThreadEngine, folder: str) -> None:
        self._thread = threading.Thread(target=self._run, args=(engine, folder), daemon=True)
        self.sentinel, self._end = os.pipe()
        self.exitcode: int | None = None
        self.pid: int | None = None

    def _run(self, engine: ThreadEngine, folder: str) -> None:
        engine.num_alive += 1
        try:
            engine.work(folder)
            self.exitcode = 0
        except Crash:
            self.exitcode = -6
        finally:
            engine.num_alive -= 1
            os.close(self._end)  # readable from now on, as a process's sentinel is

    def start(self) -> None:
        self._thread.start()
        self.pid = os.getpid()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout: float | None = None) -> None:
        self._thread.join(timeout)

    def kill(self) -> None:
        raise AssertionError("the engine did not end by itself")

    def close(self) -> None:
        os.close(self.sentinel)


def _ready(rig: Rig) -> Ready:
    limits = rig.runner.capabilities
    return Ready(
        context_size=limits.context_size, num_slots=limits.num_slots, can_shift=limits.can_shift
    )
