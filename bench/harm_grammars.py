"""Schemas and grammars that are small to write and large to understand, for `bench.harm_inputs`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

Schema = dict[str, Any]

LADDER_LEVELS = 12
LADDER_WIDTH = 5
TEXT_OF_A_GRAMMAR = 190_000
"""Characters, near the limit of a grammar."""


def ladder(keyword: str) -> Schema:
    """Two chains of objects, each of whose properties is an object of the next level: few lines
    with LADDER_WIDTH ** LADDER_LEVELS paths through them. `keyword` joins the two."""
    definitions: Schema = {}
    for letter in "AB":
        for level in range(LADDER_LEVELS):
            below = {"$ref": f"#/$defs/{letter}{level + 1}"}
            definitions[f"{letter}{level}"] = _object(dict.fromkeys("abcde"[:LADDER_WIDTH], below))
        definitions[f"{letter}{LADDER_LEVELS}"] = {"type": "string"}
    branches = [{"$ref": "#/$defs/A0"}, {"$ref": "#/$defs/B0"}]
    return {keyword: branches, "$defs": definitions}


def ladder_of_patterns() -> Schema:
    """The same by names that match patterns."""
    definitions = {
        f"A{level}": {
            "type": "object",
            "patternProperties": {
                f"^{letter}": {"$ref": f"#/$defs/A{level + 1}"} for letter in "abcde"
            },
            "additionalProperties": False,
        }
        for level in range(LADDER_LEVELS)
    }
    return {"$ref": "#/$defs/A0", "$defs": definitions | {f"A{LADDER_LEVELS}": {"type": "null"}}}


def ladder_of_items(levels: int) -> Schema:
    """The same by arrays of exactly five items."""
    definitions: Schema = {
        f"A{level}": {
            "type": "array",
            "items": {"$ref": f"#/$defs/A{level + 1}"},
            "minItems": LADDER_WIDTH,
            "maxItems": LADDER_WIDTH,
        }
        for level in range(levels)
    }
    return {"$ref": "#/$defs/A0", "$defs": definitions | {f"A{levels}": {"type": "null"}}}


def nested(keyword: str, depth: int) -> Schema:
    """Two objects that differ in a constant, each of which holds the same again."""
    schema: Schema = {"type": "string"}
    for _ in range(depth):
        branches = [_object({"k": {"const": letter}, "v": schema}) for letter in "ab"]
        schema = {keyword: branches}
    return schema


def product(num_factors: int) -> Schema:
    """allOf of anyOfs: every combination of their branches is another object."""
    factors = [
        {"anyOf": [{"type": "object", "required": [f"{letter}{number}"]} for letter in "abc"]}
        for number in range(num_factors)
    ]
    return {"type": "object", "allOf": factors}


def _object(properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def text(**fields: Any) -> Schema:
    return {"type": "string", **fields}


def array(**fields: Any) -> Schema:
    return {"type": "array", "items": {"type": "integer"}, **fields}


def pattern_of_patterns(levels: int, times: int) -> str:
    """Repetitions in repetitions."""
    pattern = "a"
    for _ in range(levels):
        pattern = f"({pattern}|b{{0,9}}){{0,{times}}}"
    return f"^{pattern}$"


def look_alikes() -> Schema:
    """Objects that differ in the last character of one long pattern."""
    branches = [_object({"k": text(pattern=f"^[a-z]{{0,200}}{n:03}$")}) for n in range(100)]
    return {"oneOf": branches}


def recursion_of_objects(count: int) -> Schema:
    """Objects of objects that all may hold each other."""
    names = [f"N{number}" for number in range(count)]
    every = {name.lower(): {"$ref": f"#/$defs/{name}"} for name in names}
    node = {"type": "object", "properties": every, "additionalProperties": False}
    return {"$ref": "#/$defs/N0", "$defs": dict.fromkeys(names, node)}


SCHEMAS: Mapping[str, Callable[[], Schema]] = {
    **{f"ladder of {key}": partial(ladder, key) for key in ("oneOf", "anyOf", "allOf")},
    "ladder of patterns": ladder_of_patterns,
    "ladder of items": partial(ladder_of_items, LADDER_LEVELS),
    "ladder of items, 4 levels": partial(ladder_of_items, 4),
    "nested oneOf": partial(nested, "oneOf", 9),
    "nested anyOf": partial(nested, "anyOf", 9),
    "nested oneOf, too deep": partial(nested, "oneOf", 14),
    "product of 12 anyOf": partial(product, 12),
    "product of 5 anyOf": partial(product, 5),
    "oneOf of look-alikes": look_alikes,
    "60 objects in each other": partial(recursion_of_objects, 60),
    "20 objects in each other": partial(recursion_of_objects, 20),
    "enum of 50,000 words": lambda: {"enum": [f"word {number}" for number in range(50_000)]},
    "enum of long words": lambda: {"enum": [f"{n:03}" + "x" * 4_000 for n in range(120)]},
    "1,000 properties": lambda: _object({f"p{n}": text() for n in range(1_000)}),
    "20,000 optional properties": lambda: {
        "type": "object",
        "properties": {f"p{n}": text() for n in range(20_000)},
    },
    "minItems 10^9": lambda: array(minItems=10**9),
    "maxItems 10^9": lambda: array(maxItems=10**9),
    "maxItems 60,000 of ladders": lambda: {
        "type": "array",
        "items": array(items=array(maxItems=60_000), maxItems=60_000),
        "maxItems": 60_000,
    },
    "maxLength 10^9": lambda: text(maxLength=10**9),
    "maxLength 65,536": lambda: text(minLength=2_000, maxLength=65_536),
    "minLength 10^9": lambda: text(minLength=10**9),
    "patterns nested 6 deep": lambda: text(pattern=pattern_of_patterns(6, 30)),
    "patterns nested 3 deep": lambda: text(pattern=pattern_of_patterns(3, 9)),
    "pattern repeated 60,000 times": lambda: text(pattern="^(a|aa|aaa|b[a-z]*c){1,60000}$"),
    "pattern repeated 600 times": lambda: text(pattern="^(a|aa|aaa|b[a-z]*c){1,600}$"),
    "pattern of 100,000 alternatives": lambda: text(
        pattern="^(" + "|".join(f"w{number}" for number in range(100_000)) + ")$"
    ),
    "pattern that ends late": lambda: text(pattern="^[ab]*a[ab]{400}$"),
    "multipleOf with bounds": lambda: {
        "type": "integer",
        "multipleOf": 9_973,
        "minimum": -(2**53),
        "maximum": 2**53,
    },
}


def rules_of_doubling(levels: int) -> str:
    """Each rule is the next one twice: 2 ** levels letters."""
    rules = [f"r{number} ::= r{number + 1} r{number + 1}" for number in range(levels)]
    return "\n".join(["root ::= r0", *rules, f'r{levels} ::= "a"'])


def rules_of_choices(count: int) -> str:
    """Each rule is the next one or the next but one: as many paths as Fibonacci's numbers."""
    rules = [f'r{n} ::= r{n + 1} "a" | r{n + 2} "b"' for n in range(count)]
    return "\n".join(["root ::= r0", *rules, f'r{count} ::= "a"', f'r{count + 1} ::= "b"'])


