"""An engine that answers from a script: the tests of the API need no model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.byte_vocabulary import BOS as BOS
from tests.support.byte_vocabulary import ByteVocabulary as ByteVocabulary

from selfserve.config import ModelInfo
from selfserve.engine.interface import EngineState
from selfserve.errors import QueueFull, RuntimeCrashed
from selfserve.request import (
    Delta,
    Event,
    Failed,
    Finished,
    Heartbeat,
    Progress,
    Ready,
    Request,
    StopType,
    Timings,
)

MODEL = ModelInfo(id="tiny:1b", quant="q4", family="tiny", created=1700000000)

THINKING_TEMPLATE = """\
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% else %}<think>
{% endif -%}
{%- endif -%}
"""
"""A small ChatML template of a model that always thinks unless it is told not to."""


@dataclass
class Script:
    """What the engine does with one request: its deltas, then its end."""

    pieces: Sequence[str | Delta | Progress] = ("Hello", " there")
    """Texts are content."""
    thoughts: Sequence[str] = ()
    """Deltas of thinking in front."""
    stop_type: StopType = StopType.EOS
    fails: str | None = None
    """Class name of the error that ends it."""
    message: str = "the engine failed"
    stalls: bool = False
    """True: waits for `gate` before the first delta."""
    stalls_at_end: bool = False
    """True: waits for `gate` before the end."""
    pauses: bool = True
    """True: gives other tasks a turn before each delta; False: all are waiting at once."""
    ends: bool = True
    """False: the stream of events breaks off without a final event."""
    cached_tokens: int = 0
    stopping_word: str = ""
    truncated: bool = False


@dataclass
class FakeEngine:
    """A scripted `Engine`; what was asked of it is there to look at."""

    script: Script = field(default_factory=Script)
    vocabulary: Any = field(default_factory=ByteVocabulary)
    state: EngineState = EngineState.READY
    ready: Ready | None = field(
        default_factory=lambda: Ready(context_size=4096, num_slots=2, can_shift=True)
    )
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    capacity: int = 8
    refusal: Exception | None = None
    """What `reserve` raises instead of giving a place."""
    requests: list[Request] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    num_reserved: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    @contextmanager
    def reserve(self, count: int = 1) -> Iterator[None]:
        if self.refusal is not None:
            raise self.refusal
        if self.state is not EngineState.READY:
            raise RuntimeCrashed("the engine is away")
        if self.num_reserved + count > self.capacity:
            raise QueueFull("the waiting queue is full", retry_after_s=2)
        self.num_reserved += count
        try:
            yield
        finally:
            self.num_reserved -= count

    async def submit(self, request: Request) -> AsyncGenerator[Event, None]:
        self.requests.append(request)
        has_ended = False
        try:
            if self.script.stalls:
                await self.gate.wait()
            for delta in self._deltas(request):
                if self.script.pauses:
                    await asyncio.sleep(0)
                yield delta
            if self.script.stalls_at_end:
                await self.gate.wait()
            has_ended = True
            if self.script.ends:
                yield self._end(request)
        finally:
            if not has_ended:
                self.aborted.append(request.id)

    def _deltas(self, request: Request) -> Iterator[Delta | Progress]:
        for thought in self.script.thoughts:
            yield Delta(id=request.id, reasoning=thought)
        for piece in self.script.pieces:
            yield Delta(id=request.id, content=piece) if isinstance(piece, str) else piece

    def _end(self, request: Request) -> Event:
        script = self.script
        if script.fails:
            return Failed(id=request.id, error=script.fails, message=script.message)
        num_thoughts = len(script.thoughts)
        return Finished(
            id=request.id,
            stop_type=script.stop_type,
            stopping_word=script.stopping_word,
            truncated=script.truncated,
            prompt_tokens=len(request.prompt),
            cached_tokens=script.cached_tokens,
            completion_tokens=num_thoughts + len(script.pieces),
            reasoning_tokens=num_thoughts,
            slot=0,
            timings=Timings(prompt_n=len(request.prompt), prompt_ms=5.0, predicted_n=3),
        )
