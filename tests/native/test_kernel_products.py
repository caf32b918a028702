"""Each kernel for products against the formula on the same weights, dequantized by ggml."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.native.test_attention_kernel import ARENA_BYTES, Arena, Ggml

from selfserve.native import kernels

pytestmark = pytest.mark.skipif(
    kernels.library_path() is None,
    reason="no kernels were compiled; tools/build_kernels.py does it",
)

TYPES = {"q4_0": 2, "q4_1": 3, "q8_0": 8, "q4_K": 12, "q6_K": 14}
BLOCK_BYTES = {"q4_0": 18, "q4_1": 20, "q8_0": 34, "q4_K": 144, "q6_K": 210}
BLOCK_SIZE = {"q4_0": 32, "q4_1": 32, "q8_0": 32, "q4_K": 256, "q6_K": 256}
FACTOR_BYTES = {"q4_0": 2, "q4_1": 4, "q8_0": 2, "q4_K": 4, "q6_K": 2}
"""Of a block's F16 numbers; all the other bytes of a block may have any value."""
DEPTH, OUTPUTS = 512, 64
WEIGHTS_BUFFER = b"CPU_SELF"

Array = npt.NDArray[Any]


class Products(Ggml):
    """The further functions that weights in the kernels' own order need."""

    def __init__(self) -> None:
        super().__init__()
        base, cpu = ctypes.CDLL("libggml-base.so.0"), ctypes.CDLL("libggml-cpu.so.0")
        pointer, typed = ctypes.c_void_p, self._typed
        self._base = base
        self._multiply = typed(base.ggml_mul_mat, pointer, pointer, pointer, pointer)
        self._alloc = typed(
            base.ggml_backend_alloc_ctx_tensors_from_buft, pointer, pointer, pointer
        )
        self._free_buffer = typed(base.ggml_backend_buffer_free, None, pointer)
        self._set = typed(
            base.ggml_backend_tensor_set, None, pointer, pointer, ctypes.c_size_t, ctypes.c_size_t
        )
        self._name = typed(base.ggml_backend_buft_name, ctypes.c_char_p, pointer)
        registry = typed(cpu.ggml_backend_cpu_reg, pointer)()
        address = typed(base.ggml_backend_reg_get_proc_address, pointer, pointer, ctypes.c_char_p)(
            registry, b"ggml_backend_dev_get_extra_bufts"
        )
        device = typed(base.ggml_backend_reg_dev_get, pointer, pointer, ctypes.c_size_t)(
            registry, 0
        )
        listed = ctypes.CFUNCTYPE(ctypes.POINTER(pointer), pointer)(address)(device)
        self._buffer_type = listed[0]
        assert self._name(self._buffer_type) == WEIGHTS_BUFFER
        self._plain_type = typed(base.ggml_backend_cpu_buffer_type, pointer)()

    def dequantize(self, name: str, blocks: Array) -> Array:
        function = self._typed(
            getattr(self._base, f"dequantize_row_{name}"),
            None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64,
        )  # fmt: skip
        found = np.empty(OUTPUTS * DEPTH, dtype=np.float32)
        function(blocks.ctypes.data, found.ctypes.data, found.size)
        return found.reshape(OUTPUTS, DEPTH).astype(np.float64)

    def multiply(self, name: str, blocks: Array, rows: Array) -> Array:
        """What ggml computes of these weights and rows, [rows, outputs]."""
        held = self.init(Arena(1 << 20, None, True))
        arena = self.init(Arena(ARENA_BYTES, None, False))
        weights = self.tensor(held, TYPES[name], DEPTH, OUTPUTS, 1, 1)
        # Q8_0 is computed from ggml's own order.
        kind = self._plain_type if name == "q8_0" else self._buffer_type
        buffer = self._alloc(held, kind)
        try:
            self._set(weights, blocks.ctypes.data, 0, blocks.nbytes)
            result = self._multiply(arena, weights, self.put(arena, rows[None, None]))
            graph = self.graph(arena)
            self.expand(graph, result)
            assert self.compute(arena, graph, 2) == 0
            address = ctypes.cast(self.data(result), ctypes.POINTER(ctypes.c_float))
            return np.ctypeslib.as_array(address, (len(rows), OUTPUTS)).copy()
        finally:
            self._free_buffer(buffer)
            self.free(arena)
            self.free(held)


@pytest.fixture(scope="module")
def products() -> Products:
    return Products()


def random_blocks(name: str, rng: np.random.Generator) -> Array:
    """Weights with all bits at random, but for the blocks' F16 factors, which are small."""
    size = BLOCK_BYTES[name]
    count = OUTPUTS * DEPTH // BLOCK_SIZE[name]
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    factors = rng.uniform(0.01, 0.02, (count, FACTOR_BYTES[name] // 2)).astype(np.float16)
    place = slice(size - 2, size) if name == "q6_K" else slice(0, FACTOR_BYTES[name])
    blocks[:, place] = factors.view(np.uint8).reshape(count, -1)
    return np.ascontiguousarray(blocks)


def exact_rows(count: int, rng: np.random.Generator) -> Array:
    """Numbers that rounding to 8 bits leaves as they are: whole, and up to 127 in each block."""
    rows = rng.integers(-127, 128, (count, DEPTH)).astype(np.float32)
    rows[:, ::32] = 127.0
    return rows


@pytest.mark.parametrize("num_rows", [1, 3, 4, 9])
@pytest.mark.parametrize("name", TYPES)
def test_a_product_is_that_of_the_dequantized_weights(
    products: Products, name: str, num_rows: int
) -> None:
    rng = np.random.default_rng(num_rows)
    blocks, rows = random_blocks(name, rng), exact_rows(num_rows, rng)
    weights = products.dequantize(name, blocks)
    found = products.multiply(name, blocks, rows)
    # Relative to the sum of the sizes of the terms: the terms nearly cancel.
    scale = np.abs(rows) @ np.abs(weights).T
    assert np.abs((found - rows @ weights.T) / scale).max() < 1e-6
