"""The kernels: what they compute, when they are loaded, and that they may be missing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from tests.support import tiny_models
from tests.support.real_vocabulary import smollm2_path

from selfserve.native import kernels, library
from selfserve.native.batch import Batch
from selfserve.native.context import Context, ContextOptions
from selfserve.native.model import Model

SIZES = (1, 2, 3, 4, 5, 8, 40, 100)
"""Tokens of the batches: kernels take rows by fours, ggml treats few rows in other ways."""
THREADS = (2, 1)

COMPUTE = """
import sys
from pathlib import Path
import numpy as np
from selfserve.native import kernels
from selfserve.native.batch import Batch
from selfserve.native.context import Context, ContextOptions
from selfserve.native.model import Model
path, target, sizes, threads = sys.argv[1:]
model = Model(Path(path))
options = dict(context_size=128, num_sequences=1, batch_size=128, ubatch_size=128, max_outputs=128)
batch = Batch(128)
found = {}
for num_threads in eval(threads):
    context = Context(model, ContextOptions(num_threads=num_threads, **options))
    for size in eval(sizes):
        batch.clear()
        context.clear(0)
        batch.add(0, 0, [(1000 + 7 * i) % model.vocab.size for i in range(size)], size)
        context.decode(batch)
        found[f"{num_threads} {size}"] = context.logits(size).copy()
    context.close()
np.savez(target, **found)
maps = {line.split()[-1] for line in open("/proc/self/maps") if "/libggml" in line}
print(kernels.load(), *sorted(Path(name).name.partition(".")[0] for name in maps))
"""

needs_kernels = pytest.mark.skipif(
    kernels.library_path() is None,
    reason="no kernels were compiled; tools/build_kernels.py does it",
)


@dataclass(frozen=True)
class Computed:
    """What a process of its own found: whether it uses the kernels, its libraries of ggml, and
    the logits of all tokens by number of threads and size of the batch."""

    is_loaded: bool
    libraries: list[str]
    logits: dict[tuple[int, int], npt.NDArray[np.float32]]


def compute(model: Path, folder: Path, switch: str) -> Computed:
    target = folder / "logits.npz"
    done = subprocess.run(
        [sys.executable, "-c", COMPUTE, str(model), str(target), str(SIZES), str(THREADS)],
        env=os.environ | {kernels.SWITCH: switch},
        capture_output=True,
        text=True,
        check=True,
    )
    with np.load(target) as file:
        logits = {(n, size): file[f"{n} {size}"] for n in THREADS for size in SIZES}
    target.unlink()  # pytest keeps the folders of some runs, and these are a hundred megabytes
    loaded, *libraries = done.stdout.split()
    return Computed(loaded == "True", libraries, logits)


def requantize(source: Path, target: Path, file_type: str) -> None:
    """Writes a model as another type."""
    lib = library.load()
    params = lib.llama_model_quantize_default_params()
    params.ftype = getattr(lib, file_type)
    params.allow_requantize = True
    assert lib.llama_model_quantize(str(source).encode(), str(target).encode(), params) == 0


def write_wide_model(path: Path) -> None:
    """A tiny model with matrices as wide as the K types need, which SmolLM2 has not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_models, "EMBEDDING", 256)
        patch.setattr(tiny_models, "FEED_FORWARD", 512)
        tiny_models.write_tiny_model(path, "llama")


@pytest.fixture(scope="module", params=["Q4_0", "Q4_1", "Q8_0", "Q4_K_M", "Q6_K"])
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Computed, Computed]]:
    """The same model and batches without and with the kernels, for each of their types."""
    folder = tmp_path_factory.mktemp("kernels")
    source, model = smollm2_path(), folder / "model.gguf"
    if "K" in request.param:
        source = folder / "wide.gguf"
        write_wide_model(source)
    requantize(source, model, f"LLAMA_FTYPE_MOSTLY_{request.param}")
    yield compute(model, folder, "off"), compute(model, folder, "on")
    model.unlink()


