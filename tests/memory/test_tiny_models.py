"""The tiny models are what the other tests here take them for."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from tests.support.builders import make_request
from tests.support.tiny_chat import random_words
from tests.support.tiny_engine import ColdAnswers, TinyEngine
from tests.support.tiny_models import SLIDING_WINDOW, write_tiny_model

from selfserve.native.model import Model

MakeEngine = Callable[..., TinyEngine]


def test_the_same_arguments_give_the_same_bytes(arch: str, tmp_path: Path) -> None:
    first = write_tiny_model(tmp_path / "first.gguf", arch).read_bytes()
    assert write_tiny_model(tmp_path / "second.gguf", arch).read_bytes() == first
    assert write_tiny_model(tmp_path / "third.gguf", arch, seed=2).read_bytes() != first


def test_each_kind_of_memory_is_there(arch: str, cold: ColdAnswers) -> None:
    model = Model(cold.path)
    kinds = (model.is_recurrent, model.is_hybrid, model.sliding_window)
    assert (
        kinds
        == {
            "llama": (False, False, 0),
            "gemma3": (False, False, SLIDING_WINDOW),
            "qwen35": (False, True, 0),
            "mamba": (True, False, 0),
        }[arch]
    )
    model.close()


def test_an_answer_is_tokenized_to_the_tokens_it_came_from(make_engine: MakeEngine) -> None:
    engine = make_engine()
    prompt = engine.vocabulary.tokenize(
        random_words(random.Random(1), 30), add_special=True, parse_special=True
    )
    assert len(prompt) == 30
    tokens = engine.answer(make_request("a", prompt, max_tokens=100))
    text = engine.text(tokens)
    assert engine.vocabulary.tokenize(text, add_special=False, parse_special=True) == tokens


def test_each_token_depends_on_the_first_one(make_engine: MakeEngine, cold: ColdAnswers) -> None:
    engine = make_engine()
    rest = random_words(random.Random(1), 100)
    answers = {
        cold.of(
            make_request(
                "a",
                engine.vocabulary.tokenize(word + rest, add_special=True, parse_special=True),
                max_tokens=30,
            )
        ).tokens
        for word in (" ba", " ke", " zu")
    }
    assert len(answers) == 3
