"""The measuring client: what it sends, and what it reads out of bytes and their times."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence
from random import Random

import pytest

from selfserve.cli.chat_stream import (
    Address,
    ChatStream,
    RequestFailed,
    chat,
    parse_address,
    parse_answer,
)
from selfserve.errors import StartError

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
PLAIN = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def piece(text: str, reason: str | None = None) -> bytes:
    return event(choices=[{"delta": {"content": text}, "finish_reason": reason}])


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


USAGE = event(
    choices=[],
    usage={
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 2},
    },
    timings={"prompt_ms": 1.5},
)
EVENTS = [
    event(choices=[{"delta": {"role": "assistant", "content": None}, "finish_reason": None}]),
    piece("one "),
    b": ping\n\n",
    event(choices=[{"delta": {"reasoning_content": "two "}, "finish_reason": None}]),
    piece("three"),
    event(choices=[{"delta": {}, "finish_reason": "length"}]),
    USAGE,
    b"data: [DONE]\n\n",
]
WHOLE = CHUNKED + b"".join(map(chunk, EVENTS)) + b"0\r\n\r\n"


def in_pieces(data: bytes, cuts: Sequence[int]) -> list[tuple[float, bytes]]:
    """The data cut at the given places; piece n arrives at second n."""
    places = [0, *cuts, len(data)]
    spans = itertools.pairwise(places)
    return [(float(n), data[begin:end]) for n, (begin, end) in enumerate(spans)]


def test_text_usage_and_reason_are_read() -> None:
    answer = parse_answer(0.0, in_pieces(WHOLE, []))
    assert answer.text == "one two three"
    assert answer.finish_reason == "length"
    assert (answer.prompt_tokens, answer.cached_tokens, answer.completion_tokens) == (7, 2, 3)
    assert answer.timings == {"prompt_ms": 1.5}


def test_a_piece_has_the_time_at_which_its_event_was_whole() -> None:
    ends = [WHOLE.index(mark) for mark in (b"one", b"two", b"three")]
    after = [WHOLE.index(b"\n\n", end) + 2 for end in ends]
    answer = parse_answer(-1.0, in_pieces(WHOLE, [ends[0], after[0], ends[2], after[2]]))
    assert answer.times_s == (1.0, 2.0, 3.0)
    assert answer.ttft_s == 2.0
    assert answer.gaps_s == [1.0, 1.0]
    assert answer.tokens_per_s == 1.0


@pytest.mark.parametrize("seed", range(200))
def test_any_cut_of_the_bytes_gives_the_same_text_and_the_right_times(seed: int) -> None:
    random = Random(seed)
    cuts = sorted(random.choices(range(len(WHOLE)), k=random.randrange(12)))
    arrivals = in_pieces(WHOLE, cuts)
    answer = parse_answer(0.0, arrivals)
    assert answer.text == "one two three"
    line_ends = [WHOLE.index(b"\n", WHOLE.index(mark)) + 1 for mark in (b"one", b"two", b"three")]
    assert answer.times_s == tuple(when(arrivals, end) for end in line_ends)


def when(arrivals: list[tuple[float, bytes]], num_bytes: int) -> float:
    """The time at which so many bytes had arrived."""
    seen = 0
    for time_s, data in arrivals:
        seen += len(data)
        if seen >= num_bytes:
            return time_s
    raise AssertionError("they never arrived")


def test_a_body_without_chunks_is_read_as_well() -> None:
    assert parse_answer(0.0, in_pieces(PLAIN + b"".join(EVENTS), [90])).text == "one two three"


def test_an_unfinished_stream_gives_what_has_arrived() -> None:
    end = WHOLE.index(b"three") - 20
    answer = parse_answer(0.0, in_pieces(WHOLE[:end], []))
    assert (answer.text, answer.finish_reason) == ("one two ", None)


def test_an_error_status_tells_the_servers_reason() -> None:
    body = b'{"error": {"message": "max_tokens must be at least 1", "type": "invalid_request"}}'
    with pytest.raises(RequestFailed, match="400 Bad Request: max_tokens must be at least 1"):
        parse_answer(0.0, [(0.0, b"HTTP/1.1 400 Bad Request\r\n\r\n" + body)])


def test_a_server_that_says_nothing_is_a_failure() -> None:
    with pytest.raises(RequestFailed, match="answered nothing"):
        parse_answer(0.0, [])


def test_an_error_in_the_stream_is_a_failure() -> None:
    broken = PLAIN + piece("one") + event(error={"message": "the engine failed"})
    with pytest.raises(RequestFailed, match="the engine failed"):
        parse_answer(0.0, [(0.0, broken)])


def test_an_answer_without_text_is_a_failure() -> None:
    with pytest.raises(RequestFailed, match="no text"):
        parse_answer(0.0, [(0.0, PLAIN + USAGE)])


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8080", Address("127.0.0.1", 8080)),
        ("http://localhost", Address("localhost", 80)),
        ("http://[::1]:1/", Address("::1", 1)),
        ("http://host:2/v1/", Address("host", 2)),
        ("http://host:2/a/v1", Address("host", 2, "/a")),
    ],
)
def test_addresses_are_read(url: str, address: Address) -> None:
    assert parse_address(url) == address


@pytest.mark.parametrize("url", ["https://host", "host:80", "http://", "http://host:99999", ""])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(StartError, match="http://host:port"):
        parse_address(url)


class ScriptedServer:
    """Answers each connection with the given bytes; keeps what it was asked."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self.requests: list[bytes] = []
        self.num_hung_up = 0
        self.more = asyncio.Event()

    async def __aenter__(self) -> Address:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return Address(host, port, key="a key")

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        self.requests.append(head + await reader.readexactly(length))
        writer.write(self._answer)
        if not self._answer.endswith(b"0\r\n\r\n"):
            await reader.read()  # until the client hangs up
            self.num_hung_up += 1
            self.more.set()
        writer.close()
        await writer.wait_closed()


def test_a_chat_is_sent_as_a_stream_with_usage_and_key() -> None:
    async def play() -> None:
        server = ScriptedServer(WHOLE)
        async with server as address:
            answer = await chat(address, {"messages": [], "max_tokens": 3})
        assert answer.text == "one two three"
        head, _, body = server.requests[0].partition(b"\r\n\r\n")
        assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
        assert b"Authorization: Bearer a key" in head
        assert json.loads(body) == {
            "messages": [],
            "max_tokens": 3,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    asyncio.run(play())


def test_a_running_stream_can_be_looked_at_and_hung_up() -> None:
    async def play() -> None:
        server = ScriptedServer(CHUNKED + b"".join(map(chunk, EVENTS[:3])))
        async with server as address:
            stream = await ChatStream.open(address, {})
            await stream.wait_events(2)
            assert stream.answer().text == "one "
            stream.close()
            await server.more.wait()
        assert server.num_hung_up == 1

    asyncio.run(play())


def test_nobody_at_the_address_is_a_failure() -> None:
    async def play() -> None:
        async with ScriptedServer(WHOLE) as address:
            pass
        with pytest.raises(RequestFailed, match="nobody answers at http://127"):
            await chat(address, {})

    asyncio.run(play())
