"""The dimensions of a model that decide how much memory it takes, from its GGUF header."""

from __future__ import annotations

from dataclasses import dataclass

from selfserve.catalogue.gguf import Header
from selfserve.errors import ModelLoadError, shown

_MAX_LAYERS = 4096
_MAX_DIMENSION = 1 << 24
_WINDOW_PERIODS = {"gemma2": 2, "gemma3": 6, "cohere2": 4, "gpt-oss": 2, "olmo2": 4}
"""Families whose files may leave out which layers have a sliding window: all but each n-th."""
_INTERVAL_FAMILIES = ("qwen35", "qwen35moe", "qwen3next")
"""Hybrid families that have attention in each n-th layer only and say so by an interval."""
_DEFAULT_INTERVAL = 4


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """One layer's key-value memory, in values for each token."""

    num_kv_heads: int
    key_length: int
    value_length: int
    windowed: bool

    @property
    def values_per_token(self) -> int:
        return self.num_kv_heads * (self.key_length + self.value_length)


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes are counts of values, not bytes."""

    architecture: str
    num_layers: int
    embedding_length: int
    feed_forward_length: int
    num_heads: int
    vocab_size: int
    context_length: int
    """Tokens that the model was trained for."""
    window: int
    """Tokens that windowed layers see; 0: there are none."""
    attention: tuple[AttentionLayer, ...]
    """Layers that keep keys and values; others are recurrent, or use a lower layer's."""
    recurrent_values: int
    """State of one sequence in all recurrent layers, of a size that no context changes."""
    convolution_channels: int
    """Width of the widest recurrent layer."""


def read_shape(header: Header) -> Shape:
    """Raises ModelLoadError for a projector, and for dimensions that are missing or absurd."""
    if header.is_projector:
        raise ModelLoadError("this file is a projector for pictures, not a model")
    fields = _Fields(header)
    num_layers = fields.number("block_count", high=_MAX_LAYERS)
    embedding_length = fields.number("embedding_length")
    heads = fields.per_layer("attention.head_count", num_layers, 0)
    feed_forward = fields.per_layer("feed_forward_length", num_layers, 0)
    recurrent = _recurrent_layers(fields, num_layers)
    channels, values = _recurrent_state(fields)
    return Shape(
        architecture=header.architecture,
        num_layers=num_layers,
        embedding_length=embedding_length,
        feed_forward_length=max(feed_forward),
        num_heads=max(heads),
        vocab_size=header.array_lengths.get("tokenizer.ggml.tokens", 0),
        context_length=fields.number("context_length", 0),
        window=fields.number("attention.sliding_window", 0),
        attention=_attention_layers(fields, num_layers, embedding_length, heads),
        recurrent_values=values * sum(recurrent),
        convolution_channels=channels,
    )


class _Fields:
    """A model's own metadata: the keys that begin with its architecture's name."""

    def __init__(self, header: Header) -> None:
        self.architecture = header.architecture
        self._metadata = header.metadata

    def has(self, name: str) -> bool:
        return f"{self.architecture}.{name}" in self._metadata

    def number(self, name: str, default: int | None = None, high: int = _MAX_DIMENSION) -> int:
        value = self._metadata.get(f"{self.architecture}.{name}", default)
        return self._checked(name, value, high)

    def per_layer(self, name: str, num_layers: int, default: int) -> list[int]:
        """One number for all layers, or an array with one for each."""
        value = self._metadata.get(f"{self.architecture}.{name}", default)
        if not isinstance(value, tuple):
            return [self._checked(name, value, _MAX_DIMENSION)] * num_layers
        if len(value) < num_layers:
            raise ModelLoadError(f"{name} has {len(value)} values for {num_layers} layers")
        return [self._checked(name, item, _MAX_DIMENSION) for item in value[:num_layers]]

    def window_pattern(self, num_layers: int) -> list[bool]:
        """Which layers have a sliding window."""
        if not self.number("attention.sliding_window", 0):
            return [False] * num_layers
        default = _WINDOW_PERIODS.get(self.architecture, 1)
        value = self._metadata.get(f"{self.architecture}.attention.sliding_window_pattern", default)
        if isinstance(value, tuple):
            flags = [bool(item) for item in value[:num_layers]]
            return flags + [False] * (num_layers - len(flags))
        period = self._checked("attention.sliding_window_pattern", value, _MAX_LAYERS)
        # A period of 1 says nothing about windows: full-size layers are the safe assumption.
        return [period > 1 and (layer + 1) % period != 0 for layer in range(num_layers)]

    def _checked(self, name: str, value: object, high: int) -> int:
        if not isinstance(value, int) or not 0 <= value <= high:
            what = "is missing" if value is None else f"is {shown(value)}"
            raise ModelLoadError(f"the model's {self.architecture}.{name} {what}")
        return int(value)


def _attention_layers(
    fields: _Fields, num_layers: int, embedding_length: int, heads: list[int]
) -> tuple[AttentionLayer, ...]:
    num_heads = max(heads)
    if not num_heads:
        return ()
    head_length = embedding_length // num_heads
    key = fields.number("attention.key_length", head_length)
    value = fields.number("attention.value_length", head_length)
    key_windowed = fields.number("attention.key_length_swa", key)
    value_windowed = fields.number("attention.value_length_swa", value)
    kv_heads = fields.per_layer("attention.head_count_kv", num_layers, num_heads)
    windowed = fields.window_pattern(num_layers)
    own = num_layers - fields.number("attention.shared_kv_layers", 0)
    return tuple(
        AttentionLayer(
            kv_heads[layer],
            key_windowed if windowed[layer] else key,
            value_windowed if windowed[layer] else value,
            windowed[layer],
        )
        for layer in range(num_layers)
        if kv_heads[layer] and layer < own and not _replaced(fields, layer)
    )


def _recurrent_layers(fields: _Fields, num_layers: int) -> list[bool]:
    """Which layers keep a recurrent state, in a model that has any."""
    kv_heads = fields.per_layer("attention.head_count_kv", num_layers, 0)
    if fields.architecture in _INTERVAL_FAMILIES:
        return [_replaced(fields, layer) for layer in range(num_layers)]
    if any(kv_heads) and not all(kv_heads):
        return [heads == 0 for heads in kv_heads]
    return [True] * num_layers


def _replaced(fields: _Fields, layer: int) -> bool:
    """True if `layer` of an interval family is recurrent."""
    if fields.architecture not in _INTERVAL_FAMILIES:
        return False
    interval = max(1, fields.number("full_attention_interval", _DEFAULT_INTERVAL))
    return (layer + 1) % interval != 0


def _recurrent_state(fields: _Fields) -> tuple[int, int]:
    """(channels, values) of one recurrent layer: the convolution's last inputs and the state."""
    inner = fields.number("ssm.inner_size", 0)
    state = fields.number("ssm.state_size", 0)
    channels = inner + 2 * fields.number("ssm.group_count", 0) * state
    kernel = fields.number("ssm.conv_kernel", 0)
    return channels, max(0, kernel - 1) * channels + state * inner
