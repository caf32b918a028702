"""Tiny models of every kind of memory, made once, and engines on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.tiny_engine import ColdAnswers, TinyEngine
from tests.support.tiny_models import ARCHITECTURES, write_tiny_model

EAGERNESS = {"<|im_end|>": 1.4, "</think>": 1.5}
"""Some answers end by themselves, some are cut off; some think to an end, some do not."""


@pytest.fixture(scope="session", params=ARCHITECTURES)
def arch(request: pytest.FixtureRequest) -> str:
    """llama: plain, gemma3: sliding window, qwen35: hybrid, mamba: recurrent memory."""
    return str(request.param)


@pytest.fixture(scope="session")
def cold(arch: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ColdAnswers]:
    """A model's answers without any memory of what came before."""
    path = tmp_path_factory.mktemp(arch) / f"{arch}.gguf"
    answers = ColdAnswers(write_tiny_model(path, arch, eagerness=EAGERNESS))
    yield answers
    answers.close()


@pytest.fixture
def make_engine(cold: ColdAnswers) -> Iterator[Callable[..., TinyEngine]]:
    """Makes engines on the same model; closes them after the test."""
    engines: list[TinyEngine] = []

    def make(**options: Any) -> TinyEngine:
        engine = TinyEngine(cold.path, **options)
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.memory.check()
        engine.close()
