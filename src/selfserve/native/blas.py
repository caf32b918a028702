"""The BLAS backend that a checkout's set-up compiles, for the weights for which it is faster.

Time of a prompt with BLAS as a share of that with ggml's own kernels, SmolLM2-135M in Q4_1 on
2 cores (a wider model measured the same): 512 tokens 0.53, 100 tokens 0.69, 64 tokens 0.79,
40 tokens 0.97, 32 tokens 1.07. From 48 tokens on the backend takes the products over; generating
never gets there with few slots.

For Q4_0, Q8_0, Q5_0, the K and IQ types and the floats, ggml has kernels that are as fast or up to
four times faster. The backend leaves matrices of these types alone, also in files named after
another type; for files without any of the others it is not even loaded.

Memory: each thread unpacks 128 rows of a matrix to F32 at once (2 MiB for 4096 columns) and keeps
that memory; OpenBLAS takes a working space for each thread. No whole matrix is ever unpacked, not
even that of the output.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import sys
from pathlib import Path
from typing import Any

from selfserve.logs import get_logger
from selfserve.native import library
from selfserve.native.model import Model

FASTER_TYPES = ("Q4_1", "Q5_1")
"""File types, as they stand at the end of a model's description."""
SWITCH = "SELF_BLAS"
"""Environment variable; `off` leaves all products to ggml's own kernels."""

_log = get_logger("native.blas")


def library_path() -> Path | None:
    """The backend that was compiled for the installed llama-cpp-python, if there is one.

    A library for another version may not fit, so it is not even looked at.
    """
    name = f"libggml-blas-{library.version()}.so"
    path = Path(sys.prefix) / "lib" / "selfserve" / name
    return path if path.exists() else None


def is_faster_for(description: str) -> bool:
    """Whether a file with this description (`Model.description`) has weights for BLAS."""
    return re.search(rf"\b({'|'.join(FASTER_TYPES)})\b", description) is not None


def load_for(model: Model) -> bool:
    """Loads the backend for the contexts made after this call, if it makes the model faster.

    It stays until the process ends, for the contexts of all models; those with other weights do
    not use it. Must come after the model was loaded: libllama asks then where weights may lie.
    Returns whether the backend is there for the model; never raises.
    """
    if os.environ.get(SWITCH) == "off" or model.gpus or not is_faster_for(model.description):
        return False
    return _load()


@functools.cache
def _load() -> bool:
    path = library_path()
    if path is None:
        _log.debug("no BLAS backend was compiled: prompts take longer than they could")
        return False
    # The backend brings its own threads; OpenBLAS would start one for each CPU when loaded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Asked for by libllama's handle: a wheel holds copies of libggml, each with a list of backends.
    lib: Any = library.load()
    function = lib._lib.ggml_backend_load
    function.argtypes, function.restype = [ctypes.c_char_p], ctypes.c_void_p
    if not function(str(path).encode()):
        _log.warning("%s cannot be loaded: prompts take longer than they could", path)
        return False
    _log.debug("BLAS computes prompts")
    return True
