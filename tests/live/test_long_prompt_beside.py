"""A long prompt arrives while an answer is being streamed."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx

LONG = [2000 + 7 * number % 20000 for number in range(300)]


@contextmanager
def running_stream(http: httpx.Client) -> Iterator[Iterator[str]]:
    """The events of an answer that goes on for long enough, after its first ones."""
    body = {"prompt": "Once", "n_predict": 1500, "ignore_eos": True, "stream": True, "seed": 1}
    with http.stream("POST", "/completion", json=body) as answer:
        events = (line for line in answer.iter_lines() if line.startswith("data: "))
        for _ in range(5):
            next(events)
        yield events


def read_long(http: httpx.Client, first: int) -> Any:
    body = {"prompt": [first, *LONG], "n_predict": 3, "temperature": 0, "ignore_eos": True}
    answer = http.post("/completion", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_stream_goes_on_while_the_prompt_is_read(http: httpx.Client) -> None:
    with ThreadPoolExecutor(1) as pool, running_stream(http) as events:
        reading = pool.submit(read_long, http, 11)
        num_events = 0
        while not reading.done():
            next(events)
            num_events += 1
        answer = reading.result()
    assert num_events >= 5
    assert answer["timings"]["prompt_n"] == len(LONG) + 1
    assert answer["tokens_predicted"] == 3


def test_a_client_that_hangs_up_while_its_prompt_is_read_disturbs_nobody(
    http: httpx.Client,
) -> None:
    with running_stream(http) as events:
        body = {"prompt": [12, *LONG], "n_predict": 3, "return_progress": True, "stream": True}
        with http.stream("POST", "/completion", json=body) as answer:
            next(line for line in answer.iter_lines() if line.startswith("data: "))
        for _ in range(5):
            next(events)
        assert read_long(http, 13)["tokens_predicted"] == 3
