"""Each field of a completion changes what the small model does in the way that it promises."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
from tests.live.conftest import Ask
from tests.support.live_server import CONTEXT, NUM_SLOTS
from tests.support.native_desk import Desk
from tests.support.real_vocabulary import smollm2_path

from selfserve.native.model import Model

Stream = Callable[..., list[Any]]

LOOP = "ha ha ha ha ha ha ha ha"
"""Greedy decoding goes on with it for ever."""
SINGLE_DIGITS = "BANANA " * 8
"""Greedy decoding repeats one token after it."""
CODE = "def f(x):\n    if x:\n        "
STORY = "Once upon a time"


@pytest.fixture(scope="module")
def greedy(complete: Ask) -> str:
    return str(complete(STORY)["content"])


# --- choosing tokens --------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{"min_p": 1}, {"top_k": 1}, {"top_p": 0}, {"samplers": "k"}])
def test_keeping_one_candidate_equals_greedy(
    complete: Ask, greedy: str, fields: dict[str, Any]
) -> None:
    top_k = {"top_k": 1} if "samplers" in fields else {}
    assert complete(STORY, temperature=1.5, **top_k, **fields)["content"] == greedy


def test_temperature_leaves_the_greedy_path(complete: Ask, greedy: str) -> None:
    hot = complete(STORY, temperature=1.5, samplers=["temperature"], seed=5)
    assert hot["content"] != greedy


def test_a_seed_repeats_and_none_is_a_new_one(complete: Ask) -> None:
    def content(**fields: Any) -> str:
        return str(complete(STORY, temperature=1.2, n_predict=12, **fields)["content"])

    assert content(seed=5) == content(seed=5)
    assert len({content(seed=seed) for seed in range(3)}) == 3
    first = complete(STORY, temperature=1.2, n_predict=12)
    assert content(seed=first["generation_settings"]["seed"]) == first["content"]
    assert content(seed=-1) != first["content"]


def test_xtc_removes_the_most_probable_token(complete: Ask) -> None:
    fields = {"temperature": 1, "xtc_probability": 1, "xtc_threshold": 0.1, "seed": 3}
    answer = complete(STORY, n_probs=3, samplers=["xtc", "temperature"], n_predict=24, **fields)
    excluded = 0
    for entry in answer["completion_probabilities"]:
        top = entry["top_logprobs"]
        if top[1]["logprob"] > np.log(0.1):
            assert entry["id"] != top[0]["id"]
            excluded += 1
    assert excluded > 2


@pytest.mark.parametrize(
    "fields",
    [
        {"presence_penalty": 2},
        {"frequency_penalty": 2},
        {"repeat_penalty": 3},
        {"repeat_penalty": 3, "repeat_last_n": 4},
        {"repeat_penalty": 3, "repeat_last_n": -1},
    ],
)
def test_penalties_break_a_repetition(complete: Ask, fields: dict[str, Any]) -> None:
    assert len(set(complete(SINGLE_DIGITS, n_predict=8)["content"])) == 1
    assert len(set(complete(SINGLE_DIGITS, n_predict=8, **fields)["content"])) > 3


def test_no_window_switches_penalties_off(complete: Ask) -> None:
    plain = complete(SINGLE_DIGITS, n_predict=8)["content"]
    fields = {"repeat_penalty": 3, "presence_penalty": 2, "frequency_penalty": 2}
    assert complete(SINGLE_DIGITS, n_predict=8, repeat_last_n=0, **fields)["content"] == plain


DRY = {"dry_multiplier": 5, "dry_penalty_last_n": -1, "dry_sequence_breakers": []}


def test_dry_breaks_a_loop(complete: Ask) -> None:
    assert complete(LOOP, n_predict=20)["content"].count(" ha") >= 12
    assert complete(LOOP, n_predict=20, **DRY)["content"].count(" ha") < 6


@pytest.mark.parametrize(
    "fields",
    [
        {"dry_sequence_breakers": [" ha"]},
        {"dry_penalty_last_n": 0},
        {"dry_allowed_length": 100},
        {"dry_multiplier": 0},
        {"samplers": ["penalties", "temperature"]},
    ],
)
def test_dry_leaves_a_loop_alone_when_its_fields_say_so(
    complete: Ask, fields: dict[str, Any]
) -> None:
    plain = complete(LOOP, n_predict=12)["content"]
    assert complete(LOOP, n_predict=12, **{**DRY, **fields})["content"] == plain


@pytest.mark.parametrize("mirostat", [1, 2])
def test_a_lower_target_makes_mirostat_more_predictable(complete: Ask, mirostat: int) -> None:
    def surprise(tau: float) -> float:
        fields = {"mirostat": mirostat, "mirostat_tau": tau, "mirostat_eta": 0.9, "seed": 4}
        answer = complete(STORY, temperature=1, n_probs=1, n_predict=24, **fields)
        return float(-np.mean([e["logprob"] for e in answer["completion_probabilities"]]))

    assert surprise(0.2) < surprise(9)


def test_a_ban_and_a_wish_are_obeyed_even_by_greedy_choice(complete: Ask) -> None:
    paris = complete(n_predict=1, n_probs=1)["completion_probabilities"][0]
    assert paris["token"] == " Paris"
    for ban in ({str(paris["id"]): False}, [[" Paris", False]], [[paris["id"], -1000]]):
        assert complete(n_predict=1, logit_bias=ban)["content"] != " Paris"
    assert complete(n_predict=2, logit_bias={"yes": 1000})["content"] == "yesyes"


def test_ignoring_the_end_never_chooses_it(complete: Ask) -> None:
    chat = "<|im_start|>user\nSay hi<|im_end|>\n<|im_start|>assistant\nHi"
    ended = complete(chat, n_predict=60, logit_bias=[["<|im_end|>", False], [2, 30]])
    assert (ended["stop_type"], ended["tokens_predicted"]) == ("eos", 1)
    ignored = complete(chat, n_predict=12, ignore_eos=True, return_tokens=True)
    assert (ignored["stop_type"], len(ignored["tokens"])) == ("limit", 12)
    assert 2 not in ignored["tokens"]


# --- probabilities ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    """The same computation as the server's, for comparison."""
    model = Model(smollm2_path())
    options = {"flash_attention": "auto", "kv_type": "f16"}
    desk = Desk(model, context_size=CONTEXT, num_sequences=NUM_SLOTS, **options)
    yield desk
    desk.context.close()
    model.close()


