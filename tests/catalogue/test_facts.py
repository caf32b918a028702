"""A model's facts come from the file where the catalogue is silent."""

from __future__ import annotations

from selfserve.catalogue.facts import described
from selfserve.catalogue.gguf import Header, Value
from selfserve.config import ModelInfo

METADATA: dict[str, Value] = {
    "general.architecture": "llama",
    "general.basename": "SmolLM2",
    "general.size_label": "135M",
    "general.license": "apache-2.0",
    "general.file_type": 3,
    "llama.context_length": 8192,
}


def header(metadata: dict[str, Value]) -> Header:
    return Header(
        version=3, metadata=metadata, array_lengths={}, tensors=(), data_offset=0, file_size=0
    )


def test_empty_fields_are_filled_from_the_file() -> None:
    info = described(ModelInfo(id="mine"), header(METADATA))
    assert info == ModelInfo(
        id="mine",
        quant="Q4_1",
        family="smollm2",
        parameters="135M",
        architecture="llama",
        license="apache-2.0",
        context_length=8192,
    )


def test_known_facts_are_kept() -> None:
    info = ModelInfo(
        id="a", quant="q4", family="f", parameters="1B", architecture="x", license="mit",
        context_length=5,
    )  # fmt: skip
    assert described(info, header(METADATA)) == info


def test_a_file_without_metadata_leaves_the_fields_empty() -> None:
    assert described(ModelInfo(id="mine"), header({})) == ModelInfo(id="mine")


def test_values_of_a_wrong_type_are_left_out() -> None:
    odd: dict[str, Value] = {"general.architecture": "llama", "general.license": 1,
                             "llama.context_length": "many", "general.file_type": 999}  # fmt: skip
    expected = ModelInfo(id="mine", family="llama", architecture="llama")
    assert described(ModelInfo(id="mine"), header(odd)) == expected
