"""The side thread: whole memories or none, and nobody waits for a job that nobody wants."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from tests.support.inline_prefiller import ScriptedSideMemory

from selfserve.engine.prefiller import Job, Prefiller
from selfserve.engine.runner import Blob
from selfserve.engine.turns import ComputeTurns
from selfserve.errors import ModelLoadError

PATIENCE_S = 10.0
TOKENS = list(range(100, 130))


class Bench:
    """A prefiller whose memory computes only while `gate` is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Event()
        self.cannot_open = False
        self.sizes: list[int] = []
        self.memory: ScriptedSideMemory | None = None
        self._woken = threading.Semaphore(0)
        turns = ComputeTurns(0.05)
        self.prefiller = Prefiller(self._open, lambda slot: None, turns, self._woken.release)

    def _open(self, size: int, between: Callable[[], bool]) -> ScriptedSideMemory:
        self.sizes.append(size)
        if self.cannot_open:
            raise ModelLoadError("there is too little memory")

        def gated() -> bool:
            self.started.set()
            assert self.gate.wait(PATIENCE_S)
            return between()

        self.memory = ScriptedSideMemory(size, gated)
        return self.memory

    def run(self, job: Job) -> Job:
        self.prefiller.begin(job)
        return self.await_done()

    def await_done(self) -> Job:
        while (done := self.prefiller.collect()) is None:
            assert self._woken.acquire(timeout=PATIENCE_S)
        return done


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.gate.set()
    made.prefiller.close()


def job(
    request_id: str = "a",
    start: int = 0,
    end: int = 30,
    *,
    blob: Blob | None = None,
    num_prompt: int = 30,
) -> Job:
    return Job(request_id, TOKENS[start:end], start, 8, blob, num_prompt)


def held(blob: Blob | None) -> list[int]:
    assert blob is not None
    memory = ScriptedSideMemory(len(TOKENS), lambda: True)
    memory.restore(blob, blob.size // 8 - 1)
    return memory.tokens


def test_a_job_ends_with_the_memory_of_all_its_tokens(bench: Bench) -> None:
    done = bench.run(job())
    assert held(done.result) == TOKENS
    assert done.num_computed == 30
    assert bench.prefiller.holds("a", 30)
    assert not bench.prefiller.holds("b", 30)


def test_a_job_begins_where_a_copied_memory_ends(bench: Bench) -> None:
    begun = bench.run(job(end=10)).result
    bench.run(job("b", end=5))
    assert held(bench.run(job(start=10, blob=begun)).result) == TOKENS


def test_a_job_goes_on_from_what_the_memory_holds(bench: Bench) -> None:
    bench.run(job(end=10))
    assert held(bench.run(job(start=10)).result) == TOKENS


def test_nothing_of_the_job_before_is_left_for_a_prompt_from_its_start(bench: Bench) -> None:
    bench.run(job(end=10))
    assert held(bench.run(job("b", end=20)).result) == TOKENS[:20]


def test_a_cancelled_job_stops_within_its_piece_and_gives_nothing(bench: Bench) -> None:
    bench.gate.clear()
    bench.prefiller.begin(job())
    assert bench.started.wait(PATIENCE_S)
    bench.prefiller.cancel()
    bench.gate.set()
    done = bench.await_done()
    assert done.result is None
    assert done.num_computed == 0
    assert not bench.prefiller.holds("a", 30)
    assert held(bench.run(job("b")).result) == TOKENS, "the next one starts from nothing"


def test_a_failed_computation_gives_nothing_and_the_next_job_works(bench: Bench) -> None:
    bench.run(job(end=3))
    assert bench.memory is not None
    bench.memory.fails = True
    assert bench.run(job("b")).result is None
    bench.memory.fails = False
    assert held(bench.run(job("c")).result) == TOKENS
    assert not bench.prefiller.is_broken


def test_a_memory_that_cannot_be_made_is_known_from_then_on(bench: Bench) -> None:
    bench.cannot_open = True
    assert bench.run(job()).result is None
    assert bench.prefiller.is_broken


def test_the_memory_grows_with_the_prompts_and_no_more_often(bench: Bench) -> None:
    for size in (10, 30, 20, 30):
        assert held(bench.run(job(end=10, num_prompt=size)).result) == TOKENS[:10]
    assert bench.sizes == [10, 30]


def test_between_jobs_there_is_no_thread(bench: Bench) -> None:
    for name in "ab":
        bench.run(job(name))
        assert not any(thread.name == "prefill" for thread in threading.enumerate())


def test_closing_does_not_wait_for_the_rest_of_a_job(bench: Bench) -> None:
    bench.gate.clear()
    bench.prefiller.begin(job())
    assert bench.started.wait(PATIENCE_S)
    closing = threading.Thread(target=bench.prefiller.close)
    closing.start()
    bench.gate.set()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    assert bench.memory is not None
    assert bench.memory.tokens == []
