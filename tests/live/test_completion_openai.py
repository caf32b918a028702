"""The openai package as a client of completions."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

MODEL = "any"
PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def client(live_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live_url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_an_answer(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=4, temperature=0)
    (choice,) = answer.choices
    assert choice.text.startswith(" Paris")
    assert (choice.finish_reason, answer.object) == ("length", "text_completion")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 4


def test_a_stream_with_usage(client: openai.OpenAI) -> None:
    chunks = list(
        client.completions.create(
            model=MODEL,
            prompt=PROMPT,
            max_tokens=4,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    *texts, usage = chunks
    assert "".join(chunk.choices[0].text for chunk in texts).startswith(" Paris")
    assert [chunk.choices[0].finish_reason for chunk in texts][-1] == "length"
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.completion_tokens == 4


def test_logprobs(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=3, temperature=0, logprobs=2
    )
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.tokens is not None
    assert found.token_logprobs is not None
    assert found.top_logprobs is not None
    assert "".join(found.tokens) == answer.choices[0].text
    assert [max(top.values()) for top in found.top_logprobs] == found.token_logprobs
    assert [len(top) for top in found.top_logprobs] == [2, 2, 2]
    assert found.text_offset == [0, len(found.tokens[0]), len("".join(found.tokens[:2]))]


def test_a_list_of_prompts(client: openai.OpenAI) -> None:
    prompts = [PROMPT, "1, 2, 3,"]
    answer = client.completions.create(model=MODEL, prompt=prompts, max_tokens=4, temperature=0)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].text.startswith(" Paris")
    assert "4" in answer.choices[1].text
    chunks = client.completions.create(
        model=MODEL, prompt=prompts, max_tokens=4, temperature=0, stream=True
    )
    texts = ["", ""]
    for chunk in chunks:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in answer.choices]


def test_a_refusal_is_the_clients_own_exception(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=MODEL, prompt=PROMPT, temperature=-1)
    assert refused.value.param == "temperature"
