"""Grammars are compiled beside the loop; whoever waits for one hears of it, whatever it becomes."""

from __future__ import annotations

import threading

import pytest
from selfserve.engine.grammars import Built, GrammarBuilder
from tests.support.builders import make_request
from tests.support.byte_vocabulary import EOS, VOCAB_SIZE, grammar_tokenizer

from selfserve.engine.constraint import ConstraintFactory, ConstraintState
from selfserve.errors import InternalError, InvalidRequest
from selfserve.request import Constraint


def make_factory() -> ConstraintFactory:
    return ConstraintFactory(grammar_tokenizer(), eog_ids=frozenset({EOS}), vocab_size=VOCAB_SIZE)


class Waker:
    """Counts the calls; `wait` returns at the next one."""

    def __init__(self) -> None:
        self._calls = threading.Semaphore(0)

    def __call__(self) -> None:
        self._calls.release()

    def wait(self) -> None:
        assert self._calls.acquire(timeout=20), "the builder never woke the loop"


def built(builder: GrammarBuilder, waker: Waker, *grammars: str) -> list[Built]:
    """The results for requests "0", "1", … with these grammars."""
    for i, text in enumerate(grammars):
        builder.build(make_request(str(i), constraint=Constraint(text=text)))
    results: list[Built] = []
    for _ in grammars:
        waker.wait()
        results += builder.take_built()
    return results


def test_grammars_come_out_in_the_order_in_which_they_went_in() -> None:
    waker = Waker()
    builder = GrammarBuilder(make_factory, waker)
    results = built(builder, waker, 'start: "a"', 'start: "b"', 'start: "a"')
    assert [request.id for request, _ in results] == ["0", "1", "2"]
    assert all(isinstance(result, ConstraintState) for _, result in results)
    assert results[0][1] is not results[2][1]
    builder.close()


def test_a_grammar_that_cannot_be_compiled_is_the_fault_of_its_request() -> None:
    waker = Waker()
    builder = GrammarBuilder(make_factory, waker)
    (_, bad), (_, good) = built(builder, waker, "start: nonsense nonsense", 'start: "b"')
    assert isinstance(bad, InvalidRequest)
    assert isinstance(good, ConstraintState)
    builder.close()


def test_a_fault_of_the_builder_is_told_without_its_cause() -> None:
    def broken() -> ConstraintFactory:
        raise ValueError("secret cause")

    waker = Waker()
    builder = GrammarBuilder(broken, waker)
    ((_, result),) = built(builder, waker, 'start: "a"')
    assert isinstance(result, InternalError)
    assert "secret" not in result.message
    builder.close()


def test_a_forgotten_grammar_never_comes_out() -> None:
    gate, waker = threading.Event(), Waker()

    def slow() -> ConstraintFactory:
        assert gate.wait(20)
        return make_factory()

    builder = GrammarBuilder(slow, waker)
    builder.build(make_request("gone", constraint=Constraint(text='start: "a"')))
    builder.build(make_request("stays", constraint=Constraint(text='start: "b"')))
    assert builder.take_built() == []
    builder.forget("gone")
    builder.forget("never heard of")
    gate.set()
    waker.wait()
    waker.wait()
    assert [request.id for request, _ in builder.take_built()] == ["stays"]
    builder.close()


def test_the_tables_are_made_at_the_first_grammar_and_only_once() -> None:
    calls: list[int] = []

    def counted() -> ConstraintFactory:
        calls.append(1)
        return make_factory()

    waker = Waker()
    builder = GrammarBuilder(counted, waker)
    assert not calls
    built(builder, waker, 'start: "a"', 'start: "b"')
    assert len(calls) == 1
    builder.close()


@pytest.mark.parametrize("num_grammars", [0, 3])
def test_closing_leaves_no_thread(num_grammars: int) -> None:
    before = threading.active_count()
    builder = GrammarBuilder(make_factory, lambda: None)
    for i in range(num_grammars):
        builder.build(make_request(str(i), constraint=Constraint(text='start: "a"')))
    builder.close()
    assert threading.active_count() == before
