"""The kernel for attention against the formula, for the shapes that models and batches have."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from selfserve.native import kernels

pytestmark = pytest.mark.skipif(
    kernels.library_path() is None,
    reason="no kernels were compiled; tools/build_kernels.py does it",
)

F32, F16 = 0, 1
SCALE = 0.11
ARENA_BYTES = 256 << 20

Array = npt.NDArray[Any]


class Arena(ctypes.Structure):
    """ggml_init_params."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("memory", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


class Ggml:
    """The few functions of ggml that a single operation needs."""

    def __init__(self) -> None:
        kernels.load()
        # By the names under which libllama has loaded them: a wheel holds further copies.
        base, cpu = ctypes.CDLL("libggml-base.so.0"), ctypes.CDLL("libggml-cpu.so.0")
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self.init = self._typed(base.ggml_init, pointer, Arena)
        self.free = self._typed(base.ggml_free, None, pointer)
        self.tensor = self._typed(
            base.ggml_new_tensor_4d, pointer, pointer, ctypes.c_int, *[number] * 4
        )
        self.data = self._typed(base.ggml_get_data, pointer, pointer)
        self.attention = self._typed(
            base.ggml_flash_attn_ext, pointer, *[pointer] * 5, *[ctypes.c_float] * 3
        )
        self.graph = self._typed(base.ggml_new_graph, pointer, pointer)
        self.expand = self._typed(base.ggml_build_forward_expand, None, pointer, pointer)
        self.compute = self._typed(
            cpu.ggml_graph_compute_with_ctx, ctypes.c_int, pointer, pointer, ctypes.c_int
        )

    @staticmethod
    def _typed(function: Any, result: Any, *arguments: Any) -> Any:
        function.restype, function.argtypes = result, arguments
        return function

    def put(self, arena: int, values: Array) -> int:
        """A tensor with these values; ggml's order of dimensions is the reverse of NumPy's."""
        kind = F16 if values.dtype == np.float16 else F32
        tensor: int = self.tensor(arena, kind, *values.shape[::-1])
        ctypes.memmove(self.data(tensor), values.tobytes(), values.nbytes)
        return tensor

    def attend(self, q: Array, k: Array, v: Array, mask: Array, num_threads: int) -> Array:
        """What ggml computes, [sequences, tokens, heads, size]."""
        arena = self.init(Arena(ARENA_BYTES, None, False))
        try:
            inputs = [self.put(arena, values) for values in (q, k, v, mask)]
            result = self.attention(arena, *inputs, SCALE, 0.0, 0.0)
            graph = self.graph(arena)
            self.expand(graph, result)
            assert self.compute(arena, graph, num_threads) == 0
            shape = (q.shape[0], q.shape[2], q.shape[1], q.shape[3])
            address = ctypes.cast(self.data(result), ctypes.POINTER(ctypes.c_float))
            return np.ctypeslib.as_array(address, shape).copy()
        finally:
            self.free(arena)


@pytest.fixture(scope="module")
def ggml() -> Ggml:
    return Ggml()


def inputs(
    seed: int, size: int, heads: tuple[int, int], tokens: int, keys: int, sequences: int
) -> tuple[Array, Array, Array, Array]:
    """Queries, keys, values and a mask: each token sees all keys up to a place of its own. The same
    seed gives the same."""
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((sequences, heads[0], tokens, size)).astype(np.float32)
    k = rng.standard_normal((sequences, heads[1], keys, size)).astype(np.float16)
    v = rng.standard_normal((sequences, heads[1], keys, size)).astype(np.float16)
    ends = np.sort(rng.integers(1, keys + 1, (sequences, tokens)), axis=1)
    ends[0, -1] = keys
    hidden = np.arange(keys) >= ends[:, :, None]
    mask = np.where(hidden, -np.inf, 0).astype(np.float16)[:, None]
    return q, k, v, mask


def formula(q: Array, k: Array, v: Array, mask: Array) -> Array:
    share = q.shape[1] // k.shape[1]
    k, v = (np.repeat(a.astype(np.float64), share, axis=1) for a in (k, v))
    scores = np.einsum("shtd,shkd->shtk", q.astype(np.float64), k) * SCALE + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("shtk,shkd->sthd", weights, v)


@pytest.mark.parametrize("size", [64, 128, 256])
@pytest.mark.parametrize("heads", [(9, 3), (8, 1), (2, 2)], ids=str)
@pytest.mark.parametrize(
    ("tokens", "keys", "sequences"),
    [(1, 1, 1), (1, 100, 1), (1, 1000, 1), (1, 700, 9), (5, 256, 3), (40, 288, 1), (100, 600, 1)],
    ids=str,
)
def test_the_kernel_computes_the_formula(
    ggml: Ggml, size: int, heads: tuple[int, int], tokens: int, keys: int, sequences: int
) -> None:
    given = inputs(size + tokens + keys, size, heads, tokens, keys, sequences)
    found = ggml.attend(*given, num_threads=2)
    # ggml's own sums are F16 and differ by some thousandths: this shows who computed, too.
    np.testing.assert_allclose(found, formula(*given), atol=2e-5)


def test_a_token_gets_the_same_alone_and_among_others_with_any_number_of_threads(
    ggml: Ggml,
) -> None:
    q, k, v, mask = inputs(7, 64, (9, 3), 50, 900, 4)
    expected = ggml.attend(q, k, v, mask, num_threads=2)
    for threads in (1, 3):
        np.testing.assert_array_equal(ggml.attend(q, k, v, mask, threads), expected)
    for token in (0, 17, 49):
        alone = ggml.attend(
            q[2:3, :, token : token + 1], k[2:3], v[2:3], mask[2:3, :, token : token + 1], 2
        )
        np.testing.assert_array_equal(alone[0, 0], expected[2, token])


@pytest.mark.parametrize("garbage", [np.inf, -np.inf, np.nan], ids=str)
@pytest.mark.parametrize(
    ("tokens", "keys", "sequences"), [(1, 100, 1), (1, 700, 9), (5, 256, 3), (40, 300, 1)], ids=str
)
def test_what_the_mask_hides_may_hold_anything(
    ggml: Ggml, garbage: float, tokens: int, keys: int, sequences: int
) -> None:
    q, k, v, mask = inputs(tokens + keys, 64, (9, 3), tokens, keys, sequences)
    mask[:, :, :, keys // 3] = -np.inf  # in the midst of a tile, too
    mask[:, :, :, -1] = -np.inf
    mask[:, :, :, 0] = 0
    expected = formula(q, k, v, mask)
    everyone_hides = np.isinf(mask).all(axis=(1, 2))
    for sequence, hidden in enumerate(everyone_hides):
        k[sequence, :, hidden] = garbage
        v[sequence, :, hidden] = garbage
    np.testing.assert_allclose(ggml.attend(q, k, v, mask, 2), expected, atol=2e-5)


def test_a_value_spoils_only_the_tokens_that_see_it(ggml: Ggml) -> None:
    q, k, v, mask = inputs(3, 64, (9, 3), 6, 64, 1)
    mask[:] = 0
    mask[0, 0, :3, 40] = -np.inf
    expected = formula(q, k, v, mask)
    v[0, :, 40] = np.inf
    found = ggml.attend(q, k, v, mask, 2)
    np.testing.assert_allclose(found[0, :3], expected[0, :3], atol=2e-5)
    assert not np.isfinite(found[0, 3:]).any()
