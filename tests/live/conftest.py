"""One real server for all live tests, and ways to ask it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from tests.support.live_server import live_server

Ask = Callable[..., dict[str, Any]]
SMALL_CONTEXT = 96
"""Tokens: it is soon full."""


@pytest.fixture(scope="session")
def live_url() -> Iterator[str]:
    """Base URL of a server with the small model."""
    with live_server() as url:
        yield url


@pytest.fixture(scope="session")
def http(live_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=live_url, timeout=110, trust_env=False) as client:
        yield client


@pytest.fixture(scope="session")
def small() -> Iterator[httpx.Client]:
    """A client of a server with a small context."""
    with (
        live_server(context_size=SMALL_CONTEXT) as url,
        httpx.Client(base_url=url, timeout=110, trust_env=False) as client,
    ):
        yield client


@pytest.fixture(scope="session")
def complete(http: httpx.Client) -> Ask:
    """The answer to a completion; greedy and short unless said otherwise."""

    def ask(prompt: Any = "The capital of France is", **fields: Any) -> Any:
        body = {"prompt": prompt, "temperature": 0, "n_predict": 16, **fields}
        answer = http.post("/completion", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return ask


@pytest.fixture(scope="session")
def stream(http: httpx.Client) -> Callable[..., list[Any]]:
    """The events of a streamed completion, `[DONE]` as it is."""

    def ask(prompt: Any, path: str = "/completion", **fields: Any) -> list[Any]:
        body = {"prompt": prompt, "temperature": 0, "n_predict": 16, "stream": True, **fields}
        answer = http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        data = [line.removeprefix("data: ") for line in answer.text.split("\n") if line]
        return [line if line == "[DONE]" else json.loads(line) for line in data if line[0] != ":"]

    return ask
