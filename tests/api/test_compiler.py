"""Compiling in a process of its own: the same answers and errors, and nobody waits for nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psutil
import pytest

from selfserve.api import compiler as compilers
from selfserve.api.compiler import ProcessCompiler, ThreadCompiler
from selfserve.errors import InternalError, InvalidRequest

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"const": "😀\n"}}}


@pytest.fixture(scope="module")
def compiler() -> Iterator[ProcessCompiler]:
    made = ProcessCompiler()
    yield made
    made.close()


def test_the_process_compiles_what_a_thread_compiles(compiler: ProcessCompiler) -> None:
    here = ThreadCompiler()
    grammar = 'root ::= "a" | "b" root'
    assert compiler.json_schema(SCHEMA, param="p") == here.json_schema(SCHEMA, param="p")
    assert compiler.gbnf(grammar, param="p") == here.gbnf(grammar, param="p")


def test_an_error_comes_out_of_the_process_as_it_is(compiler: ProcessCompiler) -> None:
    for ask in (compiler, ThreadCompiler()):
        with pytest.raises(InvalidRequest, match="multipleOf") as caught:
            ask.json_schema({"type": "integer", "multipleOf": "x"}, param="json_schema")
        assert caught.value.param == "json_schema"


def test_whoever_is_not_waited_for_leaves_and_the_next_gets_an_answer_of_its_own(
    compiler: ProcessCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unwanted(Exception):
        pass

    def nobody_waits() -> None:
        raise Unwanted

    compiler.gbnf('root ::= "warm"', param="p")
    monkeypatch.setattr(compilers, "POLL_S", 0.0)
    monkeypatch.setattr(compilers, "check_wanted", nobody_waits)
    with pytest.raises(Unwanted):
        compiler.json_schema({"enum": [f"word {i}" for i in range(2000)]}, param="p")
    monkeypatch.undo()
    assert compiler.gbnf('root ::= "x"', param="p") == ThreadCompiler().gbnf(
        'root ::= "x"', param="p"
    )


def test_a_process_that_died_is_made_anew(compiler: ProcessCompiler) -> None:
    compiler.start()
    assert compiler._process is not None
    dead = compiler._process
    dead.kill()
    dead.join()
    assert "x" in compiler.gbnf('root ::= "x"', param="p").text
    assert compiler._process is not dead


def test_one_that_dies_while_it_compiles_fails_that_request_alone() -> None:
    compiler = ProcessCompiler()
    compiler.start()
    assert compiler._process is not None
    process = psutil.Process(compiler._process.pid)
    process.suspend()
    failure: list[BaseException] = []

    def ask() -> None:
        try:
            compiler.gbnf('root ::= "x"', param="p")
        except InternalError as error:
            failure.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    process.kill()
    asking.join(30)
    assert len(failure) == 1
    assert "x" in compiler.gbnf('root ::= "x"', param="p").text
    compiler.close()
    with pytest.raises(InternalError):
        compiler.gbnf('root ::= "x"', param="p")
