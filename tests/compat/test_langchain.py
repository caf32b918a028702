"""LangChain's chat model for OpenAI's API."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr

HELLO = [("system", "Be brief."), ("human", "Say hello.")]


class Order(BaseModel):
    """An order."""

    size: Literal["small", "large"]
    count: Literal[1, 2, 3]


@pytest.fixture
def chat(compat_url: str) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=compat_url,
        api_key=SecretStr("none"),
        model="any",
        temperature=0,
        max_completion_tokens=8,
        max_retries=0,
        timeout=60,
    )


def test_an_answer_with_its_usage(chat: ChatOpenAI) -> None:
    answer = chat.invoke(HELLO)
    assert answer.text
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["total_tokens"] > answer.usage_metadata["output_tokens"] > 0
    assert answer.response_metadata["finish_reason"] in ("stop", "length")


def test_a_stream_is_the_same_text(chat: ChatOpenAI) -> None:
    assert "".join(chunk.text for chunk in chat.stream(HELLO)) == chat.invoke(HELLO).text


def test_several_conversations_at_once(chat: ChatOpenAI) -> None:
    conversations: list[Any] = [HELLO, [("human", "Count to three.")]]
    answers = chat.batch(conversations)
    assert all(answer.text for answer in answers)


@pytest.mark.parametrize("strict", [True, False])
def test_structured_output_by_schema(chat: ChatOpenAI, strict: bool) -> None:
    longer = chat.model_copy(update={"max_tokens": 40})
    structured = longer.with_structured_output(Order, method="json_schema", strict=strict)
    assert isinstance(structured.invoke(HELLO), Order)


def test_a_conversation_goes_on(chat: ChatOpenAI) -> None:
    answer = chat.invoke(HELLO)
    assert chat.invoke([*HELLO, answer, ("human", "And again?")]).text
