"""What a newcomer tries first, on a server with a real model."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
import requests
from tests.live.conftest import SMALL_CONTEXT
from tests.support.chat_client import CHAT, ask, chat_of, events_of, joined, stream, text_of
from tests.support.live_server import CONTEXT, NUM_SLOTS

QUESTIONS = ("Explain embeddings in one sentence.", "Count to three.", "What is a 🐙? Say 章鱼.")
NUM_AT_ONCE = 2 * NUM_SLOTS

FIRST_CHAT: dict[str, Any] = {
    "model": "text-model",
    "messages": [
        {"role": "system", "content": "Answer briefly."},
        {"role": "user", "content": "Explain embeddings in one sentence."},
    ],
    "max_tokens": 16,
    "reasoning_effort": "none",
}
FETCH = """
const response = await fetch(process.argv[1], {
  method: 'POST',
  headers: { 'content-type': 'application/json' },
  body: process.argv[2]
})
if (!response.ok) throw new Error(await response.text())
console.log(await response.text())
"""


def program(name: str) -> str:
    """The path of a program; skips the calling test where it is not installed."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def output_of(*command: str) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def check_first_answer(answer: Any) -> None:
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    assert isinstance(answer["created"], int)
    assert answer["model"] == "smollm2:135m"
    (choice,) = answer["choices"]
    assert (choice["index"], choice["logprobs"]) == (0, None)
    assert choice["finish_reason"] in ("stop", "length")
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"]
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