@needs_kernels
def test_the_kernels_compute_what_ggml_computes(both: tuple[Computed, Computed]) -> None:
    without, using = both
    assert (without.is_loaded, using.is_loaded) == (False, True)
    same_choices = []
    for key, expected in without.logits.items():
        found = using.logits[key]
        difference = np.abs(found - expected) / expected.std()
        # Both round the activations to 8 bits, in their own ways.
        assert 0 < difference.max() < 1.5, key
        assert difference.mean() < 0.1, key
        same_choices.append(found.argmax(-1) == expected.argmax(-1))
    assert np.concatenate(same_choices).mean() > 0.8


@needs_kernels
def test_the_number_of_threads_changes_nothing(both: tuple[Computed, Computed]) -> None:
    _, using = both
    for size in SIZES:
        many, one = (using.logits[n, size] for n in THREADS)
        np.testing.assert_array_equal(many, one, f"{size} tokens")


@needs_kernels
@pytest.mark.parametrize(
    ("pieces", "others"),
    [([1] * 20 + [280], 0), ([150, 149, 1], 0), ([295, 5], 7), ([7] * 42 + [6], 3)],
    ids=["tokens, then a piece", "pieces, then a token", "a draft among 7", "pieces among 3"],
)
def test_a_token_gets_the_same_logits_whatever_it_is_computed_with(
    pieces: list[int], others: int
) -> None:
    tokens = [1000 + 7 * i for i in range(sum(pieces))]
    model = Model(smollm2_path())
    options = ContextOptions(
        context_size=8 * 512, num_sequences=8, batch_size=512, ubatch_size=512, max_outputs=8,
        num_threads=2,
    )  # fmt: skip
    context = Context(model, options)
    batch = Batch(512)
    batch.add(0, 0, tokens, 1)
    context.decode(batch)
    expected = context.logits(1)[0].copy()
    context.clear(0)
    position = 0
    for step, size in enumerate(pieces):
        batch.clear()
        batch.add(0, position, tokens[position : position + size], 1)
        for other in range(1, others + 1):
            batch.add(other, step, [500 + other], 1)
        context.decode(batch)
        position += size
    np.testing.assert_array_equal(context.logits(1 + others)[0], expected)
    context.close()
    model.close()


@needs_kernels
def test_the_kernels_use_the_copy_of_libggml_that_libllama_uses(
    both: tuple[Computed, Computed],
) -> None:
    without, using = both
    assert len(set(using.libraries)) == len(using.libraries)
    assert using.libraries == without.libraries
    assert "libggml-cpu" in using.libraries


def test_a_missing_library_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "library_path", lambda: None)
    assert not load_anew()


def test_a_broken_library_is_told_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "libselfserve-kernels.so"
    broken.write_text("not a library")
    monkeypatch.setattr(kernels, "library_path", lambda: broken)
    assert not load_anew()
    assert [f"{broken} cannot be loaded" in line for line in caplog.messages].count(True) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="looks for a library of Linux")
def test_a_library_without_the_kernels_is_told_and_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kernels, "library_path", lambda: "libc.so.6")
    assert not load_anew()
    assert "libc.so.6 cannot be loaded" in caplog.text


def test_switched_off_nothing_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "library_path", lambda: pytest.fail("it was looked for"))
    monkeypatch.setenv(kernels.SWITCH, "off")
    assert not load_anew()


def test_a_vocabulary_does_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "load", lambda: pytest.fail("they were loaded"))
    Model(smollm2_path(), vocab_only=True).close()


def test_a_library_for_another_version_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    folder = tmp_path / "lib" / "selfserve"
    folder.mkdir(parents=True)
    (folder / "libselfserve-kernels-0.0.1.so").touch()
    assert kernels.library_path() is None
    (folder / f"libselfserve-kernels-{library.version()}.so").touch()
    assert kernels.library_path() is not None


def load_anew() -> bool:
    """`kernels.load()` as in a process that did not call it yet."""
    return kernels.load.__wrapped__()
