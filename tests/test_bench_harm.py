"""The benchmarks of harm and handover: what is sent, and how what was seen is judged."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from typing import Any

import pytest
from bench.handover import within
from bench.harm import Row, Run, median
from bench.harm_clients import Outcome, longest_gap, summary
from bench.harm_grammars import GRAMMARS, SCHEMAS
from bench.harm_inputs import MAX_BODY, TEXT, Input, inputs, numeric_fields
from jsonschema import Draft202012Validator
from tests.support.asgi_call import call
from tests.support.fake_engine import MODEL, FakeEngine

from selfserve.api.app import create_app
from selfserve.cli.chat_stream import Answer
from selfserve.config import ServerSettings

QUICK_TO_CHECK = 30_000
"""Characters; the validator compares the entries of an enum with each other."""
QUIET = Row(
    silence_ms=50, health_ms=5, newcomer_ms=90, newcomer="", growth_mib=1, late_ms=0, answered=""
)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    app = create_app(FakeEngine(), ServerSettings(), MODEL)
    return dict(call(app, path="/openapi.json", method="GET").json)


def test_every_hostile_input_has_a_name_of_its_own(document: dict[str, Any]) -> None:
    counts = Counter(one.name for one in inputs(document))
    assert [name for name, count in counts.items() if count > 1] == []


def test_every_numeric_field_of_a_completion_is_sent_at_both_ends(
    document: dict[str, Any],
) -> None:
    fields = document["components"]["schemas"]["CompletionRequest"]["properties"]
    found = numeric_fields(document)
    sent = {one.name: one for one in inputs(document)}
    numeric = {
        name
        for name, schema in fields.items()
        for form in schema.get("anyOf", [schema])
        if form.get("type") in ("integer", "number") and "const" not in form
    }
    assert numeric - set(found) == set()
    for name, ends in found.items():
        bodies = [json.loads(request.body) for request in sent[f"field_{name}"].make()]
        assert [body[name] for body in bodies] == ends
    assert found["top_p"] == [0, 1]
    assert found["top_k"] == [-1, 2**31 - 1]


@pytest.mark.parametrize("says", SCHEMAS)
def test_every_hostile_schema_is_a_schema(says: str) -> None:
    schema = SCHEMAS[says]()
    written = json.dumps(schema)
    assert len(written) < MAX_BODY
    if len(written) < QUICK_TO_CHECK:
        Draft202012Validator.check_schema(schema)
    assert {*re.findall(r"#/\$defs/(\w+)", written)} <= set(schema.get("$defs", {}))


@pytest.mark.parametrize("says", GRAMMARS)
def test_every_hostile_grammar_begins_at_the_root(says: str) -> None:
    assert GRAMMARS[says]().startswith("root ::= ")


@pytest.mark.parametrize(
    ("times", "longest"),
    [
        ([0, 9], 9),  # nothing came all the time
        ([0, 1, 3, 4], 2),
        ([0, 3, 3.5, 4], 3),  # began before the window and reached into it
        ([4, 5, 9], 4),
        ([0, 1.5, 8, 20], 6.5),
        ([0, 1], 0),
        ([8, 20], 0),
        ([3], 0),
        ([], 0),
    ],
)
def test_silence_counts_where_it_touches_the_window(times: list[float], longest: float) -> None:
    assert longest_gap(times, 2, 8) == longest


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"silence_ms": 200, "health_ms": 100, "growth_mib": 256}, []),
        ({"silence_ms": 201}, ["silence"]),
        ({"health_ms": 101}, ["health"]),
        ({"growth_mib": 257}, ["memory"]),
        ({"harm": ("engine ended",)}, ["engine"]),
        ({"newcomer_ms": None, "newcomer": "none in 16 s"}, []),
    ],
)
def test_each_bound_of_harm_is_told_when_it_is_broken(
    changes: dict[str, Any], broken: list[str]
) -> None:
    row = dataclasses.replace(QUIET, **changes)
    one = Input(name="x", says="x", make=list)
    run = Run(quiet={TEXT: QUIET}, rows={"x": [row]}, inputs={"x": one})
    assert run.broken_bounds("x") == broken


def test_harm_that_one_of_several_repetitions_did_is_told() -> None:
    rows = [QUIET, dataclasses.replace(QUIET, harm=("engine ended",), silence_ms=900), QUIET]
    assert median(rows).harm == ("engine ended",)
    assert median(rows).silence_ms == 50


def test_hostile_answers_are_told_by_kind_with_their_times() -> None:
    outcomes = [Outcome("left", 8.0), Outcome("400 invalid_request", 0.14)]
    outcomes += [Outcome("400 invalid_request", 0.31)]
    assert summary(outcomes) == "400 invalid_request ×2 in 0.1–0.3 s, left after 8.0 s"
    assert summary([]) == "nothing"


def test_only_the_time_that_all_have_in_common_counts_as_quiet() -> None:
    answer = Answer(sent_s=0, times_s=(1, 2, 5, 6, 9), text="abcde", finish_reason="length")
    assert within(answer, 2, 6).gaps_s == [3, 1]
