"""The official Python client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Literal

import jsonschema
import openai
import pytest
from bench.hangups import wait_until
from pydantic import BaseModel, Field
from tests.compat.conftest import QUEUE_SIZE
from tests.support.live_server import NUM_SLOTS

MODEL = "any"
HELLO: list[Any] = [{"role": "user", "content": "Say hello."}]
SCHEMA = {
    "type": "object",
    "properties": {"size": {"enum": ["small", "large"]}, "count": {"enum": [1, 2, 3]}},
    "required": ["size", "count"],
    "additionalProperties": False,
}


class Order(BaseModel):
    size: Literal["small", "large"]
    count: Literal[1, 2, 3]
    note: str = Field(max_length=8)


@pytest.fixture(scope="module")
def client(compat_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=compat_url, api_key="none", max_retries=0, timeout=60) as made:
        yield made


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    settings: dict[str, Any] = {"messages": HELLO, "temperature": 0, "max_tokens": 8, **fields}
    return client.chat.completions.create(model=MODEL, **settings)


def complete(client: openai.OpenAI, **fields: Any) -> Any:
    settings: dict[str, Any] = {"prompt": "One two", "temperature": 0, "max_tokens": 4, **fields}
    return client.completions.create(model=MODEL, **settings)


class TestChats:
    def test_an_answer_has_all_that_the_client_reads(self, client: openai.OpenAI) -> None:
        answer = chat(client)
        (choice,) = answer.choices
        assert choice.message.role == "assistant"
        assert choice.message.content
        assert choice.message.tool_calls is None
        assert choice.finish_reason in ("stop", "length")
        assert answer.usage.prompt_tokens_details.cached_tokens >= 0
        assert answer.usage.completion_tokens_details.reasoning_tokens == 0

    def test_many_fields_at_once_are_taken(self, client: openai.OpenAI) -> None:
        messages = [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Say "}], "name": "ann"},
            {"role": "assistant", "content": None},
            {"role": "user", "content": [{"type": "text", "text": "hello."}]},
        ]
        answer = chat(
            client,
            messages=messages,
            top_p=0.9,
            n=1,
            stop=["\n\n", "END"],
            presence_penalty=0.5,
            frequency_penalty=-0.5,
            seed=2**63 - 1,
            reasoning_effort="none",
            response_format={"type": "text"},
            user="u",
            store=False,
            metadata={"a": "b"},
            service_tier="auto",
            tool_choice="auto",
            tools=[],
            parallel_tool_calls=True,
            extra_body={"top_k": 20, "min_p": 0.1},
        )
        assert answer.choices[0].message.content is not None

    def test_a_stream_is_joined_by_the_clients_own_helper(self, client: openai.OpenAI) -> None:
        with client.chat.completions.stream(
            model=MODEL,
            messages=HELLO,
            extra_body={"grammar": 'root ::= "well, hello"'},
        ) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion()
        assert {"chunk", "content.delta", "content.done"} <= kinds
        assert final.choices[0].message.content == "well, hello"

    def test_the_model_is_listed(self, client: openai.OpenAI) -> None:
        assert [model.id for model in client.models.list()] == ["smollm2:135m"]


class TestStructuredOutput:
    def test_a_json_object(self, client: openai.OpenAI) -> None:
        answer = chat(client, response_format={"type": "json_object"}, max_tokens=40)
        text = answer.choices[0].message.content
        assert text.lstrip().startswith("{")
        if answer.choices[0].finish_reason == "stop":
            assert isinstance(json.loads(text), dict)

    def test_a_json_schema(self, client: openai.OpenAI) -> None:
        form = {
            "type": "json_schema",
            "json_schema": {"name": "order", "strict": True, "schema": SCHEMA},
        }
        answer = chat(client, response_format=form, temperature=1, max_tokens=60)
        jsonschema.validate(json.loads(answer.choices[0].message.content), SCHEMA)

    def test_a_pydantic_model(self, client: openai.OpenAI) -> None:
        answer = client.chat.completions.parse(
            model=MODEL, messages=HELLO, response_format=Order, temperature=1, max_tokens=80
        )
        assert isinstance(answer.choices[0].message.parsed, Order)

    def test_a_pydantic_model_in_a_stream(self, client: openai.OpenAI) -> None:
        with client.chat.completions.stream(
            model=MODEL, messages=HELLO, response_format=Order, temperature=1, max_tokens=80
        ) as stream:
            final = stream.get_final_completion()
        assert isinstance(final.choices[0].message.parsed, Order)

    def test_an_answer_that_is_cut_off_is_the_clients_own_error(
        self, client: openai.OpenAI
    ) -> None:
        with pytest.raises(openai.LengthFinishReasonError):
            client.chat.completions.parse(
                model=MODEL, messages=HELLO, response_format=Order, max_tokens=2
            )


class TestErrors:
    @pytest.mark.parametrize("is_streamed", [False, True])
    @pytest.mark.parametrize(
        ("fields", "kind", "code", "param"),
        [
            ({"temperature": 3}, openai.BadRequestError, "invalid_request", "temperature"),
            ({"extra_body": {"tempo": 3}}, openai.BadRequestError, "invalid_request", "tempo"),
            (
                {"messages": [{"role": "user", "content": "word " * 2000}]},
                openai.BadRequestError,
                "context_length_exceeded",
                None,
            ),
            (
                {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
                openai.BadRequestError,
                "invalid_request",
                "response_format.json_schema.schema",
            ),
            ({"n": 2}, openai.UnprocessableEntityError, "unsupported_capability", "n"),
            (
                {"tools": [{"type": "function", "function": {"name": "f"}}]},
                openai.UnprocessableEntityError,
                "unsupported_capability",
                "tools",
            ),
            ({"logprobs": True}, openai.UnprocessableEntityError, "unsupported_capability", None),
        ],
        ids=["range", "unknown", "context", "schema", "n", "tools", "logprobs"],
    )
    def test_refusals_are_the_clients_own_classes(
        self,
        client: openai.OpenAI,
        fields: dict[str, Any],
        kind: type[openai.APIStatusError],
        code: str,
        param: str | None,
        is_streamed: bool,
    ) -> None:
        with pytest.raises(kind) as refused:
            chat(client, stream=is_streamed, **fields)
        assert refused.value.code == code
        assert refused.value.request_id
        if param is not None:
            assert refused.value.param == param

    def test_an_oversized_body(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.APIStatusError) as refused:
            chat(client, user="x" * (33 << 20))
        assert refused.value.status_code == 413
        assert refused.value.code == "request_too_large"

    def test_an_unknown_route(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.NotFoundError):
            client.embeddings.create(model=MODEL, input="a")

    def test_a_full_queue_and_a_place_that_is_free_again(self, client: openai.OpenAI) -> None:
        long = {"max_tokens": 900, "stream": True, "extra_body": {"ignore_eos": True}}
        with ExitStack() as opened:
            for _ in range(NUM_SLOTS):
                next(opened.enter_context(chat(client, **long)))
            with pytest.raises(openai.RateLimitError) as full:
                complete(client, prompt=["a"] * (QUEUE_SIZE + 1))
            assert full.value.code == "queue_full"
            assert int(full.value.response.headers["retry-after"]) >= 1
        assert wait_until(lambda: is_served(client))


def is_served(client: openai.OpenAI) -> bool:
    """True if all places in slots and queue are free at once."""
    try:
        complete(client, prompt=["a"] * (NUM_SLOTS + QUEUE_SIZE), max_tokens=1)
    except openai.RateLimitError:
        return False
    return True


def test_a_stream_that_is_left_frees_its_place(client: openai.OpenAI) -> None:
    for _ in range(NUM_SLOTS + QUEUE_SIZE + 1):
        stream = chat(client, stream=True, max_tokens=900, extra_body={"ignore_eos": True})
        next(stream)
        stream.close()
        assert wait_until(lambda: is_served(client))


class TestCompletions:
    def test_streamed_and_whole_are_the_same(self, client: openai.OpenAI) -> None:
        whole = complete(client)
        assert whole.object == "text_completion"
        assert whole.usage.completion_tokens == 4
        chunks = list(complete(client, stream=True, stream_options={"include_usage": True}))
        text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
        assert text == whole.choices[0].text
        assert chunks[-1].usage.completion_tokens == 4

    def test_probabilities_come_in_the_clients_form(self, client: openai.OpenAI) -> None:
        found = complete(client, logprobs=2).choices[0].logprobs
        assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == 4
        assert all(value <= 0 for value in found.token_logprobs)
        assert all(len(top) == 2 for top in found.top_logprobs)
        assert "".join(found.tokens) == complete(client).choices[0].text

    def test_several_prompts_are_several_choices(self, client: openai.OpenAI) -> None:
        prompts = ["One two", "Monday Tuesday", "a b c"]
        alone = [complete(client, prompt=prompt).choices[0].text for prompt in prompts]
        together = complete(client, prompt=prompts)
        assert [choice.index for choice in together.choices] == [0, 1, 2]
        assert [choice.text for choice in together.choices] == alone
        assert together.usage.completion_tokens == 12

    def test_several_prompts_in_a_stream_keep_their_numbers(self, client: openai.OpenAI) -> None:
        prompts = ["One two", "Monday Tuesday"]
        texts = ["", ""]
        for chunk in complete(client, prompt=prompts, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
        assert texts == [choice.text for choice in complete(client, prompt=prompts).choices]

    def test_token_ids_are_a_prompt(self, client: openai.OpenAI) -> None:
        assert complete(client, prompt=[1, 2, 3]).usage.prompt_tokens == 3


async def _chat_async(url: str) -> tuple[str, str]:
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        fields: dict[str, Any] = {"model": MODEL, "messages": HELLO, "temperature": 0}
        whole = await client.chat.completions.create(**fields, max_tokens=8)
        stream = await client.chat.completions.create(**fields, max_tokens=8, stream=True)
        parts = [c.delta.content or "" async for chunk in stream for c in chunk.choices]
        return whole.choices[0].message.content or "", "".join(parts)


def test_the_asynchronous_client(compat_url: str) -> None:
    whole, streamed = asyncio.run(_chat_async(compat_url))
    assert whole
    assert streamed == whole
