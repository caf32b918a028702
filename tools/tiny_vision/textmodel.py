"""The frozen text model in torch: read from its GGUF file, differentiable by its input vectors.

For SmolLM2-135M: the llama architecture with tied embeddings, and the byte-level BPE of GPT-2 for
ASCII text. Token ids and greedy answers are those of llama.cpp.
"""

from __future__ import annotations

import re
from itertools import pairwise

import gguf
import torch
import torch.nn.functional as functional
from torch import Tensor

Past = list[tuple[Tensor, Tensor]]
"""Keys and values of each layer."""

MARKERS = r"(<\|im_start\|>|<\|im_end\|>)"
WORDS = r"'(?:[sdmt]|ll|ve|re)| ?[A-Za-z]+| ?[0-9]| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+"
NO_MERGE = 1 << 30


class Text:
    """A decoder that is only run forward; nothing in it is trained."""

    def __init__(self, path: str) -> None:
        reader = gguf.GGUFReader(path)

        def meta(key: str):  # type: ignore[no-untyped-def]
            return reader.fields[key].contents()

        self._num_layers: int = meta("llama.block_count")
        self._num_heads: int = meta("llama.attention.head_count")
        self._num_kv_heads: int = meta("llama.attention.head_count_kv")
        self._epsilon: float = meta("llama.attention.layer_norm_rms_epsilon")
        self._rope_base: float = meta("llama.rope.freq_base")
        self._weights: dict[str, Tensor] = {}
        for tensor in reader.tensors:
            values = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
            # Half the precision halves the time of the large products.
            is_small = "norm" in tensor.name or "token_embd" in tensor.name
            self._weights[tensor.name] = values if is_small else values.bfloat16()
        self.embeddings: Tensor = self._weights["token_embd.weight"]
        self.head: Tensor = self.embeddings.bfloat16()
        self.vocabulary = {text: i for i, text in enumerate(meta("tokenizer.ggml.tokens"))}
        merges = meta("tokenizer.ggml.merges")
        self._ranks = {tuple(merge.split(" ")): i for i, merge in enumerate(merges)}

    def tokenize(self, text: str) -> list[int]:
        """Ids of ASCII text in which the markers of turns are spelled out."""
        ids = []
        for part in re.split(MARKERS, text):
            if re.fullmatch(MARKERS, part):
                ids.append(self.vocabulary[part])
                continue
            for word in re.findall(WORDS, part):
                ids += [self.vocabulary[piece] for piece in self._merged(word)]
        return ids

    def _merged(self, word: str) -> list[str]:
        pieces = list(word.replace(" ", "\u0120").replace("\n", "\u010a"))
        while len(pieces) > 1:
            pairs = pairwise(pieces)
            rank, at = min((self._ranks.get(pair, NO_MERGE), i) for i, pair in enumerate(pairs))
            if rank == NO_MERGE:
                break
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        return pieces

    def run(self, x: Tensor, past: Past | None = None) -> tuple[Tensor, Past]:
        """The last hidden state of vectors `x` (batch, time, width), and the keys and values of
        this run; `past` are those of a prefix that all rows share."""
        num_past = past[0][0].shape[2] if past else 0
        positions = torch.arange(num_past, num_past + x.shape[1])
        mask = torch.arange(num_past + x.shape[1])[None, :] <= positions[:, None]
        new: Past = []
        for layer in range(self._num_layers):
            h = self._norm(x, f"blk.{layer}.attn_norm.weight")
            q, k, v = self._heads(h, layer, positions)
            new.append((k, v))
            if past:
                k, v = (
                    torch.cat((before.expand(len(x), -1, -1, -1), now), 2)
                    for before, now in zip(past[layer], (k, v), strict=True)
                )
            x = x + self._attend(q, k, v, mask, layer)
            x = x + self._feed(self._norm(x, f"blk.{layer}.ffn_norm.weight"), layer)
        return self._norm(x, "output_norm.weight"), new

    def _heads(self, h: Tensor, layer: int, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def split(name: str, count: int) -> Tensor:
            rows = h @ self._weight(layer, name).T
            return rows.unflatten(-1, (count, -1)).transpose(1, 2)

        return (
            self._rotated(split("attn_q", self._num_heads), positions),
            self._rotated(split("attn_k", self._num_kv_heads), positions),
            split("attn_v", self._num_kv_heads),
        )

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, layer: int) -> Tensor:
        group = self._num_heads // self._num_kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        rows = mixed.transpose(1, 2).flatten(2) @ self._weight(layer, "attn_output").T
        return rows.float()

    def _feed(self, h: Tensor, layer: int) -> Tensor:
        gate = functional.silu(h @ self._weight(layer, "ffn_gate").T)
        rows = (gate * (h @ self._weight(layer, "ffn_up").T)) @ self._weight(layer, "ffn_down").T
        return rows.float()

    def _weight(self, layer: int, name: str) -> Tensor:
        return self._weights[f"blk.{layer}.{name}.weight"]

    def _norm(self, h: Tensor, name: str) -> Tensor:
        scale = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self._epsilon)
        return (h * scale * self._weights[name]).bfloat16()

    def _rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotary positions; GGUF files of llama models keep each rotated pair side by side."""
        half = x.shape[-1] // 2
        angles = positions[:, None].float() * self._rope_base ** (-torch.arange(half) / half)
        cos, sin = angles.cos(), angles.sin()
        a, b = x.float().unflatten(-1, (half, 2)).unbind(-1)
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)
