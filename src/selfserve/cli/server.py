"""A server's life: engine and HTTP start together, then serve, then drain.

    start engine ─► HTTP answers (503 while loading) ─► ready ─► signal ─► drain ─► end
                                                   a second signal ends the process at once

The HTTP server stops accepting at the first signal. Requests that run have `drain_s` seconds;
then the engine ends them with an error, which still reaches the clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

import uvicorn
from starlette.types import ASGIApp

from selfserve import logs
from selfserve.api.app import create_app
from selfserve.api.compiler import ProcessCompiler
from selfserve.api.workers import Workers
from selfserve.catalogue.facts import described
from selfserve.catalogue.gguf import read_header
from selfserve.cli import listener as listeners
from selfserve.cli import output
from selfserve.config import EngineSettings, ModelInfo, ServerSettings
from selfserve.engine.client import EngineClient
from selfserve.errors import ModelLoadError
from selfserve.threads import collect_seldom

SWITCH_INTERVAL_S = 0.0005
"""After which a worker thread gives the interpreter to the event loop: with Python's own 5 ms, each
socket that the loop serves beside busy workers could end in such a wait."""

KEEP_ALIVE_S = 75
"""Longer than clients keep idle connections, so that none is closed under a new request."""
LAST_EVENTS_S = 0.3
"""Time that the errors of aborted requests have to reach their clients."""
POLL_S = 0.1


def run(
    engine_settings: EngineSettings,
    server_settings: ServerSettings,
    model: ModelInfo,
    listener: socket.socket,
) -> None:
    """Serves on the bound `listener` until SIGINT or SIGTERM. Raises StartError when the model
    cannot be loaded."""

    async def until_signal() -> None:
        stop = _stop_on_signals()
        began = time.monotonic()

        def say_ready() -> None:
            _announce_address(listener, server_settings, time.monotonic() - began)

        await serve(
            engine_settings, server_settings, model, listener, stop=stop, on_ready=say_ready
        )

    logs.configure(engine_settings.verbose)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    collect_seldom()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(until_signal())


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop


async def serve(
    engine_settings: EngineSettings,
    server_settings: ServerSettings,
    model: ModelInfo,
    listener: socket.socket,
    *,
    stop: asyncio.Event,
    on_ready: Callable[[], None],
) -> None:
    """Serves until `stop` is set; `on_ready` is called when the model is loaded.

    Raises StartError when it cannot be loaded, RuntimeCrashed when it crashes again and again.
    """
    header = read_header(engine_settings.model_path)
    if header.is_projector:
        raise ModelLoadError(f"{engine_settings.model_path} is a projector, not a model")
    model = replace(described(model, header), created=int(time.time()))
    _announce(model, header.file_type, engine_settings)
    engine = EngineClient(engine_settings, queue_size=server_settings.queue_size)
    compiler = ProcessCompiler()
    try:
        await engine.start()
        workers = Workers()
        app = create_app(engine, server_settings, model, workers=workers, compiler=compiler)
        server = _http_server(app)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await _wait_ready(engine, stop)
            if not stop.is_set():
                on_ready()
                with contextlib.suppress(OSError):  # else the first request tries again
                    await asyncio.to_thread(compiler.start)
            await _first_of(stop.wait(), asyncio.shield(serving), engine.wait_given_up())
        finally:
            drain_s = server_settings.drain_s if stop.is_set() else 0
            await _drain(engine, server, serving, workers, drain_s)
    finally:
        compiler.close()
        await engine.close()


class _Server(uvicorn.Server):
    """Leaves the signals to us: ours drain the engine first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _http_server(app: ASGIApp) -> _Server:
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=listeners.BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    return _Server(config)


def _stop_on_signals() -> asyncio.Event:
    """An event that the first SIGINT or SIGTERM sets; the second one ends the process."""
    stop = asyncio.Event()

    def on_signal(number: int) -> None:
        if stop.is_set():
            for child in multiprocessing.active_children():
                child.kill()
            os._exit(128 + number)
        output.status("Stopping; Ctrl-C again ends at once")
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    return stop


async def _wait_ready(engine: EngineClient, stop: asyncio.Event) -> None:
    """Shows the progress until the model is loaded or `stop` is set."""

    async def show() -> None:
        with output.LoadingProgress() as progress:
            while True:
                progress.update(engine.loading_progress)
                await asyncio.sleep(POLL_S)

    showing = asyncio.create_task(show())
    try:
        await _first_of(engine.wait_ready(), stop.wait())
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)


async def _first_of(*awaitables: Awaitable[object]) -> None:
    """Waits until one is done, cancels the others; raises what a finished one raised."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    ended, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    for task in ended:
        task.result()


async def _drain(
    engine: EngineClient,
    server: uvicorn.Server,
    serving: asyncio.Task[None],
    workers: Workers,
    drain_s: float,
) -> None:
    engine.begin_drain()
    server.should_exit = True
    await asyncio.wait({serving}, timeout=drain_s)
    workers.close()  # what is being prepared ends with an error, too; its threads are not awaited
    await engine.close()
    await asyncio.wait({serving}, timeout=LAST_EVENTS_S)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


def _announce(model: ModelInfo, file_type: str, settings: EngineSettings) -> None:
    facts = ", ".join(filter(None, (model.parameters, file_type)))
    context = settings.context_size or min(
        model.context_length or math.inf, EngineSettings.DEFAULT_CONTEXT
    )
    output.status(f"Loading {model.id}{f' ({facts})' if facts else ''} from {settings.model_path}")
    output.status(
        f"Context {context} tokens, "
        f"{counted(settings.num_slots, 'slot')}, {counted(settings.num_threads, 'thread')}"
    )


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _announce_address(listener: socket.socket, settings: ServerSettings, elapsed_s: float) -> None:
    if listeners.is_public(listener) and not settings.api_keys:
        output.status("Note: other machines can use this server; --api-key restricts it")
    output.status(f"Ready in {elapsed_s:.1f} s: {listeners.url(listener)}")
