"""The engine put together as it is in its process, around a scripted runner."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.support.builders import make_request
from tests.support.byte_vocabulary import ByteVocabulary
from tests.support.scripted_pictures import flat_layout, make_picture
from tests.support.scripted_runner import ScriptedRunner, answer_of, endless, reading

from selfserve.config import EngineSettings
from selfserve.engine.llama_runner import LlamaRunner
from selfserve.engine.pictures import Encoded, Piece
from selfserve.engine.process import serve
from selfserve.engine.runner import PictureReader, Runner
from selfserve.request import (
    PICTURE_TOKEN,
    Command,
    Constraint,
    Delta,
    Failed,
    Finished,
    Message,
    Picture,
    Ready,
    Request,
    Shutdown,
    Submit,
)

PATIENCE_S = 20.0


class Wire:
    """Both ends of an engine that runs on this thread: says Shutdown once these have ended."""

    def __init__(self, *requests: Request) -> None:
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        for request in requests:
            self._commands.put(Submit(request=request))
        self._num_left = len(requests)
        self.messages: list[Message] = []

    def receive(self, timeout_s: float) -> list[Command]:
        try:
            return [self._commands.get(timeout=timeout_s)]
        except queue.Empty:
            return []

    def __call__(self, messages: Sequence[Message]) -> None:
        self.messages += messages
        self._num_left -= sum(isinstance(m, Finished | Failed) for m in messages)
        if self._num_left <= 0:
            self._commands.put(Shutdown())

    def text(self, request_id: str) -> str:
        deltas = (m for m in self.messages if isinstance(m, Delta) and m.id == request_id)
        return "".join(delta.content for delta in deltas)

    def end(self, request_id: str) -> Finished:
        (end,) = (
            m for m in self.messages if isinstance(m, Finished | Failed) and m.id == request_id
        )
        assert isinstance(end, Finished), end
        return end


def served(runner: ScriptedRunner, *requests: Request, speculate: bool = True) -> Wire:
    before = threading.active_count()
    settings = EngineSettings(model_path=Path("unused.gguf"), speculate=speculate)
    wire = Wire(*requests)
    serve(settings, runner, wire, wire)
    runner.close()
    assert threading.active_count() == before
    return wire


@pytest.mark.parametrize("kind", [ScriptedRunner, LlamaRunner])
def test_a_runner_has_all_that_the_engine_asks_for(kind: type) -> None:
    wanted = {name for name in vars(Runner) if not name.startswith("_")}
    assert "run" in wanted
    given = set(dir(ScriptedRunner() if kind is ScriptedRunner else kind))
    assert not wanted - given
    assert kind is not ScriptedRunner or isinstance(ScriptedRunner(), Runner)


def test_the_whole_engine_serves_requests_of_all_kinds() -> None:
    plain = make_request("plain", "Hello", max_tokens=30)
    bound = make_request("bound", "?", constraint=Constraint(text='start: "yes" | "no"'))
    wire = served(ScriptedRunner(predict=endless), plain, bound)
    first = wire.messages[0]
    assert isinstance(first, Ready)
    assert (first.context_size, first.num_slots, first.can_shift) == (512, 4, True)
    assert wire.text("plain") == ByteVocabulary().text(answer_of(plain.prompt, 30, endless))
    assert wire.text("bound") in ("yes", "no")


@pytest.mark.parametrize("speculate", [True, False])
def test_the_whole_engine_drafts_as_its_settings_say(speculate: bool) -> None:
    runner = ScriptedRunner(predict=reading({"la " * 20: "la " * 60}))
    wire = served(runner, make_request("a", "la " * 20, max_tokens=150), speculate=speculate)
    assert wire.text("a") == ("la " * 60)[:150]
    assert (wire.end("a").timings.draft_n > 0) == speculate


class _Reader:
    """Encodes when the gate opens."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def layout(self, width: int, height: int) -> Sequence[Piece]:
        return flat_layout(width, height)

    def encode(self, picture: Picture) -> Encoded:
        import numpy as np

        assert self.gate.wait(PATIENCE_S)
        return (np.zeros((picture.width * picture.height, 2), dtype=np.float32),)


def test_the_whole_engine_wakes_up_for_a_picture_that_is_encoded() -> None:
    reader = _Reader()
    runner = ScriptedRunner(predict=endless)
    runner.pictures = reader
    checked: PictureReader = reader
    assert checked is not None
    talking = make_request("talking", "Hello", max_tokens=10)
    seeing = make_request("seeing", [1, PICTURE_TOKEN, 2], pictures=(make_picture("cat"),))
    opened: Callable[[], None] = reader.gate.set
    runner.fault = lambda plan: opened()  # type: ignore[func-returns-value]
    wire = served(runner, seeing, talking)
    assert wire.end("seeing").prompt_tokens == 2 + 12 + 2
    assert wire.end("talking").completion_tokens == 10
