"""Writes whole models of a megabyte, one for each kind of memory that libllama has.

Their weights are noise, so what they say means nothing. What is real is what a server sees around
it: a tokenizer, a chat template with thinking, and above all how the memory of a sequence behaves.
The same arguments give the same bytes. The weights are loud enough that each token depends on all
those before it: an answer computed from a wrong memory is another answer.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tests.support.tiny_gguf import ALIGNMENT, Value, packed_string, packed_value
from tests.support.tiny_vocabulary import TinyVocabulary

FloatArray = npt.NDArray[np.float32]

EMBEDDING = 64
FEED_FORWARD = 128
LLAMA_BLOCKS = 2
LOGIT_DEVIATION = 5.0
SELDOM = 0.25
"""Scale of the embedding rows of tokens that are never the best one."""
SLIDING_WINDOW = 64
TRAIN_CONTEXT = 8192


class TensorWriter:
    """Collects the tensors of a file. Shapes are ggml's: the first number is the contiguous one."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.tensors: dict[str, FloatArray] = {}

    def noise(self, name: str, *shape: int, gain: float = 1.0, mean: float = 0.0) -> None:
        """Normal noise of deviation `gain` around `mean`."""
        self.exact(name, mean + gain * self._draw(name, shape))

    def matrix(self, name: str, num_in: int, num_out: int, gain: float = 1.0) -> None:
        """Noise that keeps the size of what it is applied to, times `gain`."""
        self.noise(name + ".weight", num_in, num_out, gain=gain / math.sqrt(num_in))

    def norm(self, name: str, size: int, weight: float = 1.0) -> None:
        self.exact(name + ".weight", np.full(size, weight))

    def exact(self, name: str, values: npt.ArrayLike) -> None:
        self.tensors[name] = np.ascontiguousarray(values, dtype=np.float32)

    def _draw(self, name: str, shape: tuple[int, ...]) -> FloatArray:
        generator = np.random.default_rng([self._seed, zlib.crc32(name.encode())])
        return generator.standard_normal(shape[::-1], dtype=np.float32)

    def embedding(self, scales: FloatArray) -> None:
        """Token rows of equal length, times the scale of each; they are the output rows too."""
        rows = self._draw("token_embd.weight", (EMBEDDING, len(scales)))
        rows *= math.sqrt(EMBEDDING) / np.linalg.norm(rows, axis=1, keepdims=True)
        self.exact("token_embd.weight", rows * scales[:, None])
        self.norm("output_norm", EMBEDDING, LOGIT_DEVIATION / math.sqrt(EMBEDDING))

    def feed_forward(self, block: str, gain: float = 2.0) -> None:
        self.matrix(block + "ffn_gate", EMBEDDING, FEED_FORWARD, 1.5)
        self.matrix(block + "ffn_up", EMBEDDING, FEED_FORWARD, 1.5)
        self.matrix(block + "ffn_down", FEED_FORWARD, EMBEDDING, gain)


def _sizes(arch: str, num_blocks: int, **more: Value) -> dict[str, Value]:
    sizes: dict[str, Value] = {
        "block_count": num_blocks,
        "context_length": TRAIN_CONTEXT,
        "embedding_length": EMBEDDING,
        "feed_forward_length": FEED_FORWARD,
        "attention.head_count": 2,
        "attention.head_count_kv": 1,
        "attention.layer_norm_rms_epsilon": 1e-6,
        **{name.replace("__", "."): value for name, value in more.items()},
    }
    return {f"{arch}.{name}": value for name, value in sizes.items()}


def _llama(out: TensorWriter) -> dict[str, Value]:
    """Plain attention: the tail of a sequence can be dropped at any place."""
    num_blocks, head = LLAMA_BLOCKS, EMBEDDING // 2
    for i in range(num_blocks):
        block = f"blk.{i}."
        out.norm(block + "attn_norm", EMBEDDING)
        out.matrix(block + "attn_q", EMBEDDING, 2 * head, 2.0)
        out.matrix(block + "attn_k", EMBEDDING, head, 2.0)
        out.matrix(block + "attn_v", EMBEDDING, head)
        out.matrix(block + "attn_output", 2 * head, EMBEDDING, 4.0)
        out.norm(block + "ffn_norm", EMBEDDING)
        out.feed_forward(block, 4.0)
    return _sizes("llama", num_blocks, rope__dimension_count=head, rope__freq_base=1e4)


def _gemma3(out: TensorWriter) -> dict[str, Value]:
    """Three blocks with a sliding window, then one with full attention."""
    num_blocks, head = 4, 32
    for i in range(num_blocks):
        block = f"blk.{i}."
        out.norm(block + "attn_norm", EMBEDDING)
        out.matrix(block + "attn_q", EMBEDDING, 2 * head)
        out.matrix(block + "attn_k", EMBEDDING, head)
        out.matrix(block + "attn_v", EMBEDDING, head)
        out.matrix(block + "attn_output", 2 * head, EMBEDDING)
        out.norm(block + "attn_q_norm", head, 5.0)
        out.norm(block + "attn_k_norm", head)
        # Inputs are multiplied by sqrt(EMBEDDING): blocks have to be loud to be heard.
        out.norm(block + "post_attention_norm", EMBEDDING, 5.0 * math.sqrt(EMBEDDING))
        out.norm(block + "ffn_norm", EMBEDDING)
        out.feed_forward(block)
        out.norm(block + "post_ffw_norm", EMBEDDING, 1.5 * math.sqrt(EMBEDDING))
    return _sizes(
        "gemma3",
        num_blocks,
        attention__sliding_window=SLIDING_WINDOW,
        attention__sliding_window_pattern=[True, True, True, False],
        attention__key_length=head,
        attention__value_length=head,
        rope__freq_base=1e6,
        rope__freq_base_swa=1e4,
        final_logit_softcapping=30.0,
    )


