"""Clients that hang up at random points, and whether a server is as good as new afterwards.

    python -m bench.hangups [--count 200] [--seed 1] [--model MODEL]

A point is anywhere in the request's bytes, in the silence before the answer, or in the answer's
bytes; half of the connections are closed in good order, half are reset. Afterwards all slots must
be free, every place in the queue must be there, the next answer must be the one that was given
before, and neither open files nor memory may have grown.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil

from selfserve.cli.child_server import child_server
from selfserve.cli.options import DEFAULT_MODEL

AT_ONCE = 12
MAX_WORDS = 120
MAX_ANSWER_BYTES = 4_000
MAX_SILENCE_S = 0.3
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of a socket that says goodbye with a reset."""
PATIENCE_S = 10.0
NUM_SLOTS = 8
QUEUE_SIZE = 32
MAX_GROWTH_MIB = 64.0
QUESTION = {
    "messages": [{"role": "user", "content": "Name three colours."}],
    "temperature": 0,
    "max_tokens": 24,
}


@dataclass(frozen=True, slots=True)
class Hangup:
    """A request and where its client leaves."""

    request: bytes
    """The bytes that are sent: all of it, or only its beginning."""
    answer_bytes: int
    """Read before the client leaves; 0: it only waits for `silence_s`."""
    silence_s: float
    """Longest wait for the next bytes."""
    resets: bool


def random_hangup(rng: random.Random, host: str) -> Hangup:
    """A chat or a completion that is left in the head, the body, the silence or the answer."""
    whole = _request(rng, host)
    point = rng.choice(("request", "silence", "answer"))
    return Hangup(
        request=whole[: rng.randrange(len(whole))] if point == "request" else whole,
        answer_bytes=rng.randrange(1, MAX_ANSWER_BYTES) if point == "answer" else 0,
        silence_s=PATIENCE_S if point == "answer" else rng.uniform(0, MAX_SILENCE_S),
        resets=rng.random() < 0.5,
    )


def _request(rng: random.Random, host: str) -> bytes:
    text = " ".join(rng.choice(("sea", "tree", "bird")) for _ in range(rng.randrange(1, MAX_WORDS)))
    body: dict[str, Any] = {"stream": rng.random() < 0.7, "max_tokens": rng.randrange(1, 300)}
    if rng.random() < 0.7:
        path = "/v1/chat/completions"
        body["messages"] = [{"role": "user", "content": text}]
    else:
        path = "/completion"
        body["prompt"] = rng.choice((text, [text, text[: len(text) // 2]]))
    payload = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\n\r\n"
    )
    return head.encode() + payload


def hang_up(url: str, hangup: Hangup) -> int:
    """Connects, asks, leaves. Returns the number of bytes that were read."""
    address = urlsplit(url)
    num_read = 0
    with socket.create_connection((address.hostname or "", address.port or 80)) as client:
        client.settimeout(hangup.silence_s + 1e-3)
        client.sendall(hangup.request)
        with contextlib.suppress(TimeoutError):
            while num_read < max(1, hangup.answer_bytes):
                data = client.recv(min(1024, max(1, hangup.answer_bytes - num_read)))
                if not data:
                    break
                num_read += len(data)
        if hangup.resets:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    return num_read


def hang_up_often(url: str, count: int, seed: int) -> list[int]:
    """Lets `count` clients hang up, AT_ONCE at a time; the bytes that each of them read."""
    rng = random.Random(seed)
    host = urlsplit(url).netloc
    hangups = [random_hangup(rng, host) for _ in range(count)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda each: hang_up(url, each), hangups))


def wait_until(condition: Callable[[], bool], limit_s: float = PATIENCE_S) -> bool:
    """Polls `condition`; False if it did not come true in time."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def all_slots_are_free(http: httpx.Client) -> bool:
    """True if no slot works, as of the engine's last heartbeat."""
    return not any(slot["is_processing"] for slot in http.get("/slots").json())


def all_places_are_free(http: httpx.Client, num_places: int) -> bool:
    """True if one request gets `num_places`, all places in slots and queue, at once."""
    body = {"prompt": ["a"] * num_places, "n_predict": 1}
    return http.post("/completion", json=body).status_code == 200


def answer(http: httpx.Client) -> str:
    """The greedy answer to a fixed question."""
    reply = http.post("/v1/chat/completions", json=QUESTION).raise_for_status()
    return str(reply.json()["choices"][0]["message"]["content"])


@dataclass(frozen=True, slots=True)
class Usage:
    """What processes hold."""

    num_files: int
    rss_mib: float


def usage(processes: Sequence[psutil.Process]) -> Usage:
    return Usage(
        num_files=sum(each.num_fds() for each in processes),
        rss_mib=sum(each.memory_info().rss for each in processes) / 2**20,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Clients that hang up at random points.")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    arguments = parser.parse_args()
    command = [sys.executable, "-m", "selfserve", "serve", arguments.model, "--port", "0"]
    command += ["--parallel", str(NUM_SLOTS), "--queue-size", str(QUEUE_SIZE)]
    command += ["--context-size", "2048", "--cache-ram", "64"]
    with child_server(command) as server:
        root = psutil.Process(server.pid)
        processes = [root, *root.children(recursive=True)]
        with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as http:
            checks = _check(http, server.url, processes, arguments.count, arguments.seed)
    for name, is_good in checks.items():
        print(f"{'yes' if is_good else 'NO '}  {name}")
    sys.exit(0 if all(checks.values()) else 1)


def _check(
    http: httpx.Client,
    url: str,
    processes: Sequence[psutil.Process],
    count: int,
    seed: int,
) -> dict[str, bool]:
    places = NUM_SLOTS + QUEUE_SIZE
    hang_up_often(url, AT_ONCE * 4, seed + 1)  # buffers and caches get their size
    wait_until(lambda: all_places_are_free(http, places))
    expected = answer(http)
    before = usage(processes)
    begin_s = time.monotonic()
    num_read = hang_up_often(url, count, seed)
    elapsed_s = time.monotonic() - begin_s
    are_free = wait_until(lambda: all_slots_are_free(http))
    have_places = wait_until(lambda: all_places_are_free(http, places))
    same_files = wait_until(lambda: usage(processes).num_files <= before.num_files)
    after = usage(processes)
    print(
        f"{count} clients left within {elapsed_s:.1f} s, {sum(map(bool, num_read))} of them in "
        f"the answer; open files {before.num_files} -> {after.num_files}, "
        f"memory {before.rss_mib:.0f} -> {after.rss_mib:.0f} MiB"
    )
    return {
        "all slots are free": are_free,
        "all places in the queue are free": have_places,
        "the next answer is right": answer(http) == expected,
        "no file stays open": same_files,
        "no memory is lost": after.rss_mib - before.rss_mib < MAX_GROWTH_MIB,
    }


if __name__ == "__main__":
    main()
