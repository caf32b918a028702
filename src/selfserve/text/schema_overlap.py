"""Whether the branches of a oneOf exclude each other.

If no value can satisfy two branches, oneOf means the same as anyOf, which can be enforced. This
proves it for what generators of schemas write: branches of different types, different constants,
and objects that are told apart by a required property (a tagged union).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

from selfserve.text.fuel import Fuel

MAX_BRANCHES = 100
_MAX_HOPS = 8
_MAX_DEPTH = 100
"""Properties within each other that a proof follows."""

Node = dict[str, Any] | bool


@dataclass(frozen=True, slots=True, eq=False)
class _Facts:
    """What a proof asks of a sub-schema, references followed."""

    types: frozenset[str] | None
    constants: frozenset[tuple[str, str]] | None
    tags: dict[str, Node]
    """Properties that every value has; empty if it may be something other than an object."""


class Overlaps:
    """Proofs about the sub-schemas of one schema, which must not change meanwhile.

    Two sub-schemas are compared once, however many ways lead to them.
    """

    def __init__(self, definitions: dict[str, Node], fuel: Fuel) -> None:
        self._definitions = definitions
        self._fuel = fuel
        self._facts: dict[int, _Facts] = {}
        self._excluding: dict[tuple[int, int], bool] = {}

    def are_disjoint(self, branches: list[Node]) -> bool:
        """True if it is proven that no value satisfies two of `branches`."""
        if len(branches) > MAX_BRANCHES:
            return False
        return all(self._exclude(a, b, 0) for a, b in combinations(branches, 2))

    def _exclude(self, a: Node, b: Node, depth: int) -> bool:
        self._fuel.spend()
        pair = (id(a), id(b))  # both are parts of the schema, which outlives this
        known = self._excluding.get(pair)
        if known is None:
            self._excluding[pair] = False  # while it is asked for: a circle proves nothing
            known = depth <= _MAX_DEPTH and self._prove(self._of(a), self._of(b), depth)
            self._excluding[pair] = known
        return known

    def _prove(self, a: _Facts, b: _Facts, depth: int) -> bool:
        if a.types is not None and b.types is not None and a.types.isdisjoint(b.types):
            return True
        if a.constants is not None and b.constants is not None:
            self._fuel.spend(min(len(a.constants), len(b.constants)) // 10)
            if a.constants.isdisjoint(b.constants):
                return True
        return any(
            self._exclude(value, b.tags[tag], depth + 1)
            for tag, value in a.tags.items()
            if tag in b.tags
        )

    def _of(self, node: Node) -> _Facts:
        facts = self._facts.get(id(node))
        if facts is None:
            schema = self._resolved(node)
            constants = self._constants(schema)
            types = _types(schema, constants)
            required = schema.get("required", ()) if types == frozenset(("object",)) else ()
            properties = schema.get("properties", {})
            self._fuel.spend(len(required))
            tags = {name: properties[name] for name in required if name in properties}
            facts = self._facts[id(node)] = _Facts(types, constants, tags)
        return facts

    def _resolved(self, schema: Node) -> dict[str, Any]:
        """The schema behind a plain reference; {} (anything) where that is not known."""
        for _ in range(_MAX_HOPS):
            if isinstance(schema, bool):
                return {}
            name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
            if not name or name not in self._definitions:
                return schema
            siblings = {key: value for key, value in schema.items() if key != "$ref"}
            target = self._definitions[name]
            if isinstance(target, bool):
                return siblings
            schema = {**target, **siblings} if not set(target) & set(siblings) else target
        return {}

    def _constants(self, schema: dict[str, Any]) -> frozenset[tuple[str, str]] | None:
        """The constants that a schema is limited to, each with its type; None if it is not."""
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if values is None:
            return None
        self._fuel.spend(len(values))
        return frozenset((_type_of(value), _canonical(value)) for value in values)


def _types(
    schema: dict[str, Any], constants: frozenset[tuple[str, str]] | None
) -> frozenset[str] | None:
    types = schema.get("type")
    if types is None:
        return None if constants is None else frozenset(kind for kind, _ in constants)
    names = {types} if isinstance(types, str) else set(types)
    return frozenset("number" if name == "integer" else name for name in names)


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
