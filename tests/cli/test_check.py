"""`self check`: a probe passes only where the server does what it claims."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.command_line import Command
from tests.support.scripted_server import ScriptedServer, scripted_server

WORDS = "pots and pans are for cooking"


def good(body: dict[str, Any]) -> dict[str, Any]:
    """What a server says that does everything right."""
    thinking = body["chat_template_kwargs"]["enable_thinking"] if "messages" in body else False
    message: dict[str, Any] = {"reasoning_content": "hm"} if thinking else {}
    content = body["messages"][0]["content"]
    if "response_format" in body:
        return {**message, "content": '{"city": "Oslo", "rank": 3}'}
    if isinstance(content, list):
        return {**message, "content": "Red or blue."}
    text = WORDS + " " * (not body.get("stream"))
    for stop in body.get("stop", ()):
        text = text[: text.index(stop)]
    return {**message, "content": text}


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server() as scripted:
        scripted.script = good
        scripted.capabilities |= {"reasoning": True, "input": ["text", "vision"]}
        yield scripted


def failed(outcome: str) -> set[str]:
    return {probe["name"] for probe in json.loads(outcome)["probes"] if not probe["passed"]}


def test_a_server_that_does_what_it_claims_passes(command: Command, server: ScriptedServer) -> None:
    outcome = command("check", server.url)
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == ["passed"] * 8
    assert lines[-1].startswith("prompt ")


def test_only_what_is_claimed_is_tried(command: Command, server: ScriptedServer) -> None:
    server.capabilities = {"input": ["text"], "context_size": 1024, "reasoning": False}
    outcome = command("check", server.url, "--json")
    names = [probe["name"] for probe in json.loads(outcome.out)["probes"]]
    assert not {"thinking on", "thinking off", "pictures"} & set(names)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("answer", lambda body, _: {"content": "" if not body.get("stream") else WORDS}),
        (
            "streamed equals unstreamed",
            lambda body, m: {"content": "other"} if body.get("stream") else m,
        ),
        (
            "JSON schema",
            lambda body, m: {"content": '{"city": "Bonn"}'} if "response_format" in body else m,
        ),
        ("stop string", lambda body, m: {"content": WORDS} if "stop" in body else m),
        ("thinking on", lambda _, m: {"content": m["content"]}),
        ("thinking off", lambda _, m: {**m, "reasoning_content": "hm"}),
        (
            "pictures",
            lambda body, m: (
                {"content": "Red."} if isinstance(body["messages"][0]["content"], list) else m
            ),
        ),
        ("answer", lambda *_: {"error": "the engine has gone"}),
    ],
)
def test_a_probe_fails_where_the_server_does_not(
    command: Command, server: ScriptedServer, name: str, change: Any
) -> None:
    def script(body: dict[str, Any]) -> dict[str, Any]:
        # The measurement of speed comes after the probes and is no part of them.
        return good(body) if body.get("ignore_eos") else change(body, good(body))

    server.script = script
    outcome = command("check", server.url, "--json")
    assert outcome.code == 1
    assert name in failed(outcome.out)
    assert json.loads(outcome.out)["passed"] is False


def test_a_seed_that_does_not_repeat_fails(command: Command, server: ScriptedServer) -> None:
    drawn = iter(range(1000))

    def script(body: dict[str, Any]) -> dict[str, Any]:
        if body["temperature"]:
            return {"content": f"{next(drawn)}"}
        return good(body)

    server.script = script
    outcome = command("check", server.url, "--json")
    assert failed(outcome.out) == {"seed"}
