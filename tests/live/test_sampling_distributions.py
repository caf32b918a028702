"""Every sampler against its definition, computed by numpy: the probabilities after the chain and,
by a chi-squared test, the draws themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.support.real_vocabulary import smollm2_path

from selfserve.native.model import Model
from selfserve.native.sampler import Sampler
from selfserve.sampling import DEFAULT_SAMPLERS, SamplingParams

Floats = npt.NDArray[np.float64]

LOGITS = np.array([3.0, 2.6, 2.0, 1.1, 0.4, -0.3, -1.0, -2.5, -4.0, -6.0])
NUM_DRAWS = 2000
CONTEXT_SIZE = 4096
OFF: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""Every sampler switched off: the draw follows the softmax of the logits."""


class Chains:
    """Makes sampler chains and closes them."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._made: list[Sampler] = []

    def __call__(self, *, prompt: Sequence[int] = (), **fields: Any) -> Sampler:
        params = SamplingParams(**{**OFF, "seed": 17, **fields})
        sampler = Sampler(self._model.vocab, params, prompt, context_size=CONTEXT_SIZE)
        self._made.append(sampler)
        return sampler

    def close(self) -> None:
        for sampler in self._made:
            sampler.close()


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    model = Model(smollm2_path(), vocab_only=True)
    yield model
    model.close()


@pytest.fixture
def chain(model: Model) -> Iterator[Chains]:
    chains = Chains(model)
    yield chains
    chains.close()


def softmax(logits: Floats) -> Floats:
    shifted = np.exp(logits - logits.max())
    return np.asarray(shifted / shifted.sum())


def only(kept: Sequence[int] | npt.NDArray[np.bool_], logits: Floats = LOGITS) -> Floats:
    """The softmax over some of the tokens."""
    mask = np.full(len(logits), -np.inf)
    mask[np.asarray(kept)] = 0.0
    return softmax(logits + mask)


def after_chain(sampler: Sampler, logits: Floats = LOGITS) -> Floats:
    """The probabilities of the first draw, by token."""
    _, ids, values = sampler.sample_with_probs(logits.astype(np.float32))
    found = np.zeros(len(logits))
    found[ids] = values
    return found


def chi_squared_limit(degrees: int) -> float:
    """The value that one in 10,000 fair samples exceeds (Wilson and Hilferty)."""
    part = 2 / (9 * degrees)
    return float(degrees * (1 - part + 3.719 * math.sqrt(part)) ** 3)


def check_draws(sampler: Sampler, expected: Floats, logits: Floats = LOGITS) -> None:
    """Draws as often as it says, and never what has no probability."""
    row = logits.astype(np.float32)
    drawn = [sampler.sample_with_probs(row)[0] for _ in range(NUM_DRAWS)]
    counts = np.bincount(drawn, minlength=len(logits))
    assert not counts[expected == 0].any()
    often = expected * NUM_DRAWS >= 5
    wanted = np.append(expected[often], expected[~often].sum()) * NUM_DRAWS
    seen = np.append(counts[often], counts[~often].sum())
    cells = wanted > 0
    statistic = float(((seen - wanted)[cells] ** 2 / wanted[cells]).sum())
    assert statistic < chi_squared_limit(max(1, int(cells.sum()) - 1)), (statistic, counts)


def typical(p: float) -> Floats:
    probabilities = softmax(LOGITS)
    surprise = -np.log(probabilities)
    entropy = float((probabilities * surprise).sum())
    order = np.argsort(np.abs(surprise - entropy))
    reached = np.cumsum(probabilities[order]) > p
    return only(order[: int(np.argmax(reached)) + 1])


def top_p(p: float) -> Floats:
    order = np.argsort(-LOGITS)
    reached = np.cumsum(softmax(LOGITS)[order]) >= p
    return only(order[: int(np.argmax(reached)) + 1])


def dynamic(temperature: float, spread: float, exponent: float) -> Floats:
    probabilities = softmax(LOGITS)
    entropy = float(-(probabilities * np.log(probabilities)).sum())
    low, high = max(0.0, temperature - spread), temperature + spread
    share = (entropy / math.log(len(LOGITS))) ** exponent
    return softmax(LOGITS / (low + (high - low) * share))


CASES: dict[str, tuple[dict[str, Any], Floats]] = {
    "off": ({}, softmax(LOGITS)),
    "temperature": ({"temperature": 2.0}, softmax(LOGITS / 2)),
    "temperature twice": (
        {"temperature": 2.0, "samplers": ("temperature", "temperature")},
        softmax(LOGITS / 4),
    ),
    "temperature left out": ({"temperature": 2.0, "samplers": ()}, softmax(LOGITS)),
    "top_k": ({"top_k": 3}, only([0, 1, 2])),
    "top_p": ({"top_p": 0.7}, top_p(0.7)),
    "min_p": ({"min_p": 0.2}, only(softmax(LOGITS) >= 0.2 * softmax(LOGITS).max())),
    "typical_p": ({"typical_p": 0.5}, typical(0.5)),
    "top_n_sigma": (
        {"top_n_sigma": 0.7},
        only(LOGITS.max() - 0.7 * LOGITS.std() <= LOGITS),
    ),
    "dynatemp_range": ({"dynatemp_range": 0.8}, dynamic(1.0, 0.8, 1.0)),
    "dynatemp below zero": ({"dynatemp_range": 3.0}, dynamic(1.0, 3.0, 1.0)),
    "dynatemp_exponent": (
        {"dynatemp_range": 0.8, "dynatemp_exponent": 3.0},
        dynamic(1.0, 0.8, 3.0),
    ),
    "xtc": (
        {"xtc_probability": 1.0, "xtc_threshold": 0.1},
        only([2, 3, 4, 5, 6, 7, 8, 9]),
    ),
    "xtc over a half": ({"xtc_probability": 1.0, "xtc_threshold": 0.51}, softmax(LOGITS)),
    "min_keep": ({"top_p": 0.01, "min_keep": 4}, only([0, 1, 2, 3])),
    "min_keep of min_p": ({"min_p": 1.0, "min_keep": 2}, only([0, 1])),
    "min_keep of top_k": ({"top_k": 2, "min_keep": 4}, only([0, 1, 2, 3])),
    "min_keep of top_n_sigma": ({"top_n_sigma": 0.1, "min_keep": 3}, only([0, 1, 2])),
    "min_keep of all": (
        {"top_k": 1, "top_p": 0.01, "min_p": 1.0, "top_n_sigma": 0.0, "min_keep": 2},
        only([0, 1]),
    ),
    "min_keep over all": ({"top_k": 1, "top_n_sigma": 0.0, "min_keep": 99}, softmax(LOGITS)),
    "top_n_sigma of 0": ({"top_n_sigma": 0.0}, only([0])),
    "top_n_sigma below 0": ({"top_n_sigma": -0.5}, softmax(LOGITS)),
    "top_n_sigma before typical_p": (
        {"top_n_sigma": 1.0, "typical_p": 0.99},
        only(LOGITS.max() - LOGITS.std() <= LOGITS),
    ),
    "top_n_sigma after temperature": (
        {"temperature": 2.0, "top_n_sigma": 0.7, "samplers": ("temperature", "top_n_sigma")},
        softmax(np.where(LOGITS.max() - 0.7 * LOGITS.std() <= LOGITS, LOGITS / 2, -np.inf)),
    ),
    "logit_bias": (
        {"logit_bias": ((0, -3.0), (9, 9.0))},
        softmax(np.append(LOGITS[:9], 3.0) - np.array([3.0] + [0.0] * 9)),
    ),
    "bias before truncation": (
        {"logit_bias": ((9, 100.0),), "top_k": 1},
        only([9]),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_chain_has_the_probabilities_of_its_definition(chain: Chains, name: str) -> None:
    fields, expected = CASES[name]
    np.testing.assert_allclose(after_chain(chain(**fields)), expected, atol=2e-6)
    check_draws(chain(**fields), expected)


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (("top_k", "temperature", "min_p"), [0, 1, 2]),
        (("temperature", "min_p", "top_k"), [0, 1, 2]),
        (("min_p", "temperature"), [0, 1]),
        (("temperature", "min_p"), [0, 1, 2, 3]),
    ],
)
def test_the_order_decides_which_tokens_survive(
    chain: Chains, first: tuple[str, ...], expected: list[int]
) -> None:
    found = after_chain(chain(temperature=2.0, top_k=3, min_p=0.38, samplers=first))
    assert np.flatnonzero(found).tolist() == expected


@pytest.mark.parametrize(
    ("fields", "shifts"),
    [
        ({"repeat_penalty": 2.0}, {0: -1.5, 5: -0.3}),
        ({"presence_penalty": 0.5}, {0: -0.5, 5: -0.5}),
        ({"frequency_penalty": 0.5}, {0: -1.0, 5: -0.5}),
        ({"frequency_penalty": 0.5, "repeat_last_n": 2}, {0: -0.5, 5: -0.5}),
        ({"repeat_penalty": 2.0, "repeat_last_n": 1}, {5: -0.3}),
        ({"repeat_penalty": 2.0, "repeat_last_n": -1}, {0: -1.5, 5: -0.3}),
        ({"repeat_penalty": 2.0, "presence_penalty": 1.0, "repeat_last_n": 0}, {}),
        ({"dry_multiplier": 0.8, "dry_allowed_length": 1, "dry_sequence_breakers": ()}, None),
    ],
)
def test_penalties_count_the_window_over_the_prompt(
    chain: Chains, fields: dict[str, Any], shifts: dict[int, float] | None
) -> None:
    shifted = LOGITS.copy()
    prompt = [0, 0, 5]
    if shifts is None:  # after "2 3 4 2 3", a 4 would repeat two tokens
        prompt, shifts = [2, 3, 4, 2, 3], {4: -0.8 * 1.75}
    for token, shift in shifts.items():
        shifted[token] += shift
    found = after_chain(chain(prompt=prompt, **fields))
    np.testing.assert_allclose(found, softmax(shifted), atol=2e-6)


@pytest.mark.parametrize("fields", [{"dry_penalty_last_n": 0}, {"dry_allowed_length": 9}])
def test_dry_is_off_without_a_window_or_below_its_length(
    chain: Chains, fields: dict[str, Any]
) -> None:
    found = after_chain(chain(prompt=[2, 3, 4, 2, 3], dry_multiplier=5.0, **fields))
    np.testing.assert_allclose(found, softmax(LOGITS), atol=2e-6)


@pytest.mark.parametrize(("base", "growth"), [(3.0, 3.0), (0.5, 1.75)])
def test_dry_grows_by_its_base(chain: Chains, base: float, growth: float) -> None:
    fields = {"dry_multiplier": 0.5, "dry_base": base, "dry_allowed_length": 2}
    prompt = [2, 3, 4, 5, 2, 3, 4]
    shifted = LOGITS.copy()
    shifted[5] -= 0.5 * growth
    found = after_chain(chain(prompt=prompt, dry_sequence_breakers=(), **fields))
    np.testing.assert_allclose(found, softmax(shifted), atol=2e-6)


def test_own_draws_enter_the_window(chain: Chains) -> None:
    sampler = chain(top_k=1, presence_penalty=1.2, samplers=("penalties", "top_k"))
    row = LOGITS.astype(np.float32)
    assert [sampler.sample_with_probs(row)[0] for _ in range(4)] == [0, 1, 2, 0]


@pytest.mark.parametrize("mirostat", [1, 2])
@pytest.mark.parametrize("tau", [2.0, 4.0])
def test_mirostat_reaches_its_target_surprise(chain: Chains, mirostat: int, tau: float) -> None:
    logits = (-1.1 * np.log(np.arange(1, 1001))).astype(np.float32)
    sampler = chain(mirostat=mirostat, mirostat_tau=tau, mirostat_eta=0.1)
    surprises = []
    for _ in range(NUM_DRAWS):
        token, ids, values = sampler.sample_with_probs(logits)
        surprises.append(-math.log2(values[ids == token][0]))
    assert np.mean(surprises) == pytest.approx(tau, abs=0.1)


def test_xtc_acts_as_often_as_it_says(chain: Chains) -> None:
    half = 0.5 * softmax(LOGITS) + 0.5 * only([2, 3, 4, 5, 6, 7, 8, 9])
    check_draws(chain(xtc_probability=0.5, xtc_threshold=0.1), half)


def test_a_seed_fixes_the_draws_and_nothing_else_does(chain: Chains) -> None:
    row = LOGITS.astype(np.float32)

    def drawn(sampler: Sampler) -> list[int]:
        return [sampler.sample_with_probs(row)[0] for _ in range(50)]

    assert drawn(chain(seed=3)) == drawn(chain(seed=3))
    assert len({tuple(drawn(chain(seed=seed))) for seed in range(20)}) == 20


@pytest.mark.parametrize("samplers", [(), ("penalties",), ("top_k",), DEFAULT_SAMPLERS])
def test_temperature_zero_is_greedy_with_every_chain(
    chain: Chains, samplers: tuple[str, ...]
) -> None:
    sampler = chain(temperature=0.0, samplers=samplers, logit_bias=((0, -0.6),))
    row = LOGITS.astype(np.float32)
    assert {sampler.sample_with_probs(row)[0] for _ in range(20)} == {1}


@pytest.mark.parametrize("fields", [{"dynatemp_range": 1.0}, {"dynatemp_range": 2.0, "top_p": 0.9}])
@pytest.mark.parametrize(
    "samplers", [DEFAULT_SAMPLERS, ("temperature", "typ_p", "top_p"), ("temperature",) * 2]
)
def test_temperature_zero_is_greedy_whatever_the_dynamic_range(
    chain: Chains, fields: dict[str, Any], samplers: tuple[str, ...]
) -> None:
    sampler = chain(temperature=0.0, **fields, samplers=samplers, typical_p=0.999)
    row = LOGITS.astype(np.float32)
    assert {sampler.sample_masked(row) for _ in range(30)} == {0}


@pytest.mark.parametrize("name", ["off", "typical_p", "top_n_sigma", "dynatemp_range", "xtc"])
@pytest.mark.parametrize("masked", [1, 200])
def test_masked_candidates_change_nothing_for_the_others(
    chain: Chains, name: str, masked: int
) -> None:
    fields, expected = CASES[name]
    logits = np.concatenate([np.full(masked, -np.inf), LOGITS])
    found = after_chain(chain(**fields), logits)
    np.testing.assert_allclose(found[masked:], expected, atol=2e-6)
    assert not found[:masked].any()


@pytest.mark.parametrize("mirostat", [1, 2])
def test_mirostat_never_sees_what_is_masked(chain: Chains, mirostat: int) -> None:
    logits = (-1.1 * np.log(np.arange(1, 1001))).astype(np.float32)
    masked = np.full(2000, -np.inf, dtype=np.float32)
    masked[::2] = logits
    fields = {"mirostat": mirostat, "mirostat_tau": 3.0}
    plain, other = chain(**fields), chain(**fields)
    assert [2 * plain.sample_masked(logits) for _ in range(100)] == [
        other.sample_masked(masked) for _ in range(100)
    ]


def test_a_row_without_candidates_is_an_error(chain: Chains) -> None:
    with pytest.raises(ValueError, match="nothing to choose"):
        chain().sample_masked(np.full(10, -np.inf, dtype=np.float32))


@pytest.mark.parametrize(
    "fields",
    [
        {"repeat_penalty": 1.5, "repeat_last_n": 2**31 - 1},
        {"presence_penalty": 1.5, "repeat_last_n": 2**31 - 1},
        {"dry_multiplier": 1.0, "dry_penalty_last_n": 2**31 - 1},
    ],
)
def test_no_window_is_longer_than_the_context(
    model: Model, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    windows = []
    lib: Any = model.vocab._lib
    for name, place in (("penalties", 1), ("dry", 4)):
        make = getattr(lib, f"llama_sampler_init_{name}")

        def spy(*given: Any, make: Any = make, place: int = place) -> Any:
            windows.append(given[place])
            return make(*given[:place], min(given[place], CONTEXT_SIZE), *given[place + 1 :])

        monkeypatch.setattr(lib, f"llama_sampler_init_{name}", spy)
    params = SamplingParams(**fields, samplers=("penalties", "dry", "penalties"))
    Sampler(model.vocab, params, [1, 2, 3], context_size=CONTEXT_SIZE).close()
    assert windows == [CONTEXT_SIZE]
