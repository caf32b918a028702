"""GGUF headers are read without believing them."""

from __future__ import annotations

import ctypes
import random
import struct
from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_hub import HTML
from tests.support.tiny_gguf import Value, gguf_bytes, packed_string, write_gguf

from selfserve.catalogue.entries import DEFAULT_MODEL, resolve
from selfserve.catalogue.gguf import (
    MAX_KEPT_ITEMS,
    TENSOR_TYPES,
    Header,
    read_header,
    trouble_with_magic,
)
from selfserve.errors import ModelLoadError


def read(tmp_path: Path, content: bytes) -> Header:
    path = tmp_path / "file.gguf"
    path.write_bytes(content)
    return read_header(path)


def test_metadata_and_tensors_come_back_as_they_were_written(tmp_path: Path) -> None:
    metadata: dict[str, Value] = {
        "general.file_type": 15,
        "llama.rope.freq_base": 0.5,
        "flag": True,
        "negative": -3,
        "text": "ä€𐍈",
        "heads": [1, 0, 1],
        "names": ["a", "bc"],
        "none": [],
    }
    path = write_gguf(tmp_path / "a.gguf", metadata, {"a": (4, 3), "b": (5,)})
    header = read_header(path)
    expected = {key: tuple(v) if isinstance(v, list) else v for key, v in metadata.items()}
    assert header.metadata == {"general.architecture": "llama", **expected}
    assert [(t.name, t.shape, t.num_bytes) for t in header.tensors] == [
        ("a", (4, 3), 48),
        ("b", (5,), 20),
    ]
    assert (header.architecture, header.file_type) == ("llama", "Q4_K_M")


@pytest.mark.parametrize("item", ["word", 7])
def test_a_vocabulary_is_counted_and_passed_over(tmp_path: Path, item: Any) -> None:
    length = MAX_KEPT_ITEMS + 1
    metadata: dict[str, Value] = {"tokens": [item] * length, "after": 1}
    header = read_header(write_gguf(tmp_path / "a.gguf", metadata))
    assert "tokens" not in header.metadata
    assert header.array_lengths["tokens"] == length
    assert header.metadata["after"] == 1


def test_a_real_file_ends_where_its_header_says() -> None:
    header = read_header(resolve(DEFAULT_MODEL).path)
    last = max(tensor.offset + (tensor.num_bytes or 0) for tensor in header.tensors)
    assert header.data_offset + last == header.file_size == 98_362_432
    assert (header.architecture, header.file_type, header.num_parts) == ("llama", "Q4_1", 1)
    assert header.array_lengths["tokenizer.ggml.tokens"] == 49152


def test_tensor_types_have_the_sizes_that_ggml_has() -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    folder = Path(llama_cpp.__file__).parent / "lib"
    library = next(iter(sorted(folder.glob("libggml-base.*"))), None)
    if library is None:
        pytest.skip("libggml-base is not a file of its own here")
    ggml = ctypes.CDLL(str(library))
    ggml.ggml_type_size.restype = ctypes.c_size_t
    ggml.ggml_blck_size.restype = ctypes.c_int64
    for number, (name, block, block_bytes) in TENSOR_TYPES.items():
        assert (ggml.ggml_blck_size(number), ggml.ggml_type_size(number)) == (
            block,
            block_bytes,
        ), name


@pytest.mark.parametrize(
    ("head", "trouble"),
    [
        (b"GGUF\x03\0\0\0", None),
        (b"", "not a GGUF (magic b'')"),
        (b"PK\x03\x04", "not a GGUF (magic b'PK\\x03\\x04')"),
        (HTML, "an HTML page, not a GGUF (magic b'<!DO')"),
        (b"\xef\xbb\xbf\r\n <html>", "an HTML page, not a GGUF (magic b'\\xef\\xbb\\xbf\\r')"),
        (
            b"version https://git-lfs.github.com/spec/v1",
            "a Git LFS pointer instead of the file it points to, not a GGUF (magic b'vers')",
        ),
    ],
)
def test_what_is_no_gguf_is_named(head: bytes, trouble: str | None) -> None:
    assert trouble_with_magic(head) == trouble


def test_a_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    content = gguf_bytes(tensors={"a": (64, 64)})
    with pytest.raises(ModelLoadError, match=r"its tensors end at byte \d+, the file at"):
        read(tmp_path, content[:-1])


@pytest.mark.parametrize("version", [0, 1, 4, 0x03000000])
def test_an_unknown_version_is_refused(tmp_path: Path, version: int) -> None:
    with pytest.raises(ModelLoadError, match=r"version|big-endian"):
        read(tmp_path, gguf_bytes(version=version))


@pytest.mark.parametrize(
    "body",
    [
        struct.pack("<QQ", 1 << 62, 0),
        struct.pack("<QQ", 0, 1 << 62),
        struct.pack("<QQQ", 0, 1, 1 << 62),
        struct.pack("<QQ", 0, 1) + packed_string("k") + struct.pack("<IQ", 8, 1 << 40),
        struct.pack("<QQ", 0, 1) + packed_string("k") + struct.pack("<IIQ", 9, 8, 1 << 40),
        struct.pack("<QQ", 0, 1) + packed_string("k") + struct.pack("<IIQ", 9, 4, 1 << 40),
        struct.pack("<QQ", 0, 1) + packed_string("k") + struct.pack("<IIQ", 9, 9, 1),
        struct.pack("<QQ", 0, 1) + packed_string("k") + struct.pack("<I", 99),
        struct.pack("<QQ", 1, 0) + packed_string("t") + struct.pack("<I", 1 << 30),
        struct.pack("<QQ", 1, 0) + packed_string("t") + struct.pack("<IQIQ", 1, 1 << 60, 0, 0),
    ],
)
def test_absurd_counts_and_types_are_refused_at_once(tmp_path: Path, body: bytes) -> None:
    with pytest.raises(ModelLoadError, match="damaged GGUF header"):
        read(tmp_path, b"GGUF" + struct.pack("<I", 3) + body + bytes(64))


def test_damage_anywhere_is_an_error_of_ours_or_none(tmp_path: Path) -> None:
    seed = 20
    rng = random.Random(seed)
    good = gguf_bytes({"a": "text", "b": [1, 2], "c": ["x", "y"]}, {"t": (8, 8)})
    for _ in range(300):
        bad = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        try:
            read(tmp_path, bytes(bad[: rng.randint(0, len(bad))]))
        except ModelLoadError:
            continue
        except Exception as error:
            pytest.fail(f"seed {seed}: {error!r}")


def test_a_file_that_is_missing_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="cannot be read"):
        read_header(tmp_path / "none.gguf")
