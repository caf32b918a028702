"""The texts of the scenarios."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from selfserve.cli.sample_text import cold_text

CODE = '''\
class Inventory:
    """Counts the articles of a shop."""

    def __init__(self, name, minimum=10):
        self.name = name
        self.minimum = minimum
        self.articles = {}

    def add(self, article, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.articles[article] = self.articles.get(article, 0) + amount

    def remove(self, article, amount):
        if self.articles.get(article, 0) < amount:
            raise KeyError(article)
        self.articles[article] -= amount

    def missing(self):
        result = []
        for article, amount in self.articles.items():
            if amount < self.minimum:
                result.append((article, self.minimum - amount))
        return sorted(result)

    def total(self):
        return sum(self.articles.values())

    def report(self):
        lines = [f"Inventory {self.name}"]
        for article, amount in sorted(self.articles.items()):
            lines.append(f"{article}: {amount}")
        return "\\n".join(lines)
'''

ORDER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "order_number": {"type": "integer", "minimum": 1000, "maximum": 9999},
        "customer_name": {"type": "string", "maxLength": 24},
        "shipping_address": {
            "type": "object",
            "properties": {
                "street": {"type": "string", "maxLength": 24},
                "postal_code": {"type": "string", "pattern": "^[0-9]{5}$"},
                "country_code": {"enum": ["DE", "FR", "GB", "US"]},
            },
            "required": ["street", "postal_code", "country_code"],
            "additionalProperties": False,
        },
        "articles": {
            "type": "array",
            "minItems": 2,
            "maxItems": 2,
            "items": {
                "type": "object",
                "properties": {
                    "article_name": {"type": "string", "maxLength": 16},
                    "quantity": {"type": "integer", "minimum": 1, "maximum": 99},
                    "is_in_stock": {"type": "boolean"},
                },
                "required": ["article_name", "quantity", "is_in_stock"],
                "additionalProperties": False,
            },
        },
        "payment_method": {"enum": ["invoice", "credit_card", "bank_transfer"]},
        "shipping_method": {"enum": ["standard", "express"]},
    },
    "required": [
        "order_number",
        "customer_name",
        "shipping_address",
        "articles",
        "payment_method",
        "shipping_method",
    ],
    "additionalProperties": False,
}

SAMPLED = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "seed": 1}
"""For speeds of plain decoding: greedy answers of a small model soon repeat themselves, and then
are no longer plain for a server that guesses ahead."""

Message = dict[str, str]


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def cold(random: Random, num_words: int, task: str = "Write a story.") -> list[Message]:
    """A chat of about so many words that no server has seen before, from its first word on."""
    return [system(cold_text(random, num_words)), user(task)]


def body(messages: Sequence[Message], max_tokens: int, **more: Any) -> dict[str, Any]:
    """A greedy request for exactly `max_tokens` tokens, unless `more` says otherwise."""
    return {
        "messages": list(messages),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        **more,
    }
