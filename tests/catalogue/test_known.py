"""The catalogue is well formed, and mistakes in it are named."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import yaml

from selfserve.catalogue.download import sha256_of
from selfserve.catalogue.known import Catalogue, ModelFile, catalogue, parse_catalogue
from selfserve.catalogue.store import package_file
from selfserve.errors import ModelNotFound, SettingsError
from selfserve.request import SamplingParams

FILE = {"repository": "a/b", "name": "m.gguf", "size": 5, "sha256": "0" * 64}
ENTRY = {
    "id": "model:1b",
    "description": "A model.",
    "family": "model",
    "parameters": "1B",
    "license": "mit",
    "context_length": 4096,
    "context_size": 2048,
    "thinking": "off",
    "sampling": {"temperature": 1.0, "top_p": 0.5},
    "default_quant": "q4",
    "quants": {"q4": {"files": [FILE]}},
}


def parsed(**changes: Any) -> Catalogue:
    return parse_catalogue(yaml.safe_dump({"models": [{**ENTRY, **changes}]}))


def all_files() -> list[ModelFile]:
    files = []
    for entry in catalogue().models:
        for quant in entry.quants.values():
            files += [*quant.files, *([quant.projector] if quant.projector else [])]
    return files


def test_the_catalogue_follows_its_schema() -> None:
    assert [entry.id for entry in catalogue().models] == [
        "qwen3.5:9b",
        "gemma4:4b",
        "gemma4:12b",
        "smollm2:135m",
        "smollm2-vision:135m",
    ]


def test_no_two_files_share_a_hash_or_a_place() -> None:
    by_hash = {file.sha256: file for file in all_files()}
    places = {(file.repository, file.name) for file in all_files()}
    assert len(by_hash) == len(places) == 13
    assert all(by_hash[file.sha256] == file for file in all_files())


def test_the_file_in_the_package_is_the_pinned_one() -> None:
    file = catalogue().find("smollm2:135m").quants["q4"].files[0]
    path = package_file(file)
    assert path is not None
    assert (path.stat().st_size, sha256_of(path)) == (file.size, file.sha256)


def test_recommended_sampling_uses_names_that_exist() -> None:
    for entry in catalogue().models:
        assert SamplingParams(**entry.sampling)


def test_an_entry_becomes_what_the_server_tells() -> None:
    info = catalogue().find("qwen3.5:9b").info("q8")
    assert dataclasses.asdict(info) == {
        "id": "qwen3.5:9b",
        "quant": "q8",
        "family": "qwen3.5",
        "parameters": "9B",
        "architecture": "",
        "license": "apache-2.0",
        "context_length": 262144,
        "created": 0,
        "thinking_default": True,
        "sampling": {
            "temperature": 1.0,
            "top_p": 0.95,
            "top_k": 20,
            "min_p": 0.0,
            "presence_penalty": 1.5,
        },
    }


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"colour": "red"}, "models.0.colour"),
        ({"id": "no-size"}, "models.0.id"),
        ({"context_length": "many"}, "models.0.context_length"),
        ({"context_size": 8192}, "context_size is more than context_length"),
        ({"default_quant": "q8"}, "default_quant q8"),
        ({"thinking": True}, "models.0.thinking"),
        ({"sampling": {"temperature": 3.0}}, "temperature must be between 0 and 2, got 3"),
        ({"sampling": {"top_k": 1.5}}, "top_k must be a whole number"),
        ({"sampling": {"top_q": 1}}, "top_q cannot be recommended"),
        ({"sampling": {"seed": 1}}, "seed cannot be recommended"),
        ({"sampling": {"top_p": "0.5"}}, "models.0.sampling.top_p"),
        ({"aliases": ["model:1b"]}, "used twice: model:1b"),
        ({"quants": {}}, "models.0.quants"),
        ({"quants": {"q4": {"files": []}}}, "models.0.quants.q4.files"),
        ({"quants": {"q4": {"files": [{**FILE, "sha256": "0"}]}}}, "sha256"),
        ({"quants": {"q4": {"files": [{**FILE, "size": 0}]}}}, "size"),
        ({"quants": {"q4": {"files": [{**FILE, "name": "../m.gguf"}]}}}, "relative path"),
        ({"quants": {"q4": {"files": [{**FILE, "name": "/m.gguf"}]}}}, "relative path"),
        ({"quants": {"q4": {"files": [{**FILE, "repository": "../b"}]}}}, "repository"),
        ({"quants": {"q4": {"files": [{**FILE, "package": "p"}]}}}, "exactly one"),
    ],
)
def test_a_mistake_is_named_with_its_place(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parsed(**changes)
    assert named in caught.value.message


def test_what_is_no_yaml_is_refused() -> None:
    with pytest.raises(SettingsError, match="no YAML"):
        parse_catalogue("models: [")


@pytest.mark.parametrize("name", ["gemma4:4b", "gemma4:e4b", "Gemma4:E4B"])
def test_a_name_or_an_alias_is_found_in_any_case(name: str) -> None:
    assert catalogue().find(name).id == "gemma4:4b"


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("qwen3.5:8b", "did you mean qwen3.5:9b?"),
        ("qwen3.5", "did you mean qwen3.5:9b?"),
        ("gemma4", "did you mean gemma4:4b or gemma4:e4b or gemma4:12b?"),
        ("smolm2:135m", "did you mean smollm2:135m"),
        ("zzz", "known names: qwen3.5:9b, gemma4:4b, gemma4:12b, smollm2:135m, "),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_ones(name: str, suggestion: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        catalogue().find(name)
    assert f"no model is called '{name}'; {suggestion}" in caught.value.message


def test_an_unknown_quantization_is_answered_with_those_there_are() -> None:
    entry = catalogue().find("qwen3.5:9b")
    with pytest.raises(ModelNotFound, match=r"it has qwen3\.5:9b@q4, qwen3\.5:9b@q8"):
        catalogue().quant(entry, "q5")
    assert catalogue().quant(entry, None)[0] == "q4"
    assert catalogue().quant(entry, "Q8")[0] == "q8"