def nested_repetition(levels: int, times: int) -> str:
    body = '"a"'
    for _ in range(levels):
        body = f"({body} | [b-y]{{0,9}}){{0,{times}}}"
    return f"root ::= {body}"


def many_rules(count: int) -> str:
    rules = [f'r{number} ::= "w{number}" root?' for number in range(count)]
    names = " | ".join(f"r{number}" for number in range(count))
    return "\n".join([f"root ::= {names}", *rules])


def ambiguous() -> str:
    """A recursion whose texts can be read in many ways."""
    return 'root ::= expr\nexpr ::= expr2 expr2 | "a"\nexpr2 ::= "a" expr | expr3 | "a"\n' + (
        'expr3 ::= "a" expr2 "a"? | "a"{0,60} "a"'
    )


GRAMMARS: Mapping[str, Callable[[], str]] = {
    "rules that double 40 times": lambda: rules_of_doubling(40),
    "rules that double 13 times": lambda: rules_of_doubling(13),
    "1,000 rules of choices": lambda: rules_of_choices(1_000),
    "300 rules of choices": lambda: rules_of_choices(300),
    "repetition nested 8 deep": lambda: nested_repetition(8, 90),
    "repetition nested 3 deep": lambda: nested_repetition(3, 9),
    "repetition of 2,000 to 65,536": lambda: 'root ::= ([a-z] | "é" [0-9]){2000,65536}',
    "repetition of 1,000 to 9,000": lambda: 'root ::= ([a-z] | "é" [0-9]){1000,9000}',
    "1,300 recursive rules": lambda: many_rules(1_300),
    "20,000 rules": lambda: many_rules(20_000),
    "ambiguous recursion": ambiguous,
    "100,000 parentheses": lambda: "root ::= " + "(" * 95_000 + '"a"' + ")" * 95_000,
    "a literal of 19,000 characters": lambda: f'root ::= "{"ab" * 9_500}"',
    "a literal of 190,000 characters": lambda: f'root ::= "{"ab" * (TEXT_OF_A_GRAMMAR // 2)}"',
    "a class of 60,000 characters": lambda: (
        "root ::= [" + "".join(chr(0x4E00 + 2 * (n % 10_000)) for n in range(60_000)) + "]*"
    ),
    "31 MB": lambda: f'root ::= "{"a" * 31_000_000}"',
}
