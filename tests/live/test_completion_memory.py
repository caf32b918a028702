"""What happens at the end of a context, with a small one that is soon full."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from tests.live.conftest import SMALL_CONTEXT

PROMPT = [2000 + number for number in range(SMALL_CONTEXT - 8)]
"""Leaves room for eight tokens."""


def complete(small: httpx.Client, **fields: Any) -> Any:
    body = {"prompt": PROMPT, "temperature": 0, "ignore_eos": True, **fields}
    answer = small.post("/completion", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_without_a_limit_generation_goes_to_the_end_of_the_context(small: httpx.Client) -> None:
    for fields in ({}, {"n_predict": -1}, {"n_predict": 100}):
        answer = complete(small, **fields)
        assert (answer["truncated"], answer["stop_type"]) == (True, "limit")
        assert answer["tokens_predicted"] == 8
        assert answer["choices"][0]["finish_reason"] == "length"


def test_a_stream_that_fills_the_context_ends_with_length(small: httpx.Client) -> None:
    body = {"prompt": PROMPT, "temperature": 0, "ignore_eos": True, "stream": True}
    lines = small.post("/v1/completions", json=body).text.split("\n\n")
    *events, last = [json.loads(line.removeprefix("data: ")) for line in lines if "{" in line]
    assert "".join(event["choices"][0]["text"] for event in events)
    assert {event["choices"][0]["finish_reason"] for event in events} == {None}
    assert (last["choices"][0]["finish_reason"], last["truncated"]) == ("length", True)


def test_an_answer_that_fits_is_not_truncated(small: httpx.Client) -> None:
    answer = complete(small, n_predict=5)
    assert (answer["truncated"], answer["tokens_predicted"]) == (False, 5)


@pytest.mark.parametrize("keep", [0, 16, 1000, -1])
def test_with_n_keep_generation_goes_on_beyond_the_context(small: httpx.Client, keep: int) -> None:
    answer = complete(small, n_predict=24, n_keep=keep)
    assert (answer["truncated"], answer["tokens_predicted"]) == (True, 24)
    assert answer["generation_settings"]["n_keep"] == keep
    before = complete(small)["content"]
    assert answer["content"].startswith(before[:-1])


def test_what_is_kept_changes_what_follows(small: httpx.Client) -> None:
    def logprobs(keep: int) -> list[float]:
        found = complete(small, n_predict=12, n_keep=keep, n_probs=1)["completion_probabilities"]
        return [entry["logprob"] for entry in found]

    none, many = logprobs(0), logprobs(SMALL_CONTEXT - 28)
    assert none[:8] == pytest.approx(many[:8], abs=0.2)
    assert none[8:] != pytest.approx(many[8:], abs=0.2)


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_beyond_the_context_is_refused(small: httpx.Client, stream: bool) -> None:
    longest = [2000] * (SMALL_CONTEXT - 1)
    assert complete(small, prompt=longest)["tokens_predicted"] == 1
    for excess in (1, 50):
        body = {"prompt": [*longest, *[2000] * excess], "n_keep": 0, "stream": stream}
        refused = small.post("/completion", json=body)
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert (error["n_prompt_tokens"], error["n_ctx"]) == (
            SMALL_CONTEXT - 1 + excess,
            SMALL_CONTEXT,
        )


def test_progress_tells_how_much_of_the_prompt_is_evaluated(small: httpx.Client) -> None:
    prompt = [3000 + number for number in range(SMALL_CONTEXT - 8)]
    body = {"prompt": prompt, "n_predict": 1, "stream": True, "return_progress": True}
    lines = small.post("/completion", json=body).text.split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    progress = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert [entry["total"] for entry in progress] == [len(prompt)] * len(progress)
    done = [entry["processed"] for entry in progress]
    assert done == sorted(done)
    assert done[-1] <= len(prompt)
    assert events[-1]["stop"] is True


def test_several_prompts_may_fill_all_slots_at_once(small: httpx.Client) -> None:
    prompts = [[4000 + 100 * i + number for number in range(30)] for i in range(6)]
    answers = complete(small, prompt=prompts, n_predict=4)
    assert [answer["tokens_predicted"] for answer in answers] == [4] * 6
