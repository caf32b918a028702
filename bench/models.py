"""The model files of the benchmark: SmolLM2-135M as Q4_1, and as Q4_0 and F32 made from it."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from selfserve.catalogue.entries import DEFAULT_MODEL, resolve
from selfserve.native import library

NAMES = ("q4_1", "q4_0")
"""Those whose speed is measured."""
EXACT = "f32"
"""The weights of Q4_1 without the rounding of its kernels: what differs there, differs for a
reason."""
FILE_TYPES = {"q4_0": "LLAMA_FTYPE_MOSTLY_Q4_0", EXACT: "LLAMA_FTYPE_ALL_F32"}


def model_path(name: str) -> Path:
    """The GGUF file of one of NAMES or EXACT; all but Q4_1 are made on first use and kept in the
    user's cache."""
    source = resolve(DEFAULT_MODEL).path
    if name == "q4_1":
        return source
    folder = Path(platformdirs.user_cache_dir("selfserve-bench"))
    target = folder / source.name.replace("Q4_1", name.upper())
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _requantize(source, target, FILE_TYPES[name])
    return target


def _requantize(source: Path, target: Path, file_type: str) -> None:
    """Writes `source` as another type. What was lost in Q4_1 stays lost: the speed is right, the
    answers are a little worse than those of a file made from the original weights."""
    lib = library.load()
    params = lib.llama_model_quantize_default_params()
    params.ftype = getattr(lib, file_type)
    params.allow_requantize = True
    unfinished = target.with_suffix(f".{os.getpid()}.unfinished")
    try:
        if lib.llama_model_quantize(str(source).encode(), str(unfinished).encode(), params) != 0:
            raise RuntimeError(f"libllama cannot write {source.name} as {file_type}")
        unfinished.rename(target)
    finally:
        unfinished.unlink(missing_ok=True)
