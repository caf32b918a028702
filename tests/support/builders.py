"""Requests with a default for each field, and an engine on a scripted runner that is stepped by
hand, with a clock that only moves by what steps cost."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from tests.support.byte_vocabulary import EOS, VOCAB_SIZE, ByteVocabulary, grammar_tokenizer
from tests.support.inline_prefiller import scripted_prefiller
from tests.support.scripted_runner import ScriptedRunner, answer_of

from selfserve.engine.constraint import ConstraintFactory, ConstraintState
from selfserve.engine.pace import GUESS, StepPace
from selfserve.engine.scheduler import Scheduler
from selfserve.engine.slots import SlotTable
from selfserve.engine.speculation import StepCosts
from selfserve.errors import SelfError
from selfserve.request import Constraint, Delta, Event, Failed, Finished, Request, SamplingParams

GREEDY = SamplingParams(temperature=0.0)
STEP_MS, TOKEN_MS = 2.0, 1.0
"""What a step of the scripted runner costs by the clock, and each of its tokens beyond that."""


def make_request(
    id: str = "a",
    prompt: str | Sequence[int] = "Hello",
    *,
    max_tokens: int | None = 8,
    **fields: Any,
) -> Request:
    """A greedy request; a text is its bytes."""
    ids = tuple(prompt.encode() if isinstance(prompt, str) else prompt)
    fields.setdefault("sampling", GREEDY)
    return Request(id=id, prompt=ids, max_tokens=max_tokens, **fields)


def random_text(seed: int, length: int) -> str:
    rng = random.Random(seed)
    return "".join(rng.choice("abcdefgh ") for _ in range(length))


def grammar_state(text: str) -> ConstraintState:
    """A compiled grammar in llguidance's form, over the byte vocabulary."""
    factory = ConstraintFactory(
        grammar_tokenizer(), eog_ids=frozenset({EOS}), vocab_size=VOCAB_SIZE
    )
    return factory.compile(Constraint(text=text))


class Clock:
    """Seconds; moves only when told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Rig:
    """A scheduler with all around it; every event that it ever gave is in `events`."""

    def __init__(
        self,
        runner: ScriptedRunner | None = None,
        *,
        cache_ram_bytes: int = 1 << 20,
        step_ms: float = 20.0,
        costs: StepCosts | None = None,
        pace_costs: StepCosts = GUESS,
        side_polls: int | None = None,
        side_fails: str = "",
        **runner_fields: Any,
    ) -> None:
        self.runner = runner or ScriptedRunner(**runner_fields)
        self.clock = Clock()
        limits = self.runner.capabilities
        self.slots = SlotTable(self.runner, cache_ram_bytes)
        self.pace = StepPace(step_ms, limits.batch_size, limits.num_slots, pace_costs)
        self.side = scripted_prefiller(self.runner, side_polls or 0, fails=side_fails)
        self.scheduler = Scheduler(
            self.runner,
            self.slots,
            self.pace,
            costs=costs,
            prefiller=self.side if side_polls is not None else None,
            clock=self.clock,
        )
        self.requests: dict[str, Request] = {}
        self.events: list[Event] = []
        self.num_steps = 0

    def add(self, request: Request, constraint: ConstraintState | None = None) -> None:
        self.requests[request.id] = request
        self.scheduler.add(request, constraint)

    def step(self) -> list[Event]:
        """One step, if there is anything to compute; what it told."""
        plan = self.scheduler.schedule()
        self.events += self.scheduler.take_untold()
        if plan is None:
            return []
        outcome = self.runner.run(plan)
        ms = STEP_MS + TOKEN_MS * plan.num_tokens
        self.clock.now_s += ms / 1e3
        events = self.scheduler.commit(plan, outcome, ms)
        self.events += events
        self.num_steps += 1
        return events

    def run(self, requests: Iterable[Request] = (), *, max_steps: int = 3000) -> None:
        """Adds the requests and steps until nothing is left to do."""
        for request in requests:
            self.add(request)
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                return
            self.step()
        raise AssertionError(f"still at work after {max_steps} steps")

    def fail_all(self, error: SelfError) -> None:
        self.events += self.scheduler.fail_all(error)

    # --- what came out --------------------------------------------------------------------

    def deltas(self, request_id: str) -> list[Delta]:
        return [e for e in self.events if isinstance(e, Delta) and e.id == request_id]

    def tokens(self, request_id: str) -> list[int]:
        return [token for delta in self.deltas(request_id) for token in delta.tokens]

    def text(self, request_id: str) -> str:
        return "".join(delta.content for delta in self.deltas(request_id))

    def reasoning(self, request_id: str) -> str:
        return "".join(delta.reasoning for delta in self.deltas(request_id))

    def ends(self, request_id: str) -> list[Finished | Failed]:
        return [e for e in self.events if isinstance(e, Finished | Failed) and e.id == request_id]

    def finished(self, request_id: str) -> Finished:
        """The one final event, which must be the last one and a success."""
        (end,) = self.ends(request_id)
        assert isinstance(end, Finished), end
        assert [e for e in self.events if e.id == request_id][-1] is end
        return end

    def failed(self, request_id: str) -> Failed:
        (end,) = self.ends(request_id)
        assert isinstance(end, Failed), end
        return end

    def expected(self, request: Request) -> str:
        """The text of a greedy answer that was computed cold and alone."""
        limits = self.runner.capabilities
        room = limits.context_size if request.max_tokens is None else request.max_tokens
        answer = answer_of(
            request.prompt, room, self.runner.predict, context_size=limits.context_size
        )
        return ByteVocabulary().text([token for token in answer if token != EOS])

    def check_idle(self) -> None:
        """Nothing is left behind: no owner, no sampler, no request, and the books agree."""
        assert not self.scheduler.has_work
        assert self.slots.num_free == self.runner.capabilities.num_slots
        assert self.runner.num_open_samplers == 0
        self.slots.check()
        for slot in self.slots.slots:
            assert slot.tokens.tolist() == self.runner.memory[slot.id]
