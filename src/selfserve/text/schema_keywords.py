"""The words of JSON Schema that assert nothing, and those that are refused."""

from __future__ import annotations

from typing import Any

TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
FORMATS = ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time",
           "uri", "uuid")  # fmt: skip
REFUSED_FORMATS = ("idn-email", "idn-hostname", "iri", "iri-reference", "json-pointer", "regex",
                   "relative-json-pointer", "uri-reference", "uri-template")  # fmt: skip
"""The other formats of JSON Schema. Any other name is nobody's and asserts nothing."""
ANNOTATIONS = frozenset(
    (
        "$anchor",
        "$comment",
        "$defs",
        "$dynamicAnchor",
        "$id",
        "$recursiveAnchor",
        "$schema",
        "$vocabulary",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "default",
        "definitions",
        "deprecated",
        "description",
        "discriminator",
        "enumNames",
        "example",
        "examples",
        "externalDocs",
        "id",
        "maxContains",
        "minContains",
        "nullable",
        "readOnly",
        "title",
        "writeOnly",
        "xml",
    )
)
"""Keywords that do not assert anything by themselves (min/maxContains: without contains)."""
REFUSED_UNLESS: dict[str, tuple[Any, ...]] = {
    "$dynamicRef": (),
    "$recursiveRef": (),
    "contains": (),
    "dependencies": ({},),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "extends": (),
    "disallow": (),
    "divisibleBy": (),
    "not": (False,),
    "propertyNames": (True, {}),
    "unevaluatedItems": (True, {}),
    "unevaluatedProperties": (True, {}),
    "uniqueItems": (False,),
}
"""Keywords that cannot be enforced, with the values for which they assert nothing."""


def may_be(types: Any, name: str) -> bool:
    return types is None or name == types or (isinstance(types, list) and name in types)


def any_name_meets(schema: Any) -> bool:
    """True if `schema` asserts nothing about a string."""
    if not isinstance(schema, dict):
        return schema is True
    return all(
        keyword in ANNOTATIONS
        or keyword.startswith("x-")
        or (keyword == "type" and may_be(value, "string"))
        or (keyword == "minLength" and value == 0 and not isinstance(value, bool))
        or (keyword == "format" and value not in FORMATS and value not in REFUSED_FORMATS)
        for keyword, value in schema.items()
    )
