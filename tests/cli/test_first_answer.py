"""From a name to an answer: `self serve` as its own process, on a fake hub and on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pexpect
import pytest
from tests.support.real_vocabulary import smollm2_path
from tests.support.small_catalogue import SmallCatalogue
from tests.support.tiny_models import write_tiny_model

from selfserve.cli.child_server import child_server

ROOT = Path(__file__).parents[2]
SELF = [sys.executable, "-m", "selfserve"]
FAST = ["--port", "0", "--context-size", "512", "--parallel", "1", "--cache-ram", "0"]
START_S, ANSWER_S = 60, 30


@pytest.fixture(autouse=True)
def source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("SELF_MODELS", str(tmp_path / "models"))


def asked(url: str, **fields: Any) -> dict[str, Any]:
    body = {
        "messages": [{"role": "user", "content": "bako"}],
        "temperature": 0,
        "max_tokens": 8,
        **fields,
    }
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=ANSWER_S, trust_env=False)
    assert answer.status_code == 200, answer.text
    message: dict[str, Any] = answer.json()["choices"][0]["message"]
    return message


@pytest.mark.parametrize(
    ("name", "arch", "thinks"), [("qwen3.5:9b", "qwen35", True), ("gemma4:4b", "gemma3", False)]
)
def test_a_name_is_fetched_and_answers_with_and_without_thinking(
    small_catalogue: SmallCatalogue, tmp_path: Path, name: str, arch: str, thinks: bool
) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", arch)
    small_catalogue.replace(f"{name}@q4", path.read_bytes())
    with child_server([*SELF, "serve", name, *FAST]) as server:
        card = httpx.get(f"{server.url}/v1/model", trust_env=False).json()
        assert (card["id"], card["quant"]) == (name, "q4")
        assert card["settings"]["thinking"] is thinks
        on = asked(server.url, chat_template_kwargs={"enable_thinking": True})
        off = asked(server.url, chat_template_kwargs={"enable_thinking": False})
        default = asked(server.url)
    assert on["reasoning_content"]
    assert off["content"]
    assert "reasoning_content" not in off
    assert ("reasoning_content" in default) is thinks


@pytest.fixture
def serve() -> Iterator[Any]:
    """`self serve` with the small model, on a terminal."""
    smollm2_path()  # or skip
    child = spawned("serve", *FAST)
    try:
        yield child
    finally:
        child.close(force=True)


def spawned(*arguments: str) -> Any:
    return pexpect.spawn(
        SELF[0],
        [*SELF[1:], *arguments],
        encoding="utf-8",
        timeout=START_S,
        dimensions=(24, 100),
        env={**os.environ, "TERM": "xterm"},
    )


def test_on_a_terminal_a_chat_streams_and_ctrl_c_stops_answer_chat_and_server(serve: Any) -> None:
    serve.expect(r"Ready in [\d.]+ s: (http://\S+)")
    chat = spawned("chat", serve.match[1], "--system", "Count upwards, one number a line.")
    try:
        chat.expect("> ")
        chat.sendline("Count from 1 to 1000.")
        chat.expect_exact("Count from 1 to 1000.")  # the terminal's echo
        chat.expect(r"\d+\D+\d+")  # the beginning of an answer that is far from its end
        chat.sendintr()
        chat.expect_exact("[stopped]")
        chat.expect_exact("> ")
        chat.sendintr()
        chat.expect(pexpect.EOF)
        chat.wait()
        assert chat.exitstatus == 130
    finally:
        chat.close(force=True)
    serve.sendintr()
    serve.expect_exact("Stopping; Ctrl-C again ends at once")
    serve.expect(pexpect.EOF)
    serve.wait()
    assert serve.exitstatus == 0


def test_a_chat_with_a_model_of_its_own_ends_with_the_input() -> None:
    smollm2_path()  # or skip
    chat = spawned("chat", "--context-size", "512", "--cache-ram", "0")
    try:
        chat.expect_exact("> ")
        chat.sendline("Say hello.")
        chat.expect_exact("Say hello.")
        chat.expect(r"\w+")
        chat.expect_exact("> ")
        chat.sendeof()
        chat.expect(pexpect.EOF)
        chat.wait()
        assert chat.exitstatus == 0
    finally:
        chat.close(force=True)
