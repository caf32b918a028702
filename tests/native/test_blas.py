"""The BLAS backend: for which files it is loaded, what it computes, and that it may be missing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest
from tests.support.real_vocabulary import smollm2_path

from selfserve.native import blas

COMPUTE = """
import sys
from pathlib import Path
import numpy as np
from selfserve.native import blas
from selfserve.native.batch import Batch
from selfserve.native.context import Context, ContextOptions
from selfserve.native.model import Model
model = Model(Path(sys.argv[1]))
loaded = blas.load_for(model)
sizes = dict(context_size=256, num_sequences=1, batch_size=128, ubatch_size=128)
context = Context(model, ContextOptions(max_outputs=64, num_threads=2, **sizes))
batch = Batch(128)
found = []
for size in (100, 40):
    batch.clear()
    context.clear(0)
    batch.add(0, 0, [1000 + 7 * i for i in range(size)], 40)
    context.decode(batch)
    found.append(context.logits(40).copy())
np.save(sys.argv[2], np.stack(found))
copies = {line.split()[-1] for line in open("/proc/self/maps") if "libggml-base" in line}
print(loaded, len(copies))
"""


@pytest.fixture
def _nothing_is_remembered() -> Iterator[None]:
    blas._load.cache_clear()
    yield
    blas._load.cache_clear()


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        ("llama 256M Q4_1", True),
        ("qwen3 ?B Q5_1", True),
        ("llama 7B Q4_1 (guessed)", True),
        *(
            (f"llama ?B {name}", False)
            for name in (
                "Q4_0", "Q5_0", "Q8_0", "Q2_K - Medium", "Q3_K - Medium", "Q4_K - Medium",
                "Q5_K - Small", "Q6_K", "IQ4_NL - 4.5 bpw", "F16", "BF16", "all F32",
            )
        ),
        ("", False),
    ],
)  # fmt: skip
def test_it_is_for_files_in_q4_1_and_q5_1(description: str, expected: bool) -> None:
    assert blas.is_faster_for(description) is expected


@pytest.mark.parametrize(
    ("variable", "gpus", "description"),
    [("off", [], "a Q4_1"), ("", ["a GPU"], "a Q4_1"), ("", [], "a Q4_0")],
    ids=["switched off", "GPUs", "another type"],
)
def test_it_stays_away_where_it_is_not_wanted(
    variable: str, gpus: list[str], description: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blas, "_load", lambda: pytest.fail("it was loaded"))
    monkeypatch.setenv(blas.SWITCH, variable)
    model = SimpleNamespace(gpus=gpus, description=description)
    assert not blas.load_for(model)  # type: ignore[arg-type]


@pytest.mark.usefixtures("_nothing_is_remembered")
def test_a_missing_library_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "library_path", lambda: None)
    assert not blas.load_for(SimpleNamespace(gpus=[], description="a Q4_1"))  # type: ignore[arg-type]


@pytest.mark.usefixtures("_nothing_is_remembered")
def test_a_broken_library_is_told_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "libggml-blas.so"
    broken.write_text("not a library")
    monkeypatch.setattr(blas, "library_path", lambda: broken)
    assert not blas.load_for(SimpleNamespace(gpus=[], description="a Q4_1"))  # type: ignore[arg-type]
    assert [f"{broken} cannot be loaded" in line for line in caplog.messages].count(True) == 1


def test_a_library_for_another_version_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    folder = tmp_path / "lib" / "selfserve"
    folder.mkdir(parents=True)
    (folder / "libggml-blas-0.0.1.so").touch()
    assert blas.library_path() is None
    (folder / f"libggml-blas-{blas.library.version()}.so").touch()
    assert blas.library_path() is not None


def compute(target: Path, switch: str) -> tuple[str, npt.NDArray[np.float32]]:
    """What a process of its own printed, and its logits after batches of 100 and 40 tokens."""
    done = subprocess.run(
        [sys.executable, "-c", COMPUTE, str(smollm2_path()), str(target)],
        env=os.environ | {blas.SWITCH: switch},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip(), np.load(target)


@pytest.mark.skipif(sys.platform != "linux", reason="llama.cpp brings Apple's BLAS on macOS")
def test_long_batches_give_the_same_answer_and_short_ones_the_same_numbers(tmp_path: Path) -> None:
    if blas.library_path() is None:
        pytest.skip("no BLAS backend was compiled; tools/build_blas.py does it")
    printed, without = compute(tmp_path / "without.npy", "off")
    assert printed.startswith("False")
    printed, using = compute(tmp_path / "with.npy", "on")
    assert printed == "True 1"  # a second copy of libggml would have lists of its own
    np.testing.assert_array_equal(using[1], without[1])
    difference = np.abs(using[0] - without[0])
    # ggml's kernels round the activations to 8 bits, BLAS does not.
    assert 0 < difference.max() < 2
    assert difference.mean() < 0.3
    assert (using[0].argmax(-1) == without[0].argmax(-1)).mean() > 0.8
