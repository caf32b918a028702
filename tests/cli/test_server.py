"""A server's life from the bound socket to the end, with a scripted engine behind it."""

from __future__ import annotations

import asyncio
import http.client
import os
import re
import signal
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from selfserve.cli import server
from selfserve.cli.listener import listen, url
from selfserve.config import EngineSettings, ModelInfo, ServerSettings
from selfserve.errors import ModelLoadError, RuntimeCrashed

EMPTY_GGUF = b"GGUF" + struct.pack("<IQQ", 3, 0, 0)


class ScriptedEngine:
    """Loads when told to; knows when it drains and when it is closed."""

    def __init__(self) -> None:
        self.loading_progress = 0.5
        self.load_error: Exception | None = None
        self.loaded = asyncio.Event()
        self.given_up = asyncio.Event()
        self.draining = asyncio.Event()
        self.closed = asyncio.Event()

    async def start(self) -> None: ...

    async def wait_ready(self) -> None:
        await self.loaded.wait()
        if self.load_error is not None:
            raise self.load_error

    async def wait_given_up(self) -> None:
        await self.given_up.wait()
        raise RuntimeCrashed("the engine crashed 5 times")

    def begin_drain(self) -> None:
        self.draining.set()

    async def close(self) -> None:
        self.closed.set()


class ScriptedCompiler:
    """Stands where the process that compiles is made."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append("start")

    def close(self) -> None:
        self.calls.append("close")


class World:
    """One run of the server in this thread, and a client in another one."""

    def __init__(self, folder: Path) -> None:
        self.engine = ScriptedEngine()
        self.compiler = ScriptedCompiler()
        self.arrived = threading.Event()
        self.release: Callable[[], Awaitable[Any]] = self.engine.draining.wait
        self.answers: list[bytes] = []
        self.listener = listen("127.0.0.1", 0)
        self.model = folder / "tiny.gguf"
        self.model.write_bytes(EMPTY_GGUF)

    def app(self, *_: object, workers: object, compiler: object) -> Any:
        async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
            if scope["type"] == "lifespan":
                while (await receive())["type"] != "lifespan.shutdown":
                    await send({"type": "lifespan.startup.complete"})
                await send({"type": "lifespan.shutdown.complete"})
                return
            self.arrived.set()
            if scope["path"] == "/load":
                self.engine.loaded.set()
            if scope["path"] == "/crash":
                self.engine.given_up.set()
            if scope["path"] == "/slow":
                await self.release()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": scope["path"].encode()})

        return application

    def get(self, path: str) -> bytes:
        connection = http.client.HTTPConnection(*self.listener_address, timeout=10)
        connection.request("GET", path)
        body = connection.getresponse().read()
        connection.close()
        self.answers.append(body)
        return body

    def run(self, client: Callable[[], None], drain_s: float = 2.0) -> None:
        """Serves until the client's thread has sent a signal and the server has ended."""
        self.listener_address = self.listener.getsockname()
        thread = threading.Thread(target=client)
        thread.start()
        try:
            server.run(
                EngineSettings(model_path=self.model, num_threads=2),
                ServerSettings(drain_s=drain_s),
                ModelInfo(id="tiny", parameters="1K"),
                self.listener,
            )
        finally:
            thread.join()


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(tmp_path)
    monkeypatch.setattr(server, "EngineClient", lambda *_, **__: world.engine)
    monkeypatch.setattr(server, "create_app", world.app)
    monkeypatch.setattr(server, "ProcessCompiler", lambda: world.compiler)
    monkeypatch.setattr(server, "collect_seldom", lambda: None)
    with world.listener:
        yield world
    assert world.compiler.calls[-1:] in ([], ["close"]), "a process is left"


