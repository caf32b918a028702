"""Schemas and grammars that are small to send and could be large to compile.

Each stands with a part of the message that refuses it, "" where it is accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Json = Any


def object_ladder(levels: int, width: int) -> Json:
    """Two chains of objects; each property of one level refers to the whole next level."""
    links: Json = {"A": {}, "B": {}}
    definitions = {}
    for letter in links:
        for level in range(levels):
            names = [f"p{i}" for i in range(width)]
            target = {"$ref": f"#/$defs/{letter}{level + 1}"}
            definitions[f"{letter}{level}"] = {
                "type": "object",
                "properties": dict.fromkeys(names, target),
                "required": names,
            }
        definitions[f"{letter}{levels}"] = {"type": "string"}
    return {"$defs": definitions, "oneOf": [{"$ref": "#/$defs/A0"}, {"$ref": "#/$defs/B0"}]}


def tagged_ladder(levels: int) -> Json:
    schema: Json = {"type": "string"}
    for _ in range(levels):
        schema = {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"k": {"const": tag}, "v": schema},
                    "required": ["k", "v"],
                }
                for tag in "ab"
            ]
        }
    return schema


def any_ladder(levels: int) -> Json:
    schema: Json = {"type": "string"}
    for level in range(levels):
        schema = {"anyOf": [schema, {"const": level}]}
    return schema


def backward_references(length: int) -> Json:
    """Each definition needs the one before it, which is read after it."""
    definitions: Json = {"r0": {"type": "integer"}}
    for i in range(1, length):
        items = {"$ref": f"#/$defs/r{i - 1}"}
        definitions[f"r{i}"] = {"type": "array", "items": items, "minItems": 1}
    return {"$defs": definitions, "anyOf": [{"$ref": f"#/$defs/r{i}"} for i in range(length)]}


def patterns_joined(count: int) -> Json:
    return {"allOf": [{"type": "string", "pattern": f"^.*a.{{{k}}}b.*$"} for k in range(count)]}


def patterns_joined_below(count: int) -> Json:
    parts = [{"properties": {"x": {"pattern": f"^.*a.{{{k}}}b$"}}} for k in range(count)]
    return {"allOf": [{"type": "object", **part} for part in parts]}


def name_patterns(count: int) -> Json:
    return {
        "type": "object",
        "patternProperties": {f"^k{k}_[a-z]{{0,30}}$": {"type": "integer"} for k in range(count)},
    }


def objects(branches: int, names: int, *, required: bool = False) -> Json:
    def one(branch: int) -> Json:
        own = [f"p{branch}x{i}" for i in range(names)]
        properties = {name: {"type": "integer"} for name in own}
        return {"type": "object", "properties": properties, "required": own if required else []}

    return {"anyOf": [one(branch) for branch in range(branches)]}


def tagged_objects(branches: int, names: int) -> Json:
    def one(branch: int) -> Json:
        properties = {"kind": {"const": f"k{branch}"}}
        properties |= {f"p{branch}x{i}": {"type": "integer"} for i in range(names)}  # type: ignore[dict-item]
        return {"type": "object", "properties": properties, "required": ["kind"]}

    return {"oneOf": [one(branch) for branch in range(branches)]}


TOO_COMPLEX = "too complex"
NAMES = "optional properties"

SCHEMAS: dict[str, tuple[Callable[[], Json], str]] = {
    "oneOf, tagged": (lambda: tagged_ladder(7), ""),
    "oneOf, tagged, too large": (lambda: tagged_ladder(11), "5000 sub-schemas"),
    "oneOf over $defs": (lambda: object_ladder(9, 5), "less than 5000 parts"),
    "oneOf over long $defs": (lambda: object_ladder(40, 5), "less than 5000 parts"),
    "oneOf over short $defs": (lambda: object_ladder(3, 5), "'oneOf'"),
    "anyOf in anyOf": (lambda: any_ladder(60), ""),
    "anyOf in anyOf, too deep": (lambda: any_ladder(80), "nested too deep"),
    "references backward": (lambda: backward_references(90), ""),
    "references backward, many": (lambda: backward_references(1_500), TOO_COMPLEX),
    "patterns in allOf": (lambda: patterns_joined(3), ""),
    "patterns in allOf, many": (lambda: patterns_joined(24), "8 of 'pattern' meet"),
    "patterns of one property": (lambda: patterns_joined_below(24), "one place, property 'x'"),
    "patternProperties": (lambda: name_patterns(60), ""),
    "patternProperties, many": (lambda: name_patterns(101), "100 of 'patternProperties'"),
    "patternProperties, again and again": (
        lambda: {"anyOf": [name_patterns(100)] * 40},
        TOO_COMPLEX,
    ),
    "properties": (lambda: objects(1, 900), ""),
    "properties, all required": (lambda: objects(5, 400, required=True), ""),
    "properties of branches": (lambda: objects(5, 900), NAMES),
    "properties of tagged branches": (lambda: tagged_objects(50, 30), ""),
    "properties in allOf": (lambda: {"allOf": objects(4, 900)["anyOf"]}, NAMES),
    "required": (
        lambda: {"anyOf": [{"required": [f"r{i}x{k}" for k in range(900)]} for i in range(50)]},
        TOO_COMPLEX,
    ),
    "items of branches": (
        lambda: {"anyOf": [{"type": "array", "items": {"const": i}} for i in range(1_500)]},
        NAMES,
    ),
    "unknown keywords": (lambda: {f"unknown{i}": 1 for i in range(6_000)}, TOO_COMPLEX),
    "patterns": (
        lambda: {"anyOf": [{"pattern": "[a-z]" * 1_900 + str(i)} for i in range(60)]},
        TOO_COMPLEX,
    ),
    "pattern": (lambda: {"type": "string", "pattern": "^((a|b){1,50}){1,50}$"}, ""),
    "pattern, nested": (
        lambda: {"type": "string", "pattern": "^(((a|b){1,50}){1,50}){1,50}$"},
        "expand to more than",
    ),
    "constants": (lambda: {"enum": [f"{i:06}" + "x" * 40 for i in range(5_000)]}, ""),
    "constant": (lambda: {"const": ["x" * 100] * 4_000}, "at most 8000 characters"),
    "constant of many parts": (
        lambda: {"const": {f"k{i}": i for i in range(2_600)}},
        "5000 sub-schemas",
    ),
    "constants that have to follow each other": (
        lambda: {
            "type": "object",
            "properties": {f"k{i}": {"const": "x" * 1_000} for i in range(30)},
            "required": [f"k{i}" for i in range(30)],
        },
        "less than 5000 parts",
    ),
    "lengths": (lambda: {"type": "string", "minLength": 2_000, "maxLength": 65_536}, ""),
    "items": (lambda: {"type": "array", "minItems": 2_000, "maxItems": 65_536}, ""),
    "items within items": (
        lambda: {"type": "array", "maxItems": 10**6, "items": {"type": "array", "maxItems": 10**9}},
        "",
    ),
    "prefixItems": (lambda: {"type": "array", "prefixItems": [{"type": "null"}] * 4_000}, ""),
    "minProperties": (lambda: {"type": "object", "minProperties": 1, "maxProperties": 10**9}, ""),
    "multipleOf": (lambda: {"type": "integer", "multipleOf": 4_999, "maximum": 10**17}, ""),
    "dependentRequired": (
        lambda: {"dependentRequired": {f"k{i}": ["a"] * 100 for i in range(1_000)}},
        "'dependentRequired'",
    ),
}


def chain(length: int, body: str, end: str = '"a"') -> str:
    rules = [f"r{i} ::= {body.format(i + 1)}" for i in range(length)]
    return "\n".join(["root ::= r0", *rules, f"r{length} ::= {end}"])


def _characters(count: int, step: int) -> str:
    return "".join(chr(0x20000 + step * i) for i in range(count))


GRAMMARS: dict[str, tuple[Callable[[], str], str]] = {
    "repetitions": (lambda: 'root ::= ("a"{1,100}){1,100}', ""),
    "repetitions, nested": (lambda: 'root ::= (("a"{1,100}){1,100}){1,100}', "10000 times"),
    "ambiguous chain": (lambda: chain(190, 'r{0} | "a" r{0}'), ""),
    "left recursion": (lambda: chain(190, "r{0}?", "root"), "left recursion"),
    "options": (lambda: "root ::= " + " | ".join(f'"w{i}"' for i in range(1_500)), ""),
    "options within options": (
        lambda: "root ::= (" + " | ".join(f'"w{i}" root' for i in range(1_400)) + ')? "."',
        "",
    ),
    "empty rules, doubled": (lambda: chain(100, "r{0} r{0}", '""') + "\n", ""),
    "rules that begin alike": (
        lambda: chain(40, '([a-z] [a-z0-9]* "x"?){{0,9}} [a-z]* r{0} root?'),
        "",
    ),
    "rules that go on alike": (
        lambda: (
            'root ::= r0 again\nagain ::= "z" again?\n'
            + chain(190, '([a-z] [a-z0-9]* "x"?){{0,9}} [a-z]* r{0}').partition("\n")[2]
        ),
        TOO_COMPLEX,
    ),
    "class": (lambda: f"root ::= [{_characters(9_000, 2)}]+", ""),
    "class, large": (lambda: f"root ::= [{_characters(20_000, 2)}]+", "10000 ranges"),
    "text of all characters": (
        lambda: f'root ::= "{_characters(11_000, 2)}" root?',
        "10000 characters are told apart",
    ),
    "classes": (
        lambda: (
            "root ::= (" + " | ".join(f"[{_characters(4_000, 40 + k)}]" for k in range(9)) + ")*"
        ),
        "10000 characters are told apart",
    ),
    "long text": (lambda: f'root ::= "{"a" * 190_000}"', "8000 characters"),
}
