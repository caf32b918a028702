"""Every limit on what a client can make large: the values, and the table that the docs print.

What needs no context is enforced where the records of `request.py` are made, so on both sides of
the border; bodies are refused by the same values before that, with the path of the field.
"""

from __future__ import annotations

from dataclasses import dataclass

from selfserve.errors import InvalidRequest, shown

MIB = 1 << 20
INT32_MAX = 2**31 - 1
REAL_MAX = 1e6
"""Bound of numbers that have no natural one: far beyond any use, safe as a C float."""

MAX_BODY_BYTES = 32 * MIB
MAX_DEPTH = 128
MAX_VALUES = 500_000
"""Each costs the decoder up to 0.2 µs under the GIL: this keeps other requests waiting for 0.1 s at
most. A prompt of token ids has one for each token."""
CONTAINER_VALUES = 4
"""So many times what a number costs, an array or object costs."""
MAX_PROMPTS = 1_024
MAX_STOPS = 256
MAX_CHAT_STOPS = 4
MAX_STOP_BYTES = 4_096
MAX_PROBS = 1_000
MAX_PROBS_IN_ALL = 200_000
"""About 40 MB of JSON."""
MAX_SAMPLERS = 32
MAX_MIN_KEEP = 1 << 20
MAX_BREAKERS = 32
MAX_BREAKER_CHARACTERS = 64
MAX_BIASES = 30_000
"""About 10 MB in all places that hold them, and enough to ban a script."""
MAX_BIAS_CHARACTERS = 1 << 16
MAX_BIAS = 1e6
"""A larger bias would decide nothing that this one does not; as a C float it stays finite."""
MAX_FIELD_NAMES = 1_000
MAX_PREDICT_MS = 24 * 60 * 60 * 1000
MAX_SHIFTED_CONTEXTS = 8
MAX_HELD_S = 60.0

MAX_MESSAGES = 1 << 14
"""Messages of one conversation. Some templates take the square of their number."""
BODY_BYTES = 64 << 20
"""Bytes of large bodies that are being read or worked on at a time, over all requests. Decoded, a
body can take several times as much."""
BODY_WAIT_S = 20.0
"""Time that a body waits for room before its request is refused."""
UPLOAD_PAUSE_S = 30.0
"""Time that a client may take from one piece of its body to the next, once the body is large: what
was read takes the room of others."""
REQUEST_PIXELS = 12 << 20
"""Of all pictures of one request together: with more of them each is made smaller."""
PIXEL_BYTES = 48 << 20
"""Bytes of decoded pictures over all requests, from before they are loaded until the engine has
read them. On their way to the engine they exist up to four times."""
PIXEL_WAIT_S = 60.0
"""Time that a request waits for room for its pictures before it is refused."""
MAX_UNSENT = 256 << 10
"""Bytes that may wait for a client before no more events are made for it."""
UNREAD_S = 60.0
"""Time that a client has to take what is sent at once; then its connection is closed."""
MIN_MOST_BYTES = 256 << 10
"""Bytes of text, and token ids, that a request may always have."""
BYTES_PER_TOKEN = 8
"""The same for each token of the context, which may be larger."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One row of the table, in words for those who read the docs."""

    name: str
    value: float
    unit: str
    bounds: str
    beyond: str
    """What happens to a request that goes beyond."""


REFUSED = "400"