@pytest.mark.parametrize("prompt", ["The capital of France is", "\U0001f600 \U0001f600 媽"])
def test_probabilities_are_those_of_the_raw_logits(complete: Ask, desk: Desk, prompt: str) -> None:
    fields = {"temperature": 0.7, "seed": 1, "top_k": 3, "cache_prompt": False}
    answer = complete(prompt, n_predict=4, n_probs=5, return_tokens=True, **fields)
    desk.context.clear(0)
    pending, position = desk.tokens(prompt), 0
    assert [entry["id"] for entry in answer["completion_probabilities"]] == answer["tokens"]
    for entry in answer["completion_probabilities"]:
        row = desk.logits_after(0, position, pending).astype(np.float64)
        position, pending = position + len(pending), [entry["id"]]
        expected = row - row.max() - np.log(np.exp(row - row.max()).sum())
        assert entry["logprob"] == pytest.approx(expected[entry["id"]], abs=1e-3)
        told = [top["logprob"] for top in entry["top_logprobs"]]
        np.testing.assert_allclose(told, np.sort(expected)[::-1][:5], atol=1e-3)


def test_probabilities_after_sampling_are_of_the_survivors(complete: Ask) -> None:
    fields = {"temperature": 1, "post_sampling_probs": True, "n_probs": 50, "n_predict": 6}
    for entry in complete(STORY, top_k=3, min_p=0, **fields)["completion_probabilities"]:
        values = [top["prob"] for top in entry["top_probs"]]
        assert len(values) <= 3
        assert sum(values) == pytest.approx(1, abs=1e-4)
        assert entry["id"] in [top["id"] for top in entry["top_probs"]]
    kept = complete(STORY, top_p=0.01, min_keep=4, min_p=0, **fields)["completion_probabilities"]
    assert [len(entry["top_probs"]) for entry in kept] == [4] * 6


# --- form and end -----------------------------------------------------------------------------


def test_a_grammar_is_obeyed_whatever_is_wished(complete: Ask) -> None:
    answer = complete(grammar='root ::= "yes" | "no"', logit_bias=[[2, 1000], ["maybe", 1000]])
    assert answer["content"] in ("yes", "no")
    assert answer["stop_type"] == "eos"
    banned = complete(grammar='root ::= "a"', ignore_eos=True)
    assert banned["content"] == "a"


def test_a_schema_is_obeyed(complete: Ask) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"enum": ["x", "y"]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    found = json.loads(complete("JSON:", json_schema=schema, n_predict=40)["content"])
    assert set(found) == {"a", "b"}
    assert found["b"] in ("x", "y")
    assert complete("JSON:", json_schema={}, n_predict=2)["content"][0] in '{["-0123456789tfn'


def test_less_indentation_ends_the_answer(complete: Ask) -> None:
    free = complete(CODE, n_predict=40)["content"]
    shallow, deep = (complete(CODE, n_predict=40, n_indent=n)["content"] for n in (4, 8))
    assert free.startswith(shallow)
    assert shallow.startswith(deep)
    assert len(deep) < len(shallow) < len(free)
    assert all(line.startswith("    ") for line in shallow.split("\n")[1:] if line.strip())


def test_a_stop_text_ends_the_answer_and_is_no_part_of_it(complete: Ask, stream: Stream) -> None:
    answer = complete("1, 2, 3,", n_predict=40, stop=["nothing", " 7"])
    assert (answer["stop_type"], answer["stopping_word"]) == ("word", " 7")
    assert answer["content"].strip().endswith("6,")
    events = stream("1, 2, 3,", n_predict=40, stop=[" 7"])
    assert "".join(event["content"] for event in events) == answer["content"]


