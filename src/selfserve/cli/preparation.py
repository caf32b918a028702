"""From choices to a model that can be loaded: fetch what is missing, see whether it fits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfserve.cli import output
from selfserve.cli.known_settings import NO_PROJECTOR, SETTINGS, Owner
from selfserve.cli.setting_sources import Choices
from selfserve.config import EngineSettings, ModelInfo, ServerSettings
from selfserve.errors import ModelLoadError
from selfserve.resources import available_cpus, available_memory_bytes

if TYPE_CHECKING:
    from selfserve.catalogue.store import ResolvedModel, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A model that is on this machine and fits."""

    engine: EngineSettings
    model: ModelInfo


def prepare(reference: str, choices: Choices, *, force: bool = False) -> Prepared:
    """Fetches what is missing of the model, and decides how it is run. Blocks on the network.

    Raises what `pull` raises, ModelTooLarge unless `force`, and LibraryError or SettingsError
    for a device that is not there.
    """
    on_gpu = gpu_bytes(choices)
    resolved = fetch(reference, choices)
    settings = engine_settings(resolved, choices)
    settings = _fitted(settings, resolved, choices, on_gpu, force=force)
    return Prepared(engine=settings, model=model_info(resolved.info, choices))


def store_of(choices: Choices) -> Store:
    """The models folder that was chosen."""
    from selfserve.catalogue.store import Store

    root = choices["models_dir"].value
    return Store() if root is None else Store(root)


def projector_of(choices: Choices) -> Path | None:
    """The projector file that was chosen; None: the model's own, if it has one."""
    chosen = choices["mmproj"].value
    return None if chosen == NO_PROJECTOR else chosen


def fetch(reference: str, choices: Choices) -> ResolvedModel:
    """The model's files on this machine; progress on stderr while some are fetched."""
    from selfserve.catalogue.entries import pull
    from selfserve.cli.download_progress import DownloadProgress

    with DownloadProgress() as progress:
        return pull(
            reference,
            store=store_of(choices),
            projector=projector_of(choices),
            on_progress=progress.update,
        )


def server_settings(choices: Choices) -> ServerSettings:
    return ServerSettings(**_fields("server", choices))


def engine_settings(resolved: ResolvedModel, choices: Choices) -> EngineSettings:
    """The settings as they were chosen; what nobody chose is decided by machine and model."""
    fields = _fields("engine", choices)
    fields["num_threads"] = fields["num_threads"] or available_cpus()
    fields["projector_path"] = (
        None if choices["mmproj"].value == NO_PROJECTOR else resolved.projector
    )
    return EngineSettings(model_path=resolved.path, **fields)


def model_info(info: ModelInfo, choices: Choices) -> ModelInfo:
    """`info` with the sampling and thinking that were chosen."""
    sampling = _fields("sampling", choices)
    return replace(
        info,
        sampling={name: value for name, value in sampling.items() if value is not None},
        thinking_default=choices["thinking"].value,
    )


def _fields(owner: Owner, choices: Choices) -> dict[str, Any]:
    """The chosen values by field name, in the record's units."""
    fields: dict[str, Any] = {}
    for name, setting in SETTINGS.items():
        if setting.owner == owner:
            value = choices[name].value
            fields[setting.field] = (
                value * setting.scale if setting.scale > 1 and value is not None else value
            )
    return fields


def gpu_bytes(choices: Choices) -> int | None:
    """Free memory of the GPUs that hold the whole model; None: it runs in this process's memory.

    Raises LibraryError or SettingsError for a device that is not there.
    """
    from selfserve.engine.llama_runner import choose_gpus

    layers = choices["gpu_layers"].value
    gpus = choose_gpus(choices["device"].value, layers)
    # A model that is split between GPU and CPU is counted as if it were all on the CPU.
    if not gpus or layers >= 0:
        return None
    return sum(gpu.free_bytes for gpu in gpus)


def _fitted(
    settings: EngineSettings,
    resolved: ResolvedModel,
    choices: Choices,
    on_gpu: int | None,
    *,
    force: bool,
) -> EngineSettings:
    """The settings with a context and slots that fit."""
    from selfserve.cli.fitting import cache_bytes, fitted, load_of, measure

    parts = resolved.parts or (resolved.path,)
    try:
        need = measure(parts, settings.projector_path, on_gpu)
    except ModelLoadError as error:
        output.status(f"How much memory it needs cannot be told: {error.message}")
        return _with_cache(settings, available_memory_bytes() // 4)
    load = load_of(settings, need.shape.context_length)
    chosen = load
    if not force:
        chosen = fitted(
            need,
            load,
            context_is_decided=choices["context_size"].is_decided,
            slots_are_decided=choices["parallel"].is_decided,
        )
    if chosen != load:
        output.status(
            f"{load.num_slots} slots of {load.context_size} tokens do not fit: the model "
            f"{need.check(load).explain()}"
        )
        settings = replace(settings, context_size=chosen.context_size, num_slots=chosen.num_slots)
    left = available_memory_bytes() // 4 if on_gpu is not None else cache_bytes(need, chosen)
    return _with_cache(settings, left)


def _with_cache(settings: EngineSettings, num_bytes: int) -> EngineSettings:
    if settings.cache_ram_bytes is not None:
        return settings
    return replace(settings, cache_ram_bytes=num_bytes)
