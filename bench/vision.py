"""Pictures: how often the small model that sees is right, whether it answers as llama.cpp's own
server does, and how long a running stream is silent while a picture is taken in.

    python -m bench.vision [--count 100]
    python -m bench.vision --peer MODEL PROJECTOR      llama.cpp's server alone, on a free port
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import httpx
import numpy as np
from PIL import Image
from tools.tiny_vision.evaluate import (
    QUESTIONS,
    Question,
    ask,
    held_out,
    is_true,
    parts_of,
    text_part,
)

from selfserve.catalogue.entries import resolve
from selfserve.cli.child_server import child_server

MODEL = "smollm2-vision:135m"
CONTEXT = 4096
COMPARED = 10
"""Pictures whose answers are compared with the other server's."""
LARGE_SIDE = 2000
"""Pixels of the picture that is taken in beside a stream: 4 megapixels, the largest that is not
reduced before it waits for the encoder."""
FOLLOW_UP = "What color is the background? Answer with one word."


def user(parts: list[dict[str, object]]) -> dict[str, object]:
    return {"role": "user", "content": parts}


@contextmanager
def self_server() -> Iterator[str]:
    options = ["--port", "0", "--context-size", str(CONTEXT)]
    command = [sys.executable, "-m", "selfserve", "serve", MODEL, *options]
    with child_server(command) as child:
        yield child.url


@contextmanager
def peer_server() -> Iterator[str]:
    model = resolve(MODEL)
    command = [sys.executable, "-m", "bench.vision", "--peer", str(model.path)]
    with child_server([*command, str(model.projector)]) as child:
        yield child.url


def run_peer(model: str, projector: str) -> None:
    """Serves until the process ends."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.mmproj.path = projector
    params.n_ctx = CONTEXT
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = os.cpu_count() or 1
    params.n_gpu_layers = 0
    params.mmproj_use_gpu = False
    params.port = 0
    params.fit_params = False
    params.ui = False
    params.verbosity = 0
    server = xllamacpp.Server(params)
    print(f"Ready: {server.listening_address}", file=sys.stderr, flush=True)
    threading.Event().wait()


def accuracy(url: str, question: Question, count: int) -> int:
    """True answers of `count`."""
    right = 0
    for pictures in held_out(question.group, count):
        answer = ask(url, [user(parts_of(question, pictures))])
        right += is_true(question, [label for _, label in pictures], answer)
    return right


def conversations() -> Iterator[list[dict[str, object]]]:
    """Questions about pictures, and follow-ups to be asked after the answer."""
    question = QUESTIONS[0]
    for pictures in held_out("compared", COMPARED):
        yield [user(parts_of(question, pictures)), user([text_part(FOLLOW_UP)])]


def answers(url: str) -> list[list[str]]:
    """First and second answer of each conversation."""
    found = []
    for first, second in conversations():
        answer = ask(url, [first])
        again = ask(url, [first, {"role": "assistant", "content": answer}, second])
        found.append([answer, again])
    return found


def cached_share(url: str) -> tuple[int, int]:
    """(prompt tokens, cached ones) of a second turn about one picture."""
    first, second = next(conversations())
    answer = ask(url, [first])
    body = {
        "messages": [first, {"role": "assistant", "content": answer}, second],
        "temperature": 0,
        "max_tokens": 4,
    }
    usage = _post(url, body).json()["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def counter(url: str, name: str) -> float:
    """A counter of the engine, after the next heartbeat."""
    time.sleep(1.5)
    lines = httpx.get(f"{url}/metrics", trust_env=False).text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(name))


def _post(url: str, body: dict[str, object]) -> httpx.Response:
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120, trust_env=False)
    answer.raise_for_status()
    return answer


def large_picture() -> dict[str, object]:
    """Noise, so that neither decoding nor scaling is easy."""
    pixels = np.random.default_rng(1).integers(0, 256, (LARGE_SIDE, LARGE_SIDE, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=90)
    data = base64.b64encode(buffer.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{data}"}}


def silences(url: str, beside: Callable[[], object]) -> list[float]:
    """Milliseconds between the events of a text stream, during `beside`."""
    body = {
        "messages": [user([text_part("Tell me a very long story about a ship.")])],
        "max_tokens": 400,
        "ignore_eos": True,
        "stream": True,
    }
    times: list[float] = []
    other = threading.Thread(target=beside)
    began = ended = 0.0
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=120) as stream:
        for line in stream.iter_lines():
            if not line.startswith("data: {") or not json.loads(line[6:])["choices"]:
                continue
            times.append(time.perf_counter())
            if len(times) == 50:
                began = time.perf_counter()
                other.start()
            if began and not ended and not other.is_alive():
                ended = time.perf_counter()
    other.join()
    inside = [t for t in times if began <= t <= (ended or times[-1])]
    return [(b - a) * 1e3 for a, b in pairwise(inside)]


def tell(name: str, value: object) -> None:
    print(f"{name:<58} {value}", flush=True)


def report_silence(url: str, name: str, beside: Callable[[], object]) -> None:
    gaps = silences(url, beside)
    tell(name, f"longest {max(gaps):.0f} ms, median {statistics.median(gaps):.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--peer", nargs=2, metavar=("MODEL", "PROJECTOR"))
    arguments = parser.parse_args()
    if arguments.peer:
        run_peer(*arguments.peer)
        return
    with self_server() as url:
        report_silence(url, "stream beside nothing", lambda: time.sleep(1.5))
        large = {"messages": [user([large_picture(), text_part("What?")])], "max_tokens": 1}
        report_silence(url, "stream beside a picture of 4 megapixels", lambda: _post(url, large))
        tell("second turn: prompt tokens, cached", cached_share(url))
        before = counter(url, "self_engine_pictures_encoded_total")
        own = answers(url)
        encoded = counter(url, "self_engine_pictures_encoded_total") - before
        tell(f"pictures encoded for {COMPARED} conversations of two turns", f"{encoded:.0f}")
        for question in QUESTIONS:
            if question.text.endswith("Answer with one word.") and question.wanted != "shape":
                right = accuracy(url, question, arguments.count)
                tell(f"{question.group}: {question.text}", f"{right}/{arguments.count}")
    with peer_server() as url:
        others = answers(url)
    for turn, name in enumerate(("first answers", "follow-ups")):
        pairs = [(a[turn], b[turn]) for a, b in zip(own, others, strict=True)]
        same = sum(one == other for one, other in pairs)
        tell(f"{name} as llama.cpp's server gives them", f"{same}/{COMPARED}")
        tell("  others (self, llama.cpp)", [pair for pair in pairs if pair[0] != pair[1]])


if __name__ == "__main__":
    main()
