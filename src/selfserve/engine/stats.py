"""Counters of the engine, and the heartbeat that carries them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from selfserve.engine.memory import PromptMemory
from selfserve.engine.pictures import Pictures
from selfserve.engine.plan import Plan
from selfserve.engine.scheduler import Scheduler
from selfserve.request import Event, Failed, Finished, Heartbeat, SlotState


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTimes:
    """Seconds of one step."""

    take_in: float
    operate: float
    plan: float
    run: float
    commit: float


class EngineStats:
    """Totals since the engine's start."""

    def __init__(
        self, scheduler: Scheduler, memory: PromptMemory, pictures: Pictures | None = None
    ) -> None:
        self._scheduler = scheduler
        self._memory = memory
        self._pictures = pictures
        self.num_aborted = 0
        self._counters: dict[str, float] = {
            "steps": 0,
            "step_ms": 0.0,
            "take_in_ms": 0.0,
            "memory_ms": 0.0,
            "plan_ms": 0.0,
            "commit_ms": 0.0,
            "prompt_tokens_computed": 0,
            "requests_finished": 0,
            "requests_failed": 0,
        }

    def record(self, plan: Plan, times: PhaseTimes) -> None:
        """Counts one step."""
        counters = self._counters
        counters["steps"] += 1
        counters["step_ms"] += times.run * 1e3
        counters["take_in_ms"] += times.take_in * 1e3
        counters["memory_ms"] += times.operate * 1e3
        counters["plan_ms"] += times.plan * 1e3
        counters["commit_ms"] += times.commit * 1e3
        counters["prompt_tokens_computed"] += plan.num_prefill_tokens

    def count(self, events: Sequence[Event]) -> None:
        """Counts the requests that ended."""
        for event in events:
            if isinstance(event, Finished):
                self._counters["requests_finished"] += 1
            elif isinstance(event, Failed):
                self._counters["requests_failed"] += 1

    def heartbeat(self) -> Heartbeat:
        scheduler, memory = self._scheduler, self._memory
        encoder = self._pictures.encoder if self._pictures is not None else None
        return Heartbeat(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            slots=tuple(self._slot_states()),
            counters={
                **self._counters,
                "requests_aborted": self.num_aborted,
                "prompt_tokens_cached": memory.num_cached_tokens,
                "generated_tokens": scheduler.num_generated,
                "draft_tokens": scheduler.num_drafted,
                "draft_tokens_accepted": scheduler.num_accepted,
                "cache_bytes": memory.host.num_bytes,
                "cache_entries": len(memory.host.records),
                "cache_hits": memory.num_hits,
                "cache_evictions": memory.host.num_evictions,
                "pictures_encoded": encoder.num_encoded if encoder is not None else 0,
                "pictures_reused": encoder.num_reused if encoder is not None else 0,
            },
        )

    def _slot_states(self) -> list[SlotState]:
        states = []
        for slot in self._memory.slots:
            owner = slot.owner
            if owner is None:
                states.append(SlotState(id=slot.slot, request_id=None, num_tokens=len(slot.tokens)))
            else:
                states.append(
                    SlotState(
                        id=slot.slot,
                        request_id=owner.id,
                        num_tokens=owner.num_computed,
                        num_prompt=owner.num_prompt,
                        num_generated=owner.num_generated,
                    )
                )
        return states
