"""The events of one request that nobody has read yet."""

from __future__ import annotations

import asyncio
import random

import pytest

from selfserve.engine.client import UNREAD_BYTES, Mailbox
from selfserve.request import Delta, Event


@pytest.mark.parametrize("seed", range(5))
def test_a_mailbox_holds_and_lets_go_in_turn_and_loses_nothing(seed: int) -> None:
    rng = random.Random(seed)
    orders: list[bool] = []

    async def scene() -> None:
        mailbox = Mailbox(orders.append)
        events = [Delta(id="a", content="x" * rng.randrange(4000)) for _ in range(400)]
        taken: list[Event] = []
        for event in events:
            mailbox.put(event)
            assert (mailbox._size <= UNREAD_BYTES) or orders[-1], f"seed {seed}"
            while rng.random() < 0.45 and len(taken) < events.index(event):
                taken.append(await mailbox.get())
        while len(taken) < len(events):
            taken.append(await mailbox.get())
        assert taken == events
        assert mailbox._size == 0

    asyncio.run(scene())
    assert orders == [True, False] * (len(orders) // 2), f"seed {seed}"
    assert orders
