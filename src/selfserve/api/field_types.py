"""Types of request fields that are stricter than pydantic's own, with messages of our form.

JSON's rules, not Python's: `true` is no number, `"1"` is no number, `1.0` is an integer, `1.5` is
not. Each type describes itself in the OpenAPI document by the same limits that it checks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from selfserve.errors import shown
from selfserve.limits import INT32_MAX, MAX_STOP_BYTES, REAL_MAX, range_text

UNSUPPORTED = "unsupported"
"""Error type of what is well formed but not offered: it becomes a 422 instead of a 400."""


def invalid(message: str, *, path: str = "", got: object = None) -> PydanticCustomError:
    """A 400. `message` continues after the field's name; `path` is appended to the field's path."""
    return _error("invalid", message, path, got)


def unsupported(message: str, *, path: str = "", got: object = None) -> PydanticCustomError:
    """A 422; else like `invalid`."""
    return _error(UNSUPPORTED, message, path, got)


def _error(kind: str, message: str, path: str, got: object) -> PydanticCustomError:
    if got is not None:
        message = f"{message}, got {shown(got)}"
    # Braces in a client's value must not be taken for placeholders, so the text is an argument.
    return PydanticCustomError(kind, "{text}", {"text": message, "path": path})


class _Checked:
    """Base of annotations whose `check` is all that pydantic does with a value."""

    def check(self, value: object) -> Any:
        """The value as it is taken. Raises `invalid` or `unsupported`."""
        raise NotImplementedError

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)


@dataclass(frozen=True)
class Number(_Checked):
    """Annotation of a finite number within [low, high]; None: no limit on that side."""

    low: float | None = -REAL_MAX
    high: float | None = REAL_MAX

    def check(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise invalid("must be a number", got=_given(value))
        # Written so that NaN fails. Integers are compared as they are: they may exceed a float.
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        if not (low <= value <= high) or math.isinf(value):
            raise invalid(f"must be {range_text(self.low, self.high)}", got=value)
        return float(value)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return _limits({"type": "number"}, self.low, self.high)


@dataclass(frozen=True)
class Integer(_Checked):
    """Annotation of an integer within [low, high]; None: no limit on that side."""

    low: int | None = None
    high: int | None = INT32_MAX

    def check(self, value: object) -> int:
        whole = as_integer(value)
        if whole is None:
            raise invalid("must be an integer", got=_given(value))
        if not (self.low is None or whole >= self.low) or not (
            self.high is None or whole <= self.high
        ):
            # An upper limit that only guards the C side would confuse in the message.
            high = None if self.high == INT32_MAX and whole < self.high else self.high
            raise invalid(f"must be {range_text(self.low, high)}", got=value)
        return whole

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return _limits({"type": "integer"}, self.low, self.high)


@dataclass(frozen=True)
class Stops(_Checked):
    """Annotation of a string or up to `most` of them; empty ones are left out."""

    most: int

    def check(self, value: object) -> list[str]:
        stops = [value] if isinstance(value, str) else value
        if not isinstance(stops, list):
            raise invalid("must be a string or an array of strings", got=value)
        for index, stop in enumerate(checked_strings(stops, self.most)):
            size = len(stop) if stop.isascii() else len(stop.encode())
            if size > MAX_STOP_BYTES:
                text = f"must have at most {MAX_STOP_BYTES} bytes, got {size}"
                raise invalid(text, path=f"[{index}]" if stops is value else "")
        return [stop for stop in stops if stop]

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        text = {"type": "string", "maxLength": MAX_STOP_BYTES}
        return {"anyOf": [text, {"type": "array", "items": text, "maxItems": self.most}]}


@dataclass(frozen=True)
class One(_Checked):
    """Annotation of an integer of which other values than 1 are not offered."""

    def check(self, value: object) -> int:
        number = as_integer(value)
        if number is None:
            raise invalid("must be an integer", got=_given(value))
        if number != 1:
            raise unsupported("must be 1", got=number)
        return number

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": "integer", "const": 1}


def checked_strings(value: object, most: int) -> list[str]:
    """`value` if it is an array of at most `most` strings. Raises what names the entry that is
    none."""
    if not isinstance(value, list):
        raise invalid("must be an array of strings", got=value)
    if len(value) > most:
        raise invalid(f"must have at most {most} entries", got=len(value))
    for index, entry in enumerate(value):
        if not isinstance(entry, str):
            raise invalid("must be a string", path=f"[{index}]", got=_given(entry))
    return value


def as_integer(value: object) -> int | None:
    """The integer that `value` is in JSON's sense (`1`, `1.0`), else None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return None


def is_empty(value: object) -> bool:
    """True for what clients send to say "not used": null, false, 0, "", [], {}, "none"."""
    return not value or value == "none"


def _given(value: object) -> object:
    return "null" if value is None else value


def _limits(schema: dict[str, Any], low: float | None, high: float | None) -> dict[str, Any]:
    if low is not None:
        schema["minimum"] = low
    if high is not None:
        schema["maximum"] = high
    return schema
