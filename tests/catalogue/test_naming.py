"""File names are read as people mean them."""

from __future__ import annotations

import pytest

from selfserve.catalogue import naming
from selfserve.errors import ModelNotFound

SPLIT = [f"big-Q8_0-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
REPOSITORY = ["big-Q4_K_M.gguf", "big-Q4_K_S.gguf", *SPLIT, "mmproj-F16.gguf", "README.md"]


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("Qwen3.5-9B-Q4_K_M.gguf", "Q4_K_M"),
        ("model.q4_0.gguf", "Q4_0"),
        ("gemma-4-E4B_q4_0-it.gguf", "Q4_0"),
        ("gemma-4-12b-it-qat-q4_0.gguf", "Q4_0"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("x-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("x-IQ2_XXS.gguf", "IQ2_XXS"),
        ("x-BF16-00001-of-00002.gguf", "BF16"),
        ("folder-Q8_0/x-f16.gguf", "F16"),
        ("x-Q4_0_4_4.gguf", "Q4_0_4_4"),
        ("Qwen3-8B.gguf", ""),
        ("Q.gguf", ""),
    ],
)
def test_the_quantization_is_read_from_the_name(name: str, label: str) -> None:
    assert naming.quant_label(name) == label


@pytest.mark.parametrize("quant", ["Q4_K_M", "q4_k_m", "big-q4_k_m.gguf"])
def test_a_quantization_is_found_in_any_case(quant: str) -> None:
    assert naming.choose_model(REPOSITORY, quant, "here") == ("big-Q4_K_M.gguf",)


@pytest.mark.parametrize("quant", ["Q4", "Q4_K", "K_M", "8_0", "4", ""])
def test_a_part_of_a_quantization_is_not_it(quant: str) -> None:
    with pytest.raises(ModelNotFound, match="no model for") as caught:
        naming.choose_model(REPOSITORY, quant, "here")
    for candidate in ("big-Q4_K_M.gguf", "big-Q4_K_S.gguf", SPLIT[0]):
        assert candidate in caught.value.message
    assert "mmproj" not in caught.value.message


def test_all_parts_of_a_split_model_are_chosen_in_order() -> None:
    assert naming.choose_model(reversed(REPOSITORY), "q8_0", "here") == tuple(SPLIT)


def test_a_missing_part_is_named() -> None:
    with pytest.raises(ModelNotFound, match=r"lacks 1 of 3 parts: big-Q8_0-00001-of-00003\.gguf"):
        naming.choose_model(SPLIT[1:], "Q8_0", "here")


def test_several_models_without_a_quantization_are_listed() -> None:
    with pytest.raises(ModelNotFound, match=r"several models; candidates: big-Q4_K_M\.gguf"):
        naming.choose_model(REPOSITORY, None, "here")


def test_the_only_model_needs_no_quantization() -> None:
    assert naming.choose_model(["a.gguf", "mmproj-a.gguf"], None, "here") == ("a.gguf",)


def test_two_models_of_one_quantization_are_ambiguous_until_a_file_is_named() -> None:
    names = ["small-Q8_0.gguf", "large-Q8_0.gguf"]
    with pytest.raises(ModelNotFound, match=r"several models for 'Q8_0'.*large.*small"):
        naming.choose_model(names, "Q8_0", "here")
    assert naming.choose_model(names, "SMALL-q8_0.gguf", "here") == ("small-Q8_0.gguf",)


def test_a_whole_path_tells_files_of_one_name_apart() -> None:
    names = ["a.gguf", "folder/a.gguf"]
    for name in names:
        assert naming.choose_model(names, name, "here") == (name,)


def test_a_dynamic_quantization_stands_in_only_where_there_is_no_plain_one() -> None:
    both = ["x-UD-Q4_K_M.gguf", "x-Q4_K_M.gguf"]
    assert naming.choose_model(both, "Q4_K_M", "here") == ("x-Q4_K_M.gguf",)
    assert naming.choose_model(both, "ud-q4_k_m", "here") == ("x-UD-Q4_K_M.gguf",)
    assert naming.choose_model(both[:1], "Q4_K_M", "here") == ("x-UD-Q4_K_M.gguf",)


@pytest.mark.parametrize("names", [[], ["README.md"], ["mmproj-F16.gguf"], ["imatrix.gguf"]])
def test_a_projector_is_never_the_model(names: list[str]) -> None:
    with pytest.raises(ModelNotFound, match="here holds no GGUF model"):
        naming.choose_model(names, None, "here")


@pytest.mark.parametrize(
    ("projectors", "chosen"),
    [
        ([], None),
        (["mmproj-F32.gguf", "mmproj-F16.gguf", "mmproj-BF16.gguf"], "mmproj-F16.gguf"),
        (["mmproj-other-F16.gguf", "mmproj-gemma-4-Q8_0.gguf"], "mmproj-gemma-4-Q8_0.gguf"),
        (["gemma-4-mmproj.gguf"], "gemma-4-mmproj.gguf"),
        (["elsewhere/mmproj-F16.gguf"], None),
    ],
)
def test_the_projector_beside_a_model_is_found(projectors: list[str], chosen: str | None) -> None:
    names = ["gemma-4-Q4_0.gguf", *projectors]
    assert naming.choose_projector(names, "gemma-4-Q4_0.gguf") == chosen


def test_a_projector_in_the_top_folder_serves_models_in_folders() -> None:
    names = ["Q4/a-Q4_0.gguf", "mmproj-F16.gguf"]
    assert naming.choose_projector(names, "Q4/a-Q4_0.gguf") == "mmproj-F16.gguf"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a/b-Q8_0-00002-of-00003.gguf", "b-Q8_0"), ("b.GGUF", "b"), ("b-00009-of-00003.gguf", None)],
)
def test_a_models_name_has_no_folder_ending_or_part(name: str, expected: str | None) -> None:
    assert naming.stem(name) == (expected or name.removesuffix(".gguf"))
