"""Bounds on what a rewritten schema grows to inside llguidance.

Alternatives that meet in one place are multiplied out there, and nested lower bounds ask for
answers that no context holds. Both are found here, before llguidance sees the schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from selfserve.errors import InvalidRequest, shown
from selfserve.text.fuel import Fuel

Schema = dict[str, Any] | bool

MAX_NESTING = 100
"""Levels of sub-schemas, references followed: llguidance recurses once or more for each."""
MAX_LOWER_BOUND = 2_000
"""Largest minLength, minItems and minProperties."""
MAX_SMALLEST = 5_000
"""Parts of the smallest value of a schema: values within each other, which nested minItems
multiply, and pieces of _PIECE characters of constants and of required names. Text that a grammar
leaves no choice about is written at once, in one step of the engine."""
_PIECE = 4
_ENDLESS = MAX_SMALLEST + 1
_HOLDS_PARTS = frozenset(("properties", "required", "items", "prefixItems"))
_GROWING = frozenset(("minItems", "required", "const", "enum"))
MAX_ALTERNATIVES = 300
"""Combinations of anyOf and oneOf branches that meet in one place through allOf and $ref."""


MAX_WIDTH = 1_000
"""Names of properties, and beginnings of the items of arrays, that are possible in one place: a
mask takes a time that grows with the square of their number (12 ms for 1,000)."""
MAX_PATTERNS_MEETING = 8
"""Patterns and formats for one text through allOf and $ref: each one more can double the work."""
MAX_NAME_PATTERNS = 100
"""patternProperties for one object: comparing them takes the third power of their number."""

Meeting = dict[tuple[str, str], int]
"""How many patterns of a kind meet in one place, by the name of the property and the kind."""
_HERE, _ANY = "", "*"


def check_size(root: Schema, definitions: dict[str, Schema], param: str, fuel: Fuel) -> None:
    """Raises InvalidRequest if alternatives, patterns or lower bounds multiply beyond the limits,
    or if a schema is defined by itself; OutOfFuel if that is too much work to find out."""
    check = _SizeCheck(root, definitions, param, fuel)
    check.refuse_endless()
    check.meeting(root)
    check.width(root)
    for at, schema in [("#", root), *definitions.items()]:
        for place, part in locations(schema, at):
            if check.alternatives(part, ()) > MAX_ALTERNATIVES:
                raise check.refusal(
                    f"more than {MAX_ALTERNATIVES} combinations of alternatives meet in one "
                    f"place, {shortened(place)}"
                )


class _SizeCheck:
    def __init__(
        self, root: Schema, definitions: dict[str, Schema], param: str, fuel: Fuel
    ) -> None:
        self._root = root
        self._definitions = definitions
        self._param = param
        self._fuel = fuel
        self._known: dict[str, int] = {}
        self._meetings: dict[str, Meeting] = {}
        self._widths: dict[str, int] = {}

    def refusal(self, reason: str) -> InvalidRequest:
        return InvalidRequest(f"{self._param}: {reason}", param=self._param)

    def alternatives(self, schema: Schema, through: tuple[str, ...]) -> int:
        """How many combinations of branches meet in the place of `schema`."""
        self._fuel.spend()
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
                size = self._smallest(self._target(reference), sizes)
                if size < sizes[reference]:
                    sizes[reference] = size
                    changed = True
        for reference in sizes:
            for place, part in locations(self._target(reference), reference):
                self._fuel.spend()
                if ("minItems" in part or "required" in part) and self._smallest(
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

    def _smallest(self, schema: Schema, known: dict[str, int]) -> int:
        """Values in the smallest value of `schema`, itself counted, at most _ENDLESS."""
        self._fuel.spend(2 + len(schema.get("required", ())) if isinstance(schema, dict) else 1)
        if isinstance(schema, bool):
            return 1
        size = 1
        constants = [schema["const"]] if "const" in schema else schema.get("enum")
        if constants:
            size += min(self._length(constant) for constant in constants) // _PIECE
        if "$ref" in schema:
            size = known[schema["$ref"]]
        for part in schema.get("allOf", ()):
            size = max(size, self._smallest(part, known))
        for keyword in ("anyOf", "oneOf"):
            if schema.get(keyword):
                size = max(size, min(self._smallest(part, known) for part in schema[keyword]))
        if schema.get("type") == "array":
            size = max(size, 1 + self._smallest_items(schema, known))
        if schema.get("type") == "object":
            properties = schema.get("properties", {})
            names = schema.get("required", ())
            required = [properties.get(name, True) for name in names]
            values = sum(self._smallest(part, known) for part in required)
            size = max(size, 1 + values + sum(map(len, names)) // _PIECE)
        return min(size, _ENDLESS)

    def _length(self, constant: Any) -> int:
        """About the characters of a constant."""
        self._fuel.spend()
        if isinstance(constant, list):
            return 2 + sum(self._length(part) for part in constant)
        if isinstance(constant, dict):
            return 2 + sum(len(name) + self._length(part) for name, part in constant.items())
        return len(constant) if isinstance(constant, str) else 1

    def _smallest_items(self, schema: dict[str, Any], known: dict[str, int]) -> int:
        least = schema.get("minItems", 0)
        first = schema.get("prefixItems", [])[:least]
        size = sum(self._smallest(part, known) for part in first)
        if least > len(first):
            size += (least - len(first)) * self._smallest(schema.get("items", True), known)
        return size

    def meeting(self, schema: Schema) -> Meeting:
        """The most patterns that meet in a place of `schema` and below. Raises InvalidRequest if
        they are too many.

        Properties of the same name are taken to meet wherever they stand in what is joined.
        """
        self._fuel.spend(2)
        if isinstance(schema, bool):
            return {}
        found: Meeting = {
            (_HERE, "pattern"): ("pattern" in schema) + ("format" in schema),
            (_HERE, "patternProperties"): len(schema.get("patternProperties", ())),
        }
        for name, below in _parts_below(schema):
            self._fuel.spend(1 + len(below_found := self.meeting(below)))
            for (inner, kind), count in below_found.items():
                key = (inner or name, kind)
                found[key] = max(found.get(key, 0), count)
        together = [self.meeting(part) for part in schema.get("allOf", ())]
        if "$ref" in schema:
            together.append(self._meeting_behind(schema["$ref"]))
        for keyword in ("anyOf", "oneOf"):
            most: Meeting = {}
            for part in schema.get(keyword, ()):
                for key, count in self.meeting(part).items():
                    most[key] = max(most.get(key, 0), count)
            together.append(most)
        for each in together:
            self._fuel.spend(1 + len(each))
            for key, count in each.items():
                found[key] = found.get(key, 0) + count
        self._refuse_meeting(found)
        return {key: count for key, count in found.items() if count}

    def width(self, schema: Schema) -> int:
        """The most that llguidance follows side by side within values of `schema`."""
        self._fuel.spend(2)
        if isinstance(schema, bool):
            return 0
        width = max(_optional_run(schema), *(self.width(part) for _, part in _parts_below(schema)))
        if not _HOLDS_PARTS.isdisjoint(schema):
            width = max(width, 1)
        width += sum(self.width(part) for part in schema.get("allOf", ()))
        for keyword in ("anyOf", "oneOf"):
            widths = [self.width(part) for part in schema.get(keyword, ())]
            if widths and self._are_tagged(schema[keyword]):
                width += max(len(widths), *widths)
            else:
                width += sum(widths)
        if "$ref" in schema:
            width += self._width_behind(schema["$ref"])
        if width > MAX_WIDTH:
            raise self.refusal(
                f"more than {MAX_WIDTH} optional properties or kinds of items meet in one place"
            )
        return width

    def _are_tagged(self, branches: list[Schema]) -> bool:
        """True if objects tell by their first property which of `branches` they follow."""
        seen: set[str] = set()
        for branch in branches:
            self._fuel.spend()
            if isinstance(branch, dict) and set(branch) == {"$ref"}:
                branch = self._target(branch["$ref"])
            if not isinstance(branch, dict):
                return False
            name, tag = next(iter(branch.get("properties", {}).items()), ("", True))
            if isinstance(tag, bool) or name not in branch.get("required", ()):
                return False
            constants = [tag["const"]] if "const" in tag else tag.get("enum", ())
            texts = {name + "=" + text for text in constants if isinstance(text, str)}
            self._fuel.spend(len(constants))
            if not texts or len(texts) < len(constants) or not seen.isdisjoint(texts):
                return False
            seen |= texts
        return True

    def _width_behind(self, reference: str) -> int:
        if reference not in self._widths:
            self._widths[reference] = 0  # while it is asked for: a circle adds nothing
            self._widths[reference] = self.width(self._target(reference))
        return self._widths[reference]

    def _meeting_behind(self, reference: str) -> Meeting:
        if reference not in self._meetings:
            self._meetings[reference] = {}  # while it is asked for: a circle adds nothing
            self._meetings[reference] = self.meeting(self._target(reference))
        return self._meetings[reference]

    def _refuse_meeting(self, found: Meeting) -> None:
        limits = {"pattern": MAX_PATTERNS_MEETING, "patternProperties": MAX_NAME_PATTERNS}
        for (name, kind), count in found.items():
            if name != _ANY:
                count += found.get((_ANY, kind), 0)
            if count > limits[kind]:
                raise self.refusal(
                    f"more than {limits[kind]} of {kind!r} meet in one place"
                    + (f", property {shown(name)}" if name not in (_HERE, _ANY) else "")
                )


def _optional_run(schema: dict[str, Any]) -> int:
    """The most properties of an object that can come next in one place."""
    required = frozenset(schema.get("required", ()))
    longest = run = 0
    for name in schema.get("properties", ()):
        run = 0 if name in required else run + 1
        longest = max(longest, run)
    return longest + len(schema.get("patternProperties", ()))


def _parts_below(schema: dict[str, Any]) -> Iterator[tuple[str, Schema]]:
    """The sub-schemas of parts of a value, each with the name of its property."""
    yield from schema.get("properties", {}).items()
    for part in (*schema.get("prefixItems", ()), schema.get("items", True)):
        yield _HERE, part
    others = schema.get("additionalProperties", True)
    for part in (*schema.get("patternProperties", {}).values(), others):
        yield _ANY, part


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
