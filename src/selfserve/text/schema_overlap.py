"""Whether the branches of a oneOf exclude each other.

If no value can satisfy two branches, oneOf means the same as anyOf, which can be enforced. This
proves it for what generators of schemas write: branches of different types, different constants,
and objects that are told apart by a required property (a tagged union).
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

MAX_BRANCHES = 100
_MAX_HOPS = 8


def are_disjoint(branches: list[dict[str, Any] | bool], definitions: dict[str, Any]) -> bool:
    """True if it is proven that no value satisfies two of `branches`."""
    if len(branches) > MAX_BRANCHES:
        return False
    resolved = [_resolved(branch, definitions) for branch in branches]
    return all(_exclude(a, b, definitions) for a, b in combinations(resolved, 2))


def _resolved(schema: dict[str, Any] | bool, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema behind a plain reference; {} (anything) where that is not known."""
    for _ in range(_MAX_HOPS):
        if isinstance(schema, bool):
            return {}
        name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
        if not name or name not in definitions:
            return schema
        siblings = {key: value for key, value in schema.items() if key != "$ref"}
        target = definitions[name]
        if isinstance(target, bool):
            return siblings
        schema = {**target, **siblings} if not set(target) & set(siblings) else target
    return {}


def _exclude(a: dict[str, Any], b: dict[str, Any], definitions: dict[str, Any]) -> bool:
    types_a, types_b = _types(a), _types(b)
    if types_a is not None and types_b is not None and not types_a & types_b:
        return True
    constants_a, constants_b = _constants(a), _constants(b)
    if constants_a is not None and constants_b is not None and not constants_a & constants_b:
        return True
    if types_a != {"object"} or types_b != {"object"}:
        return False
    tags = set(a.get("required", ())) & set(b.get("required", ()))
    tags &= set(a.get("properties", ())) & set(b.get("properties", ()))
    return any(
        _exclude(
            _resolved(a["properties"][tag], definitions),
            _resolved(b["properties"][tag], definitions),
            definitions,
        )
        for tag in tags
    )


def _types(schema: dict[str, Any]) -> set[str] | None:
    types = schema.get("type")
    if types is None:
        constants = _constants(schema)
        return None if constants is None else {kind for kind, _ in constants}
    names = {types} if isinstance(types, str) else set(types)
    return {"number" if name == "integer" else name for name in names}


def _constants(schema: dict[str, Any]) -> set[tuple[str, str]] | None:
    """The constants that a schema is limited to, each with its type; None if it is not."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is None:
        return None
    return {(_type_of(value), _canonical(value)) for value in values}


def _type_of(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def _canonical(value: object) -> str:
    """Equal for equal numbers (1 and 1.0), also inside arrays and objects; else distinct."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return repr(value)
    if isinstance(value, int | float):
        return repr(int(value)) if value == int(value) else repr(value)
    if isinstance(value, list):
        return "[" + ",".join(_canonical(part) for part in value) + "]"
    if isinstance(value, dict):
        parts = sorted(f"{key!r}:{_canonical(part)}" for key, part in value.items())
        return "{" + ",".join(parts) + "}"
    return repr(value)