def test_zero_tokens_evaluate_the_prompt_only(complete: Ask) -> None:
    prompt = "A prompt that nobody else sends, to be found again."
    answer = complete(prompt, n_predict=0)
    assert (answer["content"], answer["tokens_predicted"]) == ("", 0)
    assert answer["stop_type"] == "limit"
    again = complete(prompt, n_predict=1)
    assert again["tokens_cached"] == again["tokens_evaluated"] - 1


def test_a_time_limit_ends_the_answer(complete: Ask) -> None:
    answer = complete(STORY, n_predict=400, ignore_eos=True, t_max_predict_ms=50)
    assert answer["stop_type"] == "limit"
    assert 1 <= answer["tokens_predicted"] < 200


# --- memory -----------------------------------------------------------------------------------


@pytest.mark.parametrize("slot", range(NUM_SLOTS))
def test_a_slot_can_be_chosen(complete: Ask, slot: int) -> None:
    assert complete(STORY, n_predict=1, id_slot=slot)["id_slot"] == slot


def test_a_cold_evaluation_uses_and_keeps_nothing(complete: Ask) -> None:
    prompt = "This text is evaluated twice, first with and then without the memory of slots."
    complete(prompt, n_predict=1)
    warm = complete(prompt, n_predict=1)
    assert warm["timings"]["cache_n"] == warm["tokens_cached"] == warm["tokens_evaluated"] - 1
    cold = complete(prompt, n_predict=1, cache_prompt=False)
    assert (cold["tokens_cached"], cold["timings"]["prompt_n"]) == (0, cold["tokens_evaluated"])
    other = prompt.replace("This", "That")
    complete(other, n_predict=1, cache_prompt=False)
    assert complete(other, n_predict=1)["tokens_cached"] == 0


# --- prompts and answers ----------------------------------------------------------------------


def test_ids_and_text_are_the_same_prompt(complete: Ask, http: httpx.Client) -> None:
    ids = http.post("/tokenize", json={"content": STORY}).json()["tokens"]
    head, tail = ids[:2], http.post("/detokenize", json={"tokens": ids[2:]}).json()["content"]
    first, *others = complete([STORY, ids, [*head, tail], {"prompt_string": STORY}], n_predict=6)
    assert [other["content"] for other in others] == [first["content"]] * 3
    assert [other["prompt"] for other in others] == [STORY] * 3


def test_several_prompts_are_answered_as_each_alone(complete: Ask, stream: Stream) -> None:
    prompts = ["The sun is", "1, 2, 3,", "Roses are", "def main():", "Paris is", "Dear"]
    together = complete(prompts, n_predict=6)
    assert [a["content"] for a in together] == [
        complete(prompt, n_predict=6)["content"] for prompt in prompts
    ]
    events = stream(prompts, n_predict=6)
    for index, answer in enumerate(together):
        parts = [event["content"] for event in events if event["index"] == index]
        assert "".join(parts) == answer["content"]


def test_streamed_text_ids_and_probabilities_equal_the_whole(complete: Ask, stream: Stream) -> None:
    fields = {"n_predict": 20, "n_probs": 2, "return_tokens": True, "timings_per_token": True}
    prompt = "Emojis: \U0001f600 \U0001f603 \U0001f604"
    whole = complete(prompt, **fields)
    *events, last = stream(prompt, **fields)
    assert "".join(event["content"] for event in events) == whole["content"]
    assert [i for event in events for i in event["tokens"]] == whole["tokens"]
    entries = [e for event in events for e in event["completion_probabilities"]]
    assert [e["id"] for e in entries] == [e["id"] for e in whole["completion_probabilities"]]
    assert len(entries) == last["tokens_predicted"] == 20
    assert all(event["timings"]["predicted_n"] >= 1 for event in events)


def test_clients_at_the_same_time_get_their_own_answers(complete: Ask) -> None:
    prompts = [f"The number {n} is" for n in range(8)]
    alone = [complete(prompt, n_predict=4)["content"] for prompt in prompts]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda p: complete(p, n_predict=4)["content"], prompts))
    assert found == alone


def test_the_template_gives_the_prompt_of_the_chat(http: httpx.Client, complete: Ask) -> None:
    messages = [{"role": "user", "content": "What is 2 + 2?"}]
    prompt = http.post("/apply-template", json={"messages": messages}).json()["prompt"]
    body = {"messages": messages, "temperature": 0, "max_tokens": 8}
    chat = http.post("/v1/chat/completions", json=body).json()
    assert complete(prompt, n_predict=8)["content"] == chat["choices"][0]["message"]["content"]


def test_properties_and_slots_speak_of_the_running_model(http: httpx.Client) -> None:
    props = http.get("/props").json()
    assert props["total_slots"] == NUM_SLOTS
    assert props["default_generation_settings"]["n_ctx"] == CONTEXT
    assert "<|im_start|>" in props["chat_template"]
    slots = http.get("/slots").json()
    assert [set(slot) for slot in slots] == [{"id", "n_ctx", "is_processing"}] * NUM_SLOTS
