"""What gives way when a model does not fit, and what never does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from selfserve.catalogue.fit import Load, estimate
from selfserve.catalogue.shape import AttentionLayer, Shape
from selfserve.cli.fitting import Need, cache_bytes, fitted
from selfserve.errors import ModelTooLarge

SHAPE = Shape(
    architecture="llama",
    num_layers=16,
    embedding_length=1024,
    feed_forward_length=4096,
    num_heads=8,
    vocab_size=32000,
    context_length=32768,
    window=0,
    attention=(AttentionLayer(8, 128, 128, False),) * 16,
    recurrent_values=0,
    convolution_channels=0,
)
WANTED = Load(context_size=16384, num_slots=4)
WEIGHTS = 1 << 30


def needed(load: Load) -> int:
    return estimate(SHAPE, load, weight_bytes=WEIGHTS).total


def need(available: int) -> Need:
    return Need(shape=SHAPE, weight_bytes=WEIGHTS, projector_bytes=0, available=available)


def fit(available: int, *, context: bool = False, slots: bool = False) -> Load:
    return fitted(need(available), WANTED, context_is_decided=context, slots_are_decided=slots)


def test_what_fits_is_left_alone() -> None:
    assert fit(needed(WANTED)) == WANTED


def test_slots_give_way_first() -> None:
    two = replace(WANTED, num_slots=2)
    assert fit(needed(two)) == two
    assert fit(needed(two), context=True) == two


def test_where_the_slots_were_decided_the_context_gives_way() -> None:
    half = replace(WANTED, context_size=8192)
    assert fit(needed(half), slots=True) == half
    less = fit(needed(half) - 1, slots=True)
    assert less == replace(WANTED, context_size=8192 - 256)


@pytest.mark.parametrize(("context", "slots"), [(True, True), (True, False), (False, True)])
def test_what_was_decided_is_not_changed_but_refused(context: bool, slots: bool) -> None:
    available = needed(replace(WANTED, context_size=512, num_slots=1)) - (0 if context else 1)
    with pytest.raises(ModelTooLarge, match=r"needs .* is there; .*--force"):
        fit(available, context=context, slots=slots)


def test_the_refusal_says_what_would_fit() -> None:
    with pytest.raises(ModelTooLarge, match="it fits with --context-size 16384 --parallel 2"):
        fit(needed(replace(WANTED, num_slots=2)), context=True, slots=True)


def test_a_model_whose_weights_alone_are_too_large_is_refused() -> None:
    with pytest.raises(ModelTooLarge, match="choose a smaller model"):
        fit(WEIGHTS)


def test_the_cache_gets_a_quarter_or_what_is_left() -> None:
    total = needed(WANTED)
    assert cache_bytes(need(total + 5), WANTED) == 5
    assert cache_bytes(need(total * 4), WANTED) == total
    assert cache_bytes(need(total - 1), WANTED) == 0