def _qwen35(out: TensorWriter) -> dict[str, Value]:
    """Three blocks of a gated delta net, which are recurrent, then one with attention."""
    num_blocks, head, state, groups, rank, kernel = 4, 64, 32, 2, 4, 4
    keys, values = state * groups, state * rank
    for i in range(num_blocks):
        block = f"blk.{i}."
        out.norm(block + "attn_norm", EMBEDDING)
        out.norm(block + "post_attention_norm", EMBEDDING)
        out.feed_forward(block)
        if i == num_blocks - 1:
            out.matrix(block + "attn_q", EMBEDDING, 4 * head)  # queries and output gates
            out.matrix(block + "attn_k", EMBEDDING, head)
            out.matrix(block + "attn_v", EMBEDDING, head)
            out.matrix(block + "attn_output", 2 * head, EMBEDDING, 6.0)
            out.norm(block + "attn_q_norm", head, 3.0)
            out.norm(block + "attn_k_norm", head)
            continue
        out.matrix(block + "attn_qkv", EMBEDDING, 2 * keys + values)
        out.matrix(block + "attn_gate", EMBEDDING, values)
        out.noise(block + "ssm_conv1d.weight", kernel, 2 * keys + values, gain=0.7)
        out.noise(block + "ssm_dt.bias", rank, gain=0.5)
        out.exact(block + "ssm_a", -np.geomspace(0.02, 0.4, rank))  # negative: states fade
        out.matrix(block + "ssm_beta", EMBEDDING, rank)
        out.matrix(block + "ssm_alpha", EMBEDDING, rank)
        out.norm(block + "ssm_norm", state)
        out.matrix(block + "ssm_out", values, EMBEDDING, 3.0)
    return _sizes(
        "qwen35",
        num_blocks,
        attention__key_length=head,
        attention__value_length=head,
        rope__dimension_count=16,
        rope__dimension_sections=[3, 3, 2, 0],  # sum to half of dimension_count
        rope__freq_base=1e7,
        full_attention_interval=num_blocks,
        ssm__conv_kernel=kernel,
        ssm__state_size=state,
        ssm__group_count=groups,
        ssm__time_step_rank=rank,
        ssm__inner_size=values,
    )


def _mamba(out: TensorWriter) -> dict[str, Value]:
    """Recurrent throughout."""
    num_blocks, inner, state, rank, kernel = 2, 2 * EMBEDDING, 16, 4, 4
    for i in range(num_blocks):
        block = f"blk.{i}."
        out.norm(block + "attn_norm", EMBEDDING)
        out.matrix(block + "ssm_in", EMBEDDING, 2 * inner, 1.5)
        out.noise(block + "ssm_conv1d.weight", kernel, inner, gain=0.7)
        out.noise(block + "ssm_conv1d.bias", inner, gain=0.1)
        out.matrix(block + "ssm_x", inner, rank + 2 * state, 2.0)
        out.noise(block + "ssm_dt.weight", rank, inner, gain=0.5)
        out.noise(block + "ssm_dt.bias", inner, gain=0.5, mean=-2.0)
        fading = -np.geomspace(0.1, 4.0, state)
        out.exact(block + "ssm_a", np.tile(fading, (inner, 1)))
        out.exact(block + "ssm_d", np.full(inner, 0.5))
        out.matrix(block + "ssm_out", inner, EMBEDDING, 4.0)
    return _sizes(
        "mamba",
        num_blocks,
        feed_forward_length=0,
        attention__head_count=0,
        attention__head_count_kv=0,
        ssm__conv_kernel=kernel,
        ssm__inner_size=inner,
        ssm__state_size=state,
        ssm__time_step_rank=rank,
    )


ARCHITECTURES: Mapping[str, Callable[[TensorWriter], dict[str, Value]]] = {
    "llama": _llama,
    "gemma3": _gemma3,
    "qwen35": _qwen35,
    "mamba": _mamba,
}
"""Plain, sliding-window, hybrid and recurrent memory."""


def write_tiny_model(
    path: Path,
    arch: str,
    *,
    seed: int = 1,
    add_bos: bool = False,
    eagerness: Mapping[str, float] | None = None,
) -> Path:
    """Writes a model of an architecture of ARCHITECTURES to `path`, and returns the path.

    It answers in words of its vocabulary. `eagerness` says how readily it writes other tokens, by
    their text: 1 as any word, 1.5 about every thirtieth token, 2 about every tenth.
    """
    vocabulary = TinyVocabulary()
    scales = np.full(len(vocabulary.texts), SELDOM, dtype=np.float32)
    scales[[vocabulary.ids[word] for word in vocabulary.words]] = 1.0
    for text, scale in (eagerness or {}).items():
        scales[vocabulary.ids[text]] = scale
    out = TensorWriter(seed)
    sizes = ARCHITECTURES[arch](out)
    out.embedding(scales)
    metadata = {
        "general.architecture": arch,
        "general.name": f"tiny {arch}",
        **sizes,
        **vocabulary.metadata(add_bos=add_bos),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_file_bytes(metadata, out.tensors))
    return path


def _file_bytes(metadata: Mapping[str, Value], tensors: Mapping[str, FloatArray]) -> bytes:
    """A GGUF file of version 3 with F32 tensors."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(packed_string(key) + packed_value(value) for key, value in metadata.items())
    data = b""
    for name, values in tensors.items():
        shape = values.shape[::-1]
        head += packed_string(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", 0, len(data))
        data += _padded(values.astype("<f4").tobytes())
    return _padded(head) + data


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)
