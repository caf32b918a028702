"""What the API knows of the engine: two protocols. Another engine may stand behind them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Protocol

from selfserve.request import Event, Heartbeat, Ready, Request


class EngineState(StrEnum):
    """The `runner` field of `/health`. Only READY serves requests."""

    LOADING = "loading"
    READY = "ready"
    CRASHED = "crashed"
    RESTARTING = "restarting"
    STALLED = "stalled"
    STOPPING = "stopping"


class Vocabulary(Protocol):
    """A model's tokens and chat template. Read-only: any thread may call it."""

    @property
    def size(self) -> int: ...

    @property
    def bos_id(self) -> int | None: ...

    @property
    def eos_id(self) -> int | None: ...

    @property
    def eog_ids(self) -> frozenset[int]:
        """All tokens that end a generation."""
        ...

    @property
    def add_bos(self) -> bool:
        """True if the model wants its BOS token in front of every prompt."""
        ...

    @property
    def special_ids(self) -> Mapping[str, int]:
        """Text → id of every control and user-defined token: what `parse_special` recognizes."""
        ...

    @property
    def longest_piece(self) -> int:
        """Bytes of the longest token."""
        ...

    @property
    def chat_template(self) -> str | None:
        """The Jinja source in the model file, if it has one."""
        ...

    @property
    def metadata(self) -> Mapping[str, str]:
        """The model file's key-value metadata, values as text, long arrays left out."""
        ...

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of `text`. Releases the GIL while it works: call it from a worker thread.

        `add_special` adds what the model wants around a prompt (BOS); `parse_special` reads the
        text of control tokens as those tokens instead of as text.
        """
        ...

    def piece(self, token_id: int, *, special: bool = False) -> bytes:
        """The bytes of one token, perhaps part of a character. A control token is empty unless
        `special`. Raises IndexError outside 0 … size − 1."""
        ...


class Engine(Protocol):
    """The engine as the API sees it. All methods belong to the event loop's thread."""

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def state(self) -> EngineState: ...

    @property
    def ready(self) -> Ready | None:
        """The loaded model's facts; None until it was loaded for the first time."""
        ...

    @property
    def heartbeat(self) -> Heartbeat:
        """The newest one: counters and slots, at most a second or so old."""
        ...

    def reserve(self, count: int = 1) -> AbstractContextManager[None]:
        """Takes places in the queue, before any costly work, and gives them back on exit.

        Raises QueueFull, ModelLoading, RuntimeCrashed or ShuttingDown at once.
        """
        ...

    def submit(self, request: Request) -> AsyncIterator[Event]:
        """Runs a request. The iterator ends after its one final event, Finished or Failed.

        Closing the iterator early (or cancelling the task that reads it) aborts the request: its
        slot is free within one engine step. Never raises for what happens to the request.
        """
        ...