def test_it_tells_what_it_loads_then_the_address_then_that_it_stops(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = url(world.listener)
    ready = threading.Event()
    say = server.output.status

    def status(text: str) -> None:
        say(text)
        if text.startswith("Ready"):
            ready.set()

    monkeypatch.setattr(server.output, "status", status)

    def client() -> None:
        world.get("/load")
        ready.wait(10)
        interrupt()

    world.run(client)
    out, err = capsys.readouterr()
    loading, context, ready_at, stopping = err.splitlines()
    assert loading == f"Loading tiny (1K) from {world.model}"
    assert context == "Context 16384 tokens, 4 slots, 2 threads"
    assert re.fullmatch(rf"Ready in \d\.\d s: {re.escape(address)}", ready_at)
    assert stopping == "Stopping; Ctrl-C again ends at once"
    assert out == ""


def test_http_answers_while_the_model_loads(world: World) -> None:
    def client() -> None:
        world.get("/health")
        assert not world.engine.loaded.is_set()
        interrupt()

    world.run(client)
    assert world.answers == [b"/health"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_that_runs_at_the_signal_is_answered(
    world: World, number: signal.Signals
) -> None:
    def client() -> None:
        asking = threading.Thread(target=world.get, args=["/slow"])
        asking.start()
        world.arrived.wait(10)
        os.kill(os.getpid(), number)
        asking.join()

    world.run(client)
    assert world.answers == [b"/slow"]
    assert world.engine.closed.is_set()


def test_a_request_that_outlives_the_drain_still_gets_the_engines_last_word(world: World) -> None:
    world.release = world.engine.closed.wait

    def client() -> None:
        asking = threading.Thread(target=world.get, args=["/slow"])
        asking.start()
        world.arrived.wait(10)
        interrupt()
        asking.join()

    world.run(client, drain_s=0.05)
    assert world.answers == [b"/slow"]


def test_nobody_new_is_accepted_while_it_drains(world: World) -> None:
    refused = threading.Event()
    world.release = lambda: asyncio.to_thread(refused.wait, 10)

    def client() -> None:
        asking = threading.Thread(target=world.get, args=["/slow"])
        asking.start()
        world.arrived.wait(10)
        interrupt()
        began = time.monotonic()
        while not refused.is_set() and time.monotonic() < began + 10:
            try:
                socket.create_connection(world.listener_address, timeout=10).close()
            except ConnectionError:
                refused.set()
        asking.join()

    world.run(client, drain_s=5)
    assert world.answers == [b"/slow"]


def test_a_model_that_does_not_load_ends_the_server_with_its_error(world: World) -> None:
    world.engine.load_error = ModelLoadError("the file is damaged")

    def load() -> None:
        world.get("/load")

    with pytest.raises(ModelLoadError, match="the file is damaged"):
        world.run(load)
    assert world.engine.closed.is_set()


def test_an_engine_that_gives_up_ends_the_server_with_its_error(world: World) -> None:
    def client() -> None:
        world.get("/load")
        world.get("/crash")

    with pytest.raises(RuntimeCrashed, match="crashed 5 times"):
        world.run(client)
    assert world.engine.closed.is_set()


def test_a_signal_while_loading_ends_it_without_an_address(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    def client() -> None:
        world.get("/health")
        interrupt()

    world.run(client)
    assert "Ready" not in capsys.readouterr().err
    assert world.engine.closed.is_set()


def test_a_second_signal_ends_the_process_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int] = []
    ended = asyncio.Event()
    world.release = ended.wait

    def exit_now(code: int) -> None:
        codes.append(code)
        ended.set()

    monkeypatch.setattr(server.os, "_exit", exit_now)

    def client() -> None:
        asking = threading.Thread(target=world.get, args=["/slow"])
        asking.start()
        world.arrived.wait(10)
        interrupt()
        began = time.monotonic()
        while not world.engine.draining.is_set() and time.monotonic() < began + 10:
            os.sched_yield()
        interrupt()
        asking.join()

    world.run(client, drain_s=5)
    assert codes == [130]
