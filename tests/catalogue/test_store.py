"""The models folder: what is there is right, and is fetched once, by whoever comes first."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from tests.support.fake_hub import FakeHub
from tests.support.tiny_gguf import gguf_bytes

from selfserve.catalogue import download as download_module
from selfserve.catalogue.entries import pull, resolve
from selfserve.catalogue.known import ModelFile, catalogue
from selfserve.catalogue.store import Store, default_root
from selfserve.errors import DownloadError, ModelNotFound, SettingsError

ROOT = Path(__file__).parents[2]
PULL = "import sys; from selfserve.catalogue.entries import pull; print(pull(sys.argv[1]).path)"


@pytest.fixture
def small_catalogue(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalogue's own names with small files in their place, pinned and on the hub."""
    models = [entry.model_dump(exclude_none=True) for entry in catalogue().models[:3]]
    for entry in models:
        for quant in entry["quants"].values():
            for file in (*quant["files"], quant["projector"]):
                content = gguf_bytes({"general.name": file["name"]}, padding=100_000)
                file["size"] = len(content)
                file["sha256"] = hub.add(file["repository"], file["name"], content)
    path = tmp_path / "catalogue.yaml"
    path.write_text(yaml.safe_dump({"models": models}))
    monkeypatch.setenv("SELF_CATALOGUE", str(path))


def on_hub(hub: FakeHub, name: str = "tiny.gguf", padding: int = 100_000) -> ModelFile:
    content = gguf_bytes({"general.name": name}, padding=padding)
    sha256 = hub.add("owner/models", name, content)
    return ModelFile(repository="owner/models", name=name, size=len(content), sha256=sha256)


