"""What happens where the context is full: the end, or a shift, and how many of those there are."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.support.builders import (
    SMALL_MODEL_ON_CPU,
    Rig,
    grammar_state,
    make_request,
    random_text,
)
from tests.support.scripted_runner import Predictor, endless

from selfserve.limits import MAX_SHIFTED_CONTEXTS
from selfserve.request import StopType

SHIFTS = pytest.mark.parametrize(
    ("n_keep", "add_bos"), [(0, False), (10, False), (10, True), (-1, False)]
)


def shifted_answer(
    prompt: Sequence[int],
    num_tokens: int,
    *,
    kept: int,
    context_size: int,
    forced: bytes = b"",
    predict: Predictor = endless,
) -> list[int]:
    """The oracle: token by token, the first ones perhaps forced, with half of what is not kept
    dropped whenever the context is full."""
    tokens, answer = list(prompt), []
    for i in range(num_tokens):
        before = list(tokens)
        if len(tokens) == context_size:
            del tokens[kept : kept + (context_size - kept) // 2]
        # Forced text is computed up to the full context, with what follows its end.
        seen = before if 1 < i <= len(forced) else tokens
        token = forced[i] if i < len(forced) else predict(seen)
        answer.append(token)
        tokens.append(token)
    return answer


@pytest.mark.parametrize("max_tokens", [None, 1000])
def test_a_full_context_ends_a_generation_as_truncated(max_tokens: int | None) -> None:
    rig = Rig(context_size=64, predict=endless, has_drafts=True, batches=SMALL_MODEL_ON_CPU)
    request = make_request("a", "x" * 40, max_tokens=max_tokens)
    rig.run([request])
    end = rig.finished("a")
    assert (end.stop_type, end.truncated) == (StopType.LIMIT, True)
    assert end.prompt_tokens + end.completion_tokens == 64
    assert rig.text("a") == rig.expected(request)


def test_a_prompt_of_the_whole_context_but_one_token_gets_that_one() -> None:
    rig = Rig(context_size=64, predict=endless)
    rig.run([make_request("a", "x" * 63, max_tokens=10)])
    assert rig.finished("a").completion_tokens == 1


@SHIFTS
def test_a_shift_drops_half_of_what_is_not_kept(n_keep: int, add_bos: bool) -> None:
    rig = Rig(context_size=64, predict=endless, add_bos=add_bos)
    prompt = [*random_text(1, 40).encode()]
    rig.run([make_request("a", prompt, max_tokens=100, n_keep=n_keep)])
    kept = (40 if n_keep < 0 else n_keep) + add_bos
    assert rig.tokens("a") == shifted_answer(prompt, 100, kept=kept, context_size=64)
    end = rig.finished("a")
    assert (end.stop_type, end.completion_tokens, end.truncated) == (StopType.LIMIT, 100, True)
    rig.check_idle()


def test_drafts_that_reach_the_end_of_the_context_are_shifted_with_it() -> None:
    def predict(tokens: Sequence[int]) -> int:
        return b"la la "[tokens[-1] == ord("l") or (tokens[-1] == ord("a")) * 2]

    rig = Rig(
        context_size=64, predict=predict, has_drafts=True, batches=SMALL_MODEL_ON_CPU, step_ms=100
    )
    prompt = b"la la " * 5
    rig.run([make_request("a", [*prompt], max_tokens=200, n_keep=3)])
    assert rig.finished("a").timings.draft_n_accepted > 100
    expected = shifted_answer(prompt, 200, kept=3, context_size=64, predict=predict)
    assert rig.tokens("a") == expected
    rig.check_idle()


def test_where_memory_cannot_be_shifted_what_is_left_is_computed_again() -> None:
    # The API asks no such model for a shift; a refusal of the runner must not damage an answer.
    rig = Rig(context_size=64, predict=endless, can_shift=False)
    prompt = [*b"x" * 40]
    rig.run([make_request("a", prompt, max_tokens=100, n_keep=4)])
    assert rig.tokens("a") == shifted_answer(prompt, 100, kept=4, context_size=64)
    rig.check_idle()


def test_a_prompt_that_would_be_kept_whole_leaves_room_to_go_on() -> None:
    rig = Rig(context_size=64, predict=endless)
    rig.run([make_request("a", "x" * 63, max_tokens=40, n_keep=-1)])
    assert rig.finished("a").completion_tokens == 40


@SHIFTS
def test_shifts_without_an_end_end_after_a_number_of_contexts(n_keep: int, add_bos: bool) -> None:
    rig = Rig(context_size=64, predict=endless, add_bos=add_bos)
    rig.run([make_request("a", "x" * 20, max_tokens=None, n_keep=n_keep)])
    end = rig.finished("a")
    assert (end.stop_type, end.truncated) == (StopType.LIMIT, True)
    most = MAX_SHIFTED_CONTEXTS * 64
    assert most <= end.prompt_tokens + end.completion_tokens < most + 64
    rig.check_idle()


# --- forced text --------------------------------------------------------------------------


@pytest.mark.parametrize("n_keep", [0, -1])
@pytest.mark.parametrize("length", [506, 507, 600, 1500])
@pytest.mark.parametrize("prompt", ["Hello", "Hello " * 20])
def test_forced_text_longer_than_the_context_is_shifted_right(
    prompt: str, length: int, n_keep: int
) -> None:
    forced = random_text(length, length)
    rig = Rig(predict=endless)
    request = make_request("a", prompt, max_tokens=None, n_keep=n_keep)
    rig.add(request, grammar_state(f'start: "{forced}" /(.|\\n){{300}}/'))
    rig.run()
    kept = len(prompt) if n_keep < 0 else 0
    expected = shifted_answer(
        prompt.encode(), length + 300, kept=kept, context_size=512, forced=forced.encode()
    )
    assert rig.text("a") == bytes(expected).decode()
    end = rig.finished("a")
    assert (end.stop_type, end.completion_tokens) == (StopType.EOS, length + 300)
    assert end.truncated
    rig.check_idle()


def test_forced_text_without_a_shift_keeps_to_the_context() -> None:
    state = grammar_state('start: ("a" | "b") "' + "x" * 100 + '" ("a" | "b")')
    rig = Rig(context_size=64, predict=endless)
    rig.add(make_request("a", "?", max_tokens=100), state)
    rig.run()
    end = rig.finished("a")
    assert (end.stop_type, end.truncated) == (StopType.LIMIT, True)
    assert end.completion_tokens == 63
    rig.check_idle()
