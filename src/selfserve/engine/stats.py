"""Counters of the engine, and the heartbeat that carries them."""

from __future__ import annotations

from collections.abc import Sequence

from selfserve.engine.plan import Plan
from selfserve.engine.scheduler import Scheduler
from selfserve.request import Event, Failed, Finished, Heartbeat, SlotState


class EngineStats:
    """Totals since the engine's start."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.num_aborted = 0
        self._counters: dict[str, float] = {
            "steps": 0,
            "step_ms": 0.0,
            "prompt_tokens_computed": 0,
            "prompt_tokens_cached": 0,
            "generated_tokens": 0,
            "draft_tokens": 0,
            "draft_tokens_accepted": 0,
            "requests_finished": 0,
            "requests_failed": 0,
        }

    def record(self, plan: Plan, ms: float) -> None:
        """Counts one step."""
        counters = self._counters
        counters["steps"] += 1
        counters["step_ms"] += ms
        counters["prompt_tokens_computed"] += plan.num_prefill_tokens

    def count(self, events: Sequence[Event]) -> None:
        """Counts the requests that ended."""
        counters = self._counters
        for event in events:
            if isinstance(event, Finished):
                counters["requests_finished"] += 1
                counters["generated_tokens"] += event.completion_tokens
                counters["prompt_tokens_cached"] += event.cached_tokens
                counters["draft_tokens"] += event.timings.draft_n
                counters["draft_tokens_accepted"] += event.timings.draft_n_accepted
            elif isinstance(event, Failed):
                counters["requests_failed"] += 1

    def heartbeat(self) -> Heartbeat:
        scheduler = self._scheduler
        pool = scheduler.slots.pool
        encoder = scheduler.pictures.encoder if scheduler.pictures is not None else None
        return Heartbeat(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            slots=tuple(self._slot_states()),
            counters={
                **self._counters,
                "requests_aborted": self.num_aborted,
                "prompt_tokens_computed": (
                    self._counters["prompt_tokens_computed"] + scheduler.long_prompts.num_tokens
                ),
                "cache_bytes": pool.num_bytes,
                "cache_entries": len(pool),
                "cache_hits": pool.num_hits,
                "cache_evictions": pool.num_evictions,
                "pictures_encoded": encoder.num_encoded if encoder is not None else 0,
                "pictures_reused": encoder.num_reused if encoder is not None else 0,
            },
        )

    def _slot_states(self) -> list[SlotState]:
        states = []
        for slot in self._scheduler.slots.slots:
            owner = slot.owner
            if owner is None:
                states.append(SlotState(id=slot.id, request_id=None, num_tokens=len(slot.tokens)))
            else:
                states.append(
                    SlotState(
                        id=slot.id,
                        request_id=owner.id,
                        num_tokens=owner.num_computed,
                        num_prompt=owner.num_prompt,
                        num_generated=owner.num_generated,
                    )
                )
        return states
