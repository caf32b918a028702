"""Streams over time: when bytes go out, what failures look like, and clients that leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from starlette.types import ASGIApp
from tests.support.asgi_call import Call, call, chat_body
from tests.support.fake_engine import FakeEngine, Script

from selfserve.errors import ModelLoading, QueueFull, RuntimeCrashed, ShuttingDown

AppMaker = Callable[..., ASGIApp]
STREAM = chat_body(stream=True)


def run(scene: Coroutine[Any, Any, None]) -> None:
    """Plays a scene and checks that no task of it is left."""

    async def play() -> None:
        await scene
        await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left

    asyncio.run(play())


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        ("RuntimeCrashed", 503, "runtime_crashed"),
        ("OutOfMemory", 503, "out_of_memory"),
        ("ShuttingDown", 503, "shutting_down"),
        ("InternalError", 500, "internal_error"),
        ("NoSuchError", 500, "internal_error"),
    ],
)
def test_a_failure_before_the_first_event_is_a_real_error(
    app: ASGIApp, engine: FakeEngine, error: str, status: int, kind: str, stream: bool
) -> None:
    engine.script = Script(pieces=[], fails=error)
    failed = call(app, chat_body(stream=stream))
    assert failed.status == status
    assert failed.response_headers["content-type"] == "application/json"
    assert failed.error["type"] == kind
    assert ("retry-after" in failed.response_headers) == (status == 503)
    assert engine.num_reserved == 0


def test_our_own_faults_leak_no_detail(app: ASGIApp, engine: FakeEngine) -> None:
    engine.script = Script(pieces=[], fails="InternalError", message="secret detail")
    assert "secret" not in call(app, chat_body()).text


@pytest.mark.parametrize("pauses", [True, False])
def test_a_failure_after_the_first_event_is_one_event_and_the_end(
    app: ASGIApp, engine: FakeEngine, pauses: bool
) -> None:
    engine.script = Script(pieces=["a", "b"], fails="RuntimeCrashed", pauses=pauses)
    failed = call(app, STREAM)
    assert failed.status == 200
    *chunks, last = failed.events
    assert set(last) == {"error"}
    assert last["error"]["type"] == "runtime_crashed"
    assert len(chunks) == 3
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    assert failed.is_complete
    assert engine.num_reserved == 0


def test_an_unstreamed_answer_that_fails_late_is_a_real_error(
    app: ASGIApp, engine: FakeEngine
) -> None:
    engine.script = Script(pieces=["a", "b"], fails="RuntimeCrashed")
    assert call(app, chat_body()).status == 503


@pytest.mark.parametrize("stream", [True, False])
def test_an_engine_that_breaks_off_is_an_error(
    app: ASGIApp, engine: FakeEngine, stream: bool
) -> None:
    engine.script = Script(pieces=[], ends=False)
    assert call(app, chat_body(stream=stream)).status == 500


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (QueueFull("the queue is full", retry_after_s=7), 429),
        (ModelLoading("loading"), 503),
        (ShuttingDown("stopping"), 503),
        (RuntimeCrashed("crashed", retry_after_s=3), 503),
    ],
)
def test_admission_refuses_at_once_with_the_same_status(
    app: ASGIApp, engine: FakeEngine, refusal: Exception, status: int, stream: bool
) -> None:
    engine.refusal = refusal
    refused = call(app, chat_body(stream=stream))
    assert refused.status == status
    assert int(refused.response_headers["retry-after"]) >= 1
    assert engine.requests == []


def test_a_full_queue_refuses_before_any_costly_work(
    make_app: AppMaker, engine: FakeEngine
) -> None:
    engine.capacity = 0
    engine.vocabulary.tokenize = None
    assert call(make_app(), chat_body(grammar="broken (")).status == 429


def test_a_body_is_checked_before_a_place_is_taken(app: ASGIApp, engine: FakeEngine) -> None:
    engine.capacity = 0
    assert call(app, chat_body(temperature=3)).status == 400


def test_places_are_given_back(app: ASGIApp, engine: FakeEngine) -> None:
    engine.capacity = 1
    for fields in ({}, {"grammar": "broken ("}, {"stream": True}, {"id_slot": 99}):
        call(app, chat_body(**fields))
        assert engine.num_reserved == 0


def test_nothing_is_sent_before_the_first_event(app: ASGIApp, engine: FakeEngine) -> None:
    async def scene() -> None:
        engine.script = Script(stalls=True)
        streamed = await Call(app, body=STREAM).start()
        await until(lambda: engine.requests)
        await turns()
        assert streamed.sent == []
        engine.gate.set()
        await streamed.task
        assert streamed.events[-1] == "[DONE]"

    run(scene())


def test_text_goes_out_while_the_answer_grows(app: ASGIApp, engine: FakeEngine) -> None:
    async def scene() -> None:
        engine.script = Script(pieces=["first"], stalls_at_end=True)
        streamed = await Call(app, body=STREAM).start()
        await streamed.until_sent("first")
        assert not streamed.is_complete
        engine.gate.set()
        await streamed.task
        assert streamed.is_complete

    run(scene())


def test_events_that_wait_go_out_together(app: ASGIApp, engine: FakeEngine) -> None:
    engine.script = Script(pieces=["x"] * 100, pauses=False)
    streamed = call(app, STREAM)
    assert len(streamed.events) == 103
    assert len(streamed.sent) <= 4


def test_silence_is_filled_with_comments(make_app: AppMaker, engine: FakeEngine) -> None:
    async def scene() -> None:
        engine.script = Script(stalls=True)
        streamed = await Call(make_app(ping_s=0.01), body=STREAM).start()
        await streamed.until_sent(": ping\n\n: ping\n\n")
        assert streamed.status == 200
        engine.gate.set()
        await streamed.task
        assert streamed.events[-1] == "[DONE]"

    run(scene())


def test_a_failure_after_a_ping_is_an_event(make_app: AppMaker, engine: FakeEngine) -> None:
    async def scene() -> None:
        engine.script = Script(stalls=True, pieces=[], fails="RuntimeCrashed")
        streamed = await Call(make_app(ping_s=0.01), body=STREAM).start()
        await streamed.until_sent(": ping\n\n")
        engine.gate.set()
        await streamed.task
        assert [list(event) for event in streamed.events] == [["error"]]

    run(scene())


def test_pings_can_be_turned_off(make_app: AppMaker, engine: FakeEngine) -> None:
    engine.script = Script(pieces=["a"])
    assert ": ping" not in call(make_app(ping_s=0), STREAM).text


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_before_the_first_token_frees_its_place(
    app: ASGIApp, engine: FakeEngine, stream: bool
) -> None:
    async def scene() -> None:
        engine.script = Script(stalls=True)
        left = await Call(app, body=chat_body(stream=stream)).start()
        await until(lambda: engine.requests)
        left.hang_up()
        await left.task
        assert engine.aborted == [engine.requests[0].id]
        assert engine.num_reserved == 0
        assert left.sent == []

    run(scene())


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_in_the_midst_frees_its_place(
    app: ASGIApp, engine: FakeEngine, stream: bool
) -> None:
    async def scene() -> None:
        engine.script = Script(pieces=["a"], stalls_at_end=True)
        left = await Call(app, body=chat_body(stream=stream)).start()
        await until(lambda: engine.requests)
        await turns()
        left.hang_up()
        await left.task
        assert engine.aborted == [engine.requests[0].id]
        assert engine.num_reserved == 0

    run(scene())


def test_a_client_that_leaves_while_sending_ends_quietly(app: ASGIApp, engine: FakeEngine) -> None:
    async def scene() -> None:
        left = await Call(app, chunks=[b'{"a":', b""]).start()
        left._incoming.get_nowait()
        left._incoming.get_nowait()
        left._incoming.put_nowait({"type": "http.request", "body": b"{", "more_body": True})
        left.hang_up()
        await left.task
        assert left.sent == []

    run(scene())


def test_departures_are_counted_and_complete_answers_are_not(
    make_app: AppMaker, engine: FakeEngine
) -> None:
    app = make_app()

    async def scene() -> None:
        await Call(app, body=STREAM).finish()
        await Call(app, body=chat_body()).finish()
        engine.script = Script(stalls=True)
        left = await Call(app, body=STREAM).start()
        await until(lambda: len(engine.requests) == 3)
        left.hang_up()
        await left.task
        metrics = await Call(app, path="/metrics", method="GET").finish()
        assert "self_requests_cancelled_total 1.0" in metrics.text

    run(scene())
    assert len(engine.aborted) == 1


@pytest.mark.parametrize("stream", [True, False])
def test_the_deadline_ends_a_request_with_504(
    make_app: AppMaker, engine: FakeEngine, stream: bool
) -> None:
    engine.script = Script(stalls=True)
    late = call(make_app(request_timeout_s=0.02), chat_body(stream=stream))
    assert late.status == 504
    assert late.error["type"] == "timeout"
    assert engine.aborted == [request.id for request in engine.requests]
    assert engine.num_reserved == 0


def test_the_deadline_ends_a_begun_stream_with_an_event(
    make_app: AppMaker, engine: FakeEngine
) -> None:
    engine.script = Script(pieces=["a"], stalls_at_end=True)
    late = call(make_app(request_timeout_s=0.5), STREAM)
    assert late.status == 200
    assert late.events[-1]["error"]["type"] == "timeout"
    assert len(engine.aborted) == 1


def test_the_deadline_covers_the_upload(make_app: AppMaker) -> None:
    async def scene() -> None:
        slow = Call(make_app(request_timeout_s=0.02), chunks=[b"{", b"}"])
        await slow.start()
        slow._incoming.get_nowait()
        slow._incoming.get_nowait()
        await slow.task
        assert slow.status == 504

    run(scene())


def test_no_deadline_is_zero(make_app: AppMaker) -> None:
    assert call(make_app(request_timeout_s=0), chat_body()).status == 200


def test_a_server_that_stops_ends_its_requests(app: ASGIApp, engine: FakeEngine) -> None:
    async def scene() -> None:
        engine.script = Script(stalls=True)
        running = await Call(app, body=STREAM).start()
        await until(lambda: engine.requests)
        running.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running.task
        assert len(engine.aborted) == 1
        assert engine.num_reserved == 0

    run(scene())


def test_a_large_body_does_not_hold_others_up(app: ASGIApp, engine: FakeEngine) -> None:
    async def scene() -> None:
        large = await Call(app, body=chat_body(user=[[]] * 90_000)).start()
        small = await Call(app, path="/health", method="GET").finish()
        assert not large.task.done()
        assert small.status == 200
        await large.task
        assert large.status == 200

    run(scene())
