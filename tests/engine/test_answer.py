"""How a generation goes on and ends: limits, stop strings, thinking, grammars, the full context."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.builders import SMALL_MODEL_ON_CPU, Rig, grammar_state, make_request
from tests.support.byte_vocabulary import END_THINK, EOS, THINK
from tests.support.scripted_runner import ScriptedRunner, answer_of, endless, reading

from selfserve.request import ReasoningSpec, SamplingParams, StopType

THINKING = ReasoningSpec(
    start="<think>",
    end="</think>",
    marker_ids=((THINK, "<think>"), (END_THINK, "</think>")),
    hidden_ids=(THINK, END_THINK),
    closing_ids=(*b"\n", END_THINK, *b"\n\n"),
    open=True,
)


def answering(answer: str | list[int], **fields: Any) -> Rig:
    """An engine that answers "?" with this text, and the request for it already run."""
    constraint = fields.pop("constraint", None)
    runner_fields = {key: fields.pop(key) for key in ("context_size",) if key in fields}
    rig = Rig(ScriptedRunner(predict=reading({"?": answer}), **runner_fields))
    fields.setdefault("max_tokens", 100)
    rig.add(make_request("a", "?", **fields), constraint)
    rig.run()
    rig.check_idle()
    return rig


# --- ends ---------------------------------------------------------------------------------


def test_the_end_token_ends_and_has_no_text() -> None:
    rig = answering("Hi there")
    assert rig.text("a") == "Hi there"
    end = rig.finished("a")
    assert (end.stop_type, end.completion_tokens, end.truncated) == (StopType.EOS, 9, False)
    assert rig.tokens("a") == [*b"Hi there", EOS]


@pytest.mark.parametrize("max_tokens", [1, 2, 7])
def test_the_token_limit_is_exact(max_tokens: int) -> None:
    rig = answering("Hi there", max_tokens=max_tokens)
    assert rig.text("a") == "Hi there"[:max_tokens]
    end = rig.finished("a")
    assert (end.stop_type, end.completion_tokens) == (StopType.LIMIT, max_tokens)


def test_a_character_cut_off_by_the_limit_becomes_one_replacement() -> None:
    rig = answering("a🙂", max_tokens=3)
    assert rig.text("a") == "a\ufffd"


def test_characters_over_several_tokens_come_out_whole() -> None:
    rig = answering("größer 🙂!")
    assert rig.text("a") == "größer 🙂!"
    assert all("\ufffd" not in delta.content for delta in rig.deltas("a"))


def test_a_stop_string_over_several_tokens_is_cut_out_and_named() -> None:
    rig = answering("one, two STOP three", stop=("STOP", "three"))
    assert rig.text("a") == "one, two "
    end = rig.finished("a")
    assert (end.stop_type, end.stopping_word) == (StopType.WORD, "STOP")
    assert end.completion_tokens == len("one, two STOP") == len(rig.tokens("a"))


def test_what_only_began_like_a_stop_string_is_text() -> None:
    rig = answering("a ST", stop=("STOP",))
    assert rig.text("a") == "a ST"
    assert rig.finished("a").stop_type == StopType.EOS


def test_the_shorter_of_two_stop_strings_counts_when_the_text_ends_there() -> None:
    rig = answering("a END", stop=("END", "ENDING"))
    assert rig.text("a") == "a "
    assert rig.finished("a").stop_type == StopType.WORD
    assert rig.finished("a").stopping_word == "END"


def test_no_text_is_shown_that_may_still_become_a_stop_string() -> None:
    rig = answering("x STOX STOP", stop=("STOP",))
    shown = ""
    for delta in rig.deltas("a"):
        shown += delta.content
        assert not any(shown.endswith("STOP"[:count]) for count in range(1, 5))
    assert shown == "x STOX "


def test_ignoring_the_end_token_goes_on_to_the_limit() -> None:
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    rig = answering("Hi", max_tokens=20, sampling=sampling)
    assert rig.finished("a").stop_type == StopType.LIMIT
    assert rig.finished("a").completion_tokens == 20
    assert EOS not in rig.tokens("a")


def test_a_line_with_less_indentation_ends_the_text() -> None:
    rig = answering("x = 1\n    y = 2\n  z = 3\n", n_indent=4)
    assert rig.text("a") == "x = 1\n    y = 2\n"
    assert rig.finished("a").stop_type == StopType.LIMIT


def test_the_time_limit_counts_from_the_first_token() -> None:
    rig = Rig(predict=endless, batch_size=16, max_outputs=16)
    rig.run([make_request("a", "x" * 400, max_tokens=400, time_limit_ms=30)])
    end = rig.finished("a")
    assert end.stop_type == StopType.LIMIT
    # A decode step takes 3 ms by the rig's clock, the prompt alone took many times the limit.
    assert end.completion_tokens in (11, 12)


# --- thinking -----------------------------------------------------------------------------


def test_thinking_and_answer_are_told_apart() -> None:
    rig = answering([*b"Hmm, well.", END_THINK, *b"Yes."], reasoning=THINKING)
    assert rig.reasoning("a") == "Hmm, well."
    assert rig.text("a") == "Yes."
    assert rig.finished("a").reasoning_tokens in (10, 11)


def test_a_used_up_budget_closes_the_thinking_and_the_answer_follows() -> None:
    spec = msgspec.structs.replace(THINKING, budget=5)
    rig = Rig(predict=endless)
    request = make_request("a", "?", max_tokens=30, reasoning=spec)
    rig.run([request])
    thoughts = answer_of(request.prompt, 5, endless)
    written = [*thoughts, *THINKING.closing_ids]
    answer = answer_of([*request.prompt, *written], 30 - len(written), endless)
    assert rig.tokens("a") == written + answer
    assert rig.reasoning("a").strip() == bytes(thoughts).decode().strip()
    assert rig.text("a") == bytes(answer).decode().lstrip()
    assert rig.finished("a").completion_tokens == 30


def test_stop_strings_do_not_act_on_thinking() -> None:
    rig = answering([*b"a STOP b", END_THINK, *b"c STOP d"], reasoning=THINKING, stop=("STOP",))
    assert rig.reasoning("a") == "a STOP b"
    assert rig.text("a") == "c "


def test_a_budget_also_holds_for_drafts() -> None:
    def predict(tokens: Any) -> int:
        return b"la la "[len(tokens) % 6]

    spec = msgspec.structs.replace(THINKING, budget=33)
    rig = Rig(predict=predict, has_drafts=True, batches=SMALL_MODEL_ON_CPU, step_ms=100)
    rig.run([make_request("a", "la la " * 20, max_tokens=80, reasoning=spec)])
    assert rig.finished("a").timings.draft_n_accepted > 0
    assert rig.tokens("a")[33:37] == list(spec.closing_ids)
    assert rig.finished("a").completion_tokens == 80
    rig.check_idle()


# --- grammars -----------------------------------------------------------------------------


def test_a_grammar_binds_the_answer() -> None:
    rig = answering("no idea", constraint=grammar_state('start: "ye" ("s" | "p")'))
    assert rig.text("a") in ("yes", "yep")
    assert rig.finished("a").stop_type == StopType.EOS


def test_forced_text_is_written_without_asking_the_model() -> None:
    rig = answering("b", constraint=grammar_state('start: ("a" | "b") "the rest is certain"'))
    assert rig.text("a") == "bthe rest is certain"
    assert rig.finished("a").stop_type == StopType.EOS
    assert rig.num_steps <= 3


@pytest.mark.parametrize("max_tokens", [1, 5, 12])
def test_forced_text_keeps_to_the_token_limit(max_tokens: int) -> None:
    state = grammar_state('start: ("a" | "b") "the rest is certain"')
    rig = answering("b", constraint=state, max_tokens=max_tokens)
    assert rig.text("a") == "bthe rest is certain"[:max_tokens]
    assert rig.finished("a").completion_tokens == max_tokens
    assert rig.finished("a").stop_type == StopType.LIMIT


def test_stop_strings_act_on_forced_text() -> None:
    state = grammar_state('start: ("a" | "b") "the rest is certain"')
    rig = answering("b", constraint=state, stop=("is",))
    assert rig.text("a") == "bthe rest "
    assert rig.finished("a").stop_type == StopType.WORD


def test_forced_text_longer_than_a_batch_is_computed_in_parts() -> None:
    runner = ScriptedRunner(predict=endless, batch_size=8, max_outputs=8)
    rig = Rig(runner)
    state = grammar_state('start: ("a" | "b") "' + "x" * 100 + '" /[a-z]{5}/')
    rig.add(make_request("a", "?", max_tokens=200), state)
    rig.add(make_request("b", "other", max_tokens=30))
    rig.run()
    assert rig.text("a")[1:101] == "x" * 100
    assert len(rig.text("a")) == 106
    assert rig.text("b") == rig.expected(rig.requests["b"])
    rig.check_idle()


def test_a_grammar_waits_for_the_end_of_the_thinking() -> None:
    answer = [*b"I think so.", END_THINK, *b"so what"]
    rig = answering(answer, reasoning=THINKING, constraint=grammar_state('start: "yes" | "no"'))
    assert rig.reasoning("a") == "I think so."
    assert rig.text("a") in ("yes", "no")


def test_a_complete_grammar_ends_even_where_the_end_token_is_banned() -> None:
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    rig = answering("ab", sampling=sampling, constraint=grammar_state('start: ("a" | "b")'))
    assert rig.text("a") == "a"
    assert rig.finished("a").stop_type == StopType.EOS


def test_a_biased_token_outside_the_grammar_is_never_chosen() -> None:
    sampling = SamplingParams(temperature=0.0, logit_bias=((THINK, 100.0), (ord("z"), 100.0)))
    rig = answering("aaa", sampling=sampling, constraint=grammar_state("start: /[a-c]{3}/"))
    assert set(rig.text("a")) <= set("abc")
    assert len(rig.text("a")) == 3


def test_drafts_keep_to_a_grammar() -> None:
    def predict(tokens: Any) -> int:
        return b"ab ab "[len(tokens) % 6]

    rig = Rig(predict=predict, has_drafts=True, batches=SMALL_MODEL_ON_CPU, step_ms=100)
    rig.add(make_request("a", "ab ab " * 20, max_tokens=60), grammar_state("start: /[ab ]{40}/"))
    rig.run()
    assert rig.text("a") == ("ab ab " * 20)[:40]
    assert rig.finished("a").timings.draft_n > 0
    rig.check_idle()
