"""Asks a running server about made pictures that no training saw, and counts the true answers.

python -m tools.tiny_vision.evaluate URL [--count 100] [--only NAME]
"""

from __future__ import annotations

import argparse
import base64
import io
import random
import re
from dataclasses import dataclass

import httpx
from PIL import Image
from tools.tiny_vision.shapes import NAMES, SHAPES, SOLID, Label, make

Part = dict[str, object]
MAX_TOKENS = 24


@dataclass(frozen=True, slots=True)
class Question:
    """A wording, the pictures that it is asked about, and what the answer has to name."""

    group: str
    """`shape`, `solid`, `last` (the picture after the text) or `two`; `*`: a wording that the
    training did not use."""
    text: str
    wanted: str
    """A field of Label; `caption`: all of them; of two pictures `first`, `second` or `both`."""


ONE_WORD = "What color is the shape? Answer with one word."
SOLID_WORD = "What color is the image? Answer with one word."
NTH_WORD = "What color is the shape in the {} image? Answer with one word."
QUESTIONS = (
    Question("shape", ONE_WORD, "color"),
    Question("shape", "What color is the shape?", "color"),
    Question("shape", "What color is the {shape}?", "color"),
    Question("shape", "What is the color of the shape in the image?", "color"),
    Question("shape*", "Tell me the color of the thing in this picture.", "color"),
    Question("shape*", "Which colour do you see?", "color"),
    Question("shape*", "color?", "color"),
    Question("shape", "What shape is in the image? Answer with one word.", "shape"),
    Question("shape*", "Is it a circle, a square, a triangle or a star?", "shape"),
    Question("shape", "What color is the background? Answer with one word.", "background"),
    Question("shape", "Describe the image.", "caption"),
    Question("shape*", "Write a caption for this image.", "caption"),
    Question("solid", SOLID_WORD, "color"),
    Question("solid", "What color is the image?", "color"),
    Question("solid", ONE_WORD, "color"),
    Question("solid*", "What color is this?", "color"),
    Question("solid", "Describe the image.", "color"),
    Question("last", ONE_WORD, "color"),
    Question("two", NTH_WORD.format("first"), "first"),
    Question("two", NTH_WORD.format("second"), "second"),
    Question("two", "What colors are the two shapes?", "both"),
)


def picture_part(image: Image.Image) -> Part:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    url = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def text_part(text: str) -> Part:
    return {"type": "text", "text": text}


def ask(url: str, messages: list[dict[str, object]], max_tokens: int = MAX_TOKENS) -> str:
    """The greedy answer of the server at `url`."""
    body = {"messages": messages, "temperature": 0, "max_tokens": max_tokens}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120, trust_env=False)
    answer.raise_for_status()
    return str(answer.json()["choices"][0]["message"]["content"])


def named(answer: str) -> list[str]:
    """The colours and shapes that an answer names, in its order."""
    words = re.findall("[a-z]+", answer.lower().replace("grey", "gray"))
    return [word for word in words if word in NAMES or word in SHAPES]


def is_true(question: Question, labels: list[Label], answer: str) -> bool:
    """The first word of the right kind counts, so naming everything is no hit."""
    words = named(answer)
    colors = [word for word in words if word in NAMES]
    label = labels[0]
    match question.wanted:
        case "both":
            return colors[:2] == [each.color for each in labels]
        case "first" | "second":
            return colors[:1] == [labels[question.wanted == "second"].color]
        case "caption":
            return sorted(set(words)) == sorted({label.color, label.shape, label.background})
        case "shape":
            return [word for word in words if word in SHAPES][:1] == [label.shape]
        case "background":
            return colors[:1] == [label.background]
        case _:
            return colors[:1] == [label.color]


def held_out(group: str, count: int) -> list[list[tuple[Image.Image, Label]]]:
    """One or two pictures for each of `count` questions of a group."""
    rng = random.Random("held out " + group.strip("*"))
    size = 2 if group == "two" else 1

    def picture() -> tuple[Image.Image, Label]:
        return make(rng, shape=SOLID if group.startswith("solid") else rng.choice(SHAPES))

    return [[picture() for _ in range(size)] for _ in range(count)]


def parts_of(question: Question, pictures: list[tuple[Image.Image, Label]]) -> list[Part]:
    text = text_part(question.text.format(shape=pictures[0][1].shape))
    shown = [picture_part(image) for image, _ in pictures]
    return [text, *shown] if question.group == "last" else [*shown, text]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--count", type=int, default=100, help="pictures for each question")
    parser.add_argument("--only", default="", help="groups whose name holds this")
    arguments = parser.parse_args()
    for question in QUESTIONS:
        if arguments.only not in question.group:
            continue
        right = 0
        wrong: list[tuple[Label, str]] = []
        for pictures in held_out(question.group, arguments.count):
            message: Part = {"role": "user", "content": parts_of(question, pictures)}
            answer = ask(arguments.url, [message])
            labels = [label for _, label in pictures]
            if is_true(question, labels, answer):
                right += 1
            else:
                wrong.append((labels[0], answer[:70]))
        print(f"{right}/{arguments.count} {question.group}: {question.text}  wrong: {wrong[:3]}")


if __name__ == "__main__":
    main()
