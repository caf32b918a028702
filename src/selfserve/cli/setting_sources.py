"""Which value of a setting takes effect, and where it came from.

    flag ► --set ► environment ► file: model@quant ► file: model ► file ► catalogue ► default

Every key and value of every source is checked, also those that another source overrides: what is
wrong stops the start and is named.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfserve.cli.known_settings import SETTINGS, Setting
from selfserve.errors import ModelNotFound, SettingsError, shown

if TYPE_CHECKING:
    from selfserve.catalogue.entries import Reference

PREFIX = "SELF_"
FILE_VARIABLE = "SELF_SETTINGS_FILE"
OTHER_VARIABLES = (FILE_VARIABLE, "SELF_CATALOGUE", "SELF_KERNELS")
"""Variables of this program that are no settings."""
MODELS = "models"
"""The file's key of the sections for single models."""
CATALOGUE, DEFAULT = "catalogue", "default"
NOT_CHOSEN = (CATALOGUE, DEFAULT)
"""Sources that are nobody's decision: such a value may give way."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A setting's value and where it came from."""

    value: Any
    source: str

    @property
    def is_decided(self) -> bool:
        """True if a person chose it."""
        return self.source not in NOT_CHOSEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the command line says about settings."""

    flags: Mapping[str, Any] = field(default_factory=dict)
    """By name of the setting; only those that were given."""
    assignments: Sequence[str] = ()
    """The values of `--set`."""
    file: Path | None = None


Choices = Mapping[str, Chosen]
"""Every setting by name."""


def choose(given: Given, reference: str | None = None) -> Choices:
    """All settings for the model `reference`, or for none in particular.

    Reads the environment and the settings file. Raises SettingsError, and ModelNotFound for a
    reference that cannot be understood.
    """
    model = _parsed(reference)
    layers = [
        _defaults(),
        _catalogue(model),
        *_file_layers(given.file, model),
        _environment(),
        _assignments(given.assignments),
        {
            name: Chosen(SETTINGS[name].checked(value, SETTINGS[name].flag), SETTINGS[name].flag)
            for name, value in given.flags.items()
        },
    ]
    chosen: dict[str, Chosen] = {}
    for layer in layers:
        chosen.update(layer)
    return chosen


def default_file() -> Path:
    """`~/.config/self/settings.yml`, under `XDG_CONFIG_HOME` where that is set."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "self" / "settings.yml"


def _parsed(reference: str | None) -> Reference | None:
    if reference is None:
        return None
    from selfserve.catalogue.entries import parse_reference

    return parse_reference(reference)


def _defaults() -> dict[str, Chosen]:
    return {name: Chosen(setting.default, DEFAULT) for name, setting in SETTINGS.items()}


def _catalogue(model: Reference | None) -> dict[str, Chosen]:
    from selfserve.catalogue.entries import CatalogueReference

    if not isinstance(model, CatalogueReference):
        return {}
    entry = model.entry
    values: dict[str, Any] = {
        "context_size": entry.context_size,
        "thinking": entry.thinking == "on",
        **entry.sampling,
    }
    return {name: Chosen(value, CATALOGUE) for name, value in values.items()}


def _environment() -> dict[str, Chosen]:
    by_variable = {setting.variable: setting for setting in SETTINGS.values()}
    layer = {}
    for variable, text in os.environ.items():
        if not variable.startswith(PREFIX) or variable in OTHER_VARIABLES or not text:
            continue
        setting = by_variable.get(variable)
        if setting is None:
            near = _near(variable, [*by_variable, *OTHER_VARIABLES])
            raise SettingsError(f"{variable} is no setting{near}", param=variable)
        layer[setting.name] = Chosen(setting.checked(_listed(setting, text), variable), variable)
    return layer


def _listed(setting: Setting, text: str) -> object:
    """Several values in one variable stand apart by blanks; other collections are YAML."""
    if setting.is_list:
        return text.split()
    return _yaml_value(text) if text.lstrip().startswith("{") else text


def _assignments(assignments: Iterable[str]) -> dict[str, Chosen]:
    layer = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals:
            raise SettingsError(f"--set must be of the form key=value, got {shown(text)}")
        setting = _setting(key.strip(), "--set")
        layer[setting.name] = Chosen(
            setting.checked(_listed(setting, value), f"--set {setting.name}"), "--set"
        )
    return layer


def _setting(key: object, source: str) -> Setting:
    name = str(key).replace("-", "_")
    if name not in SETTINGS:
        raise SettingsError(
            f"{shown(key)} is no setting{_near(name, SETTINGS)} ({source})", param=str(key)
        )
    return SETTINGS[name]


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.65)
    return f"; did you mean {' or '.join(near)}?" if near else ""


# --- the file -----------------------------------------------------------------------------------


def _file_layers(path: Path | None, model: Reference | None) -> list[dict[str, Chosen]]:
    """The file's layers for `model`, the most general one first."""
    named = path or (Path(os.environ[FILE_VARIABLE]) if os.environ.get(FILE_VARIABLE) else None)
    file = (named or default_file()).expanduser()
    if named is None and not file.exists():
        return []
    content = _read_file(file)
    sections = content.pop(MODELS, None) or {}
    if not isinstance(sections, dict):
        raise SettingsError(f"{file}: {MODELS} must be a mapping from models to settings")
    layers = {0: _layer(content, str(file))}
    for key, section in sections.items():
        source = f"{file}: {key}"
        rank = _rank(str(key), model, str(file))
        if not isinstance(section, dict):
            raise SettingsError(f"{source} must be a mapping of settings, got {shown(section)}")
        layer = _layer(section, source)
        if rank:
            layers[rank] = {**layers.get(rank, {}), **layer}
    return [layers[rank] for rank in sorted(layers)]


def _layer(values: Mapping[object, object], source: str) -> dict[str, Chosen]:
    layer = {}
    for key, value in values.items():
        setting = _setting(key, source)
        if value is not None:
            layer[setting.name] = Chosen(setting.checked(value, source), source)
    return layer


def _rank(key: str, model: Reference | None, source: str) -> int:
    """0: the section is of another model; 1: of this model; 2: of this very quantization."""
    from selfserve.catalogue.entries import (
        CatalogueReference,
        HubReference,
        PathReference,
        parse_reference,
    )

    try:
        section = parse_reference(key)
    except ModelNotFound as error:
        raise SettingsError(f"{source}: {MODELS}: {error.message}", param=key) from error
    match section, model:
        case CatalogueReference(), CatalogueReference():
            if section.entry.id != model.entry.id:
                return 0
            return 1 if "@" not in key else 2 * (section.quant == model.quant)
        case HubReference(), HubReference():
            if section.repository.lower() != model.repository.lower():
                return 0
            same = (section.quant or "").lower() == (model.quant or "").lower()
            return 1 if section.quant is None else 2 * same
        case PathReference(), PathReference():
            return 2 * (section.path == model.path)
    return 0


def _read_file(path: Path) -> dict[object, object]:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the settings file {path} cannot be read: {error}") from error
    content = _yaml_value(text, str(path))
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"{path} must be a mapping of settings, got {shown(content)}")
    return content


def _yaml_value(text: str, source: str = "--set") -> Any:
    """Raises SettingsError for what is no YAML, and for a key that stands twice in a mapping."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            keys = [str(key.value) for key, _ in node.value]
            twice = {key for key in keys if keys.count(key) > 1}
            if twice:
                raise SettingsError(f"{source}: {', '.join(sorted(twice))} stands there twice")
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        where = " ".join(str(error).split())
        raise SettingsError(f"{source} is no YAML: {where}") from error
