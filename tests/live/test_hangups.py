"""Clients that hang up at random points leave nothing behind."""

from __future__ import annotations

import httpx
import psutil
import pytest
from bench.hangups import (
    all_places_are_free,
    all_slots_are_free,
    answer,
    hang_up_often,
    usage,
    wait_until,
)
from tests.support.live_server import NUM_SLOTS

from selfserve.config import ServerSettings

NUM_PLACES = NUM_SLOTS + ServerSettings().queue_size


@pytest.mark.parametrize("seed", [20])
def test_after_many_hangups_the_server_is_as_good_as_new(
    live_url: str, http: httpx.Client, seed: int
) -> None:
    expected = answer(http)
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    before = usage(processes)
    num_read = hang_up_often(live_url, 24, seed)
    assert any(num_read)
    assert not all(num_read)
    assert wait_until(lambda: all_slots_are_free(http))
    assert wait_until(lambda: all_places_are_free(http, NUM_PLACES))
    assert answer(http) == expected
    assert wait_until(lambda: usage(processes).num_files <= before.num_files)


def test_clients_that_left_are_counted(live_url: str, http: httpx.Client) -> None:
    def cancelled() -> float:
        lines = http.get("/metrics").text.splitlines()
        (found,) = (line for line in lines if line.startswith("self_requests_cancelled_total "))
        return float(found.split()[1])

    before = cancelled()
    body = {"prompt": "Once", "n_predict": 500, "stream": True, "ignore_eos": True}
    with http.stream("POST", "/completion", json=body) as left:
        next(left.iter_lines())
    assert wait_until(lambda: cancelled() == before + 1)
