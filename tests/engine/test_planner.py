"""The numbers of a plan's rows, for any mix of chunks."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.builders import Rig, make_request

from selfserve.engine.plan import Chunk, Plan


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=8), st.randoms()
)
@settings(max_examples=40, deadline=None)
def test_rows_and_outputs_are_numbered_in_the_order_of_slots(
    shapes: list[tuple[int, int]], rng: random.Random
) -> None:
    rig = Rig(num_slots=8)
    rig.add(make_request())
    sequence = rig.scheduler.waiting[0][0]
    chunks = [
        Chunk(
            sequence=sequence,
            slot=slot,
            start=7,
            tokens=list(range(size)),
            num_outputs=min(outputs, size),
        )
        for slot, (size, outputs) in enumerate(shapes)
    ]
    rng.shuffle(chunks)
    plan = Plan(chunks).finish()
    rows = [
        (chunk.slot, i >= len(chunk.tokens) - chunk.num_outputs)
        for chunk in plan.chunks
        for i in range(len(chunk.tokens))
    ]
    assert [chunk.slot for chunk in plan.chunks] == list(range(len(shapes)))
    outputs = [row for row, (_, wanted) in enumerate(rows) if wanted]
    for chunk in plan.chunks:
        own = range(chunk.first_row, chunk.first_row + chunk.num_outputs)
        assert [rows[row] for row in own] == [(chunk.slot, True)] * chunk.num_outputs
        assert list(own) == outputs[chunk.first_output : chunk.first_output + chunk.num_outputs]


def test_a_draft_does_not_count_as_computed() -> None:
    rig = Rig()
    rig.add(make_request())
    sequence = rig.scheduler.waiting[0][0]
    chunk = Chunk(
        sequence=sequence, slot=0, start=10, tokens=[1, 2, 3], draft=[2, 3], num_outputs=3
    )
    assert chunk.num_computed == 11
