"""Pictures to embeddings: a projector file on libmtmd.

Rules of this file
- `encode` runs on one thread at a time; `layout` may run beside it, on any thread.
- The text model belongs to somebody else and outlives the projector.
- Pictures are tokenized one by one, and nothing but a marker of libmtmd's own is ever given to it
  as text, so what users write never meets its markers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from selfserve.errors import InternalError, ModelLoadError, UnsupportedImage
from selfserve.native import library
from selfserve.native.context import FLASH_ATTENTION
from selfserve.native.model import Model, check_magic
from selfserve.request import Picture

Embeddings = npt.NDArray[np.float32]
Positions = npt.NDArray[np.int32]

TEXT_CHUNK = 0
IMAGE_CHUNK = 1
"""mtmd_input_chunk_type."""
PREPROCESSING_FAILED = 2
"""mtmd_tokenize: the picture cannot be brought to the form that the encoder takes."""
LARGE_SIDES = ((4096, 4096), (8192, 2048), (2048, 8192))
"""Pictures beyond which no more tokens are to be expected: loaded ones are smaller."""


@dataclass(frozen=True, slots=True, eq=False)
class ImageChunk:
    """A run of picture tokens that are encoded together."""

    num_tokens: int
    num_positions: int
    """Positions that it takes up in the sequence: fewer than tokens with M-RoPE."""
    is_causal: bool
    """False: its tokens look at each other in both directions, so they are decoded in one go."""
    base: Positions
    slope: Positions
    """Shape (sections, num_tokens) both; sections are 4 with M-RoPE, else 1."""

    def positions(self, first: int) -> Positions:
        """Where the tokens stand if the first one stands at `first`: (sections, num_tokens)."""
        return self.base + self.slope * np.int32(first)


Piece = tuple[int, ...] | ImageChunk
"""What a picture becomes in the prompt: ids of text tokens around it, and picture tokens."""


class Projector:
    """Owns an `mtmd_context`. Close it before the model."""

    def __init__(
        self,
        path: Path,
        model: Model,
        *,
        num_threads: int,
        use_gpu: bool = False,
        flash_attention: str = "auto",
    ) -> None:
        """Loads the file and encodes an empty picture once, to have its buffers; blocks for as
        long as that takes. Raises ModelLoadError if the file is damaged or of another model."""
        self._lib: Any = library.load_mtmd()
        self.handle: Any = None
        check_magic(path)
        params = self._lib.mtmd_context_params_default()
        params.use_gpu = use_gpu
        params.n_threads = num_threads
        params.print_timings = False
        params.flash_attn_type = FLASH_ATTENTION[flash_attention]
        self.handle = self._lib.mtmd_init_from_file(str(path).encode(), model.handle, params)
        if not self.handle:
            raise ModelLoadError(
                f"libmtmd cannot load the projector {path}: the file is damaged, or it belongs to "
                f"another model than {model.path.name} (start with --verbose for its own words)"
            )
        if not self._lib.mtmd_support_vision(self.handle):
            self.close()
            raise ModelLoadError(f"the projector {path} is not one for pictures")
        self._marker: bytes = params.media_marker
        self._num_embedding = int(self._lib.llama_cpp.llama_model_n_embd_inp(model.handle))
        self._sections = 4 if self._lib.mtmd_decode_use_mrope(self.handle) else 1

    def layout(self, width: int, height: int) -> tuple[Piece, ...]:
        """What a picture of this size becomes; nothing is encoded, and no pixels are needed.
        Raises UnsupportedImage."""
        with self._chunks(width, height, None) as chunks:
            return tuple(self._piece(chunk) for chunk in chunks)

    def encode(self, picture: Picture) -> tuple[Embeddings, ...]:
        """Embeddings of each ImageChunk of the picture's layout, shape (num_tokens, n_embd).

        Blocks for as long as it computes and releases the GIL. Raises UnsupportedImage,
        InternalError.
        """
        with self._chunks(picture.width, picture.height, picture.rgb) as chunks:
            images = [c for c in chunks if self._lib.mtmd_input_chunk_get_type(c) == IMAGE_CHUNK]
            return tuple(self._encode_chunk(chunk) for chunk in images)

    def most_tokens_at_once(self) -> int:
        """Tokens of the largest chunk that has to be decoded in one go; 0 if none has to."""
        pieces = [piece for size in LARGE_SIDES for piece in self.layout(*size)]
        sizes = [p.num_tokens for p in pieces if isinstance(p, ImageChunk) and not p.is_causal]
        return max(sizes, default=0)

    def close(self) -> None:
        if self.handle:
            self._lib.mtmd_free(self.handle)
            self.handle = None

    @contextmanager
    def _chunks(self, width: int, height: int, rgb: bytes | None) -> Iterator[list[Any]]:
        """The chunks of one picture, alive inside the block; without pixels only their sizes."""
        lib = self._lib
        pixels = None
        if rgb is not None:
            pixels = np.frombuffer(rgb, np.uint8).ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        bitmap = lib.mtmd_bitmap_init(width, height, pixels)  # copies the pixels
        chunks = lib.mtmd_input_chunks_init()
        try:
            text = lib.mtmd_input_text(
                text=self._marker,
                text_len=len(self._marker),
                add_special=False,
                parse_special=True,
            )
            bitmaps = (lib.mtmd_bitmap_p_ctypes * 1)(bitmap)
            code = lib.mtmd_tokenize(self.handle, chunks, ctypes.byref(text), bitmaps, 1)
            if code == PREPROCESSING_FAILED:
                raise UnsupportedImage(
                    f"a picture of {width} x {height} pixels cannot be brought to the form that "
                    "the model takes"
                )
            if code != 0:
                raise InternalError(f"libmtmd cannot tokenize a picture (code {code})")
            count = lib.mtmd_input_chunks_size(chunks)
            yield [lib.mtmd_input_chunks_get(chunks, i) for i in range(count)]
        finally:
            lib.mtmd_input_chunks_free(chunks)
            lib.mtmd_bitmap_free(bitmap)

    def _piece(self, chunk: Any) -> Piece:
        lib = self._lib
        if lib.mtmd_input_chunk_get_type(chunk) == TEXT_CHUNK:
            count = ctypes.c_size_t()
            tokens = lib.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(count))
            return tuple(tokens[: count.value])
        num_tokens = int(lib.mtmd_input_chunk_get_n_tokens(chunk))
        base = self._positions(chunk, num_tokens, 0)
        return ImageChunk(
            num_tokens=num_tokens,
            num_positions=int(lib.mtmd_input_chunk_get_n_pos(chunk)),
            is_causal=not lib.mtmd_decode_use_non_causal(self.handle, chunk),
            base=base,
            slope=self._positions(chunk, num_tokens, 1) - base,
        )

    def _positions(self, chunk: Any, num_tokens: int, first: int) -> Positions:
        if self._sections == 1:
            return np.arange(first, first + num_tokens, dtype=np.int32)[None, :]
        lib = self._lib
        found = np.zeros((num_tokens, 4), dtype=np.uint32)
        pointer = found.ctypes.data_as(ctypes.POINTER(lib.mtmd_decoder_pos))
        image = lib.mtmd_input_chunk_get_tokens_image(chunk)
        lib.mtmd_helper_image_get_decoder_pos(image, first, pointer)
        # libmtmd says (t, x, y, z), batches want (t, y, x, z).
        return np.ascontiguousarray(found[:, [0, 2, 1, 3]].T.astype(np.int32))

    def _encode_chunk(self, chunk: Any) -> Embeddings:
        lib = self._lib
        if lib.mtmd_encode_chunk(self.handle, chunk) != 0:
            raise InternalError("libmtmd cannot encode a picture")
        num_tokens = int(lib.mtmd_input_chunk_get_n_tokens(chunk))
        output = lib.mtmd_get_output_embd(self.handle)
        shape = (num_tokens, self._num_embedding)
        return np.ctypeslib.as_array(output, shape=shape).copy()  # the next encoding overwrites it
