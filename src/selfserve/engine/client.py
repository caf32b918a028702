"""The engine as the HTTP process sees it: starts the engine process, sends it requests, and gives
each of them its own stream of events. Everything here belongs to the event loop's thread."""

from __future__ import annotations

import asyncio
import multiprocessing
import shutil
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess

import msgspec
import zmq

from selfserve.config import EngineSettings
from selfserve.engine import channel, process
from selfserve.engine.interface import EngineState, Vocabulary
from selfserve.engine.llama_runner import load_vocabulary
from selfserve.errors import (
    EngineUnavailable,
    ModelLoadError,
    ModelLoading,
    QueueFull,
    RuntimeCrashed,
    SelfError,
    ShuttingDown,
    from_name,
)
from selfserve.logs import get_logger
from selfserve.request import (
    Abort,
    Command,
    Event,
    Failed,
    Finished,
    Heartbeat,
    Loading,
    Message,
    Ready,
    Request,
    Shutdown,
    Submit,
)

log = get_logger("engine")

STALLED_AFTER_S = 60.0
"""Without a heartbeat. Longer than the longest honest step: a large model's batch on a slow CPU."""
RETRY_AFTER_S = 2
"""What clients are told to wait after `queue_full` or while the engine is away."""


class Mailbox:
    """The events of one request that nobody has read yet. One reader."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._arrival: asyncio.Future[None] | None = None

    def put(self, event: Event) -> None:
        self._events.append(event)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def get(self) -> Event:
        while not self._events:
            self._arrival = asyncio.get_running_loop().create_future()
            try:
                await self._arrival
            finally:
                self._arrival = None
        return self._events.popleft()


class EngineClient:
    """The `Engine` that runs in a process of its own.

    `start`, then `wait_ready`, then any number of requests, then `close`.
    """

    def __init__(self, settings: EngineSettings, *, queue_size: int) -> None:
        self._settings = settings
        self._capacity = settings.num_slots + queue_size
        self._num_reserved = 0
        self._mailboxes: dict[str, Mailbox] = {}
        self._state = EngineState.LOADING
        self._ready: Ready | None = None
        self._heartbeat = Heartbeat()
        self._heard_s = time.monotonic()
        self._load_error: SelfError | None = None
        self._is_ready = asyncio.Event()
        self._vocabulary: Vocabulary | None = None
        self._process: BaseProcess | None = None
        self._decoder = msgspec.msgpack.Decoder(list[Message])
        self.loading_progress = 0.0
        """Share of the weights that is loaded, 0 to 1."""

    # --- life -----------------------------------------------------------------------------

    async def start(self) -> None:
        """Spawns the engine process and loads the vocabulary; the model goes on loading after."""
        # Only this user may enter the folder, so only this user can reach the sockets in it.
        self._folder = tempfile.mkdtemp(prefix="self-")
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._commands = self._context.socket(zmq.PUSH)
        self._commands.setsockopt(zmq.SNDHWM, 0)
        self._commands.bind(channel.endpoint(self._folder, channel.COMMANDS))
        self._messages = self._context.socket(zmq.PULL)
        self._messages.setsockopt(zmq.RCVHWM, 0)
        self._messages.bind(channel.endpoint(self._folder, channel.MESSAGES))
        loop = asyncio.get_running_loop()
        loop.add_reader(self._messages.fileno(), self._receive)
        spawn = multiprocessing.get_context("spawn")
        self._process = spawn.Process(
            target=process.run, args=(self._settings, self._folder), name="self-engine", daemon=True
        )
        await asyncio.to_thread(self._process.start)
        loop.add_reader(self._process.sentinel, self._process_ended)
        try:
            self._vocabulary = await asyncio.to_thread(load_vocabulary, self._settings.model_path)
        except SelfError as error:
            self._load_error = self._load_error or error
            self._is_ready.set()

    async def wait_ready(self) -> None:
        """Returns when requests can be served. Raises what kept the model from loading."""
        await self._is_ready.wait()
        if self._load_error is not None:
            raise self._load_error

    def begin_drain(self) -> None:
        """From now on newcomers are refused with ShuttingDown; running requests go on."""
        self._state = EngineState.STOPPING

    @property
    def num_active(self) -> int:
        """Requests that were submitted and have not ended."""
        return len(self._mailboxes)

    async def close(self) -> None:
        """Ends the engine process; requests that still run fail with ShuttingDown."""
        self._state = EngineState.STOPPING
        if self._process is None:
            return
        loop = asyncio.get_running_loop()
        if self._process.is_alive():
            self._send(Shutdown())
            await asyncio.to_thread(self._process.join, 2.0)
        if self._process.is_alive():  # a long step, or one that hangs
            self._process.kill()
            await asyncio.to_thread(self._process.join)
        self._receive()
        self._fail_all(ShuttingDown("the server is shutting down"))
        loop.remove_reader(self._process.sentinel)
        loop.remove_reader(self._messages.fileno())
        self._process.close()
        self._process = None
        self._commands.close(linger=0)
        self._messages.close(linger=0)
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- what the API asks ----------------------------------------------------------------

    @property
    def vocabulary(self) -> Vocabulary:
        if self._vocabulary is None:
            raise ModelLoading("the model is being loaded", retry_after_s=RETRY_AFTER_S)
        return self._vocabulary

    @property
    def state(self) -> EngineState:
        silent_s = time.monotonic() - self._heard_s
        if self._state is EngineState.READY and silent_s > STALLED_AFTER_S:
            return EngineState.STALLED
        return self._state

    @property
    def ready(self) -> Ready | None:
        return self._ready

    @property
    def heartbeat(self) -> Heartbeat:
        return self._heartbeat

    @contextmanager
    def reserve(self, count: int = 1) -> Iterator[None]:
        """Takes places among slots and queue. Raises QueueFull or why the engine is away."""
        self._check_available()
        if self._num_reserved + count > self._capacity:
            raise QueueFull(
                f"the waiting queue is full: {self._num_reserved} requests for "
                f"{self._capacity} places in slots and queue",
                retry_after_s=RETRY_AFTER_S,
            )
        self._num_reserved += count
        try:
            yield
        finally:
            self._num_reserved -= count

    def _check_available(self) -> None:
        error = _UNAVAILABLE.get(self.state)
        if error is not None:
            cls, message = error
            raise cls(message, retry_after_s=RETRY_AFTER_S)

    async def submit(self, request: Request) -> AsyncIterator[Event]:
        """Runs a request; see `Engine.submit`."""
        if self._state is EngineState.CRASHED:
            yield self._crashed(request.id)
            return
        mailbox = self._mailboxes[request.id] = Mailbox()
        self._send(Submit(request=request))
        has_ended = False
        try:
            while not has_ended:
                event = await mailbox.get()
                has_ended = isinstance(event, Finished | Failed)
                yield event
        finally:
            self._mailboxes.pop(request.id, None)
            if not has_ended:
                self._send(Abort(id=request.id))

    # --- the wire -------------------------------------------------------------------------

    def _send(self, command: Command) -> None:
        self._commands.send(channel.encode([command]), zmq.NOBLOCK)

    def _receive(self) -> None:
        """Reads all that is there. ZeroMQ signals only the change from empty, so none may stay."""
        while True:
            try:
                data = self._messages.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._heard_s = time.monotonic()
            for message in self._decoder.decode(data):
                self._take(message)

    def _take(self, message: Message) -> None:
        match message:
            case Heartbeat():
                self._heartbeat = message
            case Loading(progress=share):
                self.loading_progress = share
            case Ready():
                self._ready = message
                if self._state is EngineState.LOADING:
                    self._state = EngineState.READY
                self._is_ready.set()
            case Failed(id=process.START_FAILED):
                self._load_error = from_name(message.error, message.message)
            case _:
                mailbox = self._mailboxes.get(message.id)
                if mailbox is not None:
                    mailbox.put(message)

    def _process_ended(self) -> None:
        """The engine process is gone: nobody may be left waiting for it."""
        assert self._process is not None
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self._receive()
        if self._state is EngineState.STOPPING:
            return
        self._state = EngineState.CRASHED
        self._process.join(1.0)
        log.error("the engine process ended with code %s", self._process.exitcode)
        if self._ready is None and self._load_error is None:
            self._load_error = ModelLoadError(
                "the engine process ended while it loaded the model "
                f"(code {self._process.exitcode}); --verbose shows libllama's own words"
            )
        self._is_ready.set()
        self._fail_all(RuntimeCrashed("the engine crashed while it computed this request"))

    def _fail_all(self, error: EngineUnavailable) -> None:
        for request_id, mailbox in self._mailboxes.items():
            mailbox.put(Failed(id=request_id, error=type(error).__name__, message=error.message))

    def _crashed(self, request_id: str) -> Failed:
        return Failed(id=request_id, error="RuntimeCrashed", message="the engine is not running")


_UNAVAILABLE: dict[EngineState, tuple[type[EngineUnavailable], str]] = {
    EngineState.LOADING: (ModelLoading, "the model is being loaded"),
    EngineState.CRASHED: (RuntimeCrashed, "the engine is not running"),
    EngineState.RESTARTING: (RuntimeCrashed, "the engine is being restarted"),
    EngineState.STALLED: (RuntimeCrashed, "the engine does not answer"),
    EngineState.STOPPING: (ShuttingDown, "the server is shutting down"),
}