def running_pull(hub: FakeHub, store: Store, reference: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "SELF_MODELS": str(store.root), "PYTHONPATH": str(ROOT / "src")}
    return subprocess.Popen(
        [sys.executable, "-c", PULL, reference],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("reference", ["qwen3.5:9b", "qwen3.5:9b@q8", "gemma4:e4b", "gemma4:12b"])
@pytest.mark.usefixtures("small_catalogue")
def test_a_model_of_the_catalogue_is_pulled_once_and_resolved(
    hub: FakeHub, store: Store, reference: str
) -> None:
    model = pull(reference, store=store)
    assert model.projector is not None
    assert [seen.name for seen in hub.requests] == [model.projector.name, model.path.name]
    assert resolve(reference, store=store) == pull(reference, store=store) == model
    assert len(hub.requests) == 2
    assert model.context_size == 16384


@pytest.mark.usefixtures("small_catalogue")
def test_two_quantizations_share_a_projector(hub: FakeHub, store: Store) -> None:
    first, second = (pull(f"qwen3.5:9b@{quant}", store=store) for quant in ("q4", "q8"))
    assert first.projector == second.projector
    assert len(hub.requests) == 3
    assert [model.reference for model in store.installed()] == ["qwen3.5:9b@q4", "qwen3.5:9b@q8"]


@pytest.mark.usefixtures("small_catalogue")
def test_a_model_without_its_projector_is_not_there(hub: FakeHub, store: Store) -> None:
    model = pull("gemma4:4b", store=store)
    assert model.projector is not None
    model.projector.unlink()
    with pytest.raises(ModelNotFound, match="self pull"):
        resolve("gemma4:4b", store=store)
    assert pull("gemma4:4b", store=store) == model


def test_a_file_of_another_size_does_not_count_and_is_fetched_again(
    hub: FakeHub, store: Store
) -> None:
    file = on_hub(hub)
    [path] = store.fetch([file])
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert store.find(file) is None
    store.fetch([file])
    assert path.read_bytes() == whole


def test_progress_names_each_file_up_to_its_size(hub: FakeHub, store: Store) -> None:
    files = [on_hub(hub, "a.gguf"), on_hub(hub, "b.gguf")]
    seen: dict[str, list[int]] = {}
    store.fetch(files, on_progress=lambda file, done: seen.setdefault(file.name, []).append(done))
    assert list(seen) == ["a.gguf", "b.gguf"]
    for file in files:
        assert seen[file.name] == sorted(seen[file.name])
        assert seen[file.name][-1] == file.size


def test_disk_space_is_checked_for_all_files_together(
    hub: FakeHub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [on_hub(hub, "a.gguf"), on_hub(hub, "b.gguf")]
    free = files[0].size + 10

    class Usage:
        def __init__(self) -> None:
            self.free = free

    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage())
    with pytest.raises(DownloadError, match=r"needs 195\.\d KiB, has 97\.\d KiB"):
        store.fetch(files)
    assert hub.requests == []


def test_two_pulls_at_once_fetch_a_file_once(
    hub: FakeHub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = on_hub(hub)
    gate = hub.fault(file.name).gate = threading.Event()
    tried = [threading.Event(), threading.Event()]
    waiting = iter(tried)
    original = Store._lock

    @contextmanager
    def lock(self: Store, file: ModelFile) -> Iterator[None]:
        next(waiting).set()
        with original(self, file):
            yield

    monkeypatch.setattr(Store, "_lock", lock)
    threads = [threading.Thread(target=store.fetch, args=([file],)) for _ in range(2)]
    threads[0].start()
    hub.half_sent.wait()
    threads[1].start()
    tried[1].wait()
    gate.set()
    for thread in threads:
        thread.join()
    assert len(hub.requests) == 1
    assert store.find(file) is not None


def test_two_processes_at_once_fetch_a_file_once(hub: FakeHub, store: Store) -> None:
    file = on_hub(hub)
    running = [running_pull(hub, store, "hf:owner/models") for _ in range(2)]
    for process in running:
        output, errors = process.communicate()
        assert process.returncode == 0, errors
        assert Path(output.strip()) == store.path_of(file)
    assert len(hub.requests) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_process_that_is_ended_leaves_a_part_to_go_on_with(
    hub: FakeHub, store: Store, number: signal.Signals
) -> None:
    file = on_hub(hub, padding=3_000_000)
    fault = hub.fault(file.name)
    fault.gate = threading.Event()
    process = running_pull(hub, store, "hf:owner/models")
    hub.half_sent.wait()
    target = store.path_of(file)
    while download_module.part_size(target) == 0 and process.poll() is None:
        pass  # the first half is on its way
    process.send_signal(number)
    process.communicate(timeout=2)
    assert process.returncode != 0
    assert not target.exists()
    kept = download_module.part_size(target)
    assert kept > 0
    fault.gate.set()
    assert pull("hf:owner/models", store=store).path == target
    assert hub.requests[-1].range == f"bytes={kept}-"


def put_in_hub_cache(file: ModelFile, content: bytes, home: Path) -> Path:
    """Lays `content` where the Hugging Face tools keep a file that they fetched."""
    folder = home / "hub" / "models--owner--models"
    blob = folder / "blobs" / file.sha256
    blob.parent.mkdir(parents=True)
    blob.write_bytes(content)
    snapshot = folder / "snapshots" / ("3" * 40) / file.name
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(blob)
    return blob


@pytest.mark.parametrize("variable", ["HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"])
def test_a_file_in_the_hub_cache_is_used_and_not_fetched(
    hub: FakeHub, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    file = on_hub(hub)
    home = tmp_path / "cache" / "huggingface"
    value = {"HF_HOME": home, "HF_HUB_CACHE": home / "hub", "XDG_CACHE_HOME": home.parent}
    monkeypatch.setenv(variable, str(value[variable]))
    blob = put_in_hub_cache(file, hub.files["owner/models", file.name], home)
    [path] = store.fetch([file])
    assert path.samefile(blob)
    assert hub.requests == []
    store.remove([path])
    assert blob.exists()


def test_a_damaged_file_in_the_hub_cache_is_left_alone_and_fetched(
    hub: FakeHub, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = on_hub(hub)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    damaged = bytes(file.size)
    blob = put_in_hub_cache(file, damaged, tmp_path / "hf")
    [path] = store.fetch([file])
    assert hashlib.sha256(path.read_bytes()).hexdigest() == file.sha256
    assert blob.read_bytes() == damaged


def test_where_hard_links_fail_a_symbolic_one_is_made(
    hub: FakeHub, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    file = on_hub(hub)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    put_in_hub_cache(file, hub.files["owner/models", file.name], tmp_path / "hf")
    monkeypatch.setattr(os, "link", refuse)
    [path] = store.fetch([file])
    assert path.is_symlink()
    assert store.find(file) == path


def test_installed_models_are_listed_whole_ones_only(hub: FakeHub, store: Store) -> None:
    names = ["a-Q4_0.gguf", "b-00001-of-00002.gguf", "mmproj-F16.gguf"]
    store.fetch([on_hub(hub, name) for name in names])
    models = {model.reference: model for model in store.installed()}
    assert list(models) == ["smollm2:135m@q4", "smollm2-vision:135m@q4", "hf:owner/models:Q4_0"]
    assert [path.name for path in models["hf:owner/models:Q4_0"].paths] == [names[0], names[2]]


def test_two_models_without_a_quantization_are_told_apart_by_file_name(
    hub: FakeHub, store: Store
) -> None:
    store.fetch([on_hub(hub, "a.gguf"), on_hub(hub, "b.gguf")])
    installed = [model.reference for model in store.installed()]
    references = [reference for reference in installed if reference.startswith("hf:")]
    assert references == ["hf:owner/models:a.gguf", "hf:owner/models:b.gguf"]
    for reference in references:
        assert resolve(reference, store=store).reference == reference


def test_two_models_of_one_quantization_are_told_apart_by_file_name(
    hub: FakeHub, store: Store
) -> None:
    store.fetch([on_hub(hub, "a-Q4_0.gguf"), on_hub(hub, "b-Q4_0.gguf")])
    installed = [model.reference for model in store.installed()]
    references = [reference for reference in installed if reference.startswith("hf:")]
    for reference, name in zip(references, ["a-Q4_0.gguf", "b-Q4_0.gguf"], strict=True):
        assert resolve(reference, store=store).path.name == name


def test_nothing_outside_the_store_is_removed(tmp_path: Path, store: Store) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"mine")
    for path in (other, store.root / ".." / "other.gguf"):
        with pytest.raises(ModelNotFound, match="is not in the models folder"):
            store.remove([path])
    assert other.exists()


def test_the_models_folder_is_chosen_by_variable_or_lies_in_the_users_data(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert default_root() == home / "data" / "self" / "models"
    monkeypatch.setenv("SELF_MODELS", "~/elsewhere")
    assert default_root() == home / "elsewhere"


def test_a_models_folder_that_cannot_be_made_is_named(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DownloadError, match="cannot be made"):
        Store(tmp_path / "file").fetch([on_hub(hub)])


def test_a_catalogue_of_ones_own_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELF_CATALOGUE", "/none.yaml")
    with pytest.raises(SettingsError, match=r"SELF_CATALOGUE: /none\.yaml cannot be read"):
        catalogue()
