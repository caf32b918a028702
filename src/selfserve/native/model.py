"""A loaded model file: weights and vocabulary, or the vocabulary alone."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from selfserve.errors import ModelLoadError
from selfserve.native import devices, kernels, library, mapped_file
from selfserve.native.devices import found_devices
from selfserve.native.vocab import Vocab

LOAD_NONE = 0
LOAD_MMAP = 1
EVERY_LAYER = 10_000
"""More than any model has."""


class Model:
    """Owns a `llama_model`. `close()` frees it; contexts and samplers must be closed before."""

    def __init__(
        self,
        path: Path,
        *,
        vocab_only: bool = False,
        use_mmap: bool = True,
        device: str = "cpu",
        gpu_layers: int = devices.ALL_LAYERS,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        """Loads the file; blocks for as long as that takes and releases the GIL meanwhile.

        `on_progress` gets the loaded share, 0 to 1, on this thread. Raises ModelLoadError,
        and LibraryError or SettingsError for a `device` that is not there.
        """
        self._lib: Any = library.load()
        check_magic(path)
        if not vocab_only:
            kernels.load()
        params = self._lib.llama_model_default_params()
        params.vocab_only = vocab_only
        params.load_mode = LOAD_MMAP if use_mmap else LOAD_NONE
        self.gpus = [] if device == "cpu" else devices.choose(device, gpu_layers, found_devices())
        """The devices that hold layers; none: the CPU computes everything."""
        pointers = devices.pointer_list(self.gpus)
        params.devices = ctypes.cast(pointers, ctypes.c_void_p)
        params.n_gpu_layers = _num_layers(gpu_layers) if self.gpus else 0
        callback = None
        if on_progress is not None:

            def report(share: float, _: Any) -> bool:
                on_progress(share)
                return True

            callback = self._lib.llama_progress_callback(report)
            params.progress_callback = callback
        self.handle = self._lib.llama_model_load_from_file(str(path).encode(), params)
        del callback, pointers  # libllama reads them during the load only
        if not self.handle:
            raise ModelLoadError(
                f"libllama cannot load {path}: the file is damaged, or of a model that this "
                "version of libllama does not know (start with --verbose for its own words)"
            )
        if use_mmap and not vocab_only:
            # What ggml or the kernels keep in an order of their own is a copy.
            mapped_file.release(path)
        self.path = path
        self.vocab = Vocab(self._lib, self.handle)

    @property
    def train_context(self) -> int:
        """Tokens of the context that the model was trained with."""
        return int(self._lib.llama_model_n_ctx_train(self.handle))

    @property
    def size_bytes(self) -> int:
        return int(self._lib.llama_model_size(self.handle))

    @property
    def num_parameters(self) -> int:
        return int(self._lib.llama_model_n_params(self.handle))

    @property
    def description(self) -> str:
        """libllama's own, such as "llama ?B Q4_1"."""
        buffer = ctypes.create_string_buffer(256)
        self._lib.llama_model_desc(self.handle, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    @property
    def is_recurrent(self) -> bool:
        return bool(self._lib.llama_model_is_recurrent(self.handle))

    @property
    def is_hybrid(self) -> bool:
        return bool(self._lib.llama_model_is_hybrid(self.handle))

    @property
    def sliding_window(self) -> int:
        """Tokens of the attention window of the layers that have one; 0 if none has."""
        return int(self._lib.llama_model_n_swa(self.handle))

    def check_decodable(self) -> None:
        """Raises ModelLoadError for files that load but cannot generate text."""
        if self._lib.llama_model_has_encoder(self.handle) or not self._lib.llama_model_has_decoder(
            self.handle
        ):
            raise ModelLoadError(f"{self.path} is no decoder-only text model, so it cannot chat")

    def close(self) -> None:
        if self.handle:
            self.vocab.close()
            self._lib.llama_model_free(self.handle)
            self.handle = None


def _num_layers(gpu_layers: int) -> int:
    return EVERY_LAYER if gpu_layers == devices.ALL_LAYERS else gpu_layers


def check_magic(path: Path) -> None:
    """Raises ModelLoadError unless the file is there and begins as a GGUF file does.

    libllama's own message for these goes to its log, where nobody looks for it.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error.strerror}") from error
    if magic != b"GGUF":
        raise ModelLoadError(f"{path} is not a GGUF file (it begins with {magic!r})")
