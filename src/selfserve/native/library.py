"""Loads libllama once and checks that it is a version that this package was written for."""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import logging
import os
from types import ModuleType
from typing import Any

from selfserve.errors import LibraryError
from selfserve.logs import get_logger

MIN_VERSION = (0, 3, 36)
BELOW_VERSION = (0, 4, 0)

VERSION_RANGE = ">={},<{}".format(*(".".join(map(str, v)) for v in (MIN_VERSION, BELOW_VERSION)))

SPIN_COUNT = "3000"
"""Rounds for which a thread of libgomp spins before it sleeps."""

_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
"""ggml_log_level (DEBUG 1, INFO 2, WARN 3, ERROR 4) to Python's; 5 continues the line before."""


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("+")[0].split(".")[:3] if part.isdigit())


def check_version(found: str) -> None:
    """Raises LibraryError unless `found` lies in the supported range."""
    if not MIN_VERSION <= _version(found) < BELOW_VERSION:
        low = ".".join(map(str, MIN_VERSION))
        below = ".".join(map(str, BELOW_VERSION))
        raise LibraryError(
            f"llama-cpp-python must be at least {low} and below {below}, found {found}; "
            f"install a matching one: pip install 'llama-cpp-python>={low},<{below}'"
        )


@functools.cache
def load() -> ModuleType:
    """The binding's low-level module, checked, with libllama's log turned into Python's.

    Raises LibraryError if it is missing, broken or of another version.
    """
    try:
        check_version(importlib.metadata.version("llama-cpp-python"))
    except importlib.metadata.PackageNotFoundError as error:
        raise LibraryError("llama-cpp-python is not installed") from error
    # An assertion inside ggml would start a debugger on the whole process before it ends.
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    # Threads meet after every operation, hundreds of times a token. By default they spin for as
    # long as it takes; on a machine that does other work too, the spinning thread holds the core
    # that the late one needs, and decoding becomes ten to sixty times slower.
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    try:
        from llama_cpp import llama_cpp
    except (ImportError, OSError, RuntimeError, FileNotFoundError) as error:
        raise LibraryError(f"libllama cannot be loaded: {error}") from error
    module: ModuleType = llama_cpp
    _route_log(module)
    module.llama_backend_init()
    return module


def _route_log(lib: ModuleType) -> None:
    callback = _log_callback(lib, "libllama")
    lib.llama_log_set(callback, ctypes.c_void_p(0))
    # libllama keeps the pointer for the life of the process, and so must we.
    load.log_callback = callback  # type: ignore[attr-defined]


def _log_callback(lib: ModuleType, name: str) -> Any:
    logger = get_logger(name)

    def write(level: int, text: bytes, _: Any) -> None:
        line = text.decode("utf-8", "replace").rstrip()
        if line.strip("."):  # the loader's progress dots arrive one by one
            logger.log(_LEVELS.get(level, logging.DEBUG), "%s", line)

    return lib.llama_log_callback(write)


@functools.cache
def load_mtmd() -> ModuleType:
    """The binding's module for pictures, with libmtmd's log turned into Python's.

    Raises LibraryError if this build of llama-cpp-python comes without libmtmd.
    """
    lib = load()
    try:
        from llama_cpp import mtmd_cpp
    except (ImportError, OSError, RuntimeError, FileNotFoundError) as error:
        raise LibraryError(f"libmtmd cannot be loaded: {error}") from error
    module: ModuleType = mtmd_cpp
    callback = _log_callback(lib, "libllama.libmtmd")
    module.mtmd_helper_log_set(callback, ctypes.c_void_p(0))
    load_mtmd.log_callback = callback  # type: ignore[attr-defined]
    return module


def version() -> str:
    """The version of llama-cpp-python."""
    return importlib.metadata.version("llama-cpp-python")


def system_info() -> str:
    """libllama's line about the CPU features and back ends that it was built for."""
    text: bytes = load().llama_print_system_info()
    return text.decode("utf-8", "replace")
