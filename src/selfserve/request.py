"""The records that cross the border between the API and the engine, and nothing else.

Both processes import this module; neither owns it. Everything here is frozen, is made of plain
values, and travels as msgpack: no record holds a callable, a handle or a reference to a peer.
"""

from __future__ import annotations

import struct
from enum import StrEnum
from typing import Any

import msgspec

from selfserve.limits import (
    INT32_MAX,
    MAX_PREDICT_MS,
    MAX_PROBS,
    MAX_STOP_BYTES,
    MAX_STOPS,
    check_count,
    check_lengths,
    check_range,
)
from selfserve.sampling import SamplingParams as SamplingParams


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all records: immutable, by keyword, defaults are not sent."""


class Constraint(Record, frozen=True, kw_only=True):
    """A grammar in llguidance's own form, ready to compile. `text` is also the cache key."""

    text: str


class ReasoningSpec(Record, frozen=True, kw_only=True):
    """Where a model's thinking begins and ends, and where the prompt leaves off."""

    start: str
    """Text that opens a thinking block; with channels the texts inside are parts of it."""
    end: str
    """Text that closes it. What follows is content."""
    header: str = ""
    """A line of the format that follows `start` and is no thinking."""
    channels: bool = False
    """True: each part of an answer stands in a named channel of its own (gpt-oss)."""
    marker_ids: tuple[tuple[int, str], ...] = ()
    """(token id, text) of the markers that are one token: only that token counts as the marker.
    The other markers are found in the text."""
    open: bool = False
    """True if the rendered prompt ends inside a thinking block."""
    answering: bool = False
    """True if the answer has begun in the prompt: no thinking can be opened any more."""
    trims: bool = False
    """True if the prompt ends with a closed block, whose trailing white space is not content."""
    budget: int | None = None
    """Thinking tokens after which the engine writes `closing_ids` itself; None: no limit."""
    closing_ids: tuple[int, ...] = ()
    hidden_ids: tuple[int, ...] = ()
    """Markers whose text is asked for, although control tokens have none: written by a model in
    the midst of its answer, a marker is text."""


class Picture(Record, frozen=True, kw_only=True):
    """One decoded picture: upright, opaque, rows from the top without gaps."""

    width: int
    height: int
    rgb: bytes
    """`3 * width * height` bytes: red, green, blue of each pixel."""
    digest: str
    """SHA-256 (hex) of the size and the pixels: equal pictures have equal digests."""


PICTURE_TOKEN = -1
"""Stands in a prompt where a picture goes."""


class Request(Record, frozen=True, kw_only=True):
    """One prompt to be continued: validated, rendered, tokenized and checked for length.

    Raises InvalidRequest beyond a limit that needs no context, in both processes.
    """

    id: str
    prompt: tuple[int, ...]
    """Token ids, and a PICTURE_TOKEN for each picture."""
    pictures: tuple[Picture, ...] = ()
    """Those of the prompt, in its order."""
    sampling: SamplingParams
    max_tokens: int | None = None
    """Tokens to generate; None: to the end of the context; 0: evaluate the prompt only."""
    stop: tuple[str, ...] = ()
    constraint: Constraint | None = None
    reasoning: ReasoningSpec | None = None
    n_probs: int = 0
    post_sampling_probs: bool = False
    slot: int = -1
    cache_prompt: bool = True
    n_keep: int | None = None
    """None: generation stops at the end of the context; else the context is shifted and this many
    prompt tokens stay (−1: all of them)."""
    time_limit_ms: int = 0
    """Limit of the generation, counted from the first token; 0: none."""
    n_indent: int = 0
    return_progress: bool = False
    timings_per_token: bool = False

    def __post_init__(self) -> None:
        check_count("stop", len(self.stop), MAX_STOPS)
        check_lengths("stop", self.stop, MAX_STOP_BYTES, in_bytes=True)
        check_range("n_probs", self.n_probs, 0, MAX_PROBS)
        check_range("t_max_predict_ms", self.time_limit_ms, 0, MAX_PREDICT_MS)
        check_range("n_indent", self.n_indent, 0, INT32_MAX)
        check_range("id_slot", self.slot, -1, INT32_MAX)
        if self.n_keep is not None:
            check_range("n_keep", self.n_keep, -1, INT32_MAX)
        if self.max_tokens is not None:
            check_range("max_tokens", self.max_tokens, 0, INT32_MAX)


