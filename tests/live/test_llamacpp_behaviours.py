"""What clients of llama.cpp's server rely on, beyond what each field of a completion does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from bench.hangups import all_slots_are_free, wait_until
from tests.live.conftest import Ask
from tests.support.live_server import CONTEXT, NUM_SLOTS, live_server

from selfserve.config import ServerSettings

Stream = Callable[..., list[Any]]

SHORT = "A small house near the river"
LONGER = "The recipe begins with flour, butter and two eggs, which the cook stirs until"
WORDS = "the a an and to of in is was it he she they that his her".split()
ENDS = {0, 2, 4}
"""<|endoftext|>, <|im_end|> and <|repo_name|>: the model's tokens that end an answer."""


def ids_of(http: httpx.Client, content: Any, **fields: Any) -> list[int]:
    answer = http.post("/tokenize", json={"content": content, **fields})
    assert answer.status_code == 200, answer.text
    found: list[int] = answer.json()["tokens"]
    return found


# --- completions ------------------------------------------------------------------------------


@pytest.mark.parametrize(("prompt", "limit"), [(SHORT, 6), (LONGER, 20)])
@pytest.mark.parametrize("returns", [False, True])
def test_counts_are_those_of_the_tokens(
    complete: Ask, http: httpx.Client, prompt: str, limit: int, returns: bool
) -> None:
    answer = complete(prompt, n_predict=limit, return_tokens=returns, ignore_eos=True)
    timings = answer["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == len(ids_of(http, prompt))
    assert timings["predicted_n"] == answer["tokens_predicted"] == limit
    assert (answer["truncated"], answer["stop_type"]) == (False, "limit")
    assert len(answer["tokens"]) == (limit if returns else 0)
    if returns:
        text = http.post("/detokenize", json={"tokens": answer["tokens"]}).json()["content"]
        assert text == answer["content"]


def test_only_the_last_event_of_a_stream_stops_and_it_tells_everything(stream: Stream) -> None:
    *events, last = stream(LONGER, n_predict=8, seed=77, ignore_eos=True)
    assert [event["stop"] for event in events] == [False] * len(events)
    assert "".join(event["content"] for event in events)
    assert (last["stop"], last["content"], last["stop_type"]) == (True, "", "limit")
    assert last["timings"]["predicted_n"] == 8
    settings = last["generation_settings"]
    assert (settings["n_predict"], settings["seed"]) == (8, 77)


def test_a_cold_greedy_answer_is_the_same_in_every_slot(complete: Ask) -> None:
    fields = {"n_predict": 8, "cache_prompt": False}
    found = [complete(LONGER, id_slot=i, **fields) for i in range(NUM_SLOTS)]
    assert [answer["id_slot"] for answer in found] == list(range(NUM_SLOTS))
    assert len({answer["content"] for answer in found}) == 1


def test_texts_and_ids_alternate_within_one_prompt(complete: Ask, http: httpx.Client) -> None:
    mixture = [10, 11, SHORT, 12, SHORT]
    answer = complete(mixture, n_predict=4)
    text = ids_of(http, SHORT)
    assert answer["tokens_evaluated"] == 3 + 2 * len(text)
    assert answer["content"] == complete([10, 11, *text, 12, *text], n_predict=4)["content"]


def test_a_text_model_refuses_pictures(http: httpx.Client) -> None:
    prompt = {"prompt_string": "On <__media__> is", "multimodal_data": ["iVBORw0KGgo="]}
    refused = http.post("/completion", json={"prompt": prompt})
    assert (refused.status_code, refused.json()["error"]["param"]) == (
        422,
        "prompt.multimodal_data",
    )


def test_only_chosen_fields_come_back(complete: Ask) -> None:
    names = ["content", "prompt", "generation_settings/top_k"]
    answer = complete(SHORT, n_predict=3, top_k=7, response_fields=names)
    assert list(answer) == names
    assert (answer["prompt"], answer["generation_settings/top_k"]) == (SHORT, 7)


@pytest.mark.parametrize("as_object", [False, True])
@pytest.mark.parametrize("as_ids", [False, True])
def test_many_words_are_avoided_in_every_form_of_bias(
    complete: Ask, http: httpx.Client, as_ids: bool, as_object: bool
) -> None:
    texts = [" " + word for word in WORDS]
    names: list[Any] = ids_of(http, "".join(texts)) if as_ids else texts
    bias = {str(name): -100 for name in names} if as_object else [[name, -100] for name in names]
    prompt = "In the beginning of the story"
    assert set(complete(prompt, n_predict=6)["content"].split()) & set(WORDS)
    answer = complete(prompt, n_predict=16, logit_bias=bias)
    assert not any(f"{text} " in answer["content"] for text in texts)


# --- probabilities ----------------------------------------------------------------------------


def test_each_token_has_as_many_probabilities_as_asked_for(
    complete: Ask, stream: Stream, http: httpx.Client
) -> None:
    fields = {"n_probs": 7, "n_predict": 5, "ignore_eos": True}
    whole = complete(LONGER, **fields)["completion_probabilities"]
    events = stream(LONGER, **fields)[:-1]
    assert [entry for event in events for entry in event["completion_probabilities"]] == whole
    assert len(whole) == 5
    for entry in whole:
        values = [top["logprob"] for top in entry["top_logprobs"]]
        assert len(values) == 7
        assert values == sorted(values, reverse=True)
        assert values[0] == entry["logprob"] <= 0
        piece = http.post("/detokenize", json={"tokens": [entry["id"]]}).json()["content"]
        assert piece == entry["token"]
        for each in (entry, *entry["top_logprobs"]):
            assert bytes(each["bytes"]).decode(errors="replace") == each["token"]


def test_fewer_probabilities_than_asked_for_are_all_there_are(complete: Ask) -> None:
    fields = {"n_probs": 10, "post_sampling_probs": True, "temperature": 1, "seed": 1}
    entries = complete("Tomorrow I will become a", n_predict=6, **fields)[
        "completion_probabilities"
    ]
    assert len(entries[0]["top_probs"]) == 10
    for entry in entries:
        values = [top["prob"] for top in entry["top_probs"]]
        assert all(0 < value <= 1 for value in values)
        if len(values) < 10:
            assert sum(values) == pytest.approx(1)


# --- slots ------------------------------------------------------------------------------------


def test_requests_fill_all_slots_and_leaving_frees_them(http: httpx.Client) -> None:
    body = {"prompt": SHORT, "n_predict": CONTEXT, "ignore_eos": True, "stream": True}
    with ExitStack() as clients:
        for _ in range(NUM_SLOTS):
            clients.enter_context(http.stream("POST", "/completion", json=body))
        assert wait_until(lambda: all(s["is_processing"] for s in http.get("/slots").json()))
    assert wait_until(lambda: all_slots_are_free(http))


def test_a_slot_computes_only_where_a_prompt_differs_from_its_last(complete: Ask) -> None:
    head = "A guide book says that the most visited building of the old town is"
    first, other = f"{head} its bridge", f"{head} a church"
    complete(first, n_predict=4, id_slot=1)
    warm = complete(other, n_predict=4, id_slot=1)
    cold = complete(other, n_predict=4, id_slot=1, cache_prompt=False)
    assert (warm["timings"]["prompt_n"], cold["timings"]["cache_n"]) == (2, 0)
    assert cold["timings"]["prompt_n"] == warm["timings"]["prompt_n"] + warm["timings"]["cache_n"]
    assert warm["content"] == cold["content"]


def test_prompts_that_come_and_go_are_always_counted_whole(
    complete: Ask, http: httpx.Client
) -> None:
    for turn in range(7):
        kind = turn * 7 % 5
        prompt = f" Greetings {kind}" * (4 + kind)
        answer = complete(prompt, n_predict=1 + kind, ignore_eos=True)
        timings = answer["timings"]
        assert timings["prompt_n"] + timings["cache_n"] == len(ids_of(http, prompt))
        assert timings["predicted_n"] == 1 + kind
        assert timings["prompt_n"] >= 1


@pytest.mark.parametrize("action", ["save", "restore", "erase"])
def test_the_state_of_slots_is_not_for_clients(http: httpx.Client, action: str) -> None:
    refused = http.post(f"/slots/0?action={action}", json={"filename": "slot.bin"})
    assert refused.status_code == 404
    assert refused.json()["error"]["type"] == "not_found"


# --- tokens and templates ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", ["Where is the exit ?", "  two\n\tlines ", "naïve 漢字 \U0001f680", ""]
)
def test_text_survives_the_way_to_tokens_and_back(http: httpx.Client, content: str) -> None:
    ids = ids_of(http, content)
    assert http.post("/detokenize", json={"tokens": ids}).json() == {"content": content}
    body = {"content": content, "with_pieces": True}
    tokens = http.post("/tokenize", json=body).json()["tokens"]
    assert [token["id"] for token in tokens] == ids
    pieces = [token["piece"] for token in tokens]
    assert all(pieces)
    joined = b"".join(p.encode() if isinstance(p, str) else bytes(p) for p in pieces)
    assert joined.decode() == content


