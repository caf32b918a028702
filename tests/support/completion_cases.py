"""Values of the completion endpoint's fields: inside, on and outside their limits."""

from __future__ import annotations

from typing import Any

from tests.support import chat_cases

from selfserve.api.sampling_fields import GenerationFields
from selfserve.limits import MAX_PROBS, MAX_PROMPTS, MAX_STOP_BYTES, MAX_STOPS

NOT_NUMBERS: list[Any] = ["1", True, [], {}]
NOT_BOOLEANS: list[Any] = ["true", 1, 0, [], {}]
SHARED = tuple(GenerationFields.model_fields)


def _shared(table: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: values for name, values in table.items() if name in SHARED}


GOOD: dict[str, list[Any]] = {
    **_shared(chat_cases.GOOD),
    "prompt": [
        "a",
        [65],
        [65.0, "b", 66],
        ["b", 65],
        [[65]],
        ["a", [65, "b"], {"prompt_string": "c"}],
        {"prompt_string": "a"},
        {"prompt_string": "a", "multimodal_data": None},
        {"prompt_string": "a", "multimodal_data": []},
        [0],
        [260],
        "a<__media__>b",
    ],
    "multimodal_data": [None, []],
    "model": ["other", None, 5],
    "stream": [False, None],
    "stream_options": [None],
    "n_predict": [-1, 0, 1, 5.0, 2**31 - 1, None],
    "max_tokens": [-1, 0, 1, None],
    "max_completion_tokens": [-1, 0, 1, None],
    "stop": ["a", "", [], ["a"] * MAX_STOPS, ["", "x"], ["a" * MAX_STOP_BYTES], None],
    "temperature": [0, 0.8, 2.5, 1e-6, None],
    "presence_penalty": [-3, 0, 3.5, None],
    "frequency_penalty": [-3, 0, 3.5, None],
    "n_probs": [0, 1, MAX_PROBS, None],
    "logprobs": [0, 5, MAX_PROBS, None],
    "post_sampling_probs": [True, False, None],
    "n_indent": [0, 8, None],
    "n_keep": [-1, 0, 10**6, None],
    "return_tokens": [True, False, None],
    "response_fields": [[], ["content"], ["a/b/c", "", "/"], None],
    "n": [1, 1.0, None],
    "best_of": [1, None],
    "echo": [False, None],
    "suffix": ["", None],
    "user": ["someone", None],
}

BAD: dict[str, list[Any]] = {
    **_shared(chat_cases.BAD),
    "prompt": [
        None,
        5,
        True,
        [],
        [[]],
        ["a", []],
        [[65], 66],
        [True],
        [65, True],
        [65, 1.5],
        [65, None],
        [-1],
        [261],
        [[65], [261]],
        [2**40],
        {},
        {"prompt_string": 5},
        {"prompt_string": "a", "other": 1},
        {"prompt_string": "a", "multimodal_data": "x"},
        {"prompt_string": "a", "multimodal_data": [5]},
        {"prompt_string": "a", "multimodal_data": ["x"]},
        {"prompt_string": "<__media__>", "multimodal_data": []},
        "",
        ["a", ""],
        ["a"] * (MAX_PROMPTS + 1),
        ["a"] * 100,
    ],
    "multimodal_data": ["x", {}, [5], ["x"]],
    "stream": NOT_BOOLEANS,
    "n_predict": [-2, 1.5, 2**31, *NOT_NUMBERS],
    "max_tokens": [-2, 1.5, *NOT_NUMBERS],
    "max_completion_tokens": [-2, 1.5, *NOT_NUMBERS],
    "stop": [
        5,
        True,
        {},
        [5],
        ["a", None],
        ["a"] * (MAX_STOPS + 1),
        "a" * (MAX_STOP_BYTES + 1),
        ["x", "é" * (MAX_STOP_BYTES // 2 + 1)],
    ],
    "temperature": [-0.1, 1e300, *NOT_NUMBERS],
    "presence_penalty": [1e300, *NOT_NUMBERS],
    "frequency_penalty": [-1e300, *NOT_NUMBERS],
    "n_probs": [-1, 0.5, MAX_PROBS + 1, *NOT_NUMBERS],
    "logprobs": [-1, 0.5, MAX_PROBS + 1, *NOT_NUMBERS],
    "post_sampling_probs": NOT_BOOLEANS,
    "n_indent": [-1, 0.5, *NOT_NUMBERS],
    "n_keep": [-2, 0.5, *NOT_NUMBERS],
    "return_tokens": NOT_BOOLEANS,
    "response_fields": ["content", {}, [5], ["a"] * 1001],
    "n": [1.5, *NOT_NUMBERS],
}

UNSUPPORTED: dict[str, list[Any]] = {
    "n": [0, 2],
    "best_of": [2],
    "echo": [True],
    "suffix": ["x"],
}
