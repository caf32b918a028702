"""The table of sampling parameters: what is greedy, what takes effect, what a record refuses."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, get_args

import msgspec
import pytest

from selfserve import sampling
from selfserve.api.sampling_fields import SamplingFields
from selfserve.errors import InvalidRequest
from selfserve.limits import (
    MAX_BIASES,
    MAX_BREAKER_CHARACTERS,
    MAX_BREAKERS,
    MAX_PREDICT_MS,
    MAX_PROBS,
    MAX_SAMPLERS,
    MAX_STOP_BYTES,
    MAX_STOPS,
)
from selfserve.request import Request, SamplingParams
from selfserve.sampling import (
    NUMBERS,
    PARAMETERS,
    Rule,
    banned_ids,
    effective,
    finite_bias,
    is_greedy,
)

NEVER = -math.inf
MOVES_THE_BEST: list[dict[str, Any]] = [
    {"temperature": 0.1},
    {"temperature": 1e-6},
    {"logit_bias": ((5, 1.0),)},
    {"logit_bias": ((5, NEVER), (6, -1.0))},
    {"repeat_penalty": 1.1},
    {"repeat_penalty": 0.9},
    {"presence_penalty": 0.5},
    {"frequency_penalty": -0.5},
    {"dry_multiplier": 0.8},
    {"typical_p": 0.5},
    {"xtc_probability": 0.5},
]
LEAVES_THE_BEST: list[dict[str, Any]] = [
    {"top_k": 1},
    {"top_p": 0.0},
    {"min_p": 1.0},
    {"top_n_sigma": 0.0},
    {"min_keep": 5},
    {"mirostat": 2, "mirostat_tau": 0.0, "mirostat_eta": 1.0},
    {"samplers": ()},
    {"samplers": ("xtc", "typ_p", "temperature", "temperature")},
    {"repeat_last_n": -1, "dry_penalty_last_n": -1, "dry_base": 3.0, "dry_allowed_length": 0},
    {"dry_sequence_breakers": ()},
    {"dynatemp_range": 0.5, "dynatemp_exponent": 3.0},
    {"xtc_threshold": 0.0},
    {"seed": 7},
    {"penalize_answer_only": True},
    {"logit_bias": ((5, NEVER), (6, NEVER))},
    {"ignore_eos": True},
]


def greedy(**fields: Any) -> bool:
    return is_greedy(SamplingParams(**{"temperature": 0.0, **fields}))


@pytest.mark.parametrize("fields", MOVES_THE_BEST, ids=repr)
def test_what_can_change_the_most_probable_token_is_not_greedy(fields: dict[str, Any]) -> None:
    assert greedy()
    assert not greedy(**fields)


@pytest.mark.parametrize("fields", LEAVES_THE_BEST, ids=repr)
def test_what_cannot_change_the_most_probable_token_is_greedy(fields: dict[str, Any]) -> None:
    assert greedy(**fields)
    assert not greedy(**fields, temperature=0.5)


def test_every_parameter_is_judged() -> None:
    assert {name for fields in MOVES_THE_BEST + LEAVES_THE_BEST for name in fields} == set(
        PARAMETERS
    )


def test_a_parameter_that_nobody_judged_is_not_greedy(monkeypatch: pytest.MonkeyPatch) -> None:
    unjudged = dataclasses.replace(PARAMETERS["top_k"], rule=Rule("New.", sampling.COUNT))
    monkeypatch.setattr(sampling, "PARAMETERS", {**PARAMETERS, "top_k": unjudged})
    assert not greedy()


def test_a_parameter_without_an_entry_is_no_parameter() -> None:
    class More(SamplingParams, frozen=True, kw_only=True):
        strength: float = 0.0

    with pytest.raises(ValueError, match="not enough values to unpack"):
        sampling.table_of(More)


def test_bans_are_told_apart_from_biases() -> None:
    params = SamplingParams(logit_bias=((3, 1.0), (4, NEVER), (9, NEVER), (5, -2.0)))
    assert banned_ids(params, {9, 7}) == (4, 9)
    assert finite_bias(params) == ((3, 1.0), (5, -2.0))
    ignoring = msgspec.structs.replace(params, ignore_eos=True)
    assert banned_ids(ignoring, {9, 7}) == (4, 9, 7)
    assert banned_ids(SamplingParams(), {9, 7}) == ()


@pytest.mark.parametrize(
    ("said", "name", "value"),
    [
        ({"temperature": 0.0, "dynatemp_range": 1.0}, "dynatemp_range", 0.0),
        ({"temperature": 0.1, "dynatemp_range": 1.0}, "dynatemp_range", 1.0),
        ({"top_k": -1}, "top_k", 0),
        ({"dry_base": 0.5}, "dry_base", 1.75),
        ({"dry_base": 1.0}, "dry_base", 1.0),
        ({"repeat_last_n": 2**31 - 1}, "repeat_last_n", 512),
        ({"repeat_last_n": 512}, "repeat_last_n", 512),
        ({"repeat_last_n": -1}, "repeat_last_n", -1),
        ({"dry_penalty_last_n": 513}, "dry_penalty_last_n", 512),
        ({"dry_penalty_last_n": 0}, "dry_penalty_last_n", 0),
        ({"top_n_sigma": 0.0}, "top_n_sigma", 0.0),
    ],
)
def test_what_means_the_same_takes_effect_as_one_value(
    said: dict[str, Any], name: str, value: float
) -> None:
    params = effective(said, 512)
    assert getattr(params, name) == value
    others = {**said, name: value}
    assert params == SamplingParams(**others)


def test_temperature_0_is_greedy_whatever_the_range_around_it() -> None:
    assert is_greedy(effective({"temperature": 0.0, "dynatemp_range": 1.0}, 512))


def test_fields_of_requests_are_those_of_the_table() -> None:
    said = {name: row.type for name, row in PARAMETERS.items() if row.rule.is_said}
    assert set(SamplingFields.model_fields) == set(said)
    for name, field in SamplingFields.model_fields.items():
        kind = get_args(field.annotation)[0]
        assert getattr(kind, "__origin__", kind) is said[name], name


@pytest.mark.parametrize("name", [name for name in NUMBERS if name != "seed"])
def test_a_record_takes_a_number_up_to_its_limits(name: str) -> None:
    low, high = PARAMETERS[name].span
    step = 1 if PARAMETERS[name].type is int else 1e-3
    for value in (low, high):
        assert getattr(SamplingParams(**{name: value}), name) == value
    for value in (low - step, high + step, math.nan, math.inf, NEVER):
        with pytest.raises(InvalidRequest, match=f"^{name} must be") as caught:
            SamplingParams(**{name: value})
        assert caught.value.param == name


LISTS: list[tuple[str, Any, Any]] = [
    ("samplers", ("top_k",) * MAX_SAMPLERS, ("top_k",) * (MAX_SAMPLERS + 1)),
    ("logit_bias", ((1, 1.0),) * MAX_BIASES, ((1, 1.0),) * (MAX_BIASES + 1)),
    ("dry_sequence_breakers", ("x",) * MAX_BREAKERS, ("x",) * (MAX_BREAKERS + 1)),
    (
        "dry_sequence_breakers",
        ("é" * MAX_BREAKER_CHARACTERS,),
        ("x" * (MAX_BREAKER_CHARACTERS + 1),),
    ),
    ("seed", 2**32 - 2, 2**32 - 1),
    ("seed", 0, -1),
]


@pytest.mark.parametrize(("name", "good", "bad"), LISTS, ids=lambda value: f"{value!r:.20}")
def test_a_record_of_sampling_takes_its_limits_and_no_more(name: str, good: Any, bad: Any) -> None:
    assert getattr(SamplingParams(**{name: good}), name) == good
    with pytest.raises(InvalidRequest, match=name):
        SamplingParams(**{name: bad})


def request(**fields: Any) -> Request:
    return Request(id="a", prompt=(1,), sampling=SamplingParams(), **fields)


OF_A_REQUEST: list[tuple[str, Any, Any, str]] = [
    ("n_probs", MAX_PROBS, MAX_PROBS + 1, "n_probs"),
    ("n_probs", 0, -1, "n_probs"),
    ("stop", ("x",) * MAX_STOPS, ("x",) * (MAX_STOPS + 1), "stop"),
    ("stop", ("é" * (MAX_STOP_BYTES // 2),), ("é" * (MAX_STOP_BYTES // 2) + "x",), "stop"),
    ("time_limit_ms", MAX_PREDICT_MS, MAX_PREDICT_MS + 1, "t_max_predict_ms"),
    ("n_keep", -1, -2, "n_keep"),
    ("max_tokens", 0, -1, "max_tokens"),
    ("slot", -1, -2, "id_slot"),
    ("n_indent", 0, -1, "n_indent"),
]


@pytest.mark.parametrize(
    ("name", "good", "bad", "param"), OF_A_REQUEST, ids=lambda value: f"{value!r:.20}"
)
def test_a_request_takes_its_limits_and_no_more(name: str, good: Any, bad: Any, param: str) -> None:
    assert getattr(request(**{name: good}), name) == good
    with pytest.raises(InvalidRequest, match=f"^{param} must") as caught:
        request(**{name: bad})
    assert caught.value.param == param


def test_what_arrives_at_the_engine_is_checked_again() -> None:
    sent = msgspec.to_builtins(request(n_probs=5))
    sent["n_probs"] = MAX_PROBS + 1
    with pytest.raises(InvalidRequest, match="n_probs"):
        msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=Request)
