"""Schemas of the project's own, by keyword, for generating under them and validating the result."""

from __future__ import annotations

from typing import Any

_NODE = {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#"}}}
_STRINGS: list[dict[str, Any]] = [
    *({"minLength": n} for n in (0, 1, 7, 40)),
    *({"maxLength": n} for n in (0, 1, 7, 40, 2000, 100_000)),
    *({"minLength": a, "maxLength": b} for a, b in ((2, 2), (1, 3), (5, 50))),
    *({"format": name} for name in ("date", "time", "date-time", "uuid", "ipv4", "email")),
    *({"format": name} for name in ("duration", "hostname", "ipv6", "uri")),
    *(
        {"pattern": pattern}
        for pattern in (
            "^a+$", "a", "^[A-Z]{2}-[0-9]{4}$", "^(foo|bar)(baz)?$", "^\\d{3}-\\d{4}$", "^$",
            "^[^\\s\"]+$", "x{2,}", "^a|b$", "^hello\\!$", "^(?:é|ü)+$", "^[\\w.-]+@[\\w-]+$",
            "^.{3}$", "^\\u00e9?$", "^[&-]{2}$", "^\\/a\\/$", "[0-9]$", "^(a(b(c)?)?)?$",
        )
    ),
    {"pattern": "^[a-z]+$", "minLength": 3, "maxLength": 5},
    {"contentMediaType": "text/html"},
]  # fmt: skip
_NUMBERS: list[dict[str, Any]] = [
    *({"minimum": n} for n in (-5, 0, 3, 100)),
    *({"maximum": n} for n in (-5, 0, 3, 20_000_000_000, 2**53, 2**63 - 1)),
    *({"exclusiveMinimum": n} for n in (-1, 0, 9)),
    *({"exclusiveMaximum": n} for n in (-1, 0, 10)),
    *({"minimum": a, "maximum": b} for a, b in ((0, 0), (-3, 3), (5, 1005), (-1000, -9))),
    {"minimum": 0.5, "maximum": 7.5},
    *({"multipleOf": n} for n in (1, 3, 100)),
    {"multipleOf": 5, "minimum": 10, "maximum": 30},
]
_ARRAYS: list[dict[str, Any]] = [
    {},
    *({"items": item} for item in ({"type": "string"}, {"enum": [1, 2]}, True, False, {})),
    *({"minItems": n, "items": {"type": "integer"}} for n in (1, 3, 12)),
    *({"maxItems": n, "items": {"type": "boolean"}} for n in (0, 1, 5, 1998)),
    {"minItems": 2, "maxItems": 4},
    {"items": {"type": "array", "items": {"type": "null"}, "maxItems": 2}, "maxItems": 3},
    {"uniqueItems": False},
]
_OBJECTS: list[dict[str, Any]] = [
    {},
    {"properties": {}},
    {"properties": {}, "additionalProperties": False},
    {"properties": {"a": {"type": "string"}}},
    {"properties": {"a": {"type": "string"}}, "required": ["a"]},
    {"properties": {"a": {}, "b": {}}, "required": ["b"], "additionalProperties": False},
    {"properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "integer"}},
    {"required": ["x", "y"]},
    {"required": ["x"], "additionalProperties": {"type": "boolean"}},
    {"patternProperties": {"^n_": {"type": "integer"}}, "additionalProperties": False},
    {"patternProperties": {"^n_": {"type": "integer"}, "^s_": {"type": "string"}}},
    {"properties": {'né"\\\n': {"const": 1}}, "required": ['né"\\\n']},
    {"minProperties": 1},
    {"maxProperties": 0},
    {"maxProperties": 2},
    {"properties": {"v": {"description": "any"}}},
    {"properties": {f"k{i}": {"type": "integer"} for i in range(30)}},
    {"properties": {"v": False}},
]
_ANY_TYPE: list[Any] = [
    True, {}, {"title": "t", "default": 1, "examples": [2], "$comment": "c"},
    {"type": ["array", "null"], "items": {"type": "string"}},
    {"type": ["string", "integer"], "minLength": 2, "minimum": 5},
    {"minLength": 3}, {"minimum": 3}, {"required": ["a"]}, {"maxItems": 1},
    *({"type": name} for name in ("null", "boolean", "number", "integer", "string")),
    *({"const": value} for value in (None, True, False, 0, 1.5, "", "é\"\\\n/", [], [1, {"a": 2}])),
    *({"enum": value} for value in ([None], ["a", "b"], [1, "1", None], [[1], {"x": 1}, 2.5])),
    {"enum": [1, 2, "x"], "type": "integer"}, {"enum": [1, 5, 9], "minimum": 4},
    {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "integer", "minimum": 10}]},
    {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    {"oneOf": [{"type": "string"}, {"type": "integer"}]},
    {"oneOf": [{"const": "a"}, {"const": "b"}, {"const": 1}]},
    {"oneOf": [{"type": "object", "properties": {"kind": {"const": kind}, "v": {"type": kind}},
                "required": ["kind", "v"]} for kind in ("string", "integer", "null")]},
    {"allOf": [{"type": "string"}, {"minLength": 2}, {"maxLength": 4}]},
    {"allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]},
               {"properties": {"b": {"type": "integer"}}, "required": ["b"]}], "type": "object"},
    {"type": "integer", "anyOf": [{"maximum": 3}, {"minimum": 10}]},
    {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}},
     "anyOf": [{"required": ["b"]}, {"required": ["c"]}]},
    _NODE, {"type": "array", "items": {"$ref": "#"}},
]  # fmt: skip
_REFUSED: list[dict[str, Any]] = [
    {"not": {"type": "string"}},
    {"type": "array", "uniqueItems": True},
    {"contains": {"type": "integer"}},
    {"propertyNames": {"maxLength": 3}},
    {"if": {"type": "string"}, "then": {"minLength": 3}},
    {"oneOf": [{"minimum": 3}, {"maximum": 5}]},
    {"type": "string", "format": "regex"},
    {"type": "string", "pattern": "(?=a)b"},
    {"minProperties": 3},
]
_DRAFT7: list[dict[str, Any]] = [
    {"definitions": {"p": {"type": "integer", "minimum": 1}}, "$ref": "#/definitions/p"},
    {"definitions": {"a~b/c%": {"const": 3}}, "items": {"$ref": "#/definitions/a~0b~1c%25"}},
    {"$ref": "#/definitions/s", "maxLength": 1, "definitions": {"s": {"type": "string"}}},
    {"type": "array", "items": [{"type": "integer"}, {"type": "string"}]},
    {"type": "array", "items": [{"type": "integer"}], "additionalItems": False, "minItems": 1},
    {"type": "array", "items": [{"type": "integer"}], "additionalItems": {"type": "null"}},
    {"dependencies": {"a": ["b"]}},
]
_DRAFT2020: list[dict[str, Any]] = [
    {"$defs": {"p": {"type": "integer", "minimum": 1}}, "$ref": "#/$defs/p"},
    {"$defs": {"s": {"type": "string"}}, "$ref": "#/$defs/s", "maxLength": 1},
    {"$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]},
    {"type": "array", "prefixItems": [{"type": "integer"}], "items": False, "minItems": 1},
    {"properties": {"a": {"$ref": "#/properties/b"}, "b": {"type": "integer"}}, "type": "object"},
    {"type": "object", "properties": {"a": {}}, "unevaluatedProperties": False},
    {"dependentRequired": {"a": ["b"]}},
    {"unevaluatedProperties": False, "allOf": [{"properties": {"a": {}}}]},
]


def all_schemas() -> list[tuple[str, Any]]:
    """(draft, schema) pairs; the draft is the name of its folder in the public test suite."""
    common: list[Any] = [
        *({"type": "string", **each} for each in _STRINGS),
        *({"type": "integer", **each} for each in _NUMBERS),
        *({"type": "number", **each} for each in _NUMBERS),
        *({"type": "array", **each} for each in _ARRAYS),
        *({"type": "object", **each} for each in _OBJECTS),
        *_ANY_TYPE,
        *_REFUSED,
    ]
    dialects = {
        "draft7": ("http://json-schema.org/draft-07/schema#", _DRAFT7),
        "draft2020-12": ("https://json-schema.org/draft/2020-12/schema", _DRAFT2020),
    }
    return [
        (draft, {"$schema": address, **schema} if isinstance(schema, dict) else schema)
        for draft, (address, own) in dialects.items()
        for schema in (*common, *own)
    ]
