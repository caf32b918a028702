"""The models that `self` knows by name, read from `catalogue.yaml` and checked against a schema."""

from __future__ import annotations

import difflib
import functools
import os
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from selfserve.config import ModelInfo
from selfserve.errors import ModelNotFound, SettingsError, shown
from selfserve.limits import range_text
from selfserve.sampling import PARAMETERS

REPOSITORY = r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$"
"""`owner/name` on the hub. Neither half can be `.` or `..`: both become folder names."""

Id = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*:[a-z0-9][a-z0-9.-]*$")]
QuantName = Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ModelFile(_Record):
    """One file of a model, and what proves that it is the right one."""

    repository: Annotated[str, Field(pattern=REPOSITORY)] | None = None
    """The hub's repository that holds it; None: it comes in a Python package."""
    package: str | None = None
    name: Annotated[str, Field(pattern=r"\.[gG][gG][uU][fF]$")]
    """Path inside the repository, with `/`, or file name inside the package."""
    size: Annotated[int, Field(gt=0)]
    """Bytes."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

    @model_validator(mode="after")
    def _has_one_source(self) -> ModelFile:
        if (self.repository is None) == (self.package is None):
            raise ValueError("exactly one of repository and package must be given")
        if any(part in ("", ".", "..") for part in self.name.split("/")) or "\\" in self.name:
            raise ValueError("name must be a plain relative path")
        return self


class Quant(_Record):
    """One quantization of a model: its parts in order, and the projector for pictures."""

    files: Annotated[list[ModelFile], Field(min_length=1)]
    projector: ModelFile | None = None


def _check_sampling(values: dict[str, float]) -> dict[str, float]:
    for name, value in values.items():
        parameter = PARAMETERS.get(name)
        if parameter is None or not parameter.rule.is_setting:
            raise ValueError(f"{name} cannot be recommended")
        if parameter.type is int and not isinstance(value, int):
            raise ValueError(f"{name} must be a whole number")
        low, high = parameter.chat_span
        if not low <= value <= high:
            raise ValueError(f"{name} must be {range_text(low, high)}, got {value}")
    return values


Sampling = Annotated[dict[str, int | float], AfterValidator(_check_sampling)]
"""Recommended sampling parameters by name."""


class Entry(_Record):
    """A model that is known by name."""

    id: Id
    aliases: list[Id] = []
    description: Annotated[str, Field(min_length=1)]
    family: str
    parameters: str
    license: str
    context_length: Annotated[int, Field(gt=0)]
    """Tokens that the model was trained for."""
    context_size: Annotated[int, Field(gt=0)]
    """Tokens of one sequence unless the user says otherwise."""
    thinking: Literal["on", "off", "none"]
    sampling: Sampling
    default_quant: QuantName
    quants: Annotated[dict[QuantName, Quant], Field(min_length=1)]

    @model_validator(mode="after")
    def _is_consistent(self) -> Entry:
        if self.default_quant not in self.quants:
            raise ValueError(f"default_quant {self.default_quant} is not among the quants")
        if self.context_size > self.context_length:
            raise ValueError("context_size is more than context_length")
        return self

    def info(self, quant: str) -> ModelInfo:
        """What the server tells about this model."""
        return ModelInfo(
            id=self.id,
            quant=quant,
            family=self.family,
            parameters=self.parameters,
            license=self.license,
            context_length=self.context_length,
            thinking_default=self.thinking == "on",
            sampling=dict(self.sampling),
        )


class Catalogue(_Record):
    """All entries; no name or alias stands for two of them."""

    models: list[Entry]

    @model_validator(mode="after")
    def _names_are_unique(self) -> Catalogue:
        names = [name for entry in self.models for name in (entry.id, *entry.aliases)]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"used twice: {', '.join(sorted(twice))}")
        return self

    def find(self, name: str) -> Entry:
        """The entry of a name or alias, in any case. Raises ModelNotFound with the nearest ones."""
        wanted = name.lower()
        for entry in self.models:
            if wanted == entry.id or wanted in entry.aliases:
                return entry
        raise ModelNotFound(f"no model is called {shown(name)}; {self._suggestion(wanted)}")

    def quant(self, entry: Entry, name: str | None) -> tuple[str, Quant]:
        """A quantization of `entry` by name, its default one for None. Raises ModelNotFound."""
        wanted = (name or entry.default_quant).lower()
        if wanted not in entry.quants:
            raise ModelNotFound(
                f"{entry.id} has no quantization {shown(name)}; it has "
                + ", ".join(f"{entry.id}@{known}" for known in entry.quants)
            )
        return wanted, entry.quants[wanted]

    def _suggestion(self, wanted: str) -> str:
        names = [name for entry in self.models for name in (entry.id, *entry.aliases)]
        family = [name for name in names if name.startswith(f"{wanted}:")]
        near = family or difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)
        if near:
            return f"did you mean {' or '.join(near)}?"
        known = ", ".join(entry.id for entry in self.models)
        return f"known names: {known}; or give the path of a GGUF file, or hf:owner/repo"


def catalogue() -> Catalogue:
    """The catalogue that came with this version, or the one in the file that `SELF_CATALOGUE`
    names. Raises SettingsError if that one cannot be read."""
    return _load(os.environ.get("SELF_CATALOGUE") or None)


@functools.cache
def _load(path: str | None) -> Catalogue:
    if path is None:
        return parse_catalogue(
            resources.files(__package__).joinpath("catalogue.yaml").read_text("utf-8")
        )
    try:
        return parse_catalogue(Path(path).expanduser().read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"SELF_CATALOGUE: {path} cannot be read: {error}", param="SELF_CATALOGUE"
        ) from error


def parse_catalogue(text: str) -> Catalogue:
    """Reads YAML text. Raises SettingsError that names what does not follow the schema."""
    try:
        return Catalogue.model_validate(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise SettingsError(f"the catalogue is no YAML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise SettingsError(f"catalogue: {where}: {first['msg']}", param=where) from error
