"""Writes a trained encoder as a projector file for libmtmd, of type `nemotron_v2_vl`.

python -m tools.tiny_vision.export IN.pt OUT.gguf
"""

from __future__ import annotations

import sys
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from tools.tiny_vision.encoder import FEED_FORWARD, GRID, HEADS, LAYERS, MERGE, PATCH, WIDTH

BLOCK_NAMES = {
    "ln1": "ln1",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_out",
    "ln2": "ln2",
    "up": "ffn_up",
    "down": "ffn_down",
}
"""Our name of a layer → libmtmd's."""

Weights = dict[str, npt.NDArray[np.float32]]


def write_keys(writer: Any, output_width: int) -> None:
    writer.add_type("mmproj")
    writer.add_name("tiny-vision")
    writer.add_description("colours and shapes for SmolLM2-135M-Instruct; made for tests")
    writer.add_license("apache-2.0")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_string("clip.projector_type", "nemotron_v2_vl")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_bool("clip.use_gelu", True)  # without it libmtmd takes another form of GELU
    sizes = {
        "image_size": GRID * PATCH,
        "patch_size": PATCH,
        "embedding_length": WIDTH,
        "feed_forward_length": FEED_FORWARD,
        "block_count": LAYERS,
        "projection_dim": output_width,
        "attention.head_count": HEADS,
        "projector.scale_factor": MERGE,
    }
    for name, value in sizes.items():
        writer.add_uint32(f"clip.vision.{name}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", [0.5] * 3)
    writer.add_array("clip.vision.image_std", [0.5] * 3)


def write_weights(writer: Any, weights: Weights) -> None:
    def add(name: str, source: str, *, half: bool = False) -> None:
        kind = np.float16 if half else np.float32
        writer.add_tensor(name, np.ascontiguousarray(weights[source], kind))

    add("v.patch_embd.weight", "patch.weight")
    add("v.patch_embd.bias", "patch.bias")
    add("v.position_embd.weight", "pos")
    add("v.class_embd", "cls")  # the graph insists on one
    for layer in range(LAYERS):
        for own, name in BLOCK_NAMES.items():
            source, target = f"blk.{layer}.{own}", f"v.blk.{layer}.{name}"
            add(f"{target}.weight", f"{source}.weight", half=not own.startswith("ln"))
            add(f"{target}.bias", f"{source}.bias")
    add("v.post_ln.weight", "post.weight")
    add("v.post_ln.bias", "post.bias")
    add("mm.model.mlp.0.weight", "norm")
    add("mm.model.mlp.1.weight", "fc1.weight", half=True)
    add("mm.model.mlp.3.weight", "fc2.weight", half=True)


def main() -> None:
    source, target = sys.argv[1:]
    state = torch.load(source, weights_only=True)
    weights: Weights = {name: tensor.float().numpy() for name, tensor in state.items()}
    writer = gguf.GGUFWriter(target, "clip")
    write_keys(writer, output_width=weights["fc2.weight"].shape[0])
    write_weights(writer, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
