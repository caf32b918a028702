"""Questions that show whether a served model does what it claims."""

from __future__ import annotations

import base64
import json
import struct
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from selfserve.cli.chat_stream import RequestFailed
from selfserve.cli.server_client import ServerClient
from selfserve.errors import shown

QUESTION = "Name three things that are found in a kitchen, and say what each is for."
SPEED_WORDS = 300
SPEED_TOKENS = 64
TOKENS_OF_A_WORD = 6
"""At most, so that prompt and answer fit into a small context."""
PICTURE_SIDE = 128
COLOURS = {"red": (220, 20, 20), "blue": (20, 40, 220)}
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Rome", "Oslo"]},
        "rank": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["city", "rank"],
    "additionalProperties": False,
}

Probe = tuple[str, Callable[[ServerClient], str]]
"""A name, and what raises ProbeFailed or returns a remark."""


class ProbeFailed(Exception):
    """The answer was not what it had to be; the text says how."""


def probes_for(capabilities: Mapping[str, Any]) -> list[Probe]:
    """What to try with a model of these capabilities (as `/v1/model` tells them)."""
    found: list[Probe] = [
        ("answer", _answers),
        ("streamed equals unstreamed", _streams_the_same),
        ("JSON schema", _follows_a_schema),
        ("stop string", _stops),
        ("seed", _repeats_with_a_seed),
    ]
    if capabilities.get("reasoning"):
        found += [("thinking on", _thinks), ("thinking off", _answers_at_once)]
    if "vision" in capabilities.get("input", ()):
        found += [("pictures", _sees_colours)]
    return found


def run_probe(probe: Probe, client: ServerClient) -> dict[str, Any]:
    """`{"name", "passed", "detail"}`. Raises nothing for what the server does wrong."""
    name, ask = probe
    try:
        return {"name": name, "passed": True, "detail": ask(client)}
    except (ProbeFailed, RequestFailed) as error:
        return {"name": name, "passed": False, "detail": str(error)}


def speed(client: ServerClient, context_size: int) -> dict[str, float]:
    """Tokens a second of a prompt and of one answer, as a client sees them."""
    num_words = min(SPEED_WORDS, context_size // TOKENS_OF_A_WORD)
    begin_s = time.perf_counter()
    first_s = last_s = begin_s
    usage: Mapping[str, Any] = {}
    # The time makes the prompt a new one, of which nothing is in any cache.
    text = f"{time.time_ns()} " + "one two three four five six " * (num_words // 6)
    for piece in client.stream(_body(text, max_tokens=SPEED_TOKENS, ignore_eos=True)):
        if piece.text:
            first_s = first_s if first_s > begin_s else time.perf_counter()
            last_s = time.perf_counter()
        usage = piece.usage or usage
    tokens = max(0, usage.get("completion_tokens", 0) - 1)
    return {
        "prompt_tokens_per_s": usage.get("prompt_tokens", 0) / max(1e-6, first_s - begin_s),
        "answer_tokens_per_s": tokens / max(1e-6, last_s - first_s),
    }


# --- probes -------------------------------------------------------------------------------------


def _body(content: Any, **fields: Any) -> dict[str, Any]:
    """A greedy request without thinking that nothing before it can influence."""
    return {
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": 48,
        "cache_prompt": False,
        "chat_template_kwargs": {"enable_thinking": False},
        **fields,
    }


def _content(client: ServerClient, **fields: Any) -> str:
    answer = client.ask(_body(QUESTION, **fields))
    return str(answer["choices"][0]["message"]["content"])


def _answers(client: ServerClient) -> str:
    text = _content(client)
    if not text.strip():
        raise ProbeFailed("the answer is empty")
    return shown(text)


def _streams_the_same(client: ServerClient) -> str:
    whole = _content(client)
    pieces = client.stream(_body(QUESTION))
    streamed = "".join(piece.text for piece in pieces if not piece.is_reasoning)
    if streamed != whole:
        raise ProbeFailed(f"streamed {shown(streamed)}, unstreamed {shown(whole)}")
    return ""


def _follows_a_schema(client: ServerClient) -> str:
    text = _content(
        client,
        response_format={"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA}},
    )
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ProbeFailed(f"{shown(text)} is no JSON") from error
    if (
        not isinstance(value, dict)
        or set(value) != {"city", "rank"}
        or value["city"] not in ("Paris", "Rome", "Oslo")
        or value["rank"] not in range(10)
    ):
        raise ProbeFailed(f"{shown(value)} does not follow the schema")
    return shown(value)


def _stops(client: ServerClient) -> str:
    whole = _content(client)
    middle = len(whole) // 2
    stop = whole[middle : middle + 4]
    if not stop.strip():
        raise ProbeFailed(f"the answer {shown(whole)} is too short to be stopped")
    stopped = _content(client, stop=[stop])
    if stopped != whole[: whole.index(stop)]:
        raise ProbeFailed(f"stop {shown(stop)} gave {shown(stopped)} of {shown(whole)}")
    return ""


def _repeats_with_a_seed(client: ServerClient) -> str:
    first, second = (_content(client, temperature=1.0, seed=7) for _ in range(2))
    if first != second:
        raise ProbeFailed(f"one seed gave {shown(first)} and {shown(second)}")
    return ""


def _thinks(client: ServerClient) -> str:
    fields = {"chat_template_kwargs": {"enable_thinking": True}, "max_tokens": 32}
    message = client.ask(_body(QUESTION, **fields))["choices"][0]["message"]
    if not message.get("reasoning_content"):
        raise ProbeFailed(f"it answered {shown(message.get('content'))} without thinking")
    return ""


def _answers_at_once(client: ServerClient) -> str:
    message = client.ask(_body(QUESTION))["choices"][0]["message"]
    if message.get("reasoning_content"):
        raise ProbeFailed(f"it thought {shown(message['reasoning_content'])}")
    return ""


def _sees_colours(client: ServerClient) -> str:
    for name, colour in COLOURS.items():
        content = [
            {"type": "image_url", "image_url": {"url": _picture(colour)}},
            {"type": "text", "text": "What colour is this picture? Answer with one word."},
        ]
        answer = client.ask(_body(content, max_tokens=16))
        text = str(answer["choices"][0]["message"]["content"])
        if name not in text.lower():
            raise ProbeFailed(f"a {name} picture was called {shown(text)}")
    return ""


def _picture(colour: tuple[int, int, int]) -> str:
    """A PNG of one colour as a data URL."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    row = b"\0" + bytes(colour) * PICTURE_SIDE
    head = struct.pack(">IIBBBBB", PICTURE_SIDE, PICTURE_SIDE, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head)
    png += chunk(b"IDAT", zlib.compress(row * PICTURE_SIDE)) + chunk(b"IEND", b"")
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"
