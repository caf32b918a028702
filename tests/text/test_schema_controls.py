"""Control characters in constants, patterns and names."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.support.acceptance import accepts
from tests.support.random_decoding import byte_factory, random_text

from selfserve.errors import InvalidRequest
from selfserve.text.pattern import rewrite
from selfserve.text.schema import json_schema_constraint


@pytest.mark.parametrize("text", ["\u0001", "\u001b[0m", "\u007f", "a\u0000b", "\n\u000b\u001f"])
@pytest.mark.parametrize("form", ["enum", "const", "pattern", "in an array", "required"])
def test_a_control_character_is_written_as_an_escape(text: str, form: str) -> None:
    schemas: dict[str, tuple[Any, Any]] = {
        "enum": ({"enum": [text, 5]}, text),
        "const": ({"const": text}, text),
        "pattern": ({"type": "string", "pattern": f"^{re.escape(text)}$"}, text),
        "in an array": ({"const": [text, 1]}, [text, 1]),
        "required": (
            {
                "type": "object",
                "properties": {"a": {"type": "string", "pattern": f"^{re.escape(text)}$"}},
                "required": ["a"],
            },
            {"a": text},
        ),
    }
    schema, value = schemas[form]
    constraint = json_schema_constraint(schema)
    written = json.dumps(value).replace("\x7f", "\\u007f")
    assert accepts(constraint, written)
    without = re.sub("[\x00-\x1f\x7f]", "", text)
    assert not accepts(constraint, json.dumps(value).replace(json.dumps(text)[1:-1], without))
    for seed in range(3):
        generated = random_text(byte_factory().compile(constraint), seed)
        if generated is not None and form in ("const", "pattern", "in an array"):
            assert json.loads(generated) == value, (seed, generated)


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("^a\\u0001b$", ["a\\u0001b"], ["ab", "a\\u0002b"]),
        ("^\\n\\u0001$", ["\\n\\u0001", "\\u000a\\u0001"], ["\\n", ""]),
        ("^\\x1b\\[0m$", ["\\u001b[0m", "\\u001B[0m"], ["[0m"]),
        ("^\\cA\\v\\0$", ["\\u0001\\u000b\\u0000"], [""]),
        ("^[\\u0000-\\u0007]x$", ["\\u0000x", "\\u0007x"], ["x", "\\u0008x"]),
        ("^a[^\\u0000\\u0002-\\u{10ffff}]b$", ["a\\u0001b"], ["ab"]),
        ("^a[^\\S\\t\\n\\f\\r \\u0080-\\u{10ffff}]b$", ["a\\u000bb"], ["ab", "a\\nb"]),
    ],
)
def test_a_pattern_of_control_characters_means_what_it_says(
    pattern: str, inside: list[str], outside: list[str]
) -> None:
    constraint = json_schema_constraint({"type": "string", "pattern": pattern})
    assert [accepts(constraint, f'"{text}"') for text in inside] == [True] * len(inside)
    assert [accepts(constraint, f'"{text}"') for text in outside] == [False] * len(outside)


def test_an_escape_is_one_character_long() -> None:
    constraint = json_schema_constraint(
        {"type": "string", "pattern": "^[\\u0000-\\u0007]{2,9}$", "maxLength": 3}
    )
    texts = ['"' + "\\u0001" * count + '"' for count in range(1, 6)]
    assert [accepts(constraint, text) for text in texts] == [False, True, True, False, False]


@pytest.mark.parametrize(
    "pattern",
    ["^[^\\x00-\\x1f]*$", "[^\\s@]+@[^\\s@]+", "[\\x00-\\x7f]", "[^\\p{L}]", "^.\\W$", "[\\u0001a]",
     "\\t\\n", "[^\\u0000-\\u001f\\u007f]"],
)  # fmt: skip
def test_a_pattern_that_can_do_without_leaves_texts_raw(pattern: str) -> None:
    assert not rewrite(pattern).needs_controls
    schema = {"type": "array", "items": {"type": "string", "pattern": pattern}}
    assert '"json_allowed_escapes":"\\"\\\\bfnrt"' in json_schema_constraint(schema).text


CONTROL = {"const": "\u0001"}


def test_no_escape_can_hide_a_name_where_escapes_are_on() -> None:
    schema: Any = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "c": CONTROL, "b\n": {"type": "string"}},
        "required": ["r"],
    }
    constraint = json_schema_constraint(schema)
    assert accepts(constraint, '{"a": "x", "c": "\\u0001", "b\\n": "x", "r": 1, "other": 2}')
    assert not accepts(constraint, '{"a": "x", "c": "\\u0002", "r": 1}')
    for name in ("\\u0061", "\\u0072", "b\\u000a", "b\\u000A", "\\u0001", "a", "r"):
        assert not accepts(constraint, f'{{"r": 1, "{name}": 2}}'), name


def test_names_of_any_other_property_are_still_enforced_where_escapes_are_on() -> None:
    part = {"properties": {"a": {"type": "integer"}}}
    constraint = json_schema_constraint(
        {"type": "object", "allOf": [part, {"properties": {"c": CONTROL}, "required": ["c"]}]}
    )
    assert accepts(constraint, '{"a": 1, "c": "\\u0001", "other": [true]}')
    assert not accepts(constraint, '{"a": "x", "c": "\\u0001"}')


@pytest.mark.parametrize(
    "schema",
    [
        {"patternProperties": {"^x": CONTROL}},
        {"patternProperties": {"^x": {}}, "properties": {"a": CONTROL}},
        {
            "patternProperties": {"^x": CONTROL},
            "properties": {"x\n": {}},
            "additionalProperties": False,
        },
        {"properties": {"a": CONTROL}, "additionalProperties": {"type": "integer"}},
    ],
)
def test_names_that_cannot_be_told_apart_where_escapes_are_on_are_refused(schema: Any) -> None:
    with pytest.raises(InvalidRequest, match="Properties' at #/items: not beside control"):
        json_schema_constraint({"type": "array", "items": schema})


def test_patterns_of_names_may_hold_control_characters() -> None:
    constraint = json_schema_constraint(
        {
            "type": "object",
            "patternProperties": {"^a\\u0001$": {"type": "integer"}},
            "additionalProperties": False,
        }
    )
    assert accepts(constraint, '{"a\\u0001": 1}')
    assert not accepts(constraint, '{"a": 1}')
