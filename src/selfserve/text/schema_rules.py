"""JSON Schema documents, checked and written again with only what is enforced.

Rules of this file
- A keyword is enforced, or an annotation, or refused with its name and place. None is dropped
  that could make an answer invalid.
- What comes out is small and regular: every `$ref` points into one flat `$defs`, tuples are
  `prefixItems`, patterns are in llguidance's dialect, and only what the root reaches is kept.
- Size, nesting and repetition are bounded here, in front of llguidance, whose parser recurses.

The place of a keyword is told as a JSON pointer from the schema's root, such as
`#/properties/tags`.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Final
from urllib.parse import unquote

from selfserve.errors import InvalidRequest, shown
from selfserve.text.fuel import Fuel
from selfserve.text.pattern import PatternError, rewrite
from selfserve.text.schema_controls import has_controls, narrow_names
from selfserve.text.schema_keywords import (
    ANNOTATIONS,
    FORMATS,
    REFUSED_FORMATS,
    REFUSED_UNLESS,
    TYPES,
    any_name_meets,
    may_be,
)
from selfserve.text.schema_overlap import Overlaps
from selfserve.text.schema_size import (
    MAX_LOWER_BOUND,
    MAX_NESTING,
    Schema,
    check_size,
    escaped,
    locations,
    shortened,
)

MAX_SCHEMAS = 5_000
MAX_PROPERTIES = 1_000
"""Named properties of one object: the grammar grows with their square."""
MAX_UPPER_BOUND = 65_536
"""A larger maxLength, maxItems or maxProperties is as good as none: no answer gets there."""
MAX_MULTIPLE = 5_000
"""Least common multiple of all multipleOf: a number's digits are followed modulo it."""
MAX_ENUM_CHARACTERS = 500_000
MAX_CONSTANT = 8_000
"""Characters of one constant, which is written in one step of the engine."""
MAX_EXACT_INTEGER = 2**53
MAX_BOUND = 2**63 - 1024

