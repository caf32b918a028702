"""Before a model is loaded: does it fit, and if not, what gives way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from selfserve.catalogue import fit
from selfserve.catalogue.fit import Fit, Load
from selfserve.catalogue.gguf import read_header
from selfserve.catalogue.shape import read_shape
from selfserve.config import EngineSettings
from selfserve.errors import ModelTooLarge
from selfserve.resources import available_memory_bytes

if TYPE_CHECKING:
    from selfserve.catalogue.shape import Shape

CACHE_SHARE = 4
"""Prompts that may come again get one part in so many of the memory that is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A model's files and what decides about the memory that it takes."""

    shape: Shape
    weight_bytes: int
    projector_bytes: int
    available: int
    """Bytes that may be used: of the GPUs if they hold the model, else of this process."""

    def check(self, load: Load) -> Fit:
        return fit.check(
            self.shape,
            load,
            weight_bytes=self.weight_bytes,
            projector_bytes=self.projector_bytes,
            available=self.available,
        )


def measure(parts: Sequence[Path], projector: Path | None, gpu_bytes: int | None = None) -> Need:
    """Reads the header of the first file. Raises ModelLoadError if that says too little."""
    return Need(
        shape=read_shape(read_header(parts[0])),
        weight_bytes=sum(path.stat().st_size for path in parts),
        projector_bytes=projector.stat().st_size if projector else 0,
        available=available_memory_bytes() if gpu_bytes is None else gpu_bytes,
    )


def load_of(settings: EngineSettings, trained: int) -> Load:
    """How `settings` run a model that was trained for contexts of `trained` tokens."""
    context = settings.context_size or min(trained or 1 << 30, EngineSettings.DEFAULT_CONTEXT)
    return Load(
        context_size=context,
        num_slots=settings.num_slots,
        ubatch_size=settings.ubatch_size,
        kv_type=settings.kv_type,
        flash_attention=settings.flash_attention != "off",
        prefix_bytes=settings.cache_ram_bytes or 0,
    )


def fitted(need: Need, load: Load, *, context_is_decided: bool, slots_are_decided: bool) -> Load:
    """`load`, or the largest one that fits and keeps what a person decided.

    Raises ModelTooLarge that says what would fit.
    """
    checked = need.check(load)
    if checked.fits:
        return load
    candidate = checked.suggestion
    if slots_are_decided and not context_is_decided:
        candidate = _largest_context(need, load)
    elif context_is_decided and candidate and candidate.context_size != load.context_size:
        candidate = None
    if candidate is None or (context_is_decided and slots_are_decided):
        raise ModelTooLarge(f"the model {checked.explain()}; --force tries it all the same")
    return candidate


def cache_bytes(need: Need, load: Load) -> int:
    """Memory for prompts that may come again: a quarter of what is there, or what is left."""
    left = need.available - need.check(load).needed.total
    return max(0, min(need.available // CACHE_SHARE, left))


def _largest_context(need: Need, load: Load) -> Load | None:
    """The largest context, in steps of libllama's block, that fits with the slots of `load`."""
    low, high = 0, load.context_size // fit.CELL_BLOCK
    while low < high:
        middle = (low + high + 1) // 2
        fits = need.check(replace(load, context_size=middle * fit.CELL_BLOCK)).fits
        low, high = (middle, high) if fits else (low, middle - 1)
    size = low * fit.CELL_BLOCK
    return replace(load, context_size=size) if size >= fit.MIN_CONTEXT else None
