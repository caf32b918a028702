"""What both servers are asked when their answers are compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.texts import CODE

PROMPTS: tuple[str, ...] = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "1, 2, 3, 5, 8, 13,",
    "Die Hauptstadt von Deutschland ist",
    "Il était une fois une petite fille qui",
    "中国的首都是",
    "Emojis: \U0001f600 \U0001f603 \U0001f604 \U0001f419",
    '{"name": "Ada", "age": 36, "languages": [',
    "<|im_start|>user\nName three fruits.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>system\nAnswer briefly.<|im_end|>\n"
    "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n",
    "# Shopping list\n\n- milk\n- bread\n-",
    "Q: What is the boiling point of water?\nA: 100 °C\nQ: And its freezing point?\nA:",
    "SELECT name, COUNT(*) FROM orders",
    "Dear Sir or Madam,\n\nI am writing to you because",
    "ha ha ha ha ha ha",
    "The opposite of hot is cold. The opposite of big is small. The opposite of fast is",
    "x" * 40,
    "   \t\n  The first sentence after white space",
    CODE + "\n\nclass Warehouse:\n",
)

MIXED_CHAIN = ["top_k", "temperature", "penalties", "dry", "min_p"]

CHAINS: Mapping[str, Mapping[str, Any]] = {
    "top_k 5": {"top_k": 5, "samplers": ["top_k", "temperature"]},
    "typical_p 0.2": {"typical_p": 0.2},
    "top_n_sigma 1, min_p 0.2": {"top_n_sigma": 1.0, "min_p": 0.2},
    "xtc, always": {"xtc_probability": 1.0, "xtc_threshold": 0.1},
    "repeat_penalty 1.3": {"repeat_penalty": 1.3},
    "repeat_penalty 1.1, window 1024": {"repeat_penalty": 1.1, "repeat_last_n": 1024},
    "presence_penalty 0.8": {"presence_penalty": 0.8, "repeat_last_n": 16},
    "frequency_penalty 0.5": {"frequency_penalty": 0.5},
    "all penalties": {"repeat_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2},
    "dry 0.8": {"dry_multiplier": 0.8},
    "dry 2, one breaker, window 1024": {
        "dry_multiplier": 2.0,
        "dry_base": 1.5,
        "dry_allowed_length": 1,
        "dry_penalty_last_n": 1024,
        "dry_sequence_breakers": [" the"],
    },
    "logit_bias": {"logit_bias": [[" the", False], [" a", 2.5], [28, -3.0], ["\n", -1.0]]},
    "ignore_eos": {"ignore_eos": True},
    "samplers out of order": {
        "samplers": MIXED_CHAIN,
        "top_k": 20,
        "repeat_penalty": 1.2,
        "dry_multiplier": 0.8,
    },
    "temperature 0.8, seed 7": {"temperature": 0.8, "seed": 7},
    "temperature 1.2, seed 7, no other sampler": {
        "temperature": 1.2,
        "seed": 7,
        "samplers": ["temperature"],
    },
}
"""Name → fields of a completion; the temperature is 0 unless they say otherwise. XTC that always
strikes draws nothing that matters, so it can be compared too."""

CHAIN_PROMPTS: tuple[str, ...] = (PROMPTS[1], PROMPTS[2], PROMPTS[7], PROMPTS[11], PROMPTS[15])
"""Among them are those after which plain greedy decoding repeats itself."""
