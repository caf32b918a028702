"""What a client sends costs a bounded, counted amount of work, and ends when the client leaves."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from tests.support.ladders import GRAMMARS, SCHEMAS, any_ladder, object_ladder

from selfserve.errors import InvalidRequest
from selfserve.text.fuel import MAX_STEPS, Fuel, OutOfFuel
from selfserve.text.gbnf import parse_gbnf
from selfserve.text.gbnf_facts import GrammarFacts
from selfserve.text.grammar import gbnf_constraint
from selfserve.text.lexemes import LexemeFacts
from selfserve.text.schema import json_schema_constraint
from selfserve.text.schema_overlap import Overlaps
from selfserve.text.schema_rules import SchemaReader


class NobodyWaits(Exception):
    """What the question may raise."""


def steps_of_schema(schema: Any) -> int:
    fuel = Fuel()
    SchemaReader(schema, "s", fuel).read_root()
    return fuel.spent


def steps_of_grammar(text: str) -> int:
    fuel = Fuel()
    LexemeFacts(GrammarFacts(parse_gbnf(text, fuel), fuel))
    return fuel.spent


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_accepted_or_refused_within_its_work(name: str) -> None:
    make, told = SCHEMAS[name]
    try:
        json_schema_constraint(make())
        message = ""
    except InvalidRequest as error:
        message = error.message
    assert told in message
    assert bool(told) == bool(message), message


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_grammar_is_accepted_or_refused_within_its_work(name: str) -> None:
    make, told = GRAMMARS[name]
    try:
        gbnf_constraint(make())
        message = ""
    except InvalidRequest as error:
        message = error.message
    assert told in message
    assert bool(told) == bool(message), message


def test_what_is_accepted_stays_well_below_the_budget_and_costs_the_same_again() -> None:
    schemas = [make() for make, told in SCHEMAS.values() if not told]
    work = [steps_of_schema(schema) for schema in schemas]
    assert max(work) < MAX_STEPS / 2
    assert work == [steps_of_schema(schema) for schema in schemas]
    grammars = [make() for make, told in GRAMMARS.values() if not told]
    work = [steps_of_grammar(text) for text in grammars]
    assert max(work) < MAX_STEPS / 2
    assert work == [steps_of_grammar(text) for text in grammars]


def _proof_of(levels: int) -> int:
    fuel = Fuel()
    schema = object_ladder(levels, 5)
    assert not Overlaps(schema["$defs"], fuel).are_disjoint(schema["oneOf"])
    return fuel.spent


def test_the_proof_that_branches_exclude_each_other_takes_linear_work() -> None:
    work = [_proof_of(levels) for levels in range(4, 40, 4)]
    steps = [later - earlier for earlier, later in pairwise(work)]
    assert len(set(steps)) == 1
    assert steps[0] < 200


def test_a_proof_follows_circles_to_their_end() -> None:
    circle = {
        f"{letter}{i}": {
            "type": "object",
            "properties": {"next": {"$ref": f"#/$defs/{letter}{(i + 1) % length}"}},
            "required": ["next"],
        }
        for letter, length in (("A", 61), ("B", 67))
        for i in range(length)
    }
    branches: list[Any] = [{"$ref": "#/$defs/A0"}, {"$ref": "#/$defs/B0"}]
    fuel = Fuel()
    assert not Overlaps(circle, fuel).are_disjoint(branches)
    assert fuel.spent < 10_000


@pytest.mark.parametrize(
    ("compile_it", "text"),
    [
        (json_schema_constraint, {"type": "string"}),
        (json_schema_constraint, any_ladder(60)),
        (gbnf_constraint, 'root ::= "a"'),
        (gbnf_constraint, GRAMMARS["rules that begin alike"][0]()),
    ],
    ids=["schema", "ladder", "grammar", "rules"],
)
def test_compiling_ends_when_nobody_waits(compile_it: Callable[..., Any], text: Any) -> None:
    def nobody_waits() -> None:
        raise NobodyWaits

    with pytest.raises(NobodyWaits):
        compile_it(text, check=nobody_waits)
    asked = 0

    def count() -> None:
        nonlocal asked
        asked += 1

    compile_it(text, check=count)
    assert asked >= 1


def test_the_question_whether_anybody_waits_comes_often_enough() -> None:
    asked = 0

    def count() -> None:
        nonlocal asked
        asked += 1

    fuel = Fuel(count)
    for _ in range(100_000):
        fuel.spend()
    assert 15 <= asked <= 25


def test_the_budget_is_spent_exactly() -> None:
    fuel = Fuel(steps=10)
    fuel.spend(10)
    with pytest.raises(OutOfFuel, match="more than 10 steps"):
        fuel.spend()
