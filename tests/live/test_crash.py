"""The engine is killed, and the whole server is asked to end, while clients are being served."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import psutil
import pytest
from bench.hangups import wait_until
from tests.support.chat_client import CHAT, ask, chat_of, events_of, text_of
from tests.support.real_vocabulary import smollm2_path

from selfserve.cli.child_server import ChildServer, child_server

END_S = 10.0
"""Twice the time that an ending takes by design: the machine may be busy."""
LONG = {"max_tokens": 900, "ignore_eos": True}
QUESTION = "Name three colours."


@pytest.fixture(scope="module")
def child() -> Iterator[ChildServer]:
    """A server of the installed command, with two slots."""
    command = [sys.executable, "-m", "selfserve", "serve", str(smollm2_path()), "--port", "0"]
    command += ["--parallel", "2", "--context-size", "1024", "--cache-ram", "16", "--drain", "0.5"]
    with child_server(command, limit_s=60) as server:
        yield server


@pytest.fixture
def to_child(child: ChildServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=child.url, timeout=60, trust_env=False) as client:
        yield client


def engine_of(child: ChildServer) -> psutil.Process:
    """The engine's process: the child of the server that holds the model."""
    return max(psutil.Process(child.pid).children(), key=lambda each: each.memory_info().rss)


@contextmanager
def long_stream(http: httpx.Client) -> Iterator[Iterator[str]]:
    """The parts of a streamed answer that is under way."""
    with http.stream("POST", CHAT, json=chat_of("Tell a story.", stream=True, **LONG)) as answer:
        assert answer.status_code == 200
        parts = answer.iter_text()
        seen = ""
        while '"content":"' not in seen.replace('"content":""', ""):
            seen += next(parts)
        yield parts


class WholeAnswer:
    """An answer that a thread waits for."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.answer: httpx.Response
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        body = chat_of("Tell a story.", **LONG)
        self.answer = httpx.post(self._url + CHAT, json=body, timeout=60, trust_env=False)

    def result(self) -> httpx.Response:
        self._thread.join()
        return self.answer


def error_in(event: Any) -> str:
    """The type of the error that an event tells, and of nothing else."""
    assert list(event) == ["error"]
    return str(event["error"]["type"])


def num_working(http: httpx.Client) -> int:
    return sum(slot["is_processing"] for slot in http.get("/slots").json())


def test_a_killed_engine_fails_its_requests_and_comes_back(
    child: ChildServer, to_child: httpx.Client
) -> None:
    expected = text_of(ask(to_child, QUESTION))
    whole = WholeAnswer(child.url)
    with long_stream(to_child) as parts:
        assert wait_until(lambda: num_working(to_child) == 2)
        engine_of(child).kill()
        rest = "".join(parts)
    events = events_of(rest[rest.index("data: ") :])
    assert error_in(events[-1]) == "runtime_crashed"
    assert all(event["choices"][0]["finish_reason"] is None for event in events[:-1])
    refused = whole.result()
    assert refused.status_code == 503
    assert error_in(refused.json()) == "runtime_crashed"
    assert int(refused.headers["retry-after"]) >= 1

    health = to_child.get("/health")
    assert health.status_code == 503
    assert health.json()["status"] == "unavailable"
    assert health.json()["runner"] in ("restarting", "loading")
    meanwhile = to_child.post(CHAT, json=chat_of(QUESTION))
    assert meanwhile.status_code == 503
    assert wait_until(lambda: to_child.get("/health").status_code == 200, 30)
    assert text_of(ask(to_child, QUESTION)) == expected


def is_running(process: psutil.Process) -> bool:
    """False also for one that has ended and whose new parent has not asked for its code."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_a_server_that_is_asked_to_end_tells_its_clients_and_ends(
    child: ChildServer, to_child: httpx.Client
) -> None:
    """The last test of this file: the server is gone after it."""
    process = psutil.Process(child.pid)
    children = process.children(recursive=True)
    with long_stream(to_child) as parts:
        process.send_signal(signal.SIGTERM)
        rest = "".join(parts)
    events = events_of(rest[rest.index("data: ") :])
    has_ended = events[-1] == "[DONE]"
    assert has_ended or error_in(events[-1]) == "shutting_down", json.dumps(events[-1])
    assert process.wait(END_S) == 0
    assert wait_until(lambda: not any(map(is_running, children)))