class StopType(StrEnum):
    """Why a sequence ended, in the words of the completion endpoint."""

    EOS = "eos"
    LIMIT = "limit"
    WORD = "word"


class TokenProbs(Record, frozen=True, kw_only=True):
    """The chosen token and the most probable ones at its place. A value is a log-probability, or a
    probability after sampling. Up to a thousand tokens at each place: so they travel packed."""

    id: int
    piece: bytes
    """The chosen token's bytes in the text: none of a token that ends the generation."""
    value: float
    top_ids: bytes = b""
    """The most probable tokens, best first: 32-bit integers, little endian."""
    top_values: bytes = b""
    """Of these: 32-bit floats, little endian."""

    @property
    def num_top(self) -> int:
        return len(self.top_ids) // 4

    @property
    def top(self) -> list[tuple[int, float]]:
        """(token id, value) of the most probable ones."""
        count = self.num_top
        ids = struct.unpack(f"<{count}i", self.top_ids)
        return list(zip(ids, struct.unpack(f"<{count}f", self.top_values), strict=True))


class Timings(Record, frozen=True, kw_only=True):
    """Counts are tokens, times are milliseconds of wall clock."""

    cache_n: int = 0
    prompt_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0
    draft_n: int = 0
    draft_n_accepted: int = 0


class Progress(Record, frozen=True, kw_only=True, tag="progress"):
    """A piece of a long prompt is done. Sent only when the request asked for it."""

    id: str
    total: int
    cache: int
    processed: int
    time_ms: float


class Delta(Record, frozen=True, kw_only=True, tag="delta"):
    """New text. Both texts are whole characters; either may be empty while text is held back."""

    id: str
    content: str = ""
    reasoning: str = ""
    tokens: tuple[int, ...] = ()
    probs: tuple[TokenProbs, ...] = ()
    timings: Timings | None = None


class Finished(Record, frozen=True, kw_only=True, tag="finished"):
    """The one final event of a request that ran. All text was sent in deltas before it."""

    id: str
    stop_type: StopType
    stopping_word: str = ""
    truncated: bool = False
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int = 0
    slot: int
    timings: Timings


class Failed(Record, frozen=True, kw_only=True, tag="failed"):
    """The one final event of a request that did not. `error` is a class name of errors.py."""

    id: str
    error: str
    message: str
    param: str | None = None
    details: dict[str, Any] = {}


Event = Progress | Delta | Finished | Failed


class Submit(Record, frozen=True, kw_only=True, tag="submit"):
    """API to engine: take this request."""

    request: Request


class Abort(Record, frozen=True, kw_only=True, tag="abort"):
    """API to engine: nobody waits for this request any more. Answered by no event."""

    id: str


class Hold(Record, frozen=True, kw_only=True, tag="hold"):
    """API to engine: nobody reads this request's events at the moment, so it should not compute;
    or somebody does again."""

    id: str
    is_held: bool


class Shutdown(Record, frozen=True, kw_only=True, tag="shutdown"):
    """API to engine: end the process. Requests that still run fail with `ShuttingDown`."""


Command = Submit | Abort | Hold | Shutdown


class SlotState(Record, frozen=True, kw_only=True):
    """What one slot does now. Holds no text: whose prompt it is concerns nobody else."""

    id: int
    request_id: str | None
    num_tokens: int
    """Tokens that the slot's memory holds."""
    num_prompt: int = 0
    num_generated: int = 0


class Heartbeat(Record, frozen=True, kw_only=True, tag="heartbeat"):
    """The engine's loop is alive. Sent about once a second, and after the model is loaded."""

    num_running: int = 0
    num_waiting: int = 0
    slots: tuple[SlotState, ...] = ()
    counters: dict[str, float] = {}
    """Totals since the start, by name, such as `prompt_tokens` and `decode_steps`."""


class Ready(Record, frozen=True, kw_only=True, tag="ready"):
    """The model is loaded and warmed up; what the API must know about it."""

    context_size: int
    """Tokens of one sequence, prompt and answer together."""
    num_slots: int
    can_shift: bool
    info: dict[str, Any] = {}


class Loading(Record, frozen=True, kw_only=True, tag="loading"):
    """Share of the weights that is loaded, 0 to 1."""

    progress: float


Message = Progress | Delta | Finished | Failed | Heartbeat | Ready | Loading
"""Everything that the engine process says; messages travel in lists, one list for each step."""
