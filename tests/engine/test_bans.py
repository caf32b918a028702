"""Banned tokens are never written: not chosen in any way, and not as text that a grammar forces."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.support.builders import Rig, grammar_state, make_request
from tests.support.byte_vocabulary import EOS, VOCAB_SIZE
from tests.support.scripted_runner import ScriptedRunner, endless, hashed, reading

from selfserve.request import Finished, SamplingParams, StopType


def banning(text: str, **fields: Any) -> SamplingParams:
    bans = tuple((token, -math.inf) for token in text.encode())
    return SamplingParams(logit_bias=(*bans, *fields.pop("biases", ())), **fields)


WAYS = pytest.mark.parametrize(
    ("sampling", "fields"),
    [
        ({"temperature": 0.0}, {}),
        ({"temperature": 0.0}, {"n_probs": 3}),
        ({"temperature": 0.0, "biases": ((ord("q"), 1.0),)}, {}),
        ({"temperature": 0.0}, {"n_probs": 3, "post_sampling_probs": True}),
        ({"temperature": 3.0}, {}),
        ({"temperature": 3.0}, {"n_probs": 3}),
        ({"temperature": 3.0}, {"n_probs": 3, "post_sampling_probs": True}),
    ],
)


@WAYS
@pytest.mark.parametrize("grammar", [None, "start: /[a-z ]{40}/"])
@pytest.mark.parametrize("seed", range(3))
def test_a_banned_token_is_never_chosen(
    seed: int, grammar: str | None, sampling: dict[str, Any], fields: dict[str, Any]
) -> None:
    banned = "aeiou st"
    rig = Rig(predict=endless)
    params = banning(banned, seed=seed, **sampling)
    request = make_request("a", f"prompt {seed}", max_tokens=40, sampling=params, **fields)
    rig.add(request, None if grammar is None else grammar_state(grammar))
    rig.run()
    assert rig.finished("a").completion_tokens == len(rig.tokens("a")) > 0
    assert not set(rig.tokens("a")) & set(banned.encode())
    for delta in rig.deltas("a"):
        for entry in delta.probs:
            assert entry.id not in set(banned.encode())
            if fields.get("post_sampling_probs"):
                assert not {token for token, _ in entry.top} & set(banned.encode())


@WAYS
def test_an_end_that_is_ignored_is_never_chosen(
    sampling: dict[str, Any], fields: dict[str, Any]
) -> None:
    rig = Rig(predict=lambda tokens: EOS if len(tokens) % 3 else hashed(tokens))
    params = banning("", ignore_eos=True, **sampling)
    rig.run([make_request("a", "Hi", max_tokens=40, sampling=params, **fields)])
    assert EOS not in rig.tokens("a")
    assert (rig.finished("a").stop_type, len(rig.tokens("a"))) == (StopType.LIMIT, 40)


def test_a_greedy_choice_under_bans_is_the_best_of_the_rest() -> None:
    rig = Rig(ScriptedRunner(predict=lambda tokens: ord("a")))
    rig.run([make_request("a", "?", max_tokens=30, sampling=banning("a", temperature=0.0))])
    assert "a" not in rig.text("a")
    # The second most probable is a byte that depends on all before it.
    assert len(set(rig.tokens("a"))) > 10


def test_a_token_may_be_the_only_one_that_is_not_banned() -> None:
    bans = tuple((token, -math.inf) for token in range(VOCAB_SIZE) if token != ord("q"))
    for temperature in (0.0, 1.0):
        rig = Rig(predict=endless)
        params = SamplingParams(temperature=temperature, logit_bias=bans)
        rig.run([make_request("a", "?", max_tokens=5, sampling=params)])
        assert rig.text("a") == "qqqqq"


def test_bans_on_all_tokens_are_the_fault_of_the_request() -> None:
    bans = tuple((token, -math.inf) for token in range(VOCAB_SIZE))
    rig = Rig(predict=endless)
    rig.run([make_request("a", "?", sampling=SamplingParams(logit_bias=bans))])
    assert (rig.failed("a").error, rig.failed("a").param) == ("InvalidRequest", "logit_bias")
    rig.check_idle()


# --- with a grammar -----------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_banned_token_is_not_written_as_forced_text(temperature: float) -> None:
    # Every letter is a token of its own here, so nothing else can spell what is forced.
    rig = Rig(ScriptedRunner(predict=reading({"?": "b"})))
    params = banning("c", temperature=temperature)
    other = make_request("other", "other", max_tokens=20)
    rig.add(other)
    rig.add(
        make_request("a", "?", sampling=params, max_tokens=40),
        grammar_state('start: ("b" | "d") "the rest is certain"'),
    )
    rig.run()
    assert ord("c") not in rig.tokens("a")
    assert "bthe rest is ".startswith(rig.text("a")) or "dthe rest is ".startswith(rig.text("a"))
    assert rig.failed("a").error == "InvalidRequest"
    assert rig.text("other") == rig.expected(other)
    rig.check_idle()


def test_a_grammar_that_only_allows_what_is_banned_is_the_fault_of_the_request() -> None:
    rig = Rig(predict=endless)
    other = make_request("other", "other", max_tokens=20)
    rig.add(other)
    stuck = make_request("stuck", "?", sampling=banning("a", temperature=0.0))
    rig.add(stuck, grammar_state('start: "a" ("b" | "c")'))
    assert rig.failed("stuck").error == "InvalidRequest"
    assert not rig.text("stuck")
    rig.run()
    assert rig.text("other") == rig.expected(other)
    rig.check_idle()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_complete_grammar_ends_although_its_end_is_banned(temperature: float) -> None:
    rig = Rig(ScriptedRunner(predict=reading({"?": "ab"})))
    params = banning("", temperature=temperature, ignore_eos=True)
    rig.add(make_request("a", "?", sampling=params), grammar_state('start: ("a" | "b")'))
    rig.run()
    end = rig.ends("a")[0]
    assert isinstance(end, Finished)
    assert end.stop_type == StopType.EOS
    assert rig.text("a") in ("a", "b")
