"""JSON Schemas as grammars for constrained decoding.

What is enforced: the whole schema, or the request is refused. `schema_rules` says which keywords
there are; a bound above its MAX_UPPER_BOUND is the one thing that is relaxed. Properties come in
the schema's order. Text is raw Unicode: a backslash stands only before the characters that
_OPTIONS names, and in `\\u00..` where a schema demands control characters (see
`schema_controls`). White space is one optional blank after `,` and `:`, none elsewhere, so that
no answer can drown in it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from llguidance import LLMatcher

from selfserve.errors import InvalidRequest
from selfserve.request import Constraint
from selfserve.text.compiling import fault_of
from selfserve.text.fuel import Fuel, OutOfFuel
from selfserve.text.schema_rules import SchemaReader
from selfserve.text.schema_size import Schema, locations, shortened

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

# White space is fixed, not only bounded: one blank after a comma and a colon, as json.dumps writes
# it. A choice of white space would cost the model a step at each, and would end the runs of text
# that the grammar leaves no choice about.
_ESCAPES = '"\\bfnrt'
_OPTIONS: JsonCompileOptions = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    "coerce_one_of": False,
    "lenient": False,
    "json_allowed_escapes": _ESCAPES,
    "json_allow_general_unicode_escapes": False,
}

_ONE_OF = "keyword 'oneOf': a type, a constant or a required tag must tell its branches apart"

MAX_TRIALS = 50
"""Sub-schemas that are compiled alone to find the place of a fault."""
_MAX_TRIAL_CHARACTERS = 20_000
_MAX_TRIALS_S = 0.25
"""Processor time of the trials, and of a first compilation after which none are made. Only the
place in the message depends on it, not the verdict."""


def json_schema_constraint(
    schema: object,
    *,
    param: str = "json_schema",
    check: Callable[[], None] | None = None,
) -> Constraint:
    """The grammar of the JSON values that satisfy `schema`; `{}` and true: any JSON value.

    Takes milliseconds, for the largest that are allowed a second or two: call it from a worker.
    Raises InvalidRequest with `param`, naming the keyword and its place, if the schema is
    malformed, too large or too complex, allows no value, or holds a keyword that cannot be
    enforced; what `check` raises, which is called now and then.
    """
    if not isinstance(schema, dict | bool):
        raise InvalidRequest(f"{param} must be an object", param=param)
    fuel = Fuel(check)
    reader = SchemaReader(schema, param, fuel)
    try:
        checked = reader.read_root()
    except OutOfFuel as error:
        raise InvalidRequest(f"{param}: {error}", param=param) from error
    if checked is False:
        raise InvalidRequest(f"{param}: the schema false allows no value", param=param)
    if checked is True:
        checked = {}
    fuel.check_wanted()
    try:
        grammar = _grammar(checked, reader.needs_controls)
    except ValueError as error:  # a limit of 128 levels of JSON over there
        raise InvalidRequest(f"{param}: nested too deep to be enforced", param=param) from error
    started_s = time.thread_time()
    fault = fault_of(grammar)
    if fault is not None:
        place = "#"
        if time.thread_time() - started_s < _MAX_TRIALS_S:
            place = _place_of_fault(checked, reader.needs_controls, fuel)
        reason = _ONE_OF if "coerce_one_of" in fault else fault
        raise InvalidRequest(
            f"{param}: the schema at {place} cannot be enforced: {reason}", param=param
        )
    return Constraint(text=grammar)


def json_object_constraint() -> Constraint:
    """The grammar of any JSON object."""
    return Constraint(text=_grammar({"type": "object"}, needs_controls=False))


def _grammar(schema: Schema, needs_controls: bool) -> str:
    options = _OPTIONS
    if needs_controls:
        options = {**_OPTIONS, "json_allowed_escapes": _ESCAPES + "u"}
    return str(LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=options))


def _place_of_fault(schema: Schema, needs_controls: bool, fuel: Fuel) -> str:
    """Pointer to the innermost sub-schema that fails alone, or to the root."""
    if isinstance(schema, bool) or len(json.dumps(schema)) > _MAX_TRIAL_CHARACTERS:
        return "#"
    definitions = schema.get("$defs", {})
    started_s = time.thread_time()
    for place, part in list(reversed(locations(schema, "#")))[:MAX_TRIALS]:
        fuel.check_wanted()
        if time.thread_time() - started_s > _MAX_TRIALS_S:
            break
        alone = _grammar({**part, "$defs": definitions}, needs_controls)
        if place != "#" and fault_of(alone) is not None:
            return shortened(place)
    return "#"
