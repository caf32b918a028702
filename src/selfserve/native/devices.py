"""The processors that libllama was built for and found on this machine."""

from __future__ import annotations

import ctypes
import functools
import re
from dataclasses import dataclass
from typing import Any

from selfserve.errors import LibraryError, SettingsError
from selfserve.native import library

CPU, GPU, INTEGRATED_GPU = 0, 1, 2
"""Values of `ggml_backend_dev_type`; greater ones are accelerators that work beside the CPU."""
BUILDS = {"cuda": "-DGGML_CUDA=on", "metal": "-DGGML_METAL=on", "vulkan": "-DGGML_VULKAN=on"}
"""CMake options that build libllama for a kind of device."""
KINDS = {"cuda": "cuda", "metal": "metal", "mtl": "metal", "vulkan": "vulkan"}
"""Kind of device by the lower-case name of its ggml back end."""
ALL_LAYERS = -1


@dataclass(frozen=True, slots=True)
class Device:
    """One processor, under ggml's name for it. `handle` lives as long as the process."""

    name: str
    kind: str
    """`cpu`, `cuda`, `metal`, `vulkan`, or the back end's own name in lower case."""
    description: str
    is_gpu: bool
    free_bytes: int
    total_bytes: int
    handle: int


def found_devices() -> list[Device]:
    """Every device of this build, GPUs in the order that libllama counts them.

    Raises LibraryError if libllama cannot be loaded.
    """
    library.load()
    ggml = _ggml()
    return [
        _device(ggml, ggml.ggml_backend_dev_get(i)) for i in range(ggml.ggml_backend_dev_count())
    ]


def choose(wanted: str, gpu_layers: int, found: list[Device]) -> list[Device]:
    """The GPUs to compute on; none stands for the CPU alone.

    `wanted` is `auto`, `cpu`, `metal`, `cuda[:N]` or `vulkan[:N]`. Raises LibraryError for a kind
    that this build does not know, SettingsError for one of which there is none, or no N-th one.
    """
    gpus = [device for device in found if device.is_gpu]
    if wanted == "cpu" or (wanted == "auto" and gpu_layers == 0):
        return []
    if wanted == "auto":
        if gpu_layers > 0 and not gpus:
            raise LibraryError(
                f"gpu_layers is {gpu_layers}, but this build of libllama has no GPU; {_how_to()}"
            )
        return gpus
    kind, _, number = wanted.partition(":")
    if gpu_layers == 0:
        raise SettingsError(f"gpu_layers 0 leaves nothing to compute for device {wanted}")
    own = [device for device in gpus if device.kind == kind]
    if not own:
        raise LibraryError(
            f"device {wanted}: this build of libllama has no {kind} device, only "
            f"{', '.join(device.name for device in found)}; {_how_to(kind)}"
        )
    if number and int(number) >= len(own):
        names = ", ".join(f"{kind}:{i} ({d.description})" for i, d in enumerate(own))
        raise SettingsError(f"there is no device {wanted}; there are {names}", param="device")
    return [own[int(number)]] if number else own


def pointer_list(devices: list[Device]) -> Any:
    """A NULL-terminated array of device handles. The caller keeps it while it is read."""
    return (ctypes.c_void_p * (len(devices) + 1))(*[device.handle for device in devices], None)


def _how_to(kind: str = "cuda") -> str:
    others = "" if kind != "cuda" else " (for others -DGGML_VULKAN=on or -DGGML_METAL=on)"
    return (
        f"build one with: CMAKE_ARGS={BUILDS[kind]} pip install --force-reinstall --no-deps "
        f"--no-binary llama-cpp-python 'llama-cpp-python{library.VERSION_RANGE}'{others}"
    )


def _device(ggml: Any, handle: int) -> Device:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ggml.ggml_backend_dev_memory(handle, ctypes.byref(free), ctypes.byref(total))
    number = ggml.ggml_backend_dev_type(handle)
    backend = _text(ggml.ggml_backend_reg_name(ggml.ggml_backend_dev_backend_reg(handle)))
    return Device(
        name=_text(ggml.ggml_backend_dev_name(handle)),
        kind=KINDS.get(re.sub(r"\d+$", "", backend.lower()), backend.lower()),
        description=_text(ggml.ggml_backend_dev_description(handle)),
        is_gpu=number in (GPU, INTEGRATED_GPU),
        free_bytes=free.value,
        total_bytes=total.value,
        handle=handle,
    )


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


@functools.cache
def _ggml() -> Any:
    """libggml, which the binding has loaded already, with the prototypes of what is used here."""
    from llama_cpp._ggml import libggml

    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    sizes = ctypes.POINTER(ctypes.c_size_t)
    prototypes: dict[str, tuple[list[Any], Any]] = {
        "ggml_backend_dev_count": ([], size),
        "ggml_backend_dev_get": ([size], pointer),
        "ggml_backend_dev_name": ([pointer], ctypes.c_char_p),
        "ggml_backend_dev_description": ([pointer], ctypes.c_char_p),
        "ggml_backend_dev_type": ([pointer], ctypes.c_int),
        "ggml_backend_dev_memory": ([pointer, sizes, sizes], None),
        "ggml_backend_dev_backend_reg": ([pointer], pointer),
        "ggml_backend_reg_name": ([pointer], ctypes.c_char_p),
    }
    for name, (arguments, result) in prototypes.items():
        function = getattr(libggml, name)
        function.argtypes, function.restype = arguments, result
    return libggml
