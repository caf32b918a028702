"""The engine as the HTTP process sees it: takes requests, gives each its own stream of events,
and brings a dead engine back. Everything here belongs to the event loop's thread."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial

from selfserve.config import EngineSettings
from selfserve.engine import process
from selfserve.engine.interface import EngineState, Vocabulary
from selfserve.engine.llama_runner import load_vocabulary
from selfserve.engine.scheduler import failed
from selfserve.engine.supervisor import EngineProcess
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
    Delta,
    Event,
    Failed,
    Finished,
    Heartbeat,
    Hold,
    Loading,
    Message,
    Ready,
    Request,
    Submit,
)

log = get_logger("engine")

STALLED_AFTER_S = 60.0
"""Without a heartbeat. Longer than the longest honest step: a large model's batch on a slow CPU."""
RETRY_AFTER_S = 2
"""What clients are told to wait after `queue_full` or while the engine is away."""
MAX_CRASHES = 3
CRASH_WINDOW_S = 120.0
"""So many crashes in so short a time are no accident: the engine is not started again."""
BACK_OFF_S = 0.5
"""Before the first new start; each further one waits twice as long."""


UNREAD_BYTES = 64 << 10
"""Of one request's events, beyond which it does not compute: its client reads too slowly."""
EVENT_BYTES = 64
"""About what an event without a text takes, and each probability in it."""


class Mailbox:
    """The events of one request that nobody has read yet. One reader.

    Once they are many the engine is asked to hold the request, until most of them were read.
    """

    def __init__(self, hold: Callable[[bool], None]) -> None:
        """`hold` is called with True when too much lies here, with False when it is read."""
        self._events: deque[tuple[Event, int]] = deque()
        self._size = 0
        self._is_holding = False
        self._hold = hold
        self._arrival: asyncio.Future[None] | None = None

    def put(self, event: Event) -> None:
        size = _size(event)
        self._events.append((event, size))
        self._size += size
        if self._size > UNREAD_BYTES and not self._is_holding:
            self._is_holding = True
            self._hold(True)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def get(self) -> Event:
        while not self._events:
            self._arrival = asyncio.get_running_loop().create_future()
            try:
                await self._arrival
            finally:
                self._arrival = None
        event, size = self._events.popleft()
        self._size -= size
        if self._is_holding and self._size < UNREAD_BYTES // 2:
            self._is_holding = False
            self._hold(False)
        return event


def _size(event: Event) -> int:
    """About the bytes that an event takes."""
    if not isinstance(event, Delta):
        return EVENT_BYTES
    num_probs = sum(1 + probs.num_top for probs in event.probs)
    return EVENT_BYTES * (1 + num_probs) + len(event.content) + len(event.reasoning)


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
        self._process: EngineProcess | None = None
        self._crashes: deque[float] = deque()
        self._restart: asyncio.Task[None] | None = None
        self._has_given_up = asyncio.Event()
        self.loading_progress = 0.0
        """Share of the weights that is loaded, 0 to 1."""

    # --- life -----------------------------------------------------------------------------

    async def start(self) -> None:
        """Spawns the engine process and loads the vocabulary; the model goes on loading after."""
        self._process = EngineProcess(
            self._settings, on_message=self._take, on_end=self._process_ended
        )
        await self._process.start()
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

    async def wait_given_up(self) -> None:
        """Raises RuntimeCrashed when the engine has crashed too often to be started again."""
        await self._has_given_up.wait()
        raise RuntimeCrashed(
            f"the engine crashed {MAX_CRASHES} times within {CRASH_WINDOW_S:g} s; "
            "--verbose shows libllama's own words"
        )

    def begin_drain(self) -> None:
        """From now on newcomers are refused with ShuttingDown; running requests go on."""
        self._state = EngineState.STOPPING

    async def close(self) -> None:
        """Ends the engine process; requests that still run fail with ShuttingDown."""
        self._state = EngineState.STOPPING
        if self._restart is not None:
            self._restart.cancel()
            await asyncio.gather(self._restart, return_exceptions=True)
        if self._process is not None:
            await self._process.close()
            self._process = None
        self._fail_all(ShuttingDown("the server is shutting down"))

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
        if self._process is None or self._state in (EngineState.CRASHED, EngineState.RESTARTING):
            yield failed(request.id, RuntimeCrashed("the engine is not running"))
            return
        request_id = request.id
        mailbox = self._mailboxes[request_id] = Mailbox(partial(self._hold, request_id))
        self._process.send(Submit(request=request))
        del request  # its pictures are large, and an answer may take minutes
        has_ended = False
        try:
            while not has_ended:
                event = await mailbox.get()
                has_ended = isinstance(event, Finished | Failed)
                yield event
        finally:
            self._mailboxes.pop(request_id, None)
            if not has_ended and self._process is not None:
                self._process.send(Abort(id=request_id))

    def _hold(self, request_id: str, is_held: bool) -> None:
        if self._process is not None:
            self._process.send(Hold(id=request_id, is_held=is_held))

    # --- what the engine says -------------------------------------------------------------

    def _take(self, message: Message) -> None:
        self._heard_s = time.monotonic()
        match message:
            case Heartbeat():
                self._heartbeat = message
            case Loading(progress=share):
                self.loading_progress = share
            case Ready():
                self._ready = message
                if self._state in (EngineState.LOADING, EngineState.RESTARTING):
                    self._state = EngineState.READY
                self._is_ready.set()
            case Failed(id=process.START_FAILED):
                self._load_error = from_name(message.error, message.message)
            case _:
                mailbox = self._mailboxes.get(message.id)
                if mailbox is not None:
                    mailbox.put(message)

    def _process_ended(self, exit_code: int | None) -> None:
        """The engine process is gone: nobody may be left waiting for it."""
        if self._state is EngineState.STOPPING:
            return
        log.error("the engine process ended with code %s", exit_code)
        self._fail_all(RuntimeCrashed("the engine crashed while it computed this request"))
        if self._ready is None:  # it never worked: a new start would fail in the same way
            self._state = EngineState.CRASHED
            if self._load_error is None:
                self._load_error = ModelLoadError(
                    "the engine process ended while it loaded the model "
                    f"(code {exit_code}); --verbose shows libllama's own words"
                )
            self._is_ready.set()
            return
        now_s = time.monotonic()
        self._crashes.append(now_s)
        while now_s - self._crashes[0] > CRASH_WINDOW_S:
            self._crashes.popleft()
        if len(self._crashes) >= MAX_CRASHES:
            self._state = EngineState.CRASHED
            self._has_given_up.set()
            return
        self._state = EngineState.RESTARTING
        self._restart = asyncio.create_task(self._start_again())

    async def _start_again(self) -> None:
        await asyncio.sleep(BACK_OFF_S * 2 ** (len(self._crashes) - 1))
        assert self._process is not None
        await self._process.start()

    def _fail_all(self, error: EngineUnavailable) -> None:
        for request_id, mailbox in self._mailboxes.items():
            mailbox.put(failed(request_id, error))


_UNAVAILABLE: dict[EngineState, tuple[type[EngineUnavailable], str]] = {
    EngineState.LOADING: (ModelLoading, "the model is being loaded"),
    EngineState.CRASHED: (RuntimeCrashed, "the engine is not running"),
    EngineState.RESTARTING: (RuntimeCrashed, "the engine is being restarted"),
    EngineState.STALLED: (RuntimeCrashed, "the engine does not answer"),
    EngineState.STOPPING: (ShuttingDown, "the server is shutting down"),
}
