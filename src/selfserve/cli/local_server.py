"""A server inside this process, for commands that talk to a model of their own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

from selfserve import logs
from selfserve.cli import server
from selfserve.cli.listener import listen, url
from selfserve.cli.preparation import Prepared
from selfserve.config import ServerSettings


def local_settings(chosen: ServerSettings) -> ServerSettings:
    """`chosen` for a server whose only client is this process."""
    return replace(chosen, host="127.0.0.1", port=0, api_keys=(), drain_s=0, request_timeout_s=0)


@contextlib.contextmanager
def local_server(prepared: Prepared, settings: ServerSettings) -> Iterator[str]:
    """Loads the model and serves it as `settings` say; yields the address.

    HTTP runs in a thread, the engine in its process: Ctrl-C stays with the caller, and the engine
    ends when this process does, however that happens. Raises StartError if it cannot be loaded.
    """
    logs.configure(prepared.engine.verbose)
    with listen(settings.host, settings.port) as listener:
        background = _Background(prepared, settings, listener)
        background.start()
        try:
            background.wait_ready()
            yield url(listener)
        finally:
            background.stop()


class _Background:
    """The thread with the server's event loop."""

    def __init__(
        self, prepared: Prepared, settings: ServerSettings, listener: socket.socket
    ) -> None:
        self._prepared = prepared
        self._settings = settings
        self._listener = listener
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._begun = threading.Event()
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="server")

    def start(self) -> None:
        self._thread.start()
        self._begun.wait()

    def wait_ready(self) -> None:
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=server.loop_factory()) as runner:
                runner.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._begun.set()
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._begun.set()
        await server.serve(
            self._prepared.engine,
            self._settings,
            self._prepared.model,
            self._listener,
            stop=self._stop,
            on_ready=self._ready.set,
        )
