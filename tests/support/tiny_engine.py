"""An engine on a real tiny model in this process, stepped by hand, and what it answers when cold.

Numbers are F32 and flash attention is off, so that the only difference between two ways of
computing one prompt is the order of sums. Steps cost what a formula says, not what the clock says:
a run makes the same batches on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from tests.support.builders import Clock, make_request
from tests.support.scripted_pictures import ScriptedEncoder

from selfserve.config import EngineSettings
from selfserve.engine.costs import Costs, StepCosts
from selfserve.engine.intake import Preparation
from selfserve.engine.llama_runner import LlamaRunner
from selfserve.engine.memory import PromptMemory
from selfserve.engine.pictures import Layout, Pictures
from selfserve.engine.scheduler import Scheduler
from selfserve.native import library
from selfserve.request import Delta, Event, Failed, Finished, Request

COSTS = StepCosts({1: 2.5, 16: 10.0})
"""Milliseconds of a step by its tokens."""
TIE = 0.002
"""Difference of two log-probabilities under which the order of sums may decide who wins."""


@dataclass(frozen=True, slots=True)
class ColdAnswer:
    """An answer computed alone and from nothing, and by how much each token won."""

    tokens: tuple[int, ...]
    runners_up: tuple[int, ...]
    margins: tuple[float, ...]
    """Log-probability of each token less that of the next best."""

    def agrees(self, tokens: Sequence[int]) -> bool:
        """True if `tokens` are this answer or part from it at a tie, where either may win."""
        for i, (own, other) in enumerate(zip(self.tokens, tokens, strict=False)):
            if own != other:
                return self.margins[i] < TIE and other == self.runners_up[i]
        return len(tokens) == len(self.tokens)


class TinyEngine:
    """Runner, slots and scheduler as the engine process puts them together. Close it."""

    def __init__(
        self,
        path: Path,
        *,
        num_slots: int = 2,
        context_size: int = 1024,
        batch_size: int = 256,
        ubatch_size: int = 64,
        cache_ram_bytes: int = 64 << 20,
        step_ms: float = 50.0,
        has_drafts: bool = False,
        layout: Layout | None = None,
    ) -> None:
        """`layout`: of scripted pictures; None: text only."""
        self.runner = LlamaRunner(
            EngineSettings(
                model_path=path,
                context_size=context_size,
                num_slots=num_slots,
                num_threads=1,
                batch_size=batch_size,
                ubatch_size=ubatch_size,
                flash_attention="off",
                kv_type="f32",
            )
        )
        self.vocabulary = self.runner.vocabulary
        limits = self.runner.capabilities
        costs = Costs(step_ms, limits.batch_size, limits.num_slots, batches=COSTS)
        self.memory = PromptMemory(self.runner, costs, cache_ram_bytes)
        self.clock = Clock()
        self.encoder, pictures = ScriptedEncoder(), None
        if layout is not None:
            model = self.runner._model.handle
            self.encoder = ScriptedEncoder(int(library.load().llama_model_n_embd_inp(model)))
            pictures = Pictures(self.encoder)  # type: ignore[arg-type]
            reader = SimpleNamespace(layout=layout, close=lambda: None)
            self.runner._projector = reader  # type: ignore[assignment]
        self.scheduler = Scheduler(limits, self.memory, costs, pictures=pictures, clock=self.clock)
        self.preparation = Preparation(self.runner, costs if has_drafts else None, clock=self.clock)
        self.events: dict[str, list[Event]] = {}
        self.num_computed = 0
        """Tokens that went through the model so far."""

    def close(self) -> None:
        self.runner.close()

    def add(self, request: Request) -> None:
        self.events[request.id] = []
        self.scheduler.take_in(self.preparation.sequence(request))

    def step(self) -> None:
        """One step, if there is anything to compute."""
        self.scheduler.operate()
        plan = self.scheduler.plan()
        self._keep(self.scheduler.take_events())
        if plan is None:
            return
        result = self.runner.run(plan)
        self.num_computed += plan.num_tokens
        ms = COSTS.of(plan.num_tokens)
        self.clock.now_s += ms / 1e3
        self.scheduler.commit(plan, result, ms)
        self._keep(self.scheduler.take_events())

    def run(self, requests: Iterable[Request] = ()) -> None:
        """Adds the requests and steps until nothing is left to do."""
        for request in requests:
            self.add(request)
        for _ in range(5000):
            if not self.scheduler.has_work:
                return
            self.step()
        raise AssertionError("still at work after 5000 steps")

    def answer(self, request: Request) -> list[int]:
        """The tokens of one request's answer."""
        self.run([request])
        self.finished(request.id)
        return self.tokens(request.id)

    def _keep(self, events: Iterable[Event]) -> None:
        for event in events:
            self.events[event.id].append(event)

    def tokens(self, request_id: str) -> list[int]:
        deltas = (e for e in self.events[request_id] if isinstance(e, Delta))
        return [token for delta in deltas for token in delta.tokens]

    def finished(self, request_id: str) -> Finished:
        """The one final event, which must be a success."""
        end = self.events[request_id][-1]
        assert isinstance(end, Finished), end
        return end

    def has_ended(self, request_id: str) -> bool:
        events = self.events[request_id]
        return bool(events) and isinstance(events[-1], Finished | Failed)

    def text(self, tokens: Iterable[int]) -> str:
        return b"".join(self.vocabulary.piece(t, special=True) for t in tokens).decode()


class ColdAnswers:
    """What a model answers alone, from nothing; each prompt is computed once. Close it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._engine = TinyEngine(path, num_slots=1)
        self._known: dict[tuple[tuple[int, ...], int | None], ColdAnswer] = {}

    def of(self, request: Request) -> ColdAnswer:
        """The greedy answer to the request's prompt without a grammar."""
        key = (request.prompt, request.max_tokens)
        if key not in self._known:
            self._known[key] = self._compute(request)
        return self._known[key]

    def _compute(self, request: Request) -> ColdAnswer:
        cold = make_request(
            "cold", request.prompt, max_tokens=request.max_tokens, cache_prompt=False, n_probs=2
        )
        tokens = self._engine.answer(cold)
        deltas = (e for e in self._engine.events["cold"] if isinstance(e, Delta))
        tops = [probs.top for delta in deltas for probs in delta.probs]
        return ColdAnswer(
            tokens=tuple(tokens),
            runners_up=tuple(second.id for _, second in tops),
            margins=tuple(first.value - second.value for first, second in tops),
        )

    def close(self) -> None:
        self._engine.close()