TABLE = (
    Limit("body", MAX_BODY_BYTES, "bytes", "a request's body", "413, while it is read"),
    Limit("nesting", MAX_DEPTH, "levels", "arrays and objects inside each other", REFUSED),
    Limit(
        "values",
        MAX_VALUES,
        "",
        f"values of a body; an array or object counts as {CONTAINER_VALUES}",
        REFUSED,
    ),
    Limit(
        "prompt",
        MAX_PROMPTS,
        "prompts",
        "prompts of one request, all of which need places",
        REFUSED,
    ),
    Limit("stop", MAX_STOPS, "strings", "stop strings of a completion", REFUSED),
    Limit("stop of a chat", MAX_CHAT_STOPS, "strings", "stop strings of a chat", REFUSED),
    Limit("stop string", MAX_STOP_BYTES, "bytes", "each stop string", REFUSED),
    Limit("n_probs, logprobs", MAX_PROBS, "tokens", "candidates told for each token", REFUSED),
    Limit(
        "n_probs in all",
        MAX_PROBS_IN_ALL,
        "tokens",
        "candidates told in an answer that is not a stream",
        "the generation ends with `stop_type: limit`",
    ),
    Limit("samplers", MAX_SAMPLERS, "names", "samplers of a chain", REFUSED),
    Limit("min_keep", MAX_MIN_KEEP, "tokens", "candidates that a sampler must leave", REFUSED),
    Limit("dry_sequence_breakers", MAX_BREAKERS, "strings", "breakers of DRY", REFUSED),
    Limit("sequence breaker", MAX_BREAKER_CHARACTERS, "characters", "each breaker", REFUSED),
    Limit(
        "repeat_last_n, dry_penalty_last_n",
        INT32_MAX,
        "tokens",
        "windows of penalties",
        "400; one larger than the context counts as the context",
    ),
    Limit(
        "logit_bias",
        MAX_BIASES,
        "tokens",
        "biased tokens, in all prompts of a request together",
        REFUSED,
    ),
    Limit(
        "texts of logit_bias",
        MAX_BIAS_CHARACTERS,
        "characters",
        "all keys together that are texts",
        REFUSED,
    ),
    Limit("bias", MAX_BIAS, "", "size of one bias", "counts as this"),
    Limit("other integers", INT32_MAX, "", "integer fields without a limit of their own", REFUSED),
    Limit("other numbers", REAL_MAX, "", "size of numbers that have no natural limit", REFUSED),
    Limit("response_fields", MAX_FIELD_NAMES, "names", "fields asked for by name", REFUSED),
    Limit("t_max_predict_ms", MAX_PREDICT_MS, "milliseconds", "a request's own limit", REFUSED),
    Limit(
        "shifted context",
        MAX_SHIFTED_CONTEXTS,
        "contexts",
        "tokens generated with a shifting context",
        "the generation ends with `stop_type: limit`",
    ),
    Limit("messages", MAX_MESSAGES, "", "messages of a chat", REFUSED),
    Limit(
        "bodies in all",
        BODY_BYTES,
        "bytes",
        "all large bodies at a time",
        f"one that finds no room is not read on for up to {BODY_WAIT_S:g} s, then 429",
    ),
    Limit("upload", UPLOAD_PAUSE_S, "seconds", "a pause within a large body", "504"),
    Limit(
        "/tokenize, /detokenize",
        BYTES_PER_TOKEN,
        "bytes (or ids) for each token of the context",
        f"`content`, `tokens`; {MIN_MOST_BYTES:,} may always come",
        "413",
    ),
    Limit(
        "pictures of a request",
        REQUEST_PIXELS,
        "pixels",
        "what is kept of them together, once decoded",
        "each is made smaller",
    ),
    Limit(
        "pictures in all",
        PIXEL_BYTES,
        "bytes",
        "all decoded pictures at a time, until the engine has read them",
        f"they wait for up to {PIXEL_WAIT_S:g} s, then 429",
    ),
    Limit(
        "unsent events",
        MAX_UNSENT,
        "bytes",
        "events of a stream that its client has not taken",
        f"no more are made; after {UNREAD_S:g} s the connection is closed",
    ),
    Limit(
        "unread stream",
        MAX_HELD_S,
        "seconds",
        "time for which a stream that nobody reads keeps its place",
        "the request ends",
    ),
)


def range_text(low: float | None, high: float | None) -> str:
    """`between 0 and 2`, `at least 1`, `at most 5`."""
    if low is not None and high is not None:
        return f"between {number_text(low)} and {number_text(high)}"
    if low is not None:
        return f"at least {number_text(low)}"
    return f"at most {number_text(high)}" if high is not None else "finite"


def number_text(value: float | None) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raises InvalidRequest that names the field, its limits and the value. NaN is outside."""
    if not low <= value <= high:
        raise InvalidRequest(f"{name} must be {range_text(low, high)}, got {value}", param=name)


def check_count(name: str, count: int, most: int) -> None:
    """Raises InvalidRequest for a list that is too long."""
    if count > most:
        raise InvalidRequest(f"{name} must have at most {most} entries, got {count}", param=name)


def check_lengths(
    name: str, texts: tuple[str, ...], max_length: int, *, in_bytes: bool = False
) -> None:
    """Raises InvalidRequest for a text that is too long."""
    for text in texts:
        length = len(text.encode()) if in_bytes else len(text)
        if length > max_length:
            unit = "bytes" if in_bytes else "characters"
            raise InvalidRequest(
                f"{name} must have entries of at most {max_length} {unit}, got {length}"
                f" in {shown(text)}",
                param=name,
            )
