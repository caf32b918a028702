"""Loading: what is refused, and in which words."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.real_vocabulary import smollm2_path

from selfserve.errors import LibraryError, ModelLoadError
from selfserve.native import library
from selfserve.native.model import Model


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"no-such\.gguf cannot be read: No such file"):
        Model(tmp_path / "no-such.gguf")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 a zip file", b"GGU"])
def test_another_kind_of_file_is_no_model(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match="is not a GGUF file"):
        Model(path)


def test_a_truncated_file_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    with smollm2_path().open("rb") as file:
        path.write_bytes(file.read(5_000_000))
    with pytest.raises(ModelLoadError, match=r"model\.gguf: the file is damaged"):
        Model(path)


def test_facts_of_the_file(model: Model) -> None:
    assert model.train_context == 8192
    assert 130e6 < model.num_parameters < 140e6
    assert (model.is_recurrent, model.is_hybrid, model.sliding_window) == (False, False, 0)
    model.check_decodable()


def test_progress_rises_to_the_whole() -> None:
    shares: list[float] = []
    Model(smollm2_path(), on_progress=shares.append).close()
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_a_vocabulary_comes_without_weights_and_with_the_same_tokens(model: Model) -> None:
    alone = Model(smollm2_path(), vocab_only=True)
    text = "Hello <|im_start|> größer"
    for special in (False, True):
        expected = model.vocab.tokenize(text, add_special=True, parse_special=special)
        assert alone.vocab.tokenize(text, add_special=True, parse_special=special) == expected
    assert alone.vocab.chat_template == model.vocab.chat_template
    alone.close()
    alone.close()  # once more does no harm


@pytest.mark.parametrize("version", ["0.3.35", "0.2.99", "0.4.0", "1.0"])
def test_another_version_of_the_library_is_refused_with_the_remedy(version: str) -> None:
    with pytest.raises(LibraryError, match=rf"found {version}; install a matching one: pip"):
        library.check_version(version)


@pytest.mark.parametrize("version", ["0.3.36", "0.3.40", "0.3.36+cu124", "0.3.40.post1"])
def test_versions_in_the_range_pass(version: str) -> None:
    library.check_version(version)


def test_the_library_tells_what_it_was_built_for() -> None:
    assert "CPU" in library.system_info()
