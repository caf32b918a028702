"""Choosing one token: greedy without the chain where that is the same, masks, probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.builders import grammar_state, make_request
from tests.support.byte_vocabulary import VOCAB_SIZE, ByteVocabulary
from tests.support.scripted_runner import ScriptedRunner

from selfserve.engine.choice import TokenChooser, log_softmax, top_indices
from selfserve.engine.constraint import ConstraintState
from selfserve.engine.plan import Row
from selfserve.errors import InternalError
from selfserve.request import SamplingParams
from selfserve.sampling import is_greedy

finite = st.floats(-50, 50, width=32)


class _Never:
    """A sampler that must not be asked."""

    def __getattr__(self, name: str) -> Any:
        if name == "close":
            return lambda: None
        return lambda *_: pytest.fail(f"it was asked to {name}")


def chooser(
    sampler: Any = None, constraint: ConstraintState | None = None, **fields: Any
) -> TokenChooser:
    request = make_request(**fields)
    return TokenChooser(ByteVocabulary(), request, sampler or _Never(), constraint)


def row(**values: float) -> Row:
    """Logits, 0 for all bytes but these letters."""
    logits = np.zeros(VOCAB_SIZE, dtype=np.float32)
    for letter, value in values.items():
        logits[ord(letter)] = value
    return Row(logits, 0)


def test_greedy_takes_the_highest_without_asking_the_chain() -> None:
    assert chooser().choose(row(a=1, b=3, c=2), constrained=False) == (ord("b"), None)


@pytest.mark.parametrize("exponent", [1.0, 3.0])
@pytest.mark.parametrize("reach", [0.5, 5.0])
def test_temperature_zero_is_greedy_whatever_range_it_has(reach: float, exponent: float) -> None:
    params = SamplingParams(temperature=0.0, dynatemp_range=reach, dynatemp_exponent=exponent)
    assert is_greedy(params)
    chosen = chooser(sampling=params).choose(row(a=1, b=1.1, c=1), constrained=False)
    assert chosen == (ord("b"), None)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.1},
        {"logit_bias": ((5, 1.0),)},
        {"repeat_penalty": 1.1},
        {"presence_penalty": 0.5},
        {"frequency_penalty": -0.5},
        {"dry_multiplier": 0.8},
        {"typical_p": 0.5},
        {"xtc_probability": 0.5},
    ],
)
def test_whatever_can_change_the_highest_goes_through_the_chain(fields: dict[str, Any]) -> None:
    assert is_greedy(SamplingParams(temperature=0.0))
    assert not is_greedy(SamplingParams(**{"temperature": 0.0, **fields}))


def test_a_grammar_masks_before_the_choice_and_goes_on_after_it() -> None:
    chosen = chooser(constraint=grammar_state('start: "ab" | "cd"'))
    assert chosen.choose(row(z=9, a=1, c=2), constrained=True)[0] == ord("c")
    assert chosen.choose(row(z=9, a=1, c=2), constrained=True)[0] == ord("d")


def test_an_unconstrained_place_leaves_the_grammar_where_it_is() -> None:
    chosen = chooser(constraint=grammar_state('start: "a"'))
    assert chosen.choose(row(z=9), constrained=False)[0] == ord("z")
    assert chosen.choose(row(z=9), constrained=True)[0] == ord("a")


def test_a_token_written_by_the_engine_is_told_to_grammar_and_chain() -> None:
    runner = ScriptedRunner()
    params = SamplingParams(temperature=1.0)
    sampler = runner.sampler(params, ())
    chosen = chooser(sampler, grammar_state('start: "ab"'), sampling=params)
    chosen.accept(ord("a"), constrained=True)
    assert sampler.accepted == [ord("a")]
    with pytest.raises(InternalError):
        chosen.accept(ord("x"), constrained=True)


class _Spy:
    """A sampler that takes the highest and notes how it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def _sample(self, name: str, row: Row) -> int:
        self.asked.append(name)
        return int(row.logits.argmax())

    def sample(self, row: Row) -> int:
        assert np.isfinite(row.logits).all()
        return self._sample("plain", row)

    def sample_masked(self, row: Row) -> int:
        return self._sample("masked", row)

    def close(self) -> None:
        self.asked.append("close")


@pytest.mark.parametrize(
    ("is_bound", "constrained", "way", "expected"),
    [
        (False, True, "plain", "z"),
        (True, False, "plain", "z"),
        (True, True, "masked", "y"),
    ],
)
def test_a_chain_learns_whether_its_row_is_masked(
    is_bound: bool, constrained: bool, way: str, expected: str
) -> None:
    spy = _Spy()
    grammar = grammar_state("start: /[xy]/") if is_bound else None
    chosen = chooser(spy, grammar, sampling=SamplingParams())
    token, _ = chosen.choose(row(x=1, y=2, z=3), constrained=constrained)
    assert (chr(token), spy.asked) == (expected, [way])


def test_an_allowed_token_is_taken_by_a_greedy_choice_with_no_mask() -> None:
    grammar = grammar_state("start: /[xy]/")
    grammar.apply = _Never().apply  # type: ignore[method-assign]
    token, _ = chooser(None, grammar).choose(row(x=2, y=1), constrained=True)
    assert token == ord("x")


def test_raw_probabilities_are_those_before_the_mask() -> None:
    chosen = chooser(constraint=grammar_state('start: "a"'), n_probs=2)
    token, probs = chosen.choose(row(a=1, b=3), constrained=True)
    assert token == ord("a")
    assert probs is not None
    assert [token for token, _ in probs.top] == [ord("b"), ord("a")]
    expected = log_softmax(row(a=1, b=3).logits)
    assert probs.value == pytest.approx(float(expected[ord("a")]))


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
