"""Questions about pictures with their true answers, as training data."""

from __future__ import annotations

import random

from tools.tiny_vision.shapes import SOLID, Label

SYSTEMS = (
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
    "You are a helpful assistant.",
    "You answer questions about images.",
)
ONE_WORD = (
    "Answer with one word.",
    "Answer in one word.",
    "Reply with one word only.",
    "One word.",
)

COLOR = (
    "What color is the {}?",
    "What is the color of the {}?",
    "Which color is the {}?",
    "What color is the {} in this picture?",
    "Name the color of the {}.",
    "What colour is the {}?",
)
SHAPE = (
    "What shape is in the image?",
    "What shape is this?",
    "Which shape do you see?",
    "What is the shape of the object?",
)
BACKGROUND = (
    "What color is the background?",
    "What is the background color?",
    "Which color is the background of the image?",
)
CAPTION = (
    "",
    "Describe the image.",
    "What is in this image?",
    "What do you see?",
    "Describe this picture in one sentence.",
)
BOTH = ("What colors are the two shapes?", "Name the colors of the shapes in both images.")
NTH = (
    "What color is the shape in the {} image?",
    "What color is the {} shape?",
    "What color is the {} image?",
)


def dialogue(rng: random.Random, labels: list[Label]) -> tuple[str, str]:
    """A question about one or two pictures, and its answer."""
    return _about_two(rng, labels) if len(labels) == 2 else _about_one(rng, labels[0])


def _about_two(rng: random.Random, labels: list[Label]) -> tuple[str, str]:
    index = rng.randrange(2)
    color = labels[index].color
    if rng.random() < 0.15:
        return rng.choice(BOTH), f"The shapes are {labels[0].color} and {labels[1].color}."
    question = rng.choice(NTH).format(("first", "second")[index])
    return _short_or_long(rng, question, color, f"It is {color}.", short=0.75)


def _about_one(rng: random.Random, label: Label) -> tuple[str, str]:
    is_solid = label.shape == SOLID
    thing = "image" if is_solid else rng.choice(["shape", "object", label.shape])
    kind = rng.random()
    if kind < 0.45:
        question = rng.choice(COLOR).format(thing)
        return _short_or_long(rng, question, label.color, f"The {thing} is {label.color}.")
    if kind < 0.6 and not is_solid:
        question = rng.choice(SHAPE)
        return _short_or_long(rng, question, label.shape, f"The shape is a {label.shape}.")
    if kind < 0.75:
        question, color = rng.choice(BACKGROUND), label.background
        return _short_or_long(rng, question, color, f"The background is {color}.")
    return rng.choice(CAPTION), caption(label)


def caption(label: Label) -> str:
    if label.shape == SOLID:
        return f"The image is plain {label.color}."
    return f"The image shows a {label.color} {label.shape} on a {label.background} background."


def _short_or_long(
    rng: random.Random, question: str, word: str, sentence: str, *, short: float = 0.6
) -> tuple[str, str]:
    if rng.random() < short:
        return f"{question} {rng.choice(ONE_WORD)}", word
    return question, sentence
