"""JSON schemas: what is enforced, what is refused and how it is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.acceptance import accepts
from tests.support.random_decoding import byte_factory, random_text

from selfserve.errors import InvalidRequest
from selfserve.text.schema import json_object_constraint, json_schema_constraint


def refusal(schema: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        json_schema_constraint(schema, param="response_format.json_schema.schema")
    assert caught.value.param == "response_format.json_schema.schema"
    return caught.value.message


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"properties": {"tags": {"uniqueItems": True}}}, "'uniqueItems' at #/properties/tags:"),
        ({"not": {}}, "'not' at #:"),
        ({"contains": {}}, "'contains'"),
        ({"items": {"dependentRequired": {"a": ["b"]}}}, "'dependentRequired' at #/items:"),
        ({"dependentSchemas": {"a": {}}}, "'dependentSchemas'"),
        ({"dependencies": {"a": ["b"]}}, "'dependencies'"),
        ({"propertyNames": {"maxLength": 3}}, "'propertyNames'"),
        ({"properties": {"m": {"propertyNames": {"pattern": "^[a-z]+$"}}}},
         "'propertyNames' at #/properties/m:"),
        ({"propertyNames": {"type": "integer"}}, "'propertyNames'"),
        ({"propertyNames": {"minLength": 1}}, "'propertyNames'"),
        ({"propertyNames": {"format": "uuid"}}, "'propertyNames'"),
        ({"propertyNames": {"enum": ["a"]}}, "'propertyNames'"),
        ({"propertyNames": {"$ref": "#"}}, "'propertyNames'"),
        ({"propertyNames": False}, "'propertyNames'"),
        ({"items": {"format": "uri-reference"}}, "'format' at #/items:"),
        ({"if": {"type": "string"}, "then": {"minLength": 1}}, "'if'"),
        ({"allOf": [{}], "unevaluatedProperties": False}, "'unevaluatedProperties'"),
        ({"unevaluatedItems": {"type": "string"}}, "'unevaluatedItems'"),
        ({"$dynamicRef": "#a"}, "'$dynamicRef'"),
        ({"properties": {"a/b": {"format": "iri"}}}, "'format' at #/properties/a~1b:"),
        ({"type": "string", "minLenght": 3}, "did you mean 'minLength'?"),
        ({"oneOf": [{"minimum": 1}, {"maximum": 5}]}, "'oneOf'"),
        ({"properties": {"a": {"type": "string", "pattern": "a^b"}}}, "at #/properties/a "),
        ({"type": "object", "minProperties": 2}, "'minProperties'"),
        ({"x-guidance": {"lenient": True}, "not": {"type": "string"}}, "'not'"),
        ({"$ref": "https://example.com/schema"}, "'$ref'"),
        ({"$ref": "#/$defs/missing"}, "nothing stands at"),
        ({"properties": {"a": {"$id": "x"}}}, "'$id' at #/properties/a:"),
        ({"type": "text"}, "no such type: 'text'"),
        ({"type": []}, "'type'"),
        ({"properties": []}, "'properties'"),
        ({"required": "a"}, "'required'"),
        ({"required": [1]}, "'required'"),
        ({"enum": 5}, "'enum'"),
        ({"items": 5}, "at #/items"),
        ({"minLength": -1}, "'minLength'"),
        ({"minLength": 1.5}, "'minLength'"),
        ({"minLength": True}, "'minLength'"),
        ({"minimum": "1"}, "'minimum'"),
        ({"minimum": float("nan")}, "'minimum'"),
        ({"exclusiveMinimum": True}, "'exclusiveMinimum'"),
        ({"multipleOf": 0}, "'multipleOf'"),
        ({"enum": ["\ud800"]}, "U+D800"),
        ({"properties": {"\ud800": {}}}, "U+D800"),
    ],
)  # fmt: skip
def test_a_keyword_that_cannot_be_enforced_is_refused_by_name_and_place(
    schema: Any, named: str
) -> None:
    message = refusal(schema)
    assert named in message
    assert len(message) < 400
    json.dumps({"m": message}).encode()


@pytest.mark.parametrize(
    "schema",
    [
        False, {"enum": []}, {"type": "integer", "minimum": 5, "maximum": 4},
        {"type": "string", "minLength": 3, "maxLength": 2},
        {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"$ref": "#"}, {"allOf": [{"$ref": "#"}]},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    ],
)  # fmt: skip
def test_a_schema_without_any_value_is_refused(schema: Any) -> None:
    refusal(schema)


@pytest.mark.parametrize("schema", [None, [], "x", 5])
def test_a_schema_is_an_object_or_a_boolean(schema: Any) -> None:
    assert "must be an object" in refusal(schema)


def _nested(levels: int) -> Any:
    schema: Any = {}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def _chain(length: int) -> Any:
    links = {
        f"a{i}": {"type": "array", "items": {"$ref": f"#/$defs/a{i + 1}"}} for i in range(length)
    }
    return {"$defs": {**links, f"a{length}": {}}, "$ref": "#/$defs/a0"}


def _doubling(length: int) -> Any:
    links = {
        f"a{i}": {
            "type": "object",
            "properties": {key: {"$ref": f"#/$defs/a{i + 1}"} for key in "xy"},
            "required": ["x", "y"],
        }
        for i in range(length)
    }
    return {"$defs": {**links, f"a{length}": {"type": "null"}}, "$ref": "#/$defs/a0"}


def _crossed(factors: int) -> Any:
    return {
        "allOf": [
            {"anyOf": [{"properties": {f"p{i}{j}": {}}, "required": [f"p{i}{j}"]} for i in "abcd"]}
            for j in range(factors)
        ]
    }


HOSTILE: dict[str, Any] = {
    "nested": _nested(10_000),
    "reference chain": _chain(3_000),
    "doubling": _doubling(40),
    "crossed alternatives": _crossed(12),
    "groups": {"pattern": "^" + "(" * 50_000 + "a" + ")" * 50_000},
    "open groups": {"pattern": "(" * 9_000},
    "nothing repeated": {"pattern": "^+a$"},
    "nothing counted": {"pattern": "^{2}x$"},
    "repetition": {"pattern": "a{2000000000}"},
    "repetition product": {"pattern": "^((a{1000}){1000}){1000}$"},
    "items": {"type": "array", "minItems": 5_000},
    "items product": {"type": "array", "minItems": 99, "items": {"type": "array", "minItems": 99}},
    "length": {"type": "string", "minLength": 2_001},
    "multiple": {"type": "integer", "multipleOf": 1_000_003},
    "multiples": {"allOf": [{"multipleOf": n} for n in (97, 101, 103, 107)]},
    "properties": {"properties": {f"k{i}": {} for i in range(5_000)}},
    "schemas": {"anyOf": [{"type": "string"}] * 10_000},
    "constant": {"const": json.loads("[" * 900 + "]" * 900)},
    "constants": {"enum": ["x" * 1_000] * 1_000},
    "integer": {"enum": [10**4000]},
    "bound": {"minimum": 10**4000},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_is_refused_within_its_work(name: str) -> None:
    assert "too complex" not in refusal(HOSTILE[name])


@pytest.mark.parametrize("limit", [1_999, 2_000])
def test_lower_bounds_work_up_to_their_limit(limit: int) -> None:
    constraint = json_schema_constraint({"type": "string", "minLength": limit})
    assert accepts(constraint, '"' + "x" * limit + '"')
    assert not accepts(constraint, '"' + "x" * (limit - 1) + '"')


@pytest.mark.parametrize("limit", [1_999, 2_000, 2_001, 65_536])
def test_upper_bounds_are_enforced_up_to_their_limit(limit: int) -> None:
    constraint = json_schema_constraint({"type": "string", "maxLength": limit})
    assert accepts(constraint, '"' + "x" * limit + '"')
    assert not accepts(constraint, '"' + "x" * (limit + 1) + '"')


@pytest.mark.parametrize("limit", [65_537, 100_000, 10**12, 2**70])
def test_an_upper_bound_above_the_limit_is_as_good_as_none(limit: int) -> None:
    assert json_schema_constraint({"type": "array", "maxItems": limit}) == json_schema_constraint(
        {"type": "array"}
    )


LARGEST = 2**63 - 1024
"""An upper bound beyond this one is drawn in to it: llguidance reads bounds as 64-bit floats."""
INTEGERS = (*range(-12, 13), 10**9, 2 * 10**10, 2 * 10**10 + 1, 2**63 - 1, 2**63, 10**30)


@pytest.mark.parametrize(
    "bounds",
    [
        {"minimum": -5}, {"maximum": 20_000_000_000}, {"minimum": 3}, {"exclusiveMinimum": 0},
        {"minimum": 0, "maximum": 0}, {"minimum": 0.5}, {"maximum": -1}, {"exclusiveMaximum": 0},
        {"minimum": -3, "maximum": 11}, {"maximum": 2**63 - 1}, {"minimum": 2, "multipleOf": 3},
    ],
)  # fmt: skip
def test_integers_outside_their_bounds_cannot_be_written(bounds: dict[str, Any]) -> None:
    constraint = json_schema_constraint({"type": "integer", **bounds})
    for value in INTEGERS:
        upper = min(bounds.get("maximum", value), LARGEST) if "maximum" in bounds else value
        inside = (
            bounds.get("minimum", value) <= value <= upper
            and value > bounds.get("exclusiveMinimum", value - 1)
            and value < bounds.get("exclusiveMaximum", value + 1)
            and value % bounds.get("multipleOf", 1) == 0
        )  # fmt: skip
        assert accepts(constraint, str(value)) == inside, value
    for malformed in ("-", "01", "-01", "+1", "1.0", "1e1"):
        assert not accepts(constraint, malformed)


@pytest.mark.parametrize("bound", [2**53 + 1, 2**53 + 3, 2**57 + 1])
def test_a_bound_that_no_float_holds_is_never_exceeded(bound: int) -> None:
    upper = json_schema_constraint({"type": "integer", "maximum": bound})
    lower = json_schema_constraint({"type": "integer", "minimum": bound})
    for step in (1, 2, 3, 127, 128, 511, 512, 1_023, 1_024):
        assert not accepts(upper, str(bound + step))
        assert not accepts(lower, str(bound - step))


def test_properties_come_in_the_order_of_the_schema() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}, "required": ["a", "b"]}
    constraint = json_schema_constraint(schema)
    assert accepts(constraint, '{"b": 1, "a": 2}')
    assert not accepts(constraint, '{"a": 1, "b": 2}')


def test_no_escape_can_hide_a_property_name() -> None:
    constraint = json_schema_constraint(
        {"properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "integer"}}
    )
    assert accepts(constraint, '{"b": 1}')
    assert not accepts(constraint, '{"a": 1}')
    assert not accepts(constraint, '{"\\u0061": 1}')


@pytest.mark.parametrize("constraint", [json_object_constraint, lambda: json_schema_constraint({})])
def test_text_is_raw_and_white_space_is_bounded(constraint: Any) -> None:
    built = constraint()
    for text in ("{}", '{"é😀\\n\\\\\\"": [1, 2.5e-3, true], "b": {"c": null}}'):
        assert accepts(built, text)
    for text in (
        '{"a":  1}',
        "{ }",
        '{"a": 1 }',
        '{"a":1}',
        '{"a": [1,2]}',
        '{"a"\n: 1}',
        " {}",
        "{} ",
        '{"\\u00e9": 1}',
        "{,}",
    ):
        assert not accepts(built, text)


def test_an_object_constraint_allows_nothing_but_objects() -> None:
    for text in ("[]", "1", "null", '"{}"', ""):
        assert not accepts(json_object_constraint(), text)


@pytest.mark.parametrize("before", ["", "{", '{"a"', '{"a": ', '{"a": 1, ', '{"a": [', '{"a": 1}'])
def test_a_model_drawn_to_blanks_gets_no_second_one(before: str) -> None:
    state = byte_factory().compile(json_object_constraint())
    for token in before.encode():
        state.accept(token)
    assert not any(state.allows(ord(blank)) for blank in " \n\r\t")


def test_annotations_and_unknown_keywords_change_nothing() -> None:
    plain = {"type": "object", "properties": {"a": {"type": "integer"}}}
    noted = {
        "$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://x.test/y",
        "title": "T", "description": "d", "default": {}, "examples": [1], "deprecated": True,
        "x-order": 3, "discriminator": {"propertyName": "a"}, "properties": {
            "a": {"type": "integer", "readOnly": True, "format": "int32", "title": "A"},
        }, "type": "object", "$defs": {"unused": {"not": {}}},
    }  # fmt: skip
    for text in ('{"a": 1}', "{}", '{"a": "x"}', "1"):
        assert accepts(json_schema_constraint(noted), text) == accepts(
            json_schema_constraint(plain), text
        )


@pytest.mark.parametrize(
    "names",
    [
        True, {}, {"type": "string"}, {"type": ["string", "null"]}, {"minLength": 0},
        {"title": "N", "description": "d", "x-note": 1}, {"type": "string", "format": "color"},
    ],
)  # fmt: skip
def test_names_that_any_name_meets_are_no_assertion(names: Any) -> None:
    values = {"additionalProperties": {"type": "integer"}}
    inner = {"type": "object", "propertyNames": names, **values}
    constraint = json_schema_constraint({"properties": {"m": inner}, "propertyNames": names})
    assert accepts(constraint, '{"m": {"any name": 1}}')
    assert not accepts(constraint, '{"m": {"any name": "x"}}')


@pytest.mark.parametrize("name", ["color", "password", "byte", "int32", "x", ""])
def test_a_format_that_nobody_defined_asserts_nothing(name: str) -> None:
    constraint = json_schema_constraint({"type": "string", "format": name, "maxLength": 3})
    assert accepts(constraint, '"?!"')
    assert not accepts(constraint, '"four"')


def test_a_tagged_union_is_enforced() -> None:
    branch = lambda kind: {  # noqa: E731
        "type": "object",
        "properties": {"kind": {"const": kind}, "v": {"type": kind}},
        "required": ["kind", "v"],
        "additionalProperties": False,
    }
    union = json_schema_constraint(
        {
            "$defs": {"s": branch("string"), "i": branch("integer")},
            "oneOf": [{"$ref": "#/$defs/s"}, {"$ref": "#/$defs/i"}],
            "discriminator": {"propertyName": "kind"},
        }
    )
    assert accepts(union, '{"kind": "string", "v": "x"}')
    assert accepts(union, '{"kind": "integer", "v": 3}')
    assert not accepts(union, '{"kind": "integer", "v": "x"}')


def test_a_pattern_of_names_holds_for_named_properties_too() -> None:
    schema = {
        "type": "object",
        "properties": {"score": {"type": "integer", "multipleOf": 5}},
        "required": ["score"],
        "additionalProperties": False,
        "patternProperties": {"^score$": {"type": "integer", "minimum": 50}},
    }
    constraint = json_schema_constraint(schema)
    assert accepts(constraint, '{"score": 55}')
    assert not accepts(constraint, '{"score": 45}')
    assert not accepts(constraint, '{"score": 51}')
    assert "score" in refusal({**schema, "patternProperties": {"^s": {"type": "string"}}})
    overlapping = {"^s": {"type": "integer"}, "e$": {"type": "integer"}}
    assert "not disjoint" in refusal({**schema, "patternProperties": overlapping})


def test_draft_7_ignores_what_stands_beside_a_reference() -> None:
    schema = {"$ref": "#/definitions/s", "maxLength": 1, "definitions": {"s": {"type": "string"}}}
    draft7 = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
    assert accepts(json_schema_constraint(draft7), '"long"')
    assert not accepts(json_schema_constraint(schema), '"long"')


def test_recursive_schemas_generate_values_of_their_own() -> None:
    schema = {
        "type": "object",
        "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}},
        "required": ["kids"],
        "additionalProperties": False,
    }
    constraint = json_schema_constraint(schema)
    assert accepts(constraint, '{"kids": [{"kids": []}, {"kids": []}]}')
    assert not accepts(constraint, '{"kids": [1]}')
    text = random_text(byte_factory().compile(constraint), seed=4)
    assert text is not None
    assert set(json.loads(text)) == {"kids"}


def test_equal_schemas_share_one_grammar_text() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {}}}
    again = json.loads(json.dumps(schema))
    assert json_schema_constraint(schema).text == json_schema_constraint(again).text
