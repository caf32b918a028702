"""The project's own kernels, which a checkout's set-up compiles from `kernels/`.

ggml asks its "extra buffer types" whether they want to hold a matrix and to compute an operation.
The kernels are one more of them. They take what they are faster for, operation by operation, and
leave the rest to ggml.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from pathlib import Path

from selfserve.logs import get_logger
from selfserve.native import library

TYPES = ("Q4_0", "Q4_1", "Q4_K", "Q6_K", "Q8_0")
"""Types of weights that the kernels multiply; attention over F16 they compute for all models."""
SWITCH = "SELF_KERNELS"
"""Environment variable; `off` leaves all products to ggml."""

_log = get_logger("native.kernels")


def library_path() -> Path | None:
    """The kernels that were compiled for the installed llama-cpp-python, if there are any.

    A library for another version may not fit, so it is not even looked at.
    """
    name = f"libselfserve-kernels-{library.version()}.so"
    path = Path(sys.prefix) / "lib" / "selfserve" / name
    return path if path.exists() else None


@functools.cache
def load() -> bool:
    """Hands the kernels to ggml, for all models that are loaded after this call.

    Must come before the first model with weights: libllama asks only then which buffer types
    there are. Returns whether the kernels are in use; a missing or broken library is no error.
    Raises LibraryError if libllama cannot be loaded.
    """
    if os.environ.get(SWITCH) == "off":
        return False
    path = library_path()
    if path is None:
        _log.debug("no kernels were compiled: everything takes longer than it could")
        return False
    # A wheel holds several copies of libggml, each with a list of buffer types. The kernels are
    # linked with the names that libllama uses, so they get its copies where those are loaded.
    library.load()
    try:
        add_kernels = ctypes.CDLL(str(path)).selfserve_add_kernels
    except (OSError, AttributeError) as error:
        _log.warning("%s cannot be loaded: everything takes longer than it could: %s", path, error)
        return False
    add_kernels.argtypes, add_kernels.restype = [], None
    add_kernels()
    _log.debug("the kernels in %s are in use", path)
    return True
