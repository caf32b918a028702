"""Strict JSON at the door: what RFC 8259 allows, bounded in size, depth and number of values.

The decoder refuses `NaN`, `Infinity`, numbers that overflow, lone surrogates and invalid UTF-8 by
itself. It would follow nesting deeper than we allow, and it holds the GIL for as long as it
works, so the number of arrays and objects is bounded before it starts.
"""

from __future__ import annotations

import json
import re

import msgspec

from selfserve.errors import InvalidRequest
from selfserve.limits import CONTAINER_VALUES, MAX_DEPTH, MAX_VALUES

MAX_SEARCHED = 1 << 20
"""Bytes of a body up to which the place of a fault is looked for."""

SMALL_BODY_BYTES = 1 << 14
"""Up to this size a body is decoded and validated faster than a worker thread is reached."""

MAX_PATH = 200
"""Characters of a path that an error repeats."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_decoder = msgspec.json.Decoder()


def decode_json(body: bytes | bytearray) -> object:
    """The value of `body`. Raises InvalidRequest; blocks, with the GIL held, up to 0.1 s."""
    num_openings = body.count(b"[") + body.count(b"{")
    if _weight(body) > MAX_VALUES:
        num_values = _count_values(body)
        if num_values > MAX_VALUES:
            raise InvalidRequest(
                f"the body must hold at most {MAX_VALUES} values (arrays and objects count as "
                f"{CONTAINER_VALUES}), got {num_values} or more"
            )
    try:
        value: object = _decoder.decode(body)
    except RecursionError as error:
        raise _too_deep() from error
    except msgspec.ValidationError as error:
        raise InvalidRequest("the body holds a number that is out of range") from error
    except msgspec.DecodeError as error:
        raise _surrogate_fault(body) or InvalidRequest(
            f"the body is not valid JSON: {error}"
        ) from error
    if num_openings > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise _too_deep()
    return value


def _count_values(body: bytes | bytearray) -> int:
    """The weight of all values; of very many strings, their number alone."""
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    num_strings = plain.count(b'"') // 2
    if num_strings > 2 * MAX_VALUES:  # keys are strings, too
        return num_strings // 2
    outside = b"".join(plain.split(b'"')[::2])
    return _weight(outside)


def _weight(body: bytes | bytearray) -> int:
    return body.count(b",") + CONTAINER_VALUES * (body.count(b"[") + body.count(b"{"))


def _surrogate_fault(body: bytes | bytearray) -> InvalidRequest | None:
    """The error of a body that holds half a character, with its place; None if it does not."""
    if len(body) > MAX_SEARCHED:
        return None
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    todo: list[tuple[str, object]] = [("", value)]
    while todo:
        path, found = todo.pop()
        if isinstance(found, dict):
            entries = [(f"{path}.{key}" if path else key, child) for key, child in found.items()]
            todo += [*entries[::-1], *((path, key) for key in found)]
        elif isinstance(found, list):
            todo += [(f"{path}[{i}]", child) for i, child in enumerate(found)][::-1]
        elif isinstance(found, str) and (half := _SURROGATE.search(found)):
            path = path if path.isprintable() and not _SURROGATE.search(path) else ""
            return InvalidRequest(
                f"{path[:MAX_PATH] or 'the body'} holds half of a surrogate pair, "
                f"\\u{ord(half.group()):04x}, which is no character",
                param=path[:MAX_PATH] or None,
            )
    return None


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
