"""The projector and batches of embeddings, against libmtmd's own way through a whole prompt."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from tests.support.real_vocabulary import smollm2_path

from selfserve.catalogue.entries import resolve
from selfserve.errors import ModelLoadError
from selfserve.native import library
from selfserve.native.batch import Batch, EmbeddingBatch
from selfserve.native.context import Context, ContextOptions, Outcome
from selfserve.native.model import Model
from selfserve.native.vision import ImageChunk, Projector
from selfserve.request import Picture

BEFORE = "<|im_start|>user\n"
AFTER = "What color is the shape? Answer with one word.<|im_end|>\n<|im_start|>assistant\n"
OPTIONS = ContextOptions(
    context_size=256,
    num_sequences=1,
    batch_size=128,
    ubatch_size=128,
    max_outputs=8,
    num_threads=1,
    flash_attention="off",
)


@dataclass(frozen=True)
class Seeing:
    model: Model
    projector: Projector
    context: Context


@pytest.fixture(scope="module")
def seeing() -> Iterator[Seeing]:
    model = Model(smollm2_path())
    projector = Projector(projector_path(), model, num_threads=1)
    context = Context(model, OPTIONS)
    yield Seeing(model, projector, context)
    projector.close()
    context.close()
    model.close()


def projector_path() -> Path:
    found = resolve("smollm2-vision:135m").projector
    assert found is not None
    return found


def noise(width: int = 90, height: int = 60) -> Picture:
    rgb = np.random.default_rng(5).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Picture(width=width, height=height, rgb=rgb.tobytes(), digest="noise")


def logits_of_ours(seeing: Seeing, picture: Picture) -> npt.NDArray[np.float32]:
    context, vocab = seeing.context, seeing.model.vocab
    context.clear(0)
    before, after = (
        vocab.tokenize(text, add_special=False, parse_special=True) for text in (BEFORE, AFTER)
    )
    (chunk,) = seeing.projector.layout(picture.width, picture.height)
    (embeddings,) = seeing.projector.encode(picture)
    assert isinstance(chunk, ImageChunk)
    batch = Batch(128)
    batch.add(0, 0, before, 0)
    assert context.decode(batch) is Outcome.OK
    rows = EmbeddingBatch(0, embeddings, chunk.positions(len(before)), 0)
    assert context.decode_embeddings(rows, is_causal=chunk.is_causal) is Outcome.OK
    batch.clear()
    batch.add(0, len(before) + chunk.num_positions, after, 1)
    assert context.decode(batch) is Outcome.OK
    return context.logits(1)[0].copy()


def logits_of_theirs(seeing: Seeing, picture: Picture) -> npt.NDArray[np.float32]:
    lib, context, handle = library.load_mtmd(), seeing.context, seeing.projector.handle
    context.clear(0)
    pixels = np.frombuffer(picture.rgb, np.uint8)
    pointer = pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
    bitmap = lib.mtmd_bitmap_init(picture.width, picture.height, pointer)
    chunks = lib.mtmd_input_chunks_init()
    prompt = f"{BEFORE}{lib.mtmd_default_marker().decode()}{AFTER}".encode()
    text = lib.mtmd_input_text(prompt, len(prompt), False, True)
    bitmaps = (lib.mtmd_bitmap_p_ctypes * 1)(bitmap)
    assert lib.mtmd_tokenize(handle, chunks, ctypes.byref(text), bitmaps, 1) == 0
    end = ctypes.c_int32()
    code = lib.mtmd_helper_eval_chunks(
        handle, context.handle, chunks, 0, 0, 128, True, ctypes.byref(end)
    )
    assert code == 0
    lib.mtmd_input_chunks_free(chunks)
    lib.mtmd_bitmap_free(bitmap)
    return context.logits(1)[0].copy()


def test_our_way_through_a_prompt_gives_libmtmds_logits(seeing: Seeing) -> None:
    ours, theirs = logits_of_ours(seeing, noise()), logits_of_theirs(seeing, noise())
    assert float(np.abs(ours - theirs).max()) < 1e-3


def test_a_layout_is_that_of_the_encoded_picture(seeing: Seeing) -> None:
    for width, height in ((16, 16), (90, 60), (1000, 20)):
        (chunk,) = seeing.projector.layout(width, height)
        (embeddings,) = seeing.projector.encode(noise(width, height))
        assert isinstance(chunk, ImageChunk)
        assert embeddings.shape == (chunk.num_tokens, 576)
        assert chunk.positions(7).tolist() == [list(range(7, 7 + chunk.num_tokens))]
    assert seeing.projector.most_tokens_at_once() == 0


def test_embeddings_outlive_the_next_encoding(seeing: Seeing) -> None:
    (first,) = seeing.projector.encode(noise())
    kept = first.copy()
    (second,) = seeing.projector.encode(noise(64, 64))
    assert (first == kept).all()
    assert not (first == second).all()


def test_a_text_model_is_no_projector(seeing: Seeing) -> None:
    with pytest.raises(ModelLoadError, match="projector"):
        Projector(smollm2_path(), seeing.model, num_threads=1)


def test_a_damaged_projector_is_told_by_its_path(seeing: Seeing, tmp_path: Path) -> None:
    damaged = tmp_path / "mmproj-damaged.gguf"
    damaged.write_bytes(projector_path().read_bytes()[:2000])
    with pytest.raises(ModelLoadError, match="mmproj-damaged"):
        Projector(damaged, seeing.model, num_threads=1)
