"""The memory estimate is libllama's own arithmetic, and the suggestion is the best that fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.tiny_gguf import write_gguf

from selfserve.catalogue.entries import DEFAULT_MODEL, resolve
from selfserve.catalogue.fit import (
    CELL_BLOCK,
    MIN_CONTEXT,
    Load,
    check,
    compute_bytes,
    context_bytes,
    estimate,
)
from selfserve.catalogue.gguf import read_header
from selfserve.catalogue.shape import Shape, read_shape
from selfserve.errors import ModelLoadError

MIB = 1 << 20
GIB = 1 << 30


def shape(tmp_path: Path, architecture: str, **values: Any) -> Shape:
    """A model with 4 layers of width 64; `values` are added with `__` for a dot."""
    metadata = {"block_count": 4, "embedding_length": 64, "feed_forward_length": 128}
    metadata |= {key.replace("__", "."): value for key, value in values.items()}
    named = {f"{architecture}.{key}": value for key, value in metadata.items()}
    path = write_gguf(tmp_path / "m.gguf", {"general.architecture": architecture, **named})
    return read_shape(read_header(path))


@pytest.fixture(scope="module")
def smollm2() -> Shape:
    return read_shape(read_header(resolve(DEFAULT_MODEL).path))


def test_a_plain_model_keeps_all_layers_for_every_token(smollm2: Shape) -> None:
    load = Load(context_size=2048, num_slots=1)
    assert context_bytes(smollm2, load) == 2048 * 30 * 3 * (64 + 64) * 2 == 45 * MIB


@pytest.mark.parametrize(
    ("load", "mebibytes"),
    [
        (Load(context_size=8192, num_slots=4, outputs_per_slot=9), 21.51),
        (Load(context_size=2048, num_slots=1, outputs_per_slot=9), 15.51),
        (Load(context_size=32768, num_slots=4, outputs_per_slot=9), 45.51),
        (Load(context_size=8192, num_slots=4, outputs_per_slot=9, ubatch_size=2048), 86.05),
        (Load(context_size=8192, num_slots=4, outputs_per_slot=512), 98.25),
        (
            Load(context_size=8192, num_slots=4, outputs_per_slot=512, flash_attention=False),
            166.38,
        ),
    ],
)
def test_work_buffers_are_near_those_that_libllama_reserves(
    smollm2: Shape, load: Load, mebibytes: float
) -> None:
    assert compute_bytes(smollm2, load) / MIB == pytest.approx(mebibytes, rel=0.1)


def test_cells_come_in_whole_blocks(smollm2: Shape) -> None:
    one, more = (context_bytes(smollm2, Load(context_size=size)) for size in (1, 257))
    assert (one, more) == (
        context_bytes(smollm2, Load(context_size=CELL_BLOCK)),
        context_bytes(smollm2, Load(context_size=2 * CELL_BLOCK)),
    )


def test_a_smaller_type_of_context_takes_less(smollm2: Shape) -> None:
    load = Load(context_size=4096)
    full = context_bytes(smollm2, load)
    assert context_bytes(smollm2, replace(load, kv_type="q8_0")) == full * 34 // 64
    assert context_bytes(smollm2, replace(load, kv_type="f32")) == full * 2


def test_windowed_layers_keep_their_window_and_a_batch(tmp_path: Path) -> None:
    model = shape(
        tmp_path,
        "gemma4",
        attention__head_count=2,
        attention__head_count_kv=1,
        attention__key_length=64,
        attention__value_length=64,
        attention__key_length_swa=32,
        attention__value_length_swa=32,
        attention__sliding_window=64,
        attention__sliding_window_pattern=[True, True, True, False],
    )
    load = Load(context_size=4096, num_slots=4)
    assert context_bytes(model, load) == 4 * (4096 * 128 + 3 * 768 * 64) * 2
    short = Load(context_size=256, num_slots=1)
    assert context_bytes(model, short) == (256 * 128 + 3 * 256 * 64) * 2


@pytest.mark.parametrize(
    ("architecture", "pattern", "windowed"),
    [
        ("gemma3", None, [True] * 4),
        ("gemma2", None, [True, False, True, False]),
        ("gemma3", 4, [True, True, True, False]),
        ("mystery", None, [False] * 4),
    ],
)
def test_which_layers_have_a_window_is_known_by_family(
    tmp_path: Path, architecture: str, pattern: int | None, windowed: list[bool]
) -> None:
    values: dict[str, Any] = {"attention__head_count": 2, "attention__sliding_window": 64}
    if pattern is not None:
        values["attention__sliding_window_pattern"] = pattern
    model = shape(tmp_path, architecture, **values)
    assert [layer.windowed for layer in model.attention] == windowed


def test_layers_that_use_a_lower_layers_memory_have_none(tmp_path: Path) -> None:
    model = shape(tmp_path, "gemma4", attention__head_count=2, attention__shared_kv_layers=3)
    assert len(model.attention) == 1


def test_a_hybrid_model_has_attention_in_each_fourth_layer_and_state_in_the_others(
    tmp_path: Path,
) -> None:
    model = shape(
        tmp_path,
        "qwen35",
        attention__head_count=2,
        attention__head_count_kv=1,
        attention__key_length=64,
        attention__value_length=64,
        full_attention_interval=4,
        ssm__conv_kernel=4,
        ssm__state_size=32,
        ssm__group_count=2,
        ssm__inner_size=128,
    )
    assert context_bytes(model, Load(context_size=4096, num_slots=4)) == 4 * MIB
    assert model.recurrent_values == 3 * (3 * (128 + 2 * 2 * 32) + 32 * 128)


def test_layers_without_heads_are_recurrent(tmp_path: Path) -> None:
    model = shape(
        tmp_path,
        "jamba",
        attention__head_count=2,
        attention__head_count_kv=[0, 2, 0, 0],
        ssm__conv_kernel=4,
        ssm__state_size=16,
        ssm__inner_size=128,
    )
    assert len(model.attention) == 1
    assert model.recurrent_values == 3 * (3 * 128 + 16 * 128)


def test_a_recurrent_model_needs_no_more_for_a_longer_context(tmp_path: Path) -> None:
    model = shape(tmp_path, "mamba", ssm__conv_kernel=4, ssm__state_size=16, ssm__inner_size=128)
    short, long = (
        estimate(model, Load(context_size=size), weight_bytes=1000) for size in (512, 1 << 20)
    )
    assert short == long
    assert short.recurrent == 4 * 4 * (3 * 128 + 16 * 128) * 4


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_count", 1 << 30),
        ("block_count", "many"),
        ("embedding_length", -1),
        ("attention__head_count", [2, 2]),
    ],
)
def test_absurd_dimensions_are_refused_by_name(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(ModelLoadError, match=key.rpartition("__")[2]):
        shape(tmp_path, "llama", **{key: value})


def test_a_projector_is_not_taken_for_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="projector"):
        shape(tmp_path, "clip")


WEIGHTS = 98_362_432


def test_the_estimate_is_the_sum_of_its_parts(smollm2: Shape) -> None:
    load = Load(context_size=2048, num_slots=1, prefix_bytes=7)
    needed = estimate(smollm2, load, weight_bytes=WEIGHTS, projector_bytes=100)
    assert (needed.weights, needed.context, needed.prefixes) == (WEIGHTS, 45 * MIB, 7)
    assert needed.projector == 200
    others = needed.recurrent + needed.compute + needed.process
    assert needed.total == WEIGHTS + 45 * MIB + 7 + 200 + others


def test_what_fits_is_suggested_unchanged(smollm2: Shape) -> None:
    load = Load(context_size=8192)
    fit = check(smollm2, load, weight_bytes=WEIGHTS, available=8 * GIB)
    assert fit.fits
    assert fit.suggestion == load


@pytest.mark.parametrize("available", range(450 * MIB, 1300 * MIB, 50 * MIB))
def test_the_suggestion_fits_and_nothing_larger_does(smollm2: Shape, available: int) -> None:
    load = Load(context_size=8192, num_slots=4)
    fit = check(smollm2, load, weight_bytes=WEIGHTS, available=available)
    best = fit.suggestion
    assert best is not None

    def total(tried: Load) -> int:
        return estimate(smollm2, tried, weight_bytes=WEIGHTS).total

    assert total(best) <= available
    if best.num_slots < load.num_slots and best.context_size == load.context_size:
        assert total(replace(best, num_slots=best.num_slots + 1)) > available
    if best.context_size < load.context_size:
        assert best.num_slots == 1
        assert total(replace(best, context_size=best.context_size + CELL_BLOCK)) > available


def test_the_refusal_says_what_would_fit(smollm2: Shape) -> None:
    load = Load(context_size=8192, num_slots=4)
    text = check(smollm2, load, weight_bytes=WEIGHTS, available=900 * MIB).explain()
    assert "context 720.0 MiB" in text
    assert "900.0 MiB is there" in text
    assert text.endswith("it fits with --context-size 8192 --parallel 2")


def test_a_model_that_fits_in_no_way_is_refused_with_the_least_it_needs(smollm2: Shape) -> None:
    load = Load(context_size=8192, num_slots=4)
    fit = check(smollm2, load, weight_bytes=WEIGHTS, available=100 * MIB)
    assert fit.suggestion is None
    assert f"even {MIN_CONTEXT} tokens in one slot need" in fit.explain()
