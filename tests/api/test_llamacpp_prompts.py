"""Prompts in all their forms, alone and several at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import ASGIApp
from tests.support.asgi_call import Call, call
from tests.support.byte_vocabulary import BOS, IM_START
from tests.support.fake_engine import ByteVocabulary, FakeEngine, Script

from selfserve.request import Ready

PATH = "/completion"
A, B = ord("A"), ord("B")


def complete(app: ASGIApp, prompt: Any, path: str = PATH, **fields: Any) -> Call:
    return call(app, {"prompt": prompt, **fields}, path=path)


def prompts(engine: FakeEngine) -> list[list[int]]:
    return [list(request.prompt) for request in engine.requests]


FORMS: list[Any] = [
    ("AB", [[A, B]]),
    ([A, B], [[A, B]]),
    ([A, "B", A], [[A, B, A]]),
    (["A", 66], [[A, B]]),
    ({"prompt_string": "AB"}, [[A, B]]),
    (["AB"], [[A, B]]),
    (["A", "B"], [[A], [B]]),
    ([[A], [B, "A"], "AB", {"prompt_string": "B"}], [[A], [B, A], [A, B], [B]]),
    ("<|im_start|>A", [[IM_START, A]]),
    ("<__media__>", [list(b"<__media__>")]),
]


@pytest.mark.parametrize(("prompt", "ids"), FORMS)
def test_each_form_means_its_tokens(
    app: ASGIApp, engine: FakeEngine, prompt: Any, ids: list[list[int]]
) -> None:
    assert complete(app, prompt).status == 200
    assert prompts(engine) == ids


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("A", [[BOS, A]]),
        ("", [[BOS]]),
        ("<|begin|>A", [[BOS, A]]),
        ("<|begin|><|begin|>A", [[BOS, A]]),
        ([A], [[A]]),
        ([A, "B"], [[A, B]]),
        (["A", 66, "A"], [[BOS, A, B, A]]),
        ([BOS, "A"], [[BOS, A]]),
        ([BOS, BOS, A], [[BOS, BOS, A]]),
        (["", 66], [[BOS, B]]),
        (["A", ""], [[BOS, A], [BOS]]),
    ],
)
def test_bos_stands_once_in_front_of_texts_where_the_model_wants_it(
    app: ASGIApp, engine: FakeEngine, prompt: Any, ids: list[list[int]]
) -> None:
    engine.vocabulary = ByteVocabulary(add_bos=True)
    assert complete(app, prompt).status == 200
    assert prompts(engine) == ids


def test_an_empty_prompt_is_refused_by_a_model_without_bos(app: ASGIApp) -> None:
    assert complete(app, "").error["param"] == "prompt"
    assert complete(app, ["A", ""]).error["param"] == "prompt[1]"


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_beyond_the_context_is_refused_and_named(
    app: ASGIApp, engine: FakeEngine, stream: bool
) -> None:
    engine.ready = Ready(context_size=10, num_slots=2, can_shift=True)
    refused = complete(app, ["A", "A" * 10], stream=stream, n_keep=0)
    assert refused.status == 400
    error = refused.error
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt[1]")
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (10, 10)
    assert engine.requests == []
    assert complete(app, "A" * 9, stream=stream).status == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": "<__media__>", "multimodal_data": ["x"]}, "multimodal_data"),
        (
            {"prompt": [{"prompt_string": "<__media__>", "multimodal_data": ["x"]}]},
            "prompt[0].multimodal_data",
        ),
    ],
)
def test_a_text_model_takes_no_media(app: ASGIApp, fields: dict[str, Any], param: str) -> None:
    refused = call(app, fields, path=PATH)
    assert (refused.status, refused.error["param"]) == (422, param)


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        ({}, "is required"),
        ({"prompt_string": None}, "must be a string, got 'null'"),
        ({"prompt_string": {}}, "must be a string, got {}"),
        ({"prompt_string": 0}, "must be a string, got 0"),
        ({"prompt_string": []}, "must be a string, got []"),
    ],
)
def test_a_prompt_object_without_its_text_is_told_as_it_is(
    app: ASGIApp, prompt: dict[str, Any], told: str
) -> None:
    refused = complete(app, prompt)
    assert refused.error["message"] == f"prompt.prompt_string {told}"


@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        ({"prompt": "<__media__>" * 3, "multimodal_data": ["x"]}, "1 items, 3 markers"),
        ({"prompt": "a", "multimodal_data": ["x", "y"]}, "2 items, 0 markers"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": ["x"]}}, "1 items, 0 markers"),
    ],
)
def test_media_and_markers_must_be_as_many(
    app: ASGIApp, fields: dict[str, Any], counts: str
) -> None:
    refused = call(app, fields, path=PATH)
    assert refused.status == 400
    assert counts in refused.error["message"]


@pytest.mark.parametrize("prompt", [["a"], [65], {"prompt_string": "a"}, ["a", "b"]])
def test_multimodal_data_stands_beside_a_string_only(app: ASGIApp, prompt: Any) -> None:
    refused = complete(app, prompt, multimodal_data=["x"])
    assert (refused.status, refused.error["param"]) == (400, "multimodal_data")


def test_several_prompts_get_their_answers_in_order(app: ASGIApp, engine: FakeEngine) -> None:
    answers = complete(app, ["A", "BB", "AAA"]).json
    assert [answer["index"] for answer in answers] == [0, 1, 2]
    assert [answer["prompt"] for answer in answers] == ["A", "BB", "AAA"]
    assert [answer["choices"][0]["index"] for answer in answers] == [0, 1, 2]
    assert len({answer["id"] for answer in answers}) == 1
    assert len({request.id for request in engine.requests}) == 3
    assert engine.num_reserved == 0


def test_several_prompts_of_the_openai_route_are_choices_of_one_answer(
    app: ASGIApp, engine: FakeEngine
) -> None:
    engine.script = Script(pieces=["x", "y"], cached_tokens=1)
    answer = complete(app, ["A", "BB"], "/v1/completions").json
    assert answer["object"] == "text_completion"
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert [choice["text"] for choice in answer["choices"]] == ["xy", "xy"]
    assert answer["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def test_prompts_without_a_seed_have_different_ones(app: ASGIApp, engine: FakeEngine) -> None:
    complete(app, ["A"] * 4)
    assert len({request.sampling.seed for request in engine.requests}) == 4
    complete(app, ["A"] * 2, seed=5)
    assert [request.sampling.seed for request in engine.requests[4:]] == [5, 5]


def test_all_prompts_are_admitted_together_or_none(app: ASGIApp, engine: FakeEngine) -> None:
    engine.capacity = 3
    assert complete(app, ["A"] * 3).status == 200
    refused = complete(app, ["A"] * 4)
    assert (refused.status, refused.error["type"]) == (429, "queue_full")
    assert len(engine.requests) == 3


def test_more_prompts_than_ever_fit_are_not_told_to_wait(app: ASGIApp) -> None:
    refused = complete(app, ["A"] * 67)
    assert refused.status == 400
    assert "66" in refused.error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_run_at_the_same_time_and_end_together_when_the_client_leaves(
    app: ASGIApp, engine: FakeEngine, stream: bool
) -> None:
    engine.script = Script(pieces=["x"], stalls_at_end=True)

    async def scene() -> None:
        body = {"prompt": ["A", "B", "AB"], "stream": stream}
        begun = await Call(app, path=PATH, body=body).start()
        async with asyncio.timeout(5):
            while len(engine.requests) < 3:
                await asyncio.sleep(0)
        assert engine.num_reserved == 3
        begun.hang_up()
        await asyncio.wait_for(begun.task, 5)
        await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left

    asyncio.run(scene())
    assert sorted(engine.aborted) == sorted(request.id for request in engine.requests)
    assert engine.num_reserved == 0


@pytest.mark.parametrize("stream", [False, True])
def test_the_failure_of_one_prompt_ends_the_others(
    app: ASGIApp, engine: FakeEngine, stream: bool
) -> None:
    engine.script = Script(pieces=[], fails="OutOfMemory")
    failed = complete(app, ["A", "B"], stream=stream)
    assert (failed.status, failed.error["type"]) == (503, "out_of_memory")
    assert engine.num_reserved == 0
