"""Bounds on what a rewritten schema grows to inside llguidance.

Alternatives that meet in one place are multiplied out there, and nested lower bounds ask for
answers that no context holds. Both are found here, before llguidance sees the schema.
"""

from __future__ import annotations

from typing import Any

from selfserve.errors import InvalidRequest

Schema = dict[str, Any] | bool

MAX_NESTING = 100
"""Levels of sub-schemas, references followed: llguidance recurses once or more for each."""
MAX_LOWER_BOUND = 2_000
"""Largest minLength, minItems and minProperties."""
MAX_SMALLEST = 5_000
"""Values within each other in the smallest value of a schema: what nested minItems multiply to."""
_ENDLESS = MAX_SMALLEST + 1
MAX_ALTERNATIVES = 300
"""Combinations of anyOf and oneOf branches that meet in one place through allOf and $ref."""


def check_size(root: Schema, definitions: dict[str, Schema], param: str) -> None:
    """Raises InvalidRequest if alternatives or lower bounds multiply beyond the limits, or if a
    schema is defined by itself."""
    check = _SizeCheck(root, definitions, param)
    check.refuse_endless()
    for at, schema in [("#", root), *definitions.items()]:
        for place, part in locations(schema, at):
            if check.alternatives(part, ()) > MAX_ALTERNATIVES:
                raise check.refusal(
                    f"more than {MAX_ALTERNATIVES} combinations of alternatives meet in one "
                    f"place, {shortened(place)}"
                )


class _SizeCheck:
    def __init__(self, root: Schema, definitions: dict[str, Schema], param: str) -> None:
        self._root = root
        self._definitions = definitions
        self._param = param
        self._known: dict[str, int] = {}

    def refusal(self, reason: str) -> InvalidRequest:
        return InvalidRequest(f"{self._param}: {reason}", param=self._param)

    def alternatives(self, schema: Schema, through: tuple[str, ...]) -> int:
        """How many combinations of branches meet in the place of `schema`."""
        if isinstance(schema, bool):
            return 1
        total = 1
        reference = schema.get("$ref")
        if reference is not None:
            total *= self._alternatives_behind(reference, through)
        for part in schema.get("allOf", ()):
            total = min(total * self.alternatives(part, through), MAX_ALTERNATIVES + 1)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                branches = sum(self.alternatives(part, through) for part in schema[keyword])
                # Alone in its place a union is not multiplied with anything.
                branches = branches if set(schema) - {keyword} else min(branches, MAX_ALTERNATIVES)
                total = min(total * max(branches, 1), MAX_ALTERNATIVES + 1)
        return total

    def _alternatives_behind(self, reference: str, through: tuple[str, ...]) -> int:
        if reference in through:
            raise self.refusal(
                "a schema is defined by a reference to itself, without an array or object between"
            )
        if reference not in self._known:
            target = self._target(reference)
            self._known[reference] = self.alternatives(target, (*through, reference))
        return self._known[reference]

    def refuse_endless(self) -> None:
        """Refuses schemas whose smallest value is larger than any answer, or has no end."""
        sizes = dict.fromkeys(("#", *(f"#/$defs/{name}" for name in self._definitions)), _ENDLESS)
        changed = True
        while changed:
            changed = False
            for reference in reversed(sizes):  # a schema stands before those it refers to
                size = _smallest(self._target(reference), sizes)
                if size < sizes[reference]:
                    sizes[reference] = size
                    changed = True
        for reference in sizes:
            for place, part in locations(self._target(reference), reference):
                if ("minItems" in part or "required" in part) and _smallest(
                    part, sizes
                ) == _ENDLESS:
                    raise self.refusal(
                        f"no value of the schema at {shortened(place)} has less than "
                        f"{MAX_SMALLEST} parts"
                    )

    def _target(self, reference: str) -> Schema:
        if reference == "#":
            return self._root
        return self._definitions[reference.removeprefix("#/$defs/")]


def _smallest(schema: Schema, known: dict[str, int]) -> int:
    """Values in the smallest value of `schema`, itself counted, at most _ENDLESS."""
    if isinstance(schema, bool):
        return 1
    size = 1
    if "$ref" in schema:
        size = known[schema["$ref"]]
    for part in schema.get("allOf", ()):
        size = max(size, _smallest(part, known))
    for keyword in ("anyOf", "oneOf"):
        if schema.get(keyword):
            size = max(size, min(_smallest(part, known) for part in schema[keyword]))
    if schema.get("type") == "array":
        size = max(size, 1 + _smallest_items(schema, known))
    if schema.get("type") == "object":
        properties = schema.get("properties", {})
        required = [properties.get(name, True) for name in schema.get("required", ())]
        size = max(size, 1 + sum(_smallest(part, known) for part in required))
    return min(size, _ENDLESS)


def _smallest_items(schema: dict[str, Any], known: dict[str, int]) -> int:
    least = schema.get("minItems", 0)
    first = schema.get("prefixItems", [])[:least]
    size = sum(_smallest(part, known) for part in first)
    if least > len(first):
        size += (least - len(first)) * _smallest(schema.get("items", True), known)
    return size


def locations(schema: Schema, at: str) -> list[tuple[str, dict[str, Any]]]:
    """Every sub-schema that is an object, with its place; a schema comes before its parts."""
    found: list[tuple[str, dict[str, Any]]] = []
    todo = [(at, schema)]
    while todo:
        place, part = todo.pop()
        if isinstance(part, bool):
            continue
        found.append((place, part))
        for keyword, value in part.items():
            below = f"{place}/{keyword}"
            if keyword in ("items", "additionalProperties"):
                todo.append((below, value))
            elif keyword in ("prefixItems", "allOf", "anyOf", "oneOf"):
                todo.extend((f"{below}/{k}", sub) for k, sub in enumerate(value))
            elif keyword in ("properties", "patternProperties"):
                todo.extend((f"{below}/{escaped(name)}", sub) for name, sub in value.items())
    return found


def escaped(name: str) -> str:
    """`name` as a step of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def shortened(pointer: str) -> str:
    """`pointer` for a message."""
    return pointer if len(pointer) <= 100 else f"{pointer[:99]}…"
