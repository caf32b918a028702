"""Will a model fit into memory? Pure arithmetic, close to what libllama allocates.

weights     the files, mapped: resident once they are read
context     keys and values: cells × layers × heads × lengths, for each slot
recurrent   the state of recurrent layers, for each slot
compute     work buffers of one physical batch: attention mask, widest layer, logits
projector   its file, and room to encode one picture
prefixes    host memory for prompts that lost their slot
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from selfserve.catalogue.download import amount
from selfserve.catalogue.shape import Shape

CELL_BLOCK = 256
"""libllama rounds the cells of a sequence up to this many."""
MIN_CONTEXT = 512
"""Less is not worth offering."""
PROCESS_BYTES = 256 << 20
"""The interpreters of the two processes with their libraries."""
MAX_PICTURE_BYTES = 256 << 20
KV_BYTES = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
"""Bytes of one value in the context memory, by type."""
_FLOAT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How a model is to be run."""

    context_size: int
    """Tokens of one sequence."""
    num_slots: int = 4
    ubatch_size: int = 512
    kv_type: str = "f16"
    flash_attention: bool = True
    outputs_per_slot: int = 17
    """Rows of logits that a slot may ask for in one step: its token and the longest draft."""
    prefix_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Bytes by what takes them."""

    weights: int
    context: int
    recurrent: int
    compute: int
    projector: int
    prefixes: int
    process: int = PROCESS_BYTES

    @property
    def total(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The answer: `suggestion` is what would fit, None if nothing does."""

    load: Load
    needed: Estimate
    available: int
    suggestion: Load | None
    least: Estimate
    """What the smallest context in one slot needs."""

    @property
    def fits(self) -> bool:
        return self.needed.total <= self.available

    def explain(self) -> str:
        """For the person who starts the server: what is needed, what is there, what would fit."""
        parts = ", ".join(
            f"{field.name} {amount(value)}"
            for field in fields(self.needed)
            if (value := getattr(self.needed, field.name))
        )
        text = f"needs {amount(self.needed.total)} of memory ({parts})"
        text += f" and {amount(self.available)} is there"
        if self.fits:
            return text
        if self.suggestion is None:
            return (
                f"{text}; even {MIN_CONTEXT} tokens in one slot need {amount(self.least.total)}: "
                "choose a smaller model or quantization"
            )
        return (
            f"{text}; it fits with --context-size {self.suggestion.context_size} "
            f"--parallel {self.suggestion.num_slots}"
        )


def estimate(shape: Shape, load: Load, *, weight_bytes: int, projector_bytes: int = 0) -> Estimate:
    """Memory for a model of `weight_bytes` (all its files) run as `load` says."""
    picture = min(projector_bytes, MAX_PICTURE_BYTES)
    return Estimate(
        weights=weight_bytes,
        context=context_bytes(shape, load),
        recurrent=shape.recurrent_values * _FLOAT * load.num_slots,
        compute=compute_bytes(shape, load),
        projector=projector_bytes + picture,
        prefixes=load.prefix_bytes,
    )


def context_bytes(shape: Shape, load: Load) -> int:
    """Keys and values of all slots. A windowed layer keeps its window and one batch, no more."""
    cells = _padded(load.context_size)
    windowed_cells = min(cells, _padded(shape.window + load.ubatch_size))
    values = sum(
        layer.values_per_token * (windowed_cells if layer.windowed else cells)
        for layer in shape.attention
    )
    return int(values * KV_BYTES[load.kv_type]) * load.num_slots


def compute_bytes(shape: Shape, load: Load) -> int:
    """Work buffers, which libllama reserves for the largest batch and uses again in each layer."""
    rows = load.ubatch_size
    outputs = min(rows, load.outputs_per_slot * load.num_slots)
    mask = rows * _padded(load.context_size) * 2 if shape.attention else 0
    layer = (
        rows
        * _FLOAT
        * (
            3 * shape.feed_forward_length
            + 4 * shape.embedding_length
            + 2 * shape.convolution_channels
        )
    )
    logits = outputs * shape.vocab_size * _FLOAT + rows * shape.embedding_length * 2 * _FLOAT
    scores = 0
    if not load.flash_attention and shape.attention:
        scores = rows * shape.num_heads * _padded(load.context_size) * _FLOAT
    return mask + max(layer + scores, logits)


def check(
    shape: Shape,
    load: Load,
    *,
    weight_bytes: int,
    available: int,
    projector_bytes: int = 0,
) -> Fit:
    """Compares the estimate with `available` bytes.

    The suggestion keeps the context and has as many slots as fit; where not even one does, it is
    one slot with the largest context.
    """

    def needed(tried: Load) -> Estimate:
        return estimate(shape, tried, weight_bytes=weight_bytes, projector_bytes=projector_bytes)

    def fits(tried: Load) -> bool:
        return needed(tried).total <= available

    smallest = replace(load, context_size=min(load.context_size, MIN_CONTEXT), num_slots=1)
    return Fit(
        load=load,
        needed=needed(load),
        available=available,
        suggestion=load if fits(load) else _suggest(load, smallest, fits),
        least=needed(smallest),
    )


def _suggest(load: Load, smallest: Load, fits: Callable[[Load], bool]) -> Load | None:
    for num_slots in range(load.num_slots - 1, 0, -1):
        fewer = replace(load, num_slots=num_slots)
        if fits(fewer):
            return fewer
    if not fits(smallest):
        return None
    # Memory grows with the context, so the largest one is found by halving the interval.
    low, high = 0, (load.context_size - smallest.context_size) // CELL_BLOCK
    while low < high:
        middle = (low + high + 1) // 2
        tried = replace(smallest, context_size=smallest.context_size + middle * CELL_BLOCK)
        low, high = (middle, high) if fits(tried) else (low, middle - 1)
    return replace(smallest, context_size=smallest.context_size + low * CELL_BLOCK)


def _padded(num_tokens: int) -> int:
    return -(-num_tokens // CELL_BLOCK) * CELL_BLOCK
