"""The application under the real HTTP server, seen by real clients."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import openai
import pytest
import uvicorn
from tests.support.asgi_call import CHAT, chat_body
from tests.support.fake_engine import MODEL, FakeEngine, Script

from selfserve.api.app import create_app
from selfserve.config import ServerSettings

PATIENCE_S = 5.0


class LiveServer:
    """A server in a thread, with the scripted engine behind it."""

    def __init__(self) -> None:
        self.engine = FakeEngine()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = self._socket.getsockname()
        self.url = f"http://127.0.0.1:{self.address[1]}"
        app = create_app(self.engine, ServerSettings(request_timeout_s=30), MODEL)
        config = uvicorn.Config(app, http="httptools", loop="asyncio", log_config=None)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        asyncio.run(self._server.serve([self._socket]))

    def close(self) -> None:
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(PATIENCE_S)
        self._socket.close()


@pytest.fixture(scope="module")
def running() -> Iterator[LiveServer]:
    server = LiveServer()
    yield server
    server.close()


@pytest.fixture
def server(running: LiveServer) -> LiveServer:
    running.engine.__init__()  # type: ignore[misc]
    return running


@pytest.fixture
def http(server: LiveServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=PATIENCE_S, trust_env=False) as client:
        yield client


@pytest.fixture
def client(server: LiveServer) -> Iterator[openai.OpenAI]:
    plain = httpx.Client(timeout=PATIENCE_S, trust_env=False)
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="any", max_retries=0, http_client=plain
    ) as made:
        yield made


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


def test_the_official_client_chats(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="any", messages=MESSAGES)
    assert answer.choices[0].message.content == "Hello there"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 2
    assert [model.id for model in client.models.list()] == ["tiny:1b"]


def test_the_official_client_streams(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="any", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
    )
    texts = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(texts) == "Hello there"
    assert chunks[-1].usage is not None


def test_errors_are_the_official_clients_own(server: LiveServer, client: openai.OpenAI) -> None:
    def ask(**fields: object) -> None:
        client.chat.completions.create(model="any", messages=MESSAGES, extra_body=fields)

    with pytest.raises(openai.BadRequestError) as bad:
        ask(temperature=3)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.UnprocessableEntityError):
        ask(n=2)
    with pytest.raises(openai.APIStatusError) as large:
        ask(user="x" * (33 << 20))
    assert large.value.status_code == 413
    server.engine.capacity = 0
    with pytest.raises(openai.RateLimitError) as full:
        ask()
    assert full.value.code == "queue_full"


def test_the_official_client_sees_an_error_in_a_stream(
    server: LiveServer, client: openai.OpenAI
) -> None:
    server.engine.script = Script(fails="RuntimeCrashed")
    stream = client.chat.completions.create(model="any", messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError, match="the engine failed"):
        list(stream)


def test_an_oversized_body_gets_its_answer_while_it_is_sent(http: httpx.Client) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(40):
            yield bytes(1 << 20)

    refused = http.post(CHAT, content=chunks(), headers={"content-type": "application/json"})
    assert refused.status_code == 413
    assert http.get("/health").status_code == 200


def test_a_connection_serves_many_requests(http: httpx.Client) -> None:
    for stream in (True, False, True):
        assert http.post(CHAT, json=chat_body(stream=stream)).status_code == 200
        assert http.post(CHAT, json=chat_body(temperature=3)).status_code == 400


@pytest.mark.parametrize("stream", [True, False])
def test_a_closed_socket_frees_the_place(server: LiveServer, stream: bool) -> None:
    server.engine.script = Script(stalls=True)
    body = json.dumps(chat_body(stream=stream)).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(server.address) as client:
        client.sendall(head.encode() + body)
        wait_for(lambda: server.engine.requests)
    wait_for(lambda: server.engine.aborted)
    wait_for(lambda: server.engine.num_reserved == 0)


def test_a_stream_that_is_left_frees_the_place(server: LiveServer, http: httpx.Client) -> None:
    server.engine.script = Script(stalls_at_end=True)
    with http.stream("POST", CHAT, json=chat_body(stream=True)) as streamed:
        for line in streamed.iter_lines():
            if "Hello" in line:
                break
    wait_for(lambda: server.engine.aborted)
    wait_for(lambda: server.engine.num_reserved == 0)
