"""Strict JSON at the door: what RFC 8259 allows, bounded in size, depth and number of values.

The decoder refuses `NaN`, `Infinity`, numbers that overflow, lone surrogates and invalid UTF-8 by
itself. It would follow nesting deeper than we allow, and it holds the GIL for as long as it
works, so the number of arrays and objects is bounded before it starts.
"""

from __future__ import annotations

import msgspec

from selfserve.errors import InvalidRequest
from selfserve.limits import MAX_CONTAINERS, MAX_DEPTH

SMALL_BODY_BYTES = 1 << 16
"""Up to this size a body is decoded and validated faster than a worker thread is reached."""

_decoder = msgspec.json.Decoder()


def decode_json(body: bytes) -> object:
    """The value of `body`. Raises InvalidRequest; blocks, with the GIL held, up to 0.3 s."""
    num_openings = body.count(b"[") + body.count(b"{")
    if num_openings > MAX_CONTAINERS:
        raise InvalidRequest(
            f"the body must hold at most {MAX_CONTAINERS} arrays and objects, got {num_openings}"
        )
    try:
        value: object = _decoder.decode(body)
    except RecursionError as error:
        raise _too_deep() from error
    except msgspec.ValidationError as error:
        raise InvalidRequest("the body holds a number that is out of range") from error
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error
    if num_openings > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise _too_deep()
    return value


def _too_deep() -> InvalidRequest:
    return InvalidRequest(f"the body must be nested at most {MAX_DEPTH} levels deep")


def _depth(value: object) -> int:
    """Levels of arrays and objects, counted up to MAX_DEPTH + 1; level by level, no recursion."""
    depth = 0
    level: list[object] = [value] if isinstance(value, dict | list) else []
    while level and depth <= MAX_DEPTH:
        depth += 1
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)  # type: ignore[attr-defined]
            if isinstance(child, dict | list)
        ]
    return depth
