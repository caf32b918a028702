"""A real server with the small embedded model, in a thread, for as long as a test session."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from tests.support.real_vocabulary import smollm2_path

from selfserve.api.app import create_app
from selfserve.config import EngineSettings, ModelInfo, ServerSettings
from selfserve.engine.client import EngineClient

NUM_SLOTS = 4
CONTEXT = 1024
START_S = 60.0


class _Served:
    """A server in a thread: engine and HTTP share its event loop."""

    def __init__(
        self,
        model_path: Path,
        settings: ServerSettings,
        context_size: int,
        projector_path: Path | None,
    ) -> None:
        self._engine_settings = EngineSettings(
            model_path=model_path,
            projector_path=projector_path,
            context_size=context_size,
            num_slots=NUM_SLOTS,
            num_threads=1,
            cache_ram_bytes=64 << 20,
        )
        self._settings = settings
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._ready = threading.Event()
        self._server: uvicorn.Server | None = None
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="live-server")
        host, port = self._socket.getsockname()[:2]
        self.url = f"http://{host}:{port}"

    def start(self) -> None:
        self.thread.start()
        assert self._ready.wait(START_S), "the server did not start"
        if self.failure is not None:
            raise RuntimeError("the server failed") from self.failure

    def stop(self) -> None:
        if self._server is not None:
            self._server.should_exit = True
        self.thread.join(START_S)
        self._socket.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self.failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        engine = EngineClient(self._engine_settings, queue_size=self._settings.queue_size)
        try:
            await engine.start()
            await engine.wait_ready()
            app = create_app(engine, self._settings, ModelInfo(id="smollm2:135m"))
            config = uvicorn.Config(app, log_config=None, access_log=False)
            self._server = uvicorn.Server(config)
            self._ready.set()
            await self._server.serve(sockets=[self._socket])
        finally:
            await engine.close()


@contextmanager
def live_server(
    settings: ServerSettings | None = None,
    *,
    context_size: int = CONTEXT,
    projector_path: Path | None = None,
) -> Iterator[str]:
    """The base URL of a server that runs until the block ends."""
    served = _Served(smollm2_path(), settings or ServerSettings(), context_size, projector_path)
    served.start()
    try:
        yield served.url
    finally:
        served.stop()
