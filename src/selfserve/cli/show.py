"""`self show MODEL`: what is known about a model, and whether it fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from selfserve.cli import options, output
from selfserve.cli.setting_flags import takes_settings
from selfserve.cli.setting_sources import Choices, Given, choose
from selfserve.errors import ModelLoadError, ModelNotFound

if TYPE_CHECKING:
    from selfserve.catalogue.entries import Reference
    from selfserve.catalogue.known import ModelFile
    from selfserve.catalogue.store import ResolvedModel

SHAPING = ("context_size", "parallel", "cache_ram", "kv_type", "device", "gpu_layers")


@takes_settings((*SHAPING, "mmproj", "models_dir"))
def show(given: Given, model: options.Model, as_json: options.AsJson = False) -> None:
    """Show a model's facts and whether it fits.

    Prints what is known about it, where its files are, and what memory it needs.
    """
    choices = choose(given, model)
    facts = facts_of(model, choices)
    if as_json:
        output.result_json(facts)
        return
    for name, value in facts.items():
        if value not in (None, "", [], {}):
            _print(name.replace("_", " "), value)


def facts_of(reference: str, choices: Choices) -> dict[str, Any]:
    """What `show` prints. Asks the hub only for a repository that is not on this machine."""
    from selfserve.catalogue.entries import CatalogueReference, parse_reference, resolve
    from selfserve.cli.preparation import projector_of, store_of

    parsed = parse_reference(reference)
    facts: dict[str, Any] = {"model": reference}
    if isinstance(parsed, CatalogueReference):
        facts |= _catalogue_facts(parsed)
    try:
        resolved = resolve(reference, store=store_of(choices), projector=projector_of(choices))
    except ModelNotFound:
        facts["files"] = [_file_facts(file) for file in _missing_files(parsed)]
        return {**facts, "installed": False}
    return {**facts, "installed": True, **_local_facts(resolved, choices)}


def _catalogue_facts(parsed: Any) -> dict[str, Any]:
    entry = parsed.entry
    return {
        "model": f"{entry.id}@{parsed.quant}",
        "description": entry.description,
        "aliases": list(entry.aliases),
        "quants": list(entry.quants),
        "parameters": entry.parameters,
        "license": entry.license,
        "context_length": entry.context_length,
        "thinking": entry.thinking,
        "sampling": dict(entry.sampling),
    }


def _missing_files(parsed: Reference) -> tuple[ModelFile, ...]:
    """The files to fetch. Raises ModelNotFound for a path: there is nothing to fetch."""
    from selfserve.catalogue.entries import CatalogueReference, HubReference, find_on_hub

    match parsed:
        case CatalogueReference():
            return parsed.files
        case HubReference():
            return find_on_hub(parsed)
    raise ModelNotFound(f"there is no file {parsed.path}")


def _file_facts(file: ModelFile) -> dict[str, Any]:
    source = file.repository or f"Python package {file.package}"
    return {"name": file.name, "from": source, "size": file.size, "sha256": file.sha256}


def _local_facts(resolved: ResolvedModel, choices: Choices) -> dict[str, Any]:
    from selfserve.catalogue.facts import described
    from selfserve.catalogue.gguf import read_header
    from selfserve.cli.fitting import cache_bytes, load_of, measure
    from selfserve.cli.preparation import engine_settings, gpu_bytes

    header = read_header(resolved.path)
    info = described(resolved.info, header)
    facts: dict[str, Any] = {
        "architecture": info.architecture,
        "quant": info.quant,
        "parameters": info.parameters,
        "license": info.license,
        "context_length": info.context_length,
        "vision": resolved.projector is not None,
        "files": [{"name": str(path), "size": path.stat().st_size} for path in resolved.paths],
    }
    settings = engine_settings(resolved, choices)
    on_gpu = gpu_bytes(choices)
    try:
        need = measure(resolved.parts or (resolved.path,), settings.projector_path, on_gpu)
    except ModelLoadError as error:
        return {**facts, "memory": error.message}
    load = load_of(settings, need.shape.context_length)
    checked = need.check(load)
    facts["run_as"] = {"context_size": load.context_size, "parallel": load.num_slots}
    facts["memory"] = checked.explain()
    facts["needed_bytes"] = checked.needed.total
    facts["available_bytes"] = checked.available
    facts["cache_bytes"] = cache_bytes(need, load)
    facts["fits"] = checked.fits
    return facts


def _print(name: str, value: Any) -> None:
    from selfserve.catalogue.download import amount

    if isinstance(value, bool):
        value = "yes" if value else "no"
    if isinstance(value, int) and name.endswith(" bytes"):
        name, value = name.removesuffix(" bytes"), amount(value)
    if isinstance(value, dict):
        value = ", ".join(f"{key} {item}" for key, item in value.items())
    if name == "files":
        value = "\n".join(f"{file['name']} ({amount(file['size'])})" for file in value)
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    first, *others = str(value).split("\n")
    output.result(f"{name:<16}{first}")
    for line in others:
        output.result(f"{'':<16}{line}")