_STEPS = {"unknown keyword": 100, "required name": 50}
"""What these cost, in steps of Fuel: comparing with all keywords; a place of its own in the grammar
of an object, beside all the others."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_IN_PLACE = ("$ref", "allOf", "anyOf", "oneOf", "if")
_UNKNOWN: Final = "it is not a keyword of JSON Schema"


class SchemaReader:
    """Reads one schema document. Use `read_root` once."""

    def __init__(self, root: object, param: str, fuel: Fuel) -> None:
        self._root = root
        self._param = param
        self._fuel = fuel
        self.needs_controls = False
        """After reading: some text can only be written with `\\u00..` escapes."""
        self._definitions: dict[str, Schema] = {}
        self._names: dict[str, str] = {"#": "#"}
        """Pointer of a referenced schema → the `$ref` that stands for it in the result."""
        self._count = 0
        self._enum_characters = 0
        self._multiple = Fraction(1)
        dialect = root.get("$schema") if isinstance(root, dict) else None
        self._ref_stands_alone = isinstance(dialect, str) and any(
            f"draft-0{number}" in dialect for number in (3, 4, 6, 7)
        )

    def read_root(self) -> Schema:
        """The rewritten schema. Raises InvalidRequest naming keyword and place."""
        schema = self._read(self._root, "#", 0)
        if isinstance(schema, dict) and self._definitions:
            schema["$defs"] = self._definitions
        places = {"#": schema, **{f"#/$defs/{k}": v for k, v in self._definitions.items()}}
        parts = [found for at, part in places.items() for found in locations(part, at)]
        overlaps = Overlaps(self._definitions, self._fuel)
        for _, part in parts:
            if "oneOf" in part and overlaps.are_disjoint(part["oneOf"]):
                _use_any_of(part)
        check_size(schema, self._definitions, self._param, self._fuel)
        if self.needs_controls:
            for at, part in parts:
                self._narrow_names(part, at)
        return schema

    def _narrow_names(self, schema: dict[str, Any], at: str) -> None:
        keyword = narrow_names(schema)
        if keyword is not None:
            raise self.refuse(
                keyword,
                at,
                "not beside control characters in a constant or a pattern, unless "
                "other properties are false, and named ones without such characters",
            )

    def refuse(self, keyword: str, at: str, reason: str) -> InvalidRequest:
        return InvalidRequest(
            f"{self._param}: keyword {shown(keyword)} at {shortened(at)}: {reason}",
            param=self._param,
        )

    def _read(self, schema: object, at: str, depth: int) -> Schema:
        if depth > MAX_NESTING:
            raise InvalidRequest(
                f"{self._param}: nested more than {MAX_NESTING} levels deep, references followed",
                param=self._param,
            )
        self._count_one()
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise InvalidRequest(
                f"{self._param}: a schema is an object or a boolean, got {shown(schema)} at "
                f"{shortened(at)}",
                param=self._param,
            )
        if self._ref_stands_alone and "$ref" in schema:
            schema = {"$ref": schema["$ref"]}
        result: dict[str, Any] = {}
        for keyword, value in schema.items():
            self._read_keyword(keyword, value, schema, at, depth, result)
        self._finish(result, at)
        return result

    def _count_one(self) -> None:
        self._fuel.spend()
        self._count += 1
        if self._count > MAX_SCHEMAS:
            raise InvalidRequest(
                f"{self._param}: more than {MAX_SCHEMAS} sub-schemas", param=self._param
            )

    def _read_keyword(
        self,
        keyword: str,
        value: Any,
        schema: dict[str, Any],
        at: str,
        depth: int,
        result: dict[str, Any],
    ) -> None:
        below = f"{at}/{escaped(keyword)}"
        if keyword == "$ref":
            result["$ref"] = self._reference(value, at, depth)
        elif keyword == "items" and isinstance(value, list):
            result["prefixItems"] = self._read_list(value, keyword, at, depth)
        elif keyword == "additionalItems":
            if isinstance(schema.get("items"), list):
                result["items"] = self._read(value, below, depth + 1)
        elif keyword in ("items", "additionalProperties"):
            result[keyword] = self._read(value, below, depth + 1)
        elif keyword in ("prefixItems", "allOf", "anyOf", "oneOf"):
            result[keyword] = self._read_list(value, keyword, at, depth)
        elif keyword in ("properties", "patternProperties"):
            result[keyword] = self._read_map(value, keyword, at, depth)
        elif keyword in _VALUE_READERS:
            self._read_value(keyword, value, schema, at, result)
        else:
            self._pass_over(keyword, value, schema, at, result)

    def _pass_over(
        self, keyword: str, value: Any, schema: dict[str, Any], at: str, result: dict[str, Any]
    ) -> None:
        """A keyword that is not enforced: fine if it asserts nothing, else refused."""
        if keyword in ("if", "then", "else"):
            if "if" in schema and ("then" in schema or "else" in schema):
                raise self.refuse(keyword, at, "it cannot be enforced while decoding")
        elif keyword in REFUSED_UNLESS:
            if any(value is harmless or value == harmless != 0 for harmless in
                   REFUSED_UNLESS[keyword]):  # fmt: skip
                return
            if keyword == "propertyNames" and any_name_meets(value):
                return
            closed = {"unevaluatedProperties": "additionalProperties", "unevaluatedItems": "items"}
            same = closed.get(keyword)
            if value is False and same and not any(k in schema for k in (*_IN_PLACE, same)):
                result[same] = False  # nothing else evaluates here: the two mean the same
                return
            raise self.refuse(keyword, at, "it cannot be enforced while decoding")
        elif keyword not in ANNOTATIONS and not keyword.startswith("x-"):
            self._fuel.spend(_STEPS["unknown keyword"])
            near = difflib.get_close_matches(keyword, _ENFORCED, 1, cutoff=0.8)
            if near:
                raise self.refuse(keyword, at, f"{_UNKNOWN}; did you mean {near[0]!r}?")
        elif keyword in ("$id", "id") and isinstance(value, str) and at != "#":
            raise self.refuse(keyword, at, "a schema inside another cannot have an address")

    def _read_list(self, value: Any, keyword: str, at: str, depth: int) -> list[Schema]:
        if not isinstance(value, list):
            raise self.refuse(keyword, at, f"it must be an array, got {shown(value)}")
        place = f"{at}/{escaped(keyword)}"
        return [self._read(part, f"{place}/{k}", depth + 1) for k, part in enumerate(value)]

    def _read_map(self, value: Any, keyword: str, at: str, depth: int) -> dict[str, Schema]:
        if not isinstance(value, dict):
            raise self.refuse(keyword, at, f"it must be an object, got {shown(value)}")
        if len(value) > MAX_PROPERTIES:
            raise self.refuse(keyword, at, f"more than {MAX_PROPERTIES} names, got {len(value)}")
        if keyword == "patternProperties":
            self._fuel.spend(len(value) ** 3 // 16)  # each is compared with each other, over there
        result: dict[str, Schema] = {}
        for name, part in value.items():
            written = name
            if keyword == "patternProperties":
                written = self._pattern(name, keyword, at)
            else:
                self._check_text(name, keyword, at)
            place = f"{at}/{keyword}/{escaped(name)}"
            result[written] = self._read(part, place, depth + 1)
        return result

    def _reference(self, value: Any, at: str, depth: int) -> str:
        if not isinstance(value, str):
            raise self.refuse("$ref", at, f"it must be a string, got {shown(value)}")
        address = self._root.get("$id") if isinstance(self._root, dict) else None
        pointer = value
        if isinstance(address, str) and address.rstrip("#"):
            pointer = pointer.removeprefix(address.rstrip("#")) or "#"
        pointer = pointer.rstrip("/") if pointer == "#/" else pointer
        if pointer in self._names:
            return self._names[pointer]
        if not pointer.startswith("#/"):
            raise self.refuse("$ref", at, f"only '#/…' inside this schema, got {shown(value)}")
        target = self._find(pointer, value, at)
        name = f"r{len(self._names)}"
        self._names[pointer] = f"#/$defs/{name}"
        self._definitions[name] = True  # keeps its place while the target refers to itself
        self._definitions[name] = self._read(target, pointer, depth + 1)
        return self._names[pointer]

    def _find(self, pointer: str, value: str, at: str) -> object:
        target: Any = self._root
        for part in pointer[2:].split("/"):
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict) and key in target:
                target = target[key]
            elif isinstance(target, list) and key.isdecimal() and int(key) < len(target):
                target = target[int(key)]
            else:
                raise self.refuse("$ref", at, f"nothing stands at {shown(value)}")
        return target

    def _read_value(
        self, keyword: str, value: Any, schema: dict[str, Any], at: str, result: dict[str, Any]
    ) -> None:
        read = _VALUE_READERS[keyword]
        written = read(self, value, keyword, at)
        if keyword == "format" and not may_be(schema.get("type"), "string"):
            return
        if written is not None or keyword == "const":
            result[keyword] = written

    def _types(self, value: Any, keyword: str, at: str) -> Any:
        names = value if isinstance(value, list) else [value]
        for name in names:
            if not isinstance(name, str) or name not in TYPES:
                raise self.refuse(keyword, at, f"no such type: {shown(name)}")
        if not names:
            raise self.refuse(keyword, at, "no type is allowed")
        return value

    def _constants(self, value: Any, keyword: str, at: str) -> Any:
        if keyword == "enum" and not isinstance(value, list):
            raise self.refuse(keyword, at, f"it must be an array, got {shown(value)}")
        for constant in value if keyword == "enum" else [value]:
            before = self._enum_characters
            self._check_constant(constant, keyword, at, 1)
            length = self._enum_characters - before
            if length > MAX_CONSTANT:
                raise self.refuse(
                    keyword, at, f"a constant has at most {MAX_CONSTANT} characters, got {length}"
                )
        return value

    def _check_constant(self, value: Any, keyword: str, at: str, depth: int) -> None:
        if depth > MAX_NESTING:
            raise self.refuse(keyword, at, f"nested more than {MAX_NESTING} levels deep")
        self._enum_characters += len(value) + 4 if isinstance(value, str) else 4
        if self._enum_characters > MAX_ENUM_CHARACTERS:
            raise self.refuse(
                keyword, at, f"all constants together exceed {MAX_ENUM_CHARACTERS} characters"
            )
        self._fuel.spend()
        if depth > 1:
            self._count_one()  # a part of a constant is a schema of its own in the grammar
        if isinstance(value, str):
            self._check_text(value, keyword, at)
            self.needs_controls |= has_controls(value)
        elif isinstance(value, list):
            for part in value:
                self._check_constant(part, keyword, at, depth + 1)
        elif isinstance(value, dict):
            for name, part in value.items():
                self._check_constant(name, keyword, at, depth + 1)
                self._check_constant(part, keyword, at, depth + 1)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            self._check_number(value, keyword, at)
            if isinstance(value, int) and abs(value) >= 2**63:
                raise self.refuse(keyword, at, f"integers are below 2**63, got {shown(value)}")

    def _check_text(self, text: str, keyword: str, at: str) -> None:
        """Refuses halves of surrogate pairs, which no answer can hold."""
        self._fuel.spend(len(text) // 100)
        if found := _SURROGATE.search(text):
            raise self.refuse(keyword, at, f"U+{ord(found[0]):04X} cannot be generated")

    def _check_number(self, value: Any, keyword: str, at: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse(keyword, at, f"it must be a number, got {shown(value)}")
        if isinstance(value, float) and not math.isfinite(value):
            raise self.refuse(keyword, at, "it must be finite")

    def _count_bound(self, value: Any, keyword: str, at: str) -> int | None:
        self._check_number(value, keyword, at)
        if value < 0 or value != int(value):
            raise self.refuse(keyword, at, f"it must be an integer of 0 or more, got {value}")
        if keyword.startswith("max"):
            return int(value) if value <= MAX_UPPER_BOUND else None
        if value > MAX_LOWER_BOUND:
            raise self.refuse(keyword, at, f"it must be at most {MAX_LOWER_BOUND}, got {value}")
        return int(value)

    def _bound(self, value: Any, keyword: str, at: str) -> int | float:
        """A numeric bound that llguidance reads exactly: large ones are drawn inward."""
        self._check_number(value, keyword, at)
        if abs(value) <= MAX_EXACT_INTEGER:
            return value  # type: ignore[no-any-return]
        is_upper = keyword in ("maximum", "exclusiveMaximum")
        value = min(value, MAX_BOUND) if is_upper else max(value, -MAX_BOUND)
        if abs(value) > MAX_BOUND:
            raise self.refuse(keyword, at, f"its size must be below 2**63, got {shown(value)}")
        rounded = float(value)
        if (rounded > value) if is_upper else (rounded < value):
            rounded = math.nextafter(rounded, -math.inf if is_upper else math.inf)
        return int(rounded)

    def _multiple_of(self, value: Any, keyword: str, at: str) -> int | float:
        self._check_number(value, keyword, at)
        if value <= 0:
            raise self.refuse(keyword, at, f"it must be above 0, got {shown(value)}")
        step = Fraction(repr(value))
        common = math.lcm(self._multiple.numerator, step.numerator)
        if common > MAX_MULTIPLE:
            raise self.refuse(
                keyword, at, f"the common multiple of all of them must be at most {MAX_MULTIPLE}"
            )
        self._multiple = Fraction(common)
        return int(step) if step.denominator == 1 else value

    def _pattern(self, value: Any, keyword: str, at: str) -> str:
        if not isinstance(value, str):
            raise self.refuse(keyword, at, f"it must be a string, got {shown(value)}")
        self._fuel.spend(2 * len(value))
        try:
            rewritten = rewrite(value)
        except PatternError as error:
            raise self.refuse(keyword, at, f"{shown(value)}: {error}") from error
        self.needs_controls |= rewritten.needs_controls
        return rewritten.text

    def _format(self, value: Any, keyword: str, at: str) -> str | None:
        if not isinstance(value, str):
            raise self.refuse(keyword, at, f"it must be a string, got {shown(value)}")
        return value if value in FORMATS or value in REFUSED_FORMATS else None

    def _names_list(self, value: Any, keyword: str, at: str) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self.refuse(keyword, at, f"it must be an array of strings, got {shown(value)}")
        if len(value) > MAX_PROPERTIES:
            raise self.refuse(keyword, at, f"more than {MAX_PROPERTIES} names, got {len(value)}")
        self._fuel.spend(len(value) * _STEPS["required name"])
        for name in value:
            self._check_text(name, keyword, at)
        return list(dict.fromkeys(value))

    def _finish(self, result: dict[str, Any], at: str) -> None:
        """Checks that need several keywords of one schema."""
        form = result.get("format")
        if form is not None and form not in FORMATS:
            raise self.refuse(
                "format", at, f"{shown(form)} cannot be enforced, only {', '.join(FORMATS)}"
            )
        if "const" in result and result["const"] is None:
            # llguidance takes a null there for no keyword at all.
            del result["const"]
            result.setdefault("allOf", []).append({"enum": [None]})
        distinct = len(result.get("required", ())) + 1
        if result.get("minProperties", 0) > distinct:
            # Of the properties that are not named, two could have the same name.
            raise self.refuse(
                "minProperties", at, "it can be at most one more than there are required names"
            )


def _use_any_of(schema: dict[str, Any]) -> None:
    """Puts anyOf in the place of oneOf, whose branches exclude each other."""
    branches = {"anyOf": schema.pop("oneOf")}
    if "anyOf" in schema:
        schema.setdefault("allOf", []).append(branches)
    else:
        schema.update(branches)


_Read = Callable[[SchemaReader, Any, str, str], Any]
_VALUE_READERS: dict[str, _Read] = {
    "type": SchemaReader._types,
    "enum": SchemaReader._constants,
    "const": SchemaReader._constants,
    "required": SchemaReader._names_list,
    "pattern": SchemaReader._pattern,
    "format": SchemaReader._format,
    "multipleOf": SchemaReader._multiple_of,
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        SchemaReader._count_bound,
    ),
    **dict.fromkeys(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), SchemaReader._bound
    ),
}
_ENFORCED = (*_VALUE_READERS, *REFUSED_UNLESS, "properties", "patternProperties", "items",
             "additionalProperties", "prefixItems", "allOf", "anyOf", "oneOf", "$ref")  # fmt: skip
