"""The engine as the API sees it: streams of events, room in the queue, and an engine that dies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.builders import Rig, make_request, random_text
from tests.support.real_vocabulary import smollm2_path
from tests.support.scripted_runner import endless
from tests.support.thread_engine import Crash, ThreadEngine

from selfserve.config import EngineSettings
from selfserve.engine import client as client_module
from selfserve.engine.client import EVENT_BYTES, UNREAD_BYTES, EngineClient
from selfserve.engine.interface import EngineState
from selfserve.engine.plan import Outcome, Plan
from selfserve.errors import (
    ModelLoadError,
    ModelLoading,
    QueueFull,
    RuntimeCrashed,
    SelfError,
    ShuttingDown,
)
from selfserve.request import Delta, Event, Failed, Finished, Request

LIMIT_S = 30.0
CONTEXT_SIZE = 8192
SETTINGS = EngineSettings(model_path=Path("unused.gguf"), num_slots=2)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadEngine]:
    # So many tokens fit that nothing ends by itself while a test goes on.
    engine = ThreadEngine(num_slots=2, predict=endless, context_size=CONTEXT_SIZE)
    engine.install(monkeypatch)
    yield engine
    engine.gate.set()
    engine.may_connect.set()


@asynccontextmanager
async def started(*, queue_size: int = 2) -> AsyncIterator[EngineClient]:
    client = EngineClient(SETTINGS, queue_size=queue_size)
    await client.start()
    try:
        await client.wait_ready()
        yield client
    finally:
        await client.close()


async def collect(client: EngineClient, request: Request) -> list[Event]:
    return [event async for event in client.submit(request)]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def play(scene: Callable[[], Awaitable[Any]]) -> None:
    """Runs a scene under a limit of time."""

    async def limited() -> None:
        await asyncio.wait_for(scene(), LIMIT_S)

    asyncio.run(limited())


def text(events: list[Event]) -> str:
    return "".join(event.content for event in events if isinstance(event, Delta))


A, B = make_request("a", random_text(1, 50)), make_request("b", random_text(2, 50))
LONG = make_request("long", random_text(3, 20), max_tokens=None, n_keep=0)
"""Shifts its context and so never ends by itself."""


# --- requests -----------------------------------------------------------------------------


def test_each_request_gets_its_own_events_and_one_end(engine: ThreadEngine) -> None:
    async def scene() -> None:
        async with started() as client:
            both = await asyncio.gather(collect(client, A), collect(client, B))
            for request, events in zip((A, B), both, strict=True):
                assert {event.id for event in events} == {request.id}
                assert text(events) == engine.rig.expected(request)
                assert [isinstance(e, Finished | Failed) for e in events].count(True) == 1
                assert isinstance(events[-1], Finished)
            assert not client._mailboxes

    play(scene)


def test_the_engine_tells_its_facts(engine: ThreadEngine) -> None:
    async def scene() -> None:
        async with started() as client:
            assert client.state is EngineState.READY
            assert client.ready is not None
            assert client.ready.context_size == CONTEXT_SIZE
            assert client.vocabulary.size == 261
            await collect(client, A)  # the loop's heart beats while it works
            await until(lambda: len(client.heartbeat.slots) == 2)

    play(scene)


@pytest.mark.parametrize("how", ["close", "cancel"])
def test_who_stops_reading_frees_the_slot(engine: ThreadEngine, how: str) -> None:
    async def scene() -> None:
        async with started() as client:
            events = client.submit(LONG)
            await anext(events)
            if how == "close":
                await events.aclose()  # type: ignore[attr-defined]
            else:
                reader = asyncio.ensure_future(anext(events))
                while not reader.done():
                    await asyncio.sleep(0)
                    reader.cancel()
                await asyncio.gather(reader, return_exceptions=True)
                await events.aclose()  # type: ignore[attr-defined]
            assert not client._mailboxes
            await until(lambda: not engine.rig.scheduler.has_work)
            assert engine.rig.memory.num_free == 2

    play(scene)


def test_a_request_that_nobody_reads_is_never_sent(engine: ThreadEngine) -> None:
    async def scene() -> None:
        async with started() as client:
            events = client.submit(LONG)
            await events.aclose()  # type: ignore[attr-defined]
            await collect(client, A)
            assert not engine.rig.scheduler.has_work

    play(scene)


def test_a_request_waits_for_an_engine_that_cannot_hear_it_yet(engine: ThreadEngine) -> None:
    async def scene() -> None:
        engine.may_connect.clear()
        async with started() as client:
            reader = asyncio.create_task(collect(client, A))
            await until(lambda: len(client._mailboxes) == 1)
            engine.may_connect.set()
            assert text(await reader) == engine.rig.expected(A)

    play(scene)


# --- readers that do not read -------------------------------------------------------------


def test_a_request_whose_events_nobody_reads_is_held_and_goes_on_later(
    engine: ThreadEngine,
) -> None:
    unread = make_request("unread", random_text(5, 20), max_tokens=2500)
    most = UNREAD_BYTES // EVENT_BYTES

    async def scene() -> None:
        async with started() as client:
            events = client.submit(unread)
            first = await anext(events)
            sequence = engine.rig.scheduler.running["unread"]
            await until(lambda: sequence.is_held)
            await collect(client, A)  # another one is served, and nothing is computed beside it
            num_held = sequence.num_generated
            assert num_held < 2500
            assert await collect(client, B)
            assert sequence.num_generated == num_held
            assert client._mailboxes["unread"]._size < 2 * UNREAD_BYTES
            told = [first, *[event async for event in events]]
            assert len(told) > most
            assert text(told) == engine.rig.expected(unread)
            assert isinstance(told[-1], Finished)
            assert not engine.rig.scheduler.has_work

    play(scene)


@pytest.mark.parametrize("how", ["abort", "close"])
def test_a_held_request_can_end(engine: ThreadEngine, how: str) -> None:
    async def scene() -> None:
        async with started() as client:
            events = client.submit(LONG)
            await anext(events)
            await until(lambda: engine.rig.scheduler.running["long"].is_held)
            if how == "abort":
                await events.aclose()  # type: ignore[attr-defined]
                await until(lambda: not engine.rig.scheduler.has_work)
                assert engine.rig.memory.num_free == 2

    play(scene)


# --- room ---------------------------------------------------------------------------------


def test_places_are_counted_before_any_work_and_given_back(engine: ThreadEngine) -> None:
    async def scene() -> None:
        async with started(queue_size=1) as client:
            with client.reserve(2), client.reserve():
                with pytest.raises(QueueFull) as caught, client.reserve():
                    pass
                assert caught.value.retry_after_s
            with client.reserve(3):
                pass
            with pytest.raises(QueueFull), client.reserve(4):
                pass
            with client.reserve(3):
                pass

    play(scene)


def test_a_place_is_given_back_when_the_work_fails(engine: ThreadEngine) -> None:
    async def scene() -> None:
        async with started(queue_size=0) as client:
            for _ in range(3):
                with pytest.raises(ZeroDivisionError), client.reserve(2):
                    raise ZeroDivisionError

    play(scene)


# --- beginnings ---------------------------------------------------------------------------


def test_while_the_model_loads_nobody_is_served(engine: ThreadEngine) -> None:
    async def scene() -> None:
        engine.gate.clear()
        client = EngineClient(SETTINGS, queue_size=2)
        await client.start()
        assert client.state is EngineState.LOADING
        with pytest.raises(ModelLoading), client.reserve():
            pass
        engine.gate.set()
        await client.wait_ready()
        with client.reserve():
            pass
        await client.close()

    play(scene)


def test_a_model_that_cannot_be_loaded_is_told_in_the_engines_words(engine: ThreadEngine) -> None:
    async def scene() -> None:
        engine.load_error = ModelLoadError("the file is damaged")
        client = EngineClient(SETTINGS, queue_size=2)
        await client.start()
        with pytest.raises(ModelLoadError, match="the file is damaged"):
            await client.wait_ready()
        await until(lambda: client.state is EngineState.CRASHED)
        assert engine.num_starts == 1
        await client.close()

    play(scene)


def test_an_engine_that_dies_while_it_loads_is_an_error_of_the_start(engine: ThreadEngine) -> None:
    async def scene() -> None:
        engine.load_error = Crash()
        client = EngineClient(SETTINGS, queue_size=2)
        await client.start()
        with pytest.raises(ModelLoadError, match="code -6"):
            await client.wait_ready()
        assert engine.num_starts == 1
        await client.close()

    play(scene)


# --- crashes ------------------------------------------------------------------------------


def crashing_on(prompt: str) -> Callable[[Rig], None]:
    """Engines that die of every step with this prompt in it."""

    def fault(plan: Plan) -> Outcome | None:
        if any(bytes(chunk.sequence.request.prompt) == prompt.encode() for chunk in plan.chunks):
            raise Crash
        return None

    def prepare(rig: Rig) -> None:
        rig.runner.fault = fault

    return prepare


POISON = make_request("poison", "poison")


def test_a_crash_ends_all_requests_and_a_new_engine_serves_the_next(engine: ThreadEngine) -> None:
    async def scene() -> None:
        engine.prepare = crashing_on("poison")
        async with started() as client:
            long = asyncio.create_task(collect(client, LONG))
            await until(lambda: engine.rig.scheduler.running.keys() >= {"long"})
            ends = [(await collect(client, POISON))[-1], (await long)[-1]]
            assert [end.error for end in ends if isinstance(end, Failed)] == ["RuntimeCrashed"] * 2
            assert not client._mailboxes
            await until(lambda: client.state is EngineState.READY)
            assert engine.num_starts == 2
            assert text(await collect(client, A)) == engine.rig.expected(A)

    play(scene)


def test_while_a_new_engine_starts_newcomers_are_refused_at_once(
    engine: ThreadEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        engine.prepare = crashing_on("poison")
        async with started() as client:
            engine.gate.clear()
            await collect(client, POISON)
            assert client.state is EngineState.RESTARTING
            with pytest.raises(RuntimeCrashed) as caught, client.reserve():
                pass
            assert caught.value.retry_after_s
            (event,) = await collect(client, A)
            assert isinstance(event, Failed)
            assert event.error == "RuntimeCrashed"
            engine.gate.set()

    play(scene)


def test_an_engine_that_crashes_again_and_again_is_given_up(engine: ThreadEngine) -> None:
    async def scene() -> None:
        engine.prepare = crashing_on("poison")
        async with started() as client:
            for _ in range(client_module.MAX_CRASHES):
                await until(lambda: client.state is EngineState.READY)
                await collect(client, POISON)
            with pytest.raises(RuntimeCrashed, match="crashed 3 times"):
                await client.wait_given_up()
            assert client.state is EngineState.CRASHED
            assert engine.num_starts == 3
            with pytest.raises(RuntimeCrashed), client.reserve():
                pass

    play(scene)


def test_an_engine_that_says_nothing_for_long_is_stalled_until_it_is_heard(
    engine: ThreadEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead_s = 0.0

    class Time:
        @staticmethod
        def monotonic() -> float:
            return time.monotonic() + ahead_s

    monkeypatch.setattr(client_module, "time", Time)

    async def scene() -> None:
        nonlocal ahead_s
        async with started() as client:
            await collect(client, A)
            assert client.state is EngineState.READY
            ahead_s += client_module.STALLED_AFTER_S + 1.0  # nothing can be heard before this ends
            assert client.state.value == "stalled"
            with pytest.raises(RuntimeCrashed, match="does not answer"), client.reserve():
                pass
            await collect(client, B)
            assert client.state.value == "ready"

    play(scene)


def test_closing_while_a_new_engine_starts_leaves_none_behind(engine: ThreadEngine) -> None:
    async def scene() -> None:
        engine.prepare = crashing_on("poison")
        async with started() as client:
            await collect(client, POISON)
        await until(lambda: engine.num_alive == 0)

    play(scene)


# --- the end ------------------------------------------------------------------------------


def test_draining_refuses_newcomers_and_lets_the_others_finish(engine: ThreadEngine) -> None:
    async def scene() -> None:
        async with started() as client:
            events = client.submit(A)
            await anext(events)
            client.begin_drain()
            assert client.state is EngineState.STOPPING
            with pytest.raises(ShuttingDown), client.reserve():
                pass
            rest = [event async for event in events]
            assert isinstance(rest[-1], Finished)

    play(scene)


def test_closing_ends_everybody_and_leaves_nothing(engine: ThreadEngine) -> None:
    async def scene() -> None:
        client = EngineClient(SETTINGS, queue_size=2)
        await client.start()
        await client.wait_ready()
        readers = [
            asyncio.create_task(
                collect(client, make_request(str(i), "x", max_tokens=None, n_keep=0))
            )
            for i in range(3)
        ]
        await until(lambda: len(engine.rig.scheduler.running) == 2)
        await client.close()
        for reader in readers:
            end = (await reader)[-1]
            assert isinstance(end, Failed)
            assert end.error == "ShuttingDown"
        await client.close()
        (event,) = await collect(client, A)
        assert isinstance(event, Failed)

    play(scene)


def test_an_iterator_that_is_closed_after_the_engine_does_no_harm(engine: ThreadEngine) -> None:
    async def scene() -> None:
        async with started() as client:
            events = client.submit(LONG)
            await anext(events)
        await events.aclose()  # type: ignore[attr-defined]

    play(scene)


# --- a real process -----------------------------------------------------------------------


def test_a_real_engine_process_answers_and_its_death_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import multiprocessing

    monkeypatch.setattr(client_module, "BACK_OFF_S", 1000.0)
    settings = EngineSettings(
        model_path=smollm2_path(), context_size=256, num_slots=2, batch_size=256, num_threads=1
    )

    async def scene() -> None:
        # Servers of other tests may have engines of their own.
        others = set(multiprocessing.active_children())
        client = EngineClient(settings, queue_size=2)
        await client.start()
        await client.wait_ready()
        prompt = client.vocabulary.tokenize(
            "The capital of France is", add_special=True, parse_special=True
        )
        events = await collect(client, make_request("a", prompt, max_tokens=4))
        assert "Paris" in text(events)
        running = client.submit(make_request("b", prompt, max_tokens=None, n_keep=0))
        await anext(running)
        (process,) = set(multiprocessing.active_children()) - others
        process.kill()
        rest = [event async for event in running]
        assert isinstance(rest[-1], Failed)
        assert rest[-1].error == "RuntimeCrashed"
        assert client.state is EngineState.RESTARTING
        await client.close()
        assert not set(multiprocessing.active_children()) - others

    play(scene)


def test_a_file_that_is_no_model_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"nonsense")

    async def scene() -> None:
        client = EngineClient(EngineSettings(model_path=path), queue_size=2)
        await client.start()
        with pytest.raises(SelfError, match="is not a GGUF file"):
            await client.wait_ready()
        await client.close()

    play(scene)
