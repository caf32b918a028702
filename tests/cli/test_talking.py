"""`self run` and `self chat` against a server that says what the test wrote down."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.command_line import Command
from tests.support.scripted_server import ScriptedServer, scripted_server

from selfserve.cli import answers, output


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server() as scripted:
        yield scripted


def typed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_an_answer_goes_to_stdout_and_thinking_to_stderr(
    command: Command, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "")
    server.script = lambda _: {"reasoning_content": "hm hm", "content": "a\u2028b c"}
    outcome = command("run", server.url, "Say it")
    assert (outcome.code, outcome.out) == (0, "a\u2028b c \n")
    assert outcome.err == "hm hm \n\n"


def test_a_pipe_follows_the_prompt(
    command: Command, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "\nthe text\n")
    assert command("run", server.url, "Shorten:", "--system", "Be brief").code == 0
    assert server.bodies[0]["messages"] == [
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "Shorten:\n\nthe text"},
    ]
    typed(monkeypatch, "alone")
    command("run", server.url)
    assert server.bodies[1]["messages"][0]["content"] == "alone"


def test_nothing_to_ask_is_wrong_usage(
    command: Command, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, " \n")
    outcome = command("run", server.url)
    assert outcome.code == 2
    assert "neither a prompt nor anything on stdin" in outcome.err
    assert server.bodies == []


def test_options_become_fields_of_the_request(
    command: Command, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    typed(monkeypatch, "")
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    picture = tmp_path / "a.png"
    picture.write_bytes(b"a picture")
    options = "--max-tokens 5 --temperature 0 --seed 0 --no-thinking --api-key secret"
    files = ("--schema", str(schema), "--image", str(picture))
    assert command("run", server.url, "Look", *options.split(), *files).code == 0
    [body] = server.bodies
    assert (body["max_tokens"], body["temperature"], body["seed"]) == (5, 0, 0)
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}
    [part, text] = body["messages"][0]["content"]
    assert part["image_url"]["url"] == "data:image/png;base64,YSBwaWN0dXJl"
    assert text == {"type": "text", "text": "Look"}
    assert server.keys == ["Bearer secret"]


@pytest.mark.parametrize("message", [{"error": "too long"}, {"content": "a", "broken": "too long"}])
def test_a_refusal_or_a_broken_stream_ends_with_code_1(
    command: Command,
    server: ScriptedServer,
    monkeypatch: pytest.MonkeyPatch,
    message: dict[str, str],
) -> None:
    typed(monkeypatch, "")
    server.script = lambda _: message
    outcome = command("run", server.url, "Say it")
    assert outcome.code == 1
    assert "Error [request_failed]: too long\n" in outcome.err


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://"])
def test_an_address_where_nobody_answers_is_named(
    command: Command, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    typed(monkeypatch, "")
    outcome = command("run", url, "Say it")
    assert (outcome.code, outcome.out) == (1, "")
    assert url in outcome.err


def test_a_chat_remembers_what_was_said(
    command: Command, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "first\\\nquestion\n\nsecond\n")
    outcome = command("chat", server.url)
    assert (outcome.code, outcome.out) == (0, "one two three \n" * 2)
    assert server.bodies[1]["messages"] == [
        {"role": "user", "content": "first\nquestion"},
        {"role": "assistant", "content": "one two three "},
        {"role": "user", "content": "second"},
    ]


def test_commands_of_a_chat_change_what_follows(
    command: Command, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    saved, picture = tmp_path / "saved.json", tmp_path / "a.png"
    picture.write_bytes(b"a picture")
    lines = [
        "/system Be brief",
        "one",
        f"/save {saved}",
        "/reset",
        f"/image {picture}",
        "two",
        "three",
        "/quit",
        "never",
    ]
    typed(monkeypatch, "\n".join(lines))
    assert command("chat", server.url).code == 0
    first, second, third = (body["messages"] for body in server.bodies)
    assert [message["role"] for message in first] == ["system", "user"]
    assert [message["role"] for message in second] == ["system", "user"]
    assert second[1]["content"][0]["type"] == "image_url"
    assert third[-1]["content"] == "three"
    messages = json.loads(saved.read_text())["messages"]
    assert [message["content"] for message in messages] == ["Be brief", "one", "one two three "]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/nope", "/nope is no command"),
        ("/image", "/image needs a file name"),
        ("/image /none.png", "/none.png cannot be read: No such file"),
        ("/save /none/x", "/none/x cannot be written: No such file"),
        ("/help", "/reset        forget the conversation"),
    ],
)
def test_a_command_that_cannot_be_done_is_told_and_the_chat_goes_on(
    command: Command,
    server: ScriptedServer,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    said: str,
) -> None:
    typed(monkeypatch, f"{line}\nhello\n")
    outcome = command("chat", server.url)
    assert outcome.code == 0
    assert said in outcome.err
    assert len(server.bodies) == 1


def test_a_question_that_was_refused_is_not_remembered(
    command: Command, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers_in_turn = iter([{"error": "too long"}, {"content": "yes"}])
    server.script = lambda _: next(answers_in_turn)
    typed(monkeypatch, "long\nshort\n")
    outcome = command("chat", server.url)
    assert outcome.code == 0
    assert "Error [request_failed]: too long" in outcome.err
    assert [message["content"] for message in server.bodies[1]["messages"]] == ["short"]


def test_an_interrupted_answer_counts_as_far_as_it_came(
    command: Command, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    say, seen = output.answer, []

    def interrupt_once(text: str) -> None:
        say(text)
        seen.append(text)
        if len(seen) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(answers.output, "answer", interrupt_once)
    typed(monkeypatch, "first\nsecond\n")
    outcome = command("chat", server.url)
    assert outcome.code == 0
    assert "[stopped]" in outcome.err
    assert server.bodies[1]["messages"][1]["content"] == "one two "


def test_a_terminal_is_not_controlled_by_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    output.answer("a\x1b]0;title\x07\tb\n\x9b2Jc")
    assert terminal.getvalue() == "a\ufffd]0;title\ufffd\tb\n\ufffd2Jc"


def test_thinking_is_dim_on_a_terminal_unless_colours_are_unwanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.delenv("NO_COLOR", raising=False)
    output.aside("hm")
    monkeypatch.setenv("NO_COLOR", "1")
    output.aside("hm")
    assert terminal.getvalue() == "\x1b[2mhm\x1b[0mhm"
