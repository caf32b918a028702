"""Choosing one token: greedy without the chain where that is the same, masks, probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.builders import Rig, grammar_state, make_request
from tests.support.byte_vocabulary import VOCAB_SIZE, ByteVocabulary
from tests.support.scripted_runner import ScriptedRunner

from selfserve.engine.choice import TokenChooser, log_softmax, top_indices
from selfserve.engine.constraint import ConstraintState
from selfserve.engine.plan import Chunk, Plan
from selfserve.errors import InternalError
from selfserve.request import SamplingParams

finite = st.floats(-50, 50, width=32)


class _Never:
    """A sampler that must not be asked."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the chain was asked to {name}")


def chooser(
    sampler: Any = None, constraint: ConstraintState | None = None, **fields: Any
) -> TokenChooser:
    request = make_request(**fields)
    return TokenChooser(ByteVocabulary(), request, sampler or _Never(), constraint)


def row(**values: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Logits, 0 for all bytes but these letters."""
    logits = np.zeros(VOCAB_SIZE, dtype=np.float32)
    for letter, value in values.items():
        logits[ord(letter)] = value
    return logits


def test_greedy_takes_the_highest_without_asking_the_chain() -> None:
    assert chooser().choose(row(a=1, b=3, c=2), 0, constrained=False) == (ord("b"), None)


@pytest.mark.parametrize(
    "fields",
    [{"logit_bias": ((5, -math.inf),)}, {"ignore_eos": True}, {"repeat_penalty": 1.1}],
    ids=repr,
)
def test_whatever_can_change_the_highest_goes_through_the_chain(fields: dict[str, Any]) -> None:
    params = SamplingParams(temperature=0.0, **fields)
    with pytest.raises(AssertionError, match="the chain was asked"):
        chooser(sampling=params).choose(row(a=1), 0, constrained=False)


def test_a_grammar_masks_before_the_choice_and_goes_on_after_it() -> None:
    chosen = chooser(constraint=grammar_state('start: "ab" | "cd"'))
    assert chosen.choose(row(z=9, a=1, c=2), 0, constrained=True)[0] == ord("c")
    assert chosen.choose(row(z=9, a=1, c=2), 0, constrained=True)[0] == ord("d")


def test_an_unconstrained_place_leaves_the_grammar_where_it_is() -> None:
    chosen = chooser(constraint=grammar_state('start: "a"'))
    assert chosen.choose(row(z=9), 0, constrained=False)[0] == ord("z")
    assert chosen.choose(row(z=9), 0, constrained=True)[0] == ord("a")


def test_a_token_written_by_the_engine_is_told_to_grammar_and_chain() -> None:
    runner = ScriptedRunner()
    params = SamplingParams(temperature=1.0)
    sampler = runner.sampler(params, ())
    chosen = chooser(sampler, grammar_state('start: "ab"'), sampling=params)
    chosen.accept(ord("a"), constrained=True)
    assert sampler.accepted == [ord("a")]
    with pytest.raises(InternalError):
        chosen.accept(ord("x"), constrained=True)


def test_the_mask_reaches_a_chain_that_reads_the_logits_itself() -> None:
    params = SamplingParams(temperature=1.0, seed=3)
    for seed in range(10):
        runner = ScriptedRunner()
        rig = Rig(runner)
        rig.add(make_request())
        sequence = rig.scheduler.waiting[0][0]
        chunk = Chunk(sequence=sequence, slot=0, start=0, tokens=[seed], num_outputs=1)
        runner.run(Plan([chunk], num_prefill_tokens=1).finish())
        chosen = chooser(
            runner.sampler(params, ()), grammar_state("start: /[xy]/"), sampling=params
        )
        token, _ = chosen.choose(runner.logits(1)[0], chunk.first_row, constrained=True)
        assert token in b"xy"


def test_raw_probabilities_are_those_before_the_mask() -> None:
    chosen = chooser(constraint=grammar_state('start: "a"'), n_probs=2)
    token, probs = chosen.choose(row(a=1, b=3), 0, constrained=True)
    assert token == ord("a")
    assert probs is not None
    assert [top.id for top in probs.top] == [ord("b"), ord("a")]
    expected = log_softmax(row(a=1, b=3))
    assert probs.chosen.value == pytest.approx(float(expected[ord("a")]))
    assert probs.top[0].piece == b"b"


@given(st.lists(finite, min_size=1, max_size=40))
@settings(max_examples=40, deadline=None)
def test_log_softmax_is_a_distribution(values: list[float]) -> None:
    logits = np.array(values, dtype=np.float32)
    result = log_softmax(logits)
    assert np.exp(result.astype(np.float64)).sum() == pytest.approx(1.0, abs=1e-4)
    assert result[logits.argmax()] == result.max()


def test_a_banned_token_has_no_probability_and_no_nan() -> None:
    result = log_softmax(np.array([0.0, -np.inf, 0.0], dtype=np.float32))
    assert result.tolist() == pytest.approx([-0.6931, -np.inf, -0.6931], abs=1e-3)


@given(st.lists(finite, min_size=1, max_size=40), st.integers(1, 50))
@settings(max_examples=40, deadline=None)
def test_the_highest_values_come_in_order(values: list[float], count: int) -> None:
    array = np.array(values, dtype=np.float32)
    found: Sequence[int] = top_indices(array, count)
    assert len(found) == len(set(found)) == min(count, len(values))
    assert [array[i] for i in found] == sorted(array.tolist(), reverse=True)[:count]
