"""Settings: frozen records that check themselves when they are made.

Where the values come from (flags, environment, file, catalogue) is the command line's matter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from selfserve.errors import SettingsError, shown


def _check(settings: Any) -> None:
    """Compares each field with the `(low, high)` of its class's LIMITS."""
    for name, (low, high) in settings.LIMITS.items():
        value = getattr(settings, name)
        if value is not None and not low <= value <= high:
            raise SettingsError(
                f"{name} must be between {low} and {high}, got {shown(value)}", param=name
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What the engine process needs to load a model and run it."""

    model_path: Path
    projector_path: Path | None = None
    """What turns pictures into embeddings for this model; None: it takes text only."""
    context_size: int | None = None
    """Tokens of one sequence; None: the model's own context, at most DEFAULT_CONTEXT."""
    num_slots: int = 4
    num_threads: int = 1
    batch_size: int = 2048
    """Tokens of one step, at most."""
    ubatch_size: int = 512
    """Tokens that libllama computes at once; decides the size of its work buffers."""
    step_ms: float = 55.0
    """What prompts may add to a step while someone is decoding: bounds the silence they cause."""
    cache_ram_bytes: int | None = None
    """Host memory for prefixes that slots lost; None: a quarter of what the process may use."""
    gpu_layers: int = -1
    """Layers that a GPU computes; -1: all, if there is one."""
    device: str = "auto"
    """`auto`, `cpu`, `metal`, `cuda[:N]` or `vulkan[:N]`."""
    flash_attention: str = "auto"
    kv_type: str = "f16"
    use_mmap: bool = True
    speculate: bool = True
    verbose: bool = False

    DEFAULT_CONTEXT = 16384
    LIMITS = {
        "context_size": (16, 1 << 24),
        "num_slots": (1, 256),
        "num_threads": (1, 1024),
        "batch_size": (16, 1 << 16),
        "ubatch_size": (16, 1 << 16),
        "step_ms": (1, 60_000),
        "cache_ram_bytes": (0, 1 << 50),
        "gpu_layers": (-1, 10_000),
    }

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What the HTTP side needs besides a model."""

    host: str = "127.0.0.1"
    port: int = 8080
    """0: the system chooses one."""
    queue_size: int = 64
    """Requests that may wait beyond those in slots; one more gets `queue_full`."""
    request_timeout_s: float = 600.0
    """From a request's arrival to its last token; 0: none."""
    ping_s: float = 10.0
    """Silence in a stream after which a comment is sent; 0: never."""
    drain_s: float = 2.5
    """Time that running requests have at shutdown."""
    api_keys: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    expose_slots: bool = False
    context_shift: bool = False
    """Whether generation goes on beyond a full context in requests that do not say."""
    max_images: int = 8
    preprocess_concurrency: int = 8
    allow_http_images: bool = False
    allow_private_images: bool = False
    reasoning_budgets: dict[str, int | None] = field(
        default_factory=lambda: {
            "minimal": 128,
            "low": 512,
            "medium": 2048,
            "high": 8192,
            "xhigh": None,
        }
    )

    LIMITS = {
        "port": (0, 65535),
        "queue_size": (0, 100_000),
        "request_timeout_s": (0, 1e9),
        "ping_s": (0, 1e9),
        "drain_s": (0, 3600),
        "max_images": (1, 1000),
        "preprocess_concurrency": (1, 256),
    }

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What `/v1/model` tells about the model that is served, beyond what the engine reports."""

    id: str
    quant: str = ""
    family: str = ""
    parameters: str = ""
    architecture: str = ""
    license: str = ""
    context_length: int = 0
    """Tokens that the model was trained for."""
    created: int = 0
    """Unix seconds: when the server loaded it."""
    thinking_default: bool = True
    """Whether a request that says nothing thinks, if the template can."""
    sampling: dict[str, Any] = field(default_factory=dict)
    """Recommended sampling settings by field name of SamplingParams; they stand between what the
    request says and the contract's defaults."""
