"""Decoding and each sequence's memory: what is kept, cut, copied and moved is as if computed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from tests.support import tiny_models
from tests.support.native_desk import BATCH_SIZE, CONTEXT_SIZE, Desk

from selfserve.errors import ModelLoadError
from selfserve.native.context import Outcome
from selfserve.native.model import Model

TEXT = "The capital of France is Paris. The capital of Italy is"


@pytest.fixture
def prompt(desk: Desk) -> list[int]:
    return desk.tokens(TEXT)


def test_logits_come_in_the_order_in_which_they_were_asked_for(
    desk: Desk, prompt: list[int]
) -> None:
    other = desk.tokens("One two three four")
    alone = [desk.logits_after(0, 0, prompt), desk.logits_after(1, 0, other)]
    desk.context.clear(0)
    desk.context.clear(1)
    assert desk.decode((0, 0, prompt, 2), (1, 0, other, 1)) is Outcome.OK
    rows = desk.context.logits(3)
    assert rows.shape == (3, desk.model.vocab.size)
    np.testing.assert_allclose(rows[1], alone[0], atol=1e-2)
    np.testing.assert_allclose(rows[2], alone[1], atol=1e-2)
    assert not np.allclose(rows[0], rows[1], atol=1.0)


def test_the_model_knows_its_capitals(desk: Desk, prompt: list[int]) -> None:
    found = desk.greedy(0, prompt, 2)
    assert b"Rome" in b"".join(map(desk.model.vocab.piece, found))


def test_a_full_sequence_gets_no_room_and_leaves_the_other_alone(
    desk: Desk, prompt: list[int]
) -> None:
    filler = [prompt[0]] * BATCH_SIZE
    for start in range(0, CONTEXT_SIZE, BATCH_SIZE):
        assert desk.decode((0, start, filler, 1)) is Outcome.OK
    assert desk.decode((0, CONTEXT_SIZE, prompt[:1], 1)) is Outcome.NO_ROOM
    assert desk.context.positions(0) == (0, CONTEXT_SIZE - 1)
    assert desk.decode((1, 0, prompt, 1)) is Outcome.OK


def test_a_gap_in_the_positions_is_refused_and_changes_nothing(
    desk: Desk, prompt: list[int]
) -> None:
    expected = desk.greedy(0, prompt, 4)
    desk.context.clear(0)
    assert desk.decode((0, 0, prompt[:5], 0)) is Outcome.OK
    assert desk.decode((0, 7, prompt[5:], 1)) is Outcome.INVALID
    assert desk.context.positions(0) == (0, 4)
    assert desk.greedy(0, prompt, 4, start=5) == expected


def test_a_batch_beyond_its_capacity_never_reaches_the_library(desk: Desk) -> None:
    with pytest.raises(OverflowError):
        desk.batch.add(0, 0, [1] * (BATCH_SIZE + 1), 1)
    with pytest.raises(IndexError):
        desk.context.clear(2)


def test_an_empty_sequence_has_no_positions(desk: Desk) -> None:
    assert desk.context.positions(1) == (-1, -1)


@pytest.mark.parametrize("length", [1, 5, 11])
def test_after_a_cut_the_rest_is_as_if_it_had_never_been(
    desk: Desk, prompt: list[int], length: int
) -> None:
    expected = desk.greedy(0, prompt, 6)
    assert desk.context.cut(0, length)
    assert desk.context.positions(0) == (0, length - 1)
    assert desk.greedy(0, prompt, 6, start=length) == expected


def test_a_cut_behind_the_end_is_none_and_beyond_it_is_refused(
    desk: Desk, prompt: list[int]
) -> None:
    desk.decode((0, 0, prompt, 1))
    assert desk.context.cut(0, len(prompt))
    assert not desk.context.cut(0, len(prompt) + 1)
    assert desk.context.cut(0, 0)
    assert desk.context.positions(0) == (-1, -1)
    assert desk.context.cut(0, 0)


@pytest.mark.parametrize("partial", [False, True])
def test_a_saved_state_goes_on_in_any_sequence(
    desk: Desk, prompt: list[int], partial: bool
) -> None:
    expected = desk.greedy(0, prompt, 6)
    desk.context.cut(0, len(prompt) - 1)
    size = desk.context.state_size(0, partial=partial)
    blob = desk.context.save(0, partial=partial)
    assert blob is not None
    assert blob.nbytes == size
    desk.decode((1, 0, desk.tokens("Something else entirely"), 1))
    for seq_id in (1, 0):
        assert desk.context.restore(seq_id, blob, length=len(prompt) - 1, partial=partial)
        assert desk.greedy(seq_id, prompt, 6, start=len(prompt) - 1) == expected


def test_a_state_of_another_length_than_it_should_have_leaves_nothing(
    desk: Desk, prompt: list[int]
) -> None:
    desk.decode((0, 0, prompt, 1))
    blob = desk.context.save(0)
    assert blob is not None
    assert not desk.context.restore(1, blob, length=len(prompt) - 1)
    assert desk.context.positions(1) == (-1, -1)
    assert not desk.context.restore(1, blob[: blob.size // 2].copy(), length=len(prompt))
    assert desk.context.positions(1) == (-1, -1)
    assert desk.context.restore(1, blob, length=len(prompt))


@pytest.fixture(scope="module")
def one_layer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """In a model of one layer, what is kept of a token depends on nothing but its place."""
    path = tmp_path_factory.mktemp("shift") / "one_layer.gguf"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_models, "LLAMA_BLOCKS", 1)
        tiny_models.write_tiny_model(path, "llama")
    model = Model(path)
    yield model
    model.close()


@pytest.mark.parametrize(("keep", "drop"), [(2, 4), (0, 9), (5, 20)])
def test_after_a_shift_the_rest_is_as_if_computed_in_its_new_place(
    one_layer: Model, keep: int, drop: int
) -> None:
    desk = Desk(one_layer, kv_type="f32", flash_attention="off")
    tokens = [(7 + 5 * i) % one_layer.vocab.size for i in range(40)]
    rest = tokens[:keep] + tokens[keep + drop :]
    try:
        desk.logits_after(0, 0, tokens[:-1])
        assert desk.context.can_shift
        assert desk.context.shift(0, keep, drop)
        assert desk.context.positions(0) == (0, len(rest) - 2)
        found = desk.logits_after(0, len(rest) - 1, tokens[-1:])
        expected = desk.logits_after(1, 0, rest)
        np.testing.assert_allclose(found, expected, atol=1e-3 * expected.std())
    finally:
        desk.context.close()


@pytest.mark.parametrize("kv_type", ["q8_0", "q4_0"])
def test_a_quantized_memory_without_flash_attention_is_refused_as_such(
    model: Model, kv_type: str
) -> None:
    with pytest.raises(ModelLoadError, match=f"--kv-type {kv_type} needs flash attention"):
        Desk(model, kv_type=kv_type, flash_attention="off")
    Desk(model, kv_type=kv_type, flash_attention="auto").context.close()


def test_the_context_is_no_larger_than_was_asked_for(desk: Desk) -> None:
    assert desk.context.context_size == CONTEXT_SIZE
