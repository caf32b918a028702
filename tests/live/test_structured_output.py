"""Answers under a grammar by a real model at full temperature: always right, and never endless."""

from __future__ import annotations

import json
from typing import Any

import httpx
import jsonschema
import pytest
from tests.support.chat_client import CHAT, ask, chat_of, joined, stream, text_of

WORD = {"type": "string", "maxLength": 12}
SCHEMAS: dict[str, dict[str, Any]] = {
    "object": {
        "type": "object",
        "properties": {"name": WORD, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "nested": {
        "type": "object",
        "properties": {
            "a": {
                "type": "object",
                "properties": {"b": {"type": "boolean"}},
                "required": ["b"],
                "additionalProperties": False,
            }
        },
        "required": ["a"],
        "additionalProperties": False,
    },
    "optional fields": {
        "type": "object",
        "properties": {"a": WORD, "b": WORD, "c": {"type": "null"}},
        "required": ["b"],
        "additionalProperties": False,
    },
    "enum": {"enum": ["red", "green", 3, None, {"a": [1]}]},
    "const": {"const": {"é": '"\\\n'}},
    "array": {"type": "array", "items": {"enum": [1, 22]}, "minItems": 2, "maxItems": 4},
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "boolean"}, {"const": "x"}],
        "items": False,
        "minItems": 2,
    },
    "integer bounds": {"type": "integer", "minimum": -5, "maximum": 1005},
    "number bounds": {"type": "number", "exclusiveMinimum": 0, "maximum": 9, "multipleOf": 1},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
    "formats": {
        "type": "object",
        "properties": {"day": {"type": "string", "format": "date"}},
        "required": ["day"],
        "additionalProperties": False,
    },
    "lengths": {"type": "string", "minLength": 3, "maxLength": 9},
    "any of": {"anyOf": [{"type": "boolean"}, {"type": "array", "items": WORD, "maxItems": 2}]},
    "kinds": {
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": kind}, "value": {"type": kind}},
                "required": ["kind", "value"],
                "additionalProperties": False,
            }
            for kind in ("boolean", "null")
        ]
    },
    "references": {
        "$defs": {
            "point": {
                "type": "object",
                "properties": {"x": {"type": "integer", "maximum": 99, "minimum": 0}},
                "additionalProperties": False,
            }
        },
        "type": "array",
        "items": {"allOf": [{"$ref": "#/$defs/point"}, {"required": ["x"]}]},
        "minItems": 1,
        "maxItems": 2,
    },
    "type list": {"type": ["null", "boolean"]},
}


def form(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


@pytest.mark.parametrize("name", SCHEMAS)
def test_an_answer_at_full_temperature_obeys_its_schema(http: httpx.Client, name: str) -> None:
    schema = SCHEMAS[name]
    for seed in (1, 2):
        answer = ask(
            http,
            "Tell me about yourself.",
            temperature=1,
            seed=seed,
            max_tokens=150,
            response_format=form(schema),
        )
        text = text_of(answer)
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))
        assert answer["choices"][0]["finish_reason"] == "stop"


def test_the_order_of_the_fields_is_that_of_the_request(http: httpx.Client) -> None:
    names = ["zebra", "apple", "mango"]
    schema = {
        "type": "object",
        "properties": {name: {"type": "integer", "maximum": 9} for name in names},
        "required": sorted(names),
        "additionalProperties": False,
    }
    text = text_of(ask(http, "Count the fruit.", temperature=1, json_schema=schema, max_tokens=200))
    assert list(json.loads(text)) == names


def test_white_space_ends_even_when_the_model_wants_nothing_else(http: httpx.Client) -> None:
    bias = {" ": 30, "\n": 30, "\n\n": 30, "  ": 30, "\t": 30}
    answer = ask(
        http,
        "Tell me about yourself.",
        response_format=form(SCHEMAS["nested"]),
        logit_bias=bias,
        max_tokens=150,
    )
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert isinstance(json.loads(text_of(answer))["a"]["b"], bool)


@pytest.mark.parametrize(
    "fields",
    [{"response_format": form(SCHEMAS["object"])}, {"grammar": 'root ::= ("é" | "🐙" | "a b")+'}],
    ids=["schema", "grammar"],
)
def test_a_constrained_answer_is_the_same_streamed(
    http: httpx.Client, fields: dict[str, Any]
) -> None:
    whole = text_of(ask(http, "Hello", max_tokens=40, **fields))
    assert whole
    assert joined(stream(http, "Hello", max_tokens=40, **fields)) == whole


def test_a_grammar_leaves_no_other_choice(http: httpx.Client) -> None:
    answer = ask(http, "Yes or no?", temperature=1, grammar='root ::= "yes" | "no"')
    assert text_of(answer) in ("yes", "no")
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_a_json_object_begins_as_one_even_if_it_is_cut_off(http: httpx.Client) -> None:
    fields = {"response_format": {"type": "json_object"}, "temperature": 1, "seed": 5}
    answer = ask(http, "Describe a cat.", max_tokens=12, **fields)
    assert text_of(answer).lstrip().startswith("{")


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_schema_that_cannot_be_enforced_is_refused_by_name(
    http: httpx.Client, is_streamed: bool
) -> None:
    schema = {"type": "array", "uniqueItems": True}
    body = chat_of("hi", response_format=form(schema), stream=is_streamed)
    answer = http.post(CHAT, json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert "uniqueItems" in error["message"]
    assert error["param"].startswith("response_format.json_schema.schema")
