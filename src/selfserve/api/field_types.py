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

UNSUPPORTED = "unsupported"
"""Error type of what is well formed but not offered: it becomes a 422 instead of a 400."""

INT32_MAX = 2**31 - 1
REAL_MAX = 1e6
"""Bound of numbers that have no natural one: far beyond any use, safe as a C float."""


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


def range_text(low: float | None, high: float | None) -> str:
    """`between 0 and 2`, `at least 1`, `at most 5`."""
    if low is not None and high is not None:
        return f"between {_number_text(low)} and {_number_text(high)}"
    if low is not None:
        return f"at least {_number_text(low)}"
    return f"at most {_number_text(high)}" if high is not None else "finite"


def _number_text(value: float | None) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


@dataclass(frozen=True)
class Number:
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

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return _limits({"type": "number"}, self.low, self.high)


@dataclass(frozen=True)
class Integer:
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

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return _limits({"type": "integer"}, self.low, self.high)


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