def test_control_tokens_are_parsed_unless_the_client_says_otherwise(http: httpx.Client) -> None:
    text = "<|im_start|>user"
    parsed, plain = ids_of(http, text), ids_of(http, text, parse_special=False)
    assert (parsed[0], len(parsed)) == (1, 2)
    assert 1 not in plain
    for ids in (parsed, plain):
        assert http.post("/detokenize", json={"tokens": ids}).json()["content"] == text


def test_a_model_without_bos_gets_none_in_tokens_or_prompts(
    complete: Ask, http: httpx.Client
) -> None:
    assert ids_of(http, SHORT, add_special=True) == ids_of(http, SHORT)
    assert complete(SHORT, n_predict=1)["prompt"] == SHORT


@pytest.mark.parametrize("opens", [None, True, False])
def test_a_template_ends_with_the_header_of_the_answer_unless_told_not_to(
    http: httpx.Client, opens: bool | None
) -> None:
    messages = [{"role": "user", "content": "Which day is it?"}]
    body = {"messages": messages, "tools": [], "add_generation_prompt": opens}
    prompt = http.post("/apply-template", json=body).json()["prompt"]
    question = "<|im_start|>user\nWhich day is it?<|im_end|>\n"
    assert prompt.endswith(question if opens is False else question + "<|im_start|>assistant\n")


