"""Requests with a default for each field, and an engine on a scripted runner that is stepped by
hand, with a clock that only moves by what steps cost."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from tests.support.byte_vocabulary import EOS, VOCAB_SIZE, ByteVocabulary, grammar_tokenizer
from tests.support.scripted_runner import ScriptedRunner, answer_of

from selfserve.engine.constraint import ConstraintFactory, ConstraintState
from selfserve.engine.costs import GUESS, Costs, StepCosts
from selfserve.engine.intake import Preparation
from selfserve.engine.memory import PromptMemory
from selfserve.engine.pictures import PictureEncoder, Pictures
from selfserve.engine.plan import Plan
from selfserve.engine.scheduler import Scheduler, failed_by
from selfserve.errors import SelfError
from selfserve.request import Constraint, Delta, Event, Failed, Finished, Request, SamplingParams

GREEDY = SamplingParams(temperature=0.0)
SMALL_MODEL_ON_CPU = StepCosts({1: 1.0, 2: 1.25, 4: 1.6, 8: 2.4, 16: 4.0})
"""Costs at which drafts pay."""
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
        batches: StepCosts = GUESS,
        copy: tuple[int, float] = (1 << 20, 1.0),
        has_drafts: bool = False,
        encoder: Any = None,
        **runner_fields: Any,
    ) -> None:
        """`has_drafts`: drafts by prompt look-up. `encoder`: of the runner's pictures."""
        self.runner = runner or ScriptedRunner(**runner_fields)
        self.clock = Clock()
        limits = self.runner.capabilities
        self.costs = Costs(step_ms, limits.batch_size, limits.num_slots, batches=batches, copy=copy)
        self.memory = PromptMemory(self.runner, self.costs, cache_ram_bytes)
        pictures = None
        if self.runner.pictures is not None:
            made = encoder or PictureEncoder(self.runner.pictures.encode, lambda: None)
            pictures = Pictures(made)
        self.scheduler = Scheduler(
            limits, self.memory, self.costs, pictures=pictures, clock=self.clock
        )
        self.preparation = Preparation(
            self.runner, self.costs if has_drafts else None, clock=self.clock
        )
        self.requests: dict[str, Request] = {}
        self.events: list[Event] = []
        self.num_steps = 0

    def add(self, request: Request, constraint: ConstraintState | None = None) -> None:
        self.requests[request.id] = request
        try:
            sequence = self.preparation.sequence(request, constraint)
        except SelfError as error:
            self.events.append(failed_by(request.id, error))
        else:
            self.scheduler.take_in(sequence)

    def plan(self) -> Plan | None:
        """The memory phase, and what the step would compute."""
        self.scheduler.operate()
        return self.scheduler.plan()

    def step(self) -> list[Event]:
        """One step, if there is anything to compute; what it told."""
        plan = self.plan()
        self.events += self.scheduler.take_events()
        return [] if plan is None else self.commit(plan)

    def commit(self, plan: Plan) -> list[Event]:
        """Computes a plan; what it told."""
        result = self.runner.run(plan)
        ms = STEP_MS + TOKEN_MS * plan.num_tokens
        self.clock.now_s += ms / 1e3
        self.scheduler.commit(plan, result, ms)
        events = self.scheduler.take_events()
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

    def run_one(self, request: Request) -> None:
        """Adds a request and steps until it has ended, whatever others do."""
        self.add(request)
        while not self.ends(request.id):
            self.step()

    def fail_all(self, error: SelfError) -> None:
        self.scheduler.fail_all(error)
        self.events += self.scheduler.take_events()

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
        assert self.memory.num_free == self.runner.capabilities.num_slots
        assert self.runner.num_open_samplers == 0
        self.scheduler.operate()  # what is due in the slots
        self.memory.check()
        for slot in self.memory.slots:
            assert slot.tokens.tolist() == self.runner.memory[slot.slot]
