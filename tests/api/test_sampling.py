"""What a client says about sampling, and what takes effect and is shown of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import ASGIApp
from tests.support.asgi_call import Call, call, chat_body
from tests.support.fake_engine import ByteVocabulary, FakeEngine

from selfserve.api.llamacpp.schema import CompletionRequest
from selfserve.api.sampling import resolve_seed
from selfserve.config import ModelInfo
from selfserve.limits import MAX_BIASES
from selfserve.sampling import NUMBERS, PARAMETERS, RANDOM_SEED

COMPLETION = "/completion"


@pytest.mark.parametrize("seed", [0, 1, 7, 2**31, RANDOM_SEED - 1])
def test_small_seeds_stay_what_they_are(seed: int) -> None:
    assert resolve_seed(seed) == seed


@pytest.mark.parametrize(
    "seed", [-2, RANDOM_SEED, 2**32, 2**63 - 1, -(2**63), RANDOM_SEED << 32 & (2**63 - 1)]
)
def test_large_and_negative_seeds_are_fixed_and_never_random(seed: int) -> None:
    assert resolve_seed(seed) == resolve_seed(seed)
    assert 0 <= resolve_seed(seed) < RANDOM_SEED


def test_no_seed_lands_on_the_random_value() -> None:
    source = random.Random(20240)
    for _ in range(20_000):
        high = source.choice([0, 1, RANDOM_SEED, source.getrandbits(32)])
        low = source.choice([0, RANDOM_SEED, high ^ RANDOM_SEED, source.getrandbits(32)])
        seed = (high << 32 | low) - 2**63
        assert seed == -1 or 0 <= resolve_seed(seed) < RANDOM_SEED


@pytest.mark.parametrize("seed", [None, -1])
def test_without_a_seed_one_is_drawn(seed: int | None) -> None:
    drawn = {resolve_seed(seed) for _ in range(50)}
    assert len(drawn) > 40
    assert all(0 <= one < RANDOM_SEED for one in drawn)


def complete(app: ASGIApp, **fields: Any) -> Call:
    return call(app, {"prompt": "hi", **fields}, path=COMPLETION)


def integers_of_a_completion() -> dict[str, tuple[int, int]]:
    """The lowest and highest value of each integer field, as the document tells them."""
    fields = CompletionRequest.model_json_schema()["properties"]
    shapes = {name: field.get("anyOf", [{}])[0] for name, field in fields.items()}
    return {
        name: (shape["minimum"], shape["maximum"])
        for name, shape in shapes.items()
        if shape.get("type") == "integer" and "const" not in shape
    }


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_taken_up_to_their_limits_on_both_endpoints(app: ASGIApp, name: str) -> None:
    parameter = PARAMETERS[name]
    for low, high, send in (
        (*parameter.span, lambda value: complete(app, **{name: value})),
        (*parameter.chat_span, lambda value: call(app, chat_body(**{name: value}))),
    ):
        for value in (low, high):
            assert send(value).status == 200, value
        for value in (low - 1, high + 1):
            refused = send(value)
            assert (refused.status, refused.error["param"]) == (400, name)
            assert refused.error["message"].startswith(f"{name} must be ")


@pytest.mark.parametrize("name", integers_of_a_completion())
def test_integers_are_taken_up_to_what_the_document_says(app: ASGIApp, name: str) -> None:
    low, high = integers_of_a_completion()[name]
    if name != "id_slot":  # the number of slots is a matter of the server
        assert complete(app, **{name: high}).status == 200
    assert complete(app, **{name: low}).status == 200
    for value in (low - 1, high + 1):
        refused = complete(app, **{name: value})
        assert (refused.status, refused.error["param"]) == (400, name)


@pytest.mark.parametrize("name", ["repeat_last_n", "dry_penalty_last_n"])
def test_a_window_larger_than_the_context_counts_as_the_context(
    app: ASGIApp, engine: FakeEngine, name: str
) -> None:
    for said, effect in ((2**31 - 1, 4096), (4097, 4096), (4096, 4096), (64, 64), (-1, -1)):
        told = complete(app, **{name: said}).json["generation_settings"]
        assert told[name] == getattr(engine.requests[-1].sampling, name) == effect
        call(app, chat_body(**{name: said}))
        assert getattr(engine.requests[-1].sampling, name) == effect


def test_a_range_around_temperature_0_has_no_effect_and_is_told_so(
    app: ASGIApp, engine: FakeEngine
) -> None:
    told = complete(app, temperature=0, dynatemp_range=1).json["generation_settings"]
    assert told["dynatemp_range"] == engine.requests[-1].sampling.dynatemp_range == 0
    told = complete(app, temperature=0.5, dynatemp_range=1).json["generation_settings"]
    assert told["dynatemp_range"] == engine.requests[-1].sampling.dynatemp_range == 1


def test_no_standard_deviation_reaches_the_engine_as_such(app: ASGIApp, engine: FakeEngine) -> None:
    complete(app, top_n_sigma=0)
    assert engine.requests[-1].sampling.top_n_sigma == 0.0


def test_defaults_are_shown_as_they_take_effect(
    engine: FakeEngine, make_app: Callable[..., ASGIApp]
) -> None:
    engine.vocabulary = ByteVocabulary()
    engine.vocabulary.metadata = {
        "general.sampling.top_k": "-1",
        "general.sampling.penalty_last_n": "100000",
    }
    app = make_app(ModelInfo(id="m", sampling={"dry_base": 0.5, "temperature": 0.0}))
    taken = complete(app).json["generation_settings"]
    card = call(app, path="/v1/model", method="GET").json["settings"]["sampling"]
    props = call(app, path="/props", method="GET").json["default_generation_settings"]["params"]
    for told in (taken, card, props):
        assert (told["top_k"], told["repeat_last_n"]) == (0, 4096)
        assert (told["dry_base"], told["temperature"]) == (1.75, 0.0)
    assert not {"seed", "logit_bias", "penalize_answer_only"} & card.keys()


def test_biases_are_counted_over_all_prompts_of_a_request(
    engine: FakeEngine, make_app: Callable[..., ASGIApp]
) -> None:
    app = make_app(queue_size=1000)
    engine.capacity = 1000
    biases = [[token, 1] for token in range(250)]
    most = MAX_BIASES // 250
    assert complete(app, prompt=["a"] * most, logit_bias=biases).status == 200
    refused = complete(app, prompt=["a"] * (most + 1), logit_bias=biases)
    assert (refused.status, refused.error["param"]) == (400, "logit_bias")
    assert engine.num_reserved == 0