# --- the end of an answer and of the context --------------------------------------------------


def test_settings_tell_the_bans_of_an_ignored_end(complete: Ask) -> None:
    ignored = complete(SHORT, n_predict=2, ignore_eos=True)["generation_settings"]
    assert {entry["token"] for entry in ignored["logit_bias"]} == ENDS
    assert [entry["bias"] for entry in ignored["logit_bias"]] == [None] * len(ENDS)
    assert complete(SHORT, n_predict=2)["generation_settings"]["logit_bias"] == []


SMALL = 96
"""Tokens of the context of a server that shifts."""


@pytest.fixture(scope="module")
def shifting() -> Iterator[httpx.Client]:
    settings = ServerSettings(context_shift=True)
    with (
        live_server(settings, context_size=SMALL) as url,
        httpx.Client(base_url=url, timeout=110, trust_env=False) as client,
    ):
        yield client


@pytest.mark.parametrize(("limit", "truncated"), [(8, False), (70, True)])
def test_a_server_that_shifts_goes_on_to_the_limit(
    shifting: httpx.Client, limit: int, truncated: bool
) -> None:
    prompt = [2000 + number for number in range(SMALL // 2)]
    body = {"prompt": prompt, "n_predict": limit, "temperature": 0, "ignore_eos": True}
    answer = shifting.post("/completion", json=body).json()
    assert answer["timings"]["prompt_n"] + answer["timings"]["cache_n"] == len(prompt)
    assert (answer["tokens_predicted"], answer["truncated"]) == (limit, truncated)


def test_a_server_that_shifts_refuses_a_prompt_that_does_not_fit(shifting: httpx.Client) -> None:
    refused = shifting.post("/completion", json={"prompt": [2000] * SMALL, "n_predict": 4})
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