class TestTheFirstExamples:
    def test_curl(self, live_url: str) -> None:
        head = ("-sS", "-H", "Content-Type: application/json", "-d")
        check_first_answer(
            json.loads(output_of(program("curl"), live_url + CHAT, *head, json.dumps(FIRST_CHAT)))
        )

    def test_curl_streams(self, live_url: str) -> None:
        body = {
            "messages": [{"role": "user", "content": "Count to three."}],
            "max_tokens": 8,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        head = ("-sSN", "-H", "Content-Type: application/json", "-d")
        events = events_of(output_of(program("curl"), live_url + CHAT, *head, json.dumps(body)))
        assert events[-1] == "[DONE]"
        assert events[-2]["choices"] == []
        assert events[-2]["usage"]["completion_tokens"] <= 8
        assert joined(events)

    def test_python_requests(self, live_url: str) -> None:
        with requests.Session() as session:
            response = session.post(live_url + CHAT, json=FIRST_CHAT, timeout=60)
            response.raise_for_status()
            check_first_answer(response.json())

    def test_python_requests_stream(self, live_url: str) -> None:
        body = chat_of("Count to three.", stream=True)
        with (
            requests.Session() as session,
            session.post(live_url + CHAT, json=body, stream=True, timeout=60) as response,
        ):
            response.raise_for_status()
            lines = [line for line in response.iter_lines(decode_unicode=True) if line]
        assert all(line.startswith("data: ") for line in lines)
        assert lines[-1] == "data: [DONE]"

    def test_javascript_fetch(self, live_url: str) -> None:
        command = (program("node"), "--input-type=module", "-e", FETCH, live_url + CHAT)
        check_first_answer(json.loads(output_of(*command, json.dumps(FIRST_CHAT))))

    def test_javascript_fetch_streams(self, live_url: str) -> None:
        command = (program("node"), "--input-type=module", "-e", FETCH, live_url + CHAT)
        body = json.dumps(chat_of("Count to three.", stream=True))
        assert events_of(output_of(*command, body).removesuffix("\n"))[-1] == "[DONE]"


@pytest.fixture(scope="module")
def client(live_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live_url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_the_official_client_chats_and_streams_the_same(client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": QUESTIONS[0]}]
    whole = client.chat.completions.create(
        model="any", messages=messages, max_tokens=12, temperature=0
    )
    chunks = list(
        client.chat.completions.create(
            model="any",
            messages=messages,
            max_tokens=12,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 12


@pytest.mark.parametrize("question", QUESTIONS)
def test_greedy_answers_are_always_the_same_streamed_or_not(
    http: httpx.Client, question: str
) -> None:
    first = text_of(ask(http, question, max_tokens=16))
    assert first
    assert text_of(ask(http, question, max_tokens=16)) == first
    streamed = stream(http, question, max_tokens=16)
    assert joined(streamed) == first
    assert streamed[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}


def test_many_at_once_are_all_answered_and_share_the_engine(live_url: str) -> None:
    order = asyncio.run(_arrivals(live_url))
    for number in range(NUM_AT_ONCE):
        places = [i for i, (one, _) in enumerate(order) if one == number]
        assert order[places[-1]][1] == "end", f"request {number} was not answered"
        first, last = places[0], places[-2]
        others = {one for one, _ in order[first:last]} - {number}
        assert others, f"request {number} had the engine for itself"
    running = set[int]()
    most = 0
    for number, what in order:
        running = running - {number} if what == "end" else running | {number}
        most = max(most, len(running))
    assert most >= NUM_SLOTS


async def _arrivals(url: str) -> list[tuple[int, str]]:
    """(number of the request, "text" or "end") in the order in which the client saw them."""
    order: list[tuple[int, str]] = []

    async def one(client: httpx.AsyncClient, number: int) -> None:
        body = chat_of(f"Tell a story about {number} birds.", stream=True)
        async with client.stream("POST", CHAT, json=body) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                if '"content":"' in line and '"role"' not in line:
                    order.append((number, "text"))
                elif line == "data: [DONE]":
                    order.append((number, "end"))

    limits = httpx.Limits(max_connections=NUM_AT_ONCE)
    async with httpx.AsyncClient(
        base_url=url, limits=limits, timeout=60, trust_env=False
    ) as client:
        await asyncio.gather(*(one(client, number) for number in range(NUM_AT_ONCE)))
    return order


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_prompt_over_the_context_is_refused_in_either_form(
    http: httpx.Client, is_streamed: bool
) -> None:
    answer = http.post(CHAT, json=chat_of("word " * (CONTEXT + 50), stream=is_streamed))
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request", "context_length_exceeded")
    assert error["n_ctx"] == CONTEXT
    assert error["n_prompt_tokens"] > CONTEXT


def test_an_answer_ends_where_the_context_does(small: httpx.Client) -> None:
    answer = ask(small, "word " * 10, max_tokens=None, ignore_eos=True)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == SMALL_CONTEXT


BROKEN: list[tuple[bytes, str | None]] = [
    (b"", None),
    (b"{", None),
    (b'{"messages": [{"role": "user", "content": "hi"}], "temperature": NaN}', None),
    (b'{"messages": [{"role": "user", "content": "hi"}], "temperature": 1e999}', None),
    (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', None),
    (b'{"messages": [{"role": "user", "content": "\xff"}]}', None),
    (b"[" * 100_000, None),
    (b"[]", None),
    (b"{}", "messages"),
    (b'{"messages": []}', "messages"),
    (b'{"messages": "hi"}', "messages"),
    (b'{"messages": [{"role": "banana", "content": "hi"}]}', "messages[0].role"),
    (b'{"messages": [{"role": "user", "content": 1}]}', "messages[0].content"),
    (b'{"messages": [{"role": "user", "content": "hi"}], "temperature": "1"}', "temperature"),
    (b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": true}', "max_tokens"),
    (b'{"messages": [{"role": "user", "content": "hi"}], "temprature": 1}', "temprature"),
]


@pytest.mark.parametrize(("body", "param"), BROKEN, ids=lambda value: repr(value)[:50])
def test_broken_requests_get_400_and_the_place_of_the_fault(
    http: httpx.Client, body: bytes, param: str | None
) -> None:
    answer = http.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request", "invalid_request")
    if param is not None:
        assert error["param"] == param
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/embeddings", "/v1/chat/completions/", "/nope"])
def test_unknown_routes_get_404_in_the_same_form(http: httpx.Client, path: str) -> None:
    answer = http.post(path, json={})
    if path == "/" and answer.status_code == 405:
        return
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "not_found"


def test_a_wrong_method_gets_405_and_the_right_ones(http: httpx.Client) -> None:
    answer = http.get(CHAT)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    assert answer.json()["error"]["type"] == "invalid_request"


def test_health_and_model_tell_what_is_served(http: httpx.Client) -> None:
    health = http.get("/health")
    assert health.status_code == 200
    assert health.json() == {"status": "ok", "model": "smollm2:135m", "runner": "ready"}
    model = http.get("/v1/model").json()
    assert model["id"] == "smollm2:135m"
    assert model["capabilities"]["input"] == ["text"]
    assert model["capabilities"]["context_size"] == CONTEXT
    assert http.get("/v1/models").json() == {"object": "list", "data": [model]}
