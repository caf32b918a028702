"""From what a person types to model files.

qwen3.5:9b, qwen3.5:9b@q8       a model of the catalogue
hf:owner/repository[:quant]     a GGUF repository on the hub
./model.gguf                    a file, and what lies beside it
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from selfserve.catalogue import naming
from selfserve.catalogue.gguf import trouble_with_magic
from selfserve.catalogue.hub import hub_client, list_repository
from selfserve.catalogue.known import REPOSITORY, Entry, ModelFile, catalogue
from selfserve.catalogue.store import FileProgress, ResolvedModel, Store
from selfserve.config import ModelInfo
from selfserve.errors import ModelLoadError, ModelNotFound, shown

__all__ = [
    "DEFAULT_MODEL",
    "CatalogueReference",
    "HubReference",
    "PathReference",
    "ResolvedModel",
    "parse_reference",
    "pull",
    "remove",
    "resolve",
]

DEFAULT_MODEL = "smollm2:135m"
_HUB_PREFIX = "hf:"


@dataclass(frozen=True, slots=True)
class CatalogueReference:
    """A model of the catalogue in one of its quantizations."""

    entry: Entry
    quant: str

    @property
    def files(self) -> tuple[ModelFile, ...]:
        """What must be fetched; the projector first, so that a whole model has its projector."""
        quant = self.entry.quants[self.quant]
        return ((quant.projector,) if quant.projector else ()) + tuple(quant.files)


@dataclass(frozen=True, slots=True)
class HubReference:
    """A repository on the hub, and which of its models; None: it has only one."""

    repository: str
    quant: str | None


@dataclass(frozen=True, slots=True)
class PathReference:
    """A file on this machine."""

    path: Path


Reference = CatalogueReference | HubReference | PathReference


def parse_reference(text: str) -> Reference:
    """Reads a reference; looks at neither hub nor store. Raises ModelNotFound."""
    if text.lower().startswith(_HUB_PREFIX):
        return _parse_hub(text)
    if _looks_like_path(text):
        return PathReference(Path(text).expanduser().absolute())
    name, _, quant = text.partition("@")
    entry = catalogue().find(name)
    if text.endswith("@"):
        raise ModelNotFound(f"{shown(text)} lacks the quantization after @")
    return CatalogueReference(entry, catalogue().quant(entry, quant or None)[0])


def resolve(
    reference: str, *, store: Store | None = None, projector: Path | None = None
) -> ResolvedModel:
    """The model that `reference` names, from what is on this machine; the network is not used.

    `projector` takes the place of the one that would be found. Raises ModelNotFound for an
    unknown name, a missing file, or a model that is not downloaded; ModelLoadError for a file
    that is no GGUF file.
    """
    parsed = parse_reference(reference)
    model: ResolvedModel | None
    match parsed:
        case PathReference(path):
            model = _from_path(path)
        case CatalogueReference(entry, quant):
            model = _store(store).locate(entry, quant)
            if model is None and any(file.package for file in parsed.files):
                _store(store).path_of(parsed.files[-1])
        case HubReference(repository, quant_name):
            model = _store(store).locate_repository(repository, quant_name)
    if model is None:
        raise ModelNotFound(f"{reference} is not downloaded; get it with: self pull {reference}")
    for path in (*model.paths, *((projector,) if projector else ())):
        _check_magic(path)
    return model if projector is None else _with_projector(model, projector)


def pull(
    reference: str,
    *,
    store: Store | None = None,
    projector: Path | None = None,
    on_progress: FileProgress | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> ResolvedModel:
    """As `resolve`, after fetching what is missing. Blocks; see Store.fetch for the errors."""
    parsed = parse_reference(reference)
    here = _store(store)
    if isinstance(parsed, CatalogueReference):
        here.fetch(parsed.files, on_progress=on_progress, pause=pause)
    elif isinstance(parsed, HubReference) and not _is_here(parsed, here):
        files = find_on_hub(parsed)
        here.fetch(files, on_progress=on_progress, pause=pause)
        # By its file name: other models of the repository may have been fetched before.
        model = naming.all_parts(files[-1].name)[0]
        reference = f"{_HUB_PREFIX}{parsed.repository}:{model}"
    return resolve(reference, store=here, projector=projector)


def find_on_hub(reference: HubReference) -> tuple[ModelFile, ...]:
    """The files that the hub has for `reference`, projector first. Blocks on the network.

    Raises ModelNotFound that lists the candidates when none or several fit, DownloadError.
    """
    with hub_client() as client:
        files = {file.name: file for file in list_repository(client, reference.repository)}
    parts = naming.choose_model(files, reference.quant, reference.repository)
    projector = naming.choose_projector(files, parts[0])
    names = ((projector,) if projector else ()) + parts
    return tuple(files[name] for name in names)


def remove(reference: str, *, store: Store | None = None) -> int:
    """Deletes a model from the store, unfinished files too; returns the bytes that were there.

    A projector stays while another model that is there uses it. Raises ModelNotFound.
    """
    here = _store(store)
    match parse_reference(reference):
        case PathReference(path):
            raise ModelNotFound(f"{path} is a file of yours, not a model in {here.root}")
        case CatalogueReference(entry, quant) as named:
            if any(file.package for file in named.files):
                raise ModelNotFound(
                    f"{entry.id} comes in a Python package; remove it with: "
                    f"pip uninstall {named.files[-1].package}"
                )
            own = {here.path_of(file) for file in entry.quants[quant].files}
            targets = {here.path_of(file) for file in named.files}
        case HubReference(repository, quant_name):
            names = here.names(repository, unfinished=True)
            chosen = naming.choose_model(names, quant_name, str(here.root), parts_may_lack=True)
            folder = here.folder_of(repository)
            own = {folder / name for name in chosen}
            beside = naming.choose_projector(names, chosen[0])
            targets = own | ({folder / beside} if beside else set())
    for other in here.installed():
        if not own.intersection(other.parts):
            targets.difference_update(other.paths)
    freed = here.remove(sorted(targets))
    if not freed:
        raise ModelNotFound(f"{reference} is not in {here.root}")
    return freed


def _is_here(reference: HubReference, store: Store) -> bool:
    return store.locate_repository(reference.repository, reference.quant) is not None


def _store(store: Store | None) -> Store:
    return Store() if store is None else store


def _parse_hub(text: str) -> HubReference:
    repository, colon, quant = text[len(_HUB_PREFIX) :].partition(":")
    if not re.fullmatch(REPOSITORY, repository) or (colon and not quant):
        raise ModelNotFound(f"{shown(text)} is not of the form hf:owner/repository[:quant]")
    return HubReference(repository, quant or None)


def _looks_like_path(text: str) -> bool:
    has_separator = "/" in text or "\\" in text
    return has_separator or naming.is_gguf(text) or Path(text).is_file()


def _from_path(path: Path) -> ResolvedModel:
    if path.is_dir():
        raise ModelNotFound(f"{path} is a folder, not a GGUF file")
    if naming.is_projector(path.name):
        raise ModelNotFound(
            f"{path.name} is a projector for pictures; give the model's own file, "
            "and the projector with --mmproj if it lies elsewhere"
        )
    part = naming.split_part(path.name)
    if part is None and not path.exists():
        raise ModelNotFound(f"there is no file {path}")
    parts = tuple(path.with_name(name) for name in naming.all_parts(path.name))
    missing = [other.name for other in parts if not other.is_file()]
    if part is not None and missing:
        raise ModelNotFound(
            f"{path.parent} lacks {len(missing)} of {part.total} parts: {', '.join(missing)}"
        )
    try:
        beside = sorted(other.name for other in path.parent.iterdir() if other.is_file())
    except OSError:
        beside = []
    projector = naming.choose_projector(beside, path.name)
    return ResolvedModel(
        path=parts[0],
        info=ModelInfo(id=naming.stem(path.name)),
        reference=str(parts[0]),
        parts=parts,
        projector=path.with_name(projector) if projector else None,
    )


def _with_projector(model: ResolvedModel, projector: Path) -> ResolvedModel:
    return ResolvedModel(
        path=model.path,
        info=model.info,
        reference=model.reference,
        parts=model.parts,
        projector=projector,
        context_size=model.context_size,
    )


def _check_magic(path: Path) -> None:
    """Reads the first bytes only; `gguf.read_header` and libllama check the rest."""
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except FileNotFoundError:
        raise ModelNotFound(f"there is no file {path}") from None
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error.strerror}") from error
    trouble = trouble_with_magic(head)
    if trouble is not None:
        raise ModelLoadError(f"{path}: {trouble}")
