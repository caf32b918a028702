"""Whether this server and llama.cpp's own one say the same, token for token.

    python -m bench.parity [--models q4_1,f32] [--out bench/results/parity.md]

Both get the same model file and the same requests, one at a time, on an empty cache. Compared
are the tokens of the prompts, greedy answers, the log-probabilities of the raw distribution, and
answers after chains of samplers. With F32 weights, F32 context memory and plain attention the two
builds compute nearly the same logits, so every difference is one of the servers. With quantized
weights the kernels of two builds round differently, and where two candidates are nearly equal one
answer may leave the other: each such place is listed with the gap between the two, and how far
either build is from the F32 weights.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from bench.models import EXACT, NAMES, model_path
from bench.parity_cases import CHAIN_PROMPTS, CHAINS, PROMPTS
from bench.servers import LLAMA_CPP, SELF, Setting, started

CONTEXT = 1024
ANSWER, CHAIN_ANSWER, PROBS_ANSWER = 48, 32, 16
"""Tokens of an answer."""
TOP = 10
GAP_TOP = 1000
"""Candidates that are looked through where two answers part."""
TOLERANCE = 1e-3
"""Of a log-probability."""
REQUEST_LIMIT_S = 300
NUM_THREADS = 1
"""Of each server: they work at the same time, and how fast is of no concern."""
VERSIONS = ("selfserve", "llama-cpp-python", "xllamacpp")


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two answers part."""

    case: str
    place: int
    """Index of the first differing token."""
    ours: str
    theirs: str
    gaps: tuple[float | None, float | None]
    """How much more probable (difference of logarithms, after the chain, not greedy) our token is
    than theirs, to us and to them; None: one of the two is no candidate or is not told."""


@dataclass(slots=True)
class Count:
    """How many of the compared things are equal."""

    equal: int = 0
    total: int = 0

    def add(self, is_equal: bool) -> None:
        self.equal += is_equal
        self.total += 1

    def __str__(self) -> str:
        return f"{self.equal} of {self.total}"


Logprobs = dict[int, float]
"""Token id → log-probability."""


@dataclass(slots=True)
class Result:
    """What was found with one model file."""

    model: str
    prompts: Count = field(default_factory=Count)
    """Tokenized equally."""
    answers: Count = field(default_factory=Count)
    chains: dict[str, Count] = field(default_factory=dict)
    logprobs: Count = field(default_factory=Count)
    """Within TOLERANCE."""
    largest: float = 0.0
    """Difference of two log-probabilities."""
    ours: list[Logprobs] = field(default_factory=list)
    """Of the first token after each prompt."""
    theirs: list[Logprobs] = field(default_factory=list)
    """The same; empty where llama.cpp's server tells none."""
    differences: list[Difference] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        counts = (self.prompts, self.answers, self.logprobs, *self.chains.values())
        return all(count.equal == count.total for count in counts)


@dataclass(frozen=True, slots=True)
class Pair:
    """Clients of both servers."""

    ours: httpx.Client
    theirs: httpx.Client

    def ask(self, path: str, body: Mapping[str, Any]) -> tuple[Any, Any]:
        """The answers of both. Raises httpx.HTTPStatusError where one is refused."""
        with ThreadPoolExecutor(max_workers=2) as pool:
            ours, theirs = pool.map(lambda c: _ask(c, path, body), (self.ours, self.theirs))
        return ours, theirs

    def complete(
        self, prompt: str | Sequence[int], num_tokens: int, fields: Mapping[str, Any]
    ) -> tuple[Any, Any]:
        """Both servers' whole answers, greedy unless `fields` say otherwise."""
        body = {
            "prompt": prompt,
            "n_predict": num_tokens,
            "temperature": 0,
            "cache_prompt": False,
            "return_tokens": True,
            **fields,
        }
        return self.ask("/completion", body)


def _ask(client: httpx.Client, path: str, body: Mapping[str, Any]) -> Any:
    answer = client.post(path, json=body)
    answer.raise_for_status()
    return answer.json()


class Comparison:
    """Compares both servers with one model file."""

    def __init__(self, model: str, pair: Pair) -> None:
        self.result = Result(model)
        self._pair = pair

    def run(self) -> None:
        """Compares everything; blocks for minutes."""
        for prompt in PROMPTS:
            self._tokenize(prompt)
            self.result.answers.add(self._answer("greedy", prompt, ANSWER, {}))
            self._probabilities(prompt)
        self._say(f"greedy answers: {self.result.answers}")
        for name, fields in CHAINS.items():
            count = self.result.chains.setdefault(name, Count())
            for prompt in CHAIN_PROMPTS:
                count.add(self._answer(name, prompt, CHAIN_ANSWER, fields))
            self._say(f"{name}: {count}")

    def _say(self, text: str) -> None:
        print(f"{self.result.model}: {text}", file=sys.stderr)

    def _tokenize(self, prompt: str) -> None:
        ours, theirs = self._pair.ask("/tokenize", {"content": prompt, "add_special": True})
        self.result.prompts.add(ours["tokens"] == theirs["tokens"])

    def _answer(self, name: str, prompt: str, limit: int, fields: Mapping[str, Any]) -> bool:
        found = self._pair.complete(prompt, limit, fields)
        ours, theirs = (_ended(answer) for answer in found)
        if ours == theirs:
            return True
        place = _first_difference(ours, theirs)
        case = f"{name}: {prompt[:24]!r}"
        self.result.differences.append(self._difference(case, prompt, place, ours, theirs, fields))
        return False

    def _difference(
        self,
        case: str,
        prompt: str,
        place: int,
        ours: list[int],
        theirs: list[int],
        fields: Mapping[str, Any],
    ) -> Difference:
        ids = self._pair.ask("/tokenize", {"content": prompt, "add_special": True})[0]["tokens"]
        asked = {"temperature": 1, **fields, "n_probs": GAP_TOP, "post_sampling_probs": True}
        answers = self._pair.complete([*ids, *ours[:place]], 1, asked)
        one, other = ours[place], theirs[place]
        gap, their_gap = (_gap(answer, one, other) for answer in answers)
        return Difference(case, place, self._piece(one), self._piece(other), (gap, their_gap))

    def _piece(self, token: int) -> str:
        if token == END:
            return "(the end)"
        return str(_ask(self._pair.ours, "/detokenize", {"tokens": [token]})["content"])

    def _probabilities(self, prompt: str) -> None:
        ours, theirs = self._pair.complete(prompt, PROBS_ANSWER, {"n_probs": TOP})
        told, their_told = (a.get("completion_probabilities", []) for a in (ours, theirs))
        self.result.ours.append(_logprobs(told[0]))
        has_first = bool(their_told) and their_told[0]["id"] == theirs["tokens"][0]
        self.result.theirs.append(_logprobs(their_told[0]) if has_first else {})
        place = _first_difference(ours["tokens"], theirs["tokens"])
        for one, other in _aligned(told[:place], their_told):
            self._entry(_logprobs(one), _logprobs(other))

    def _entry(self, ours: Logprobs, theirs: Logprobs) -> None:
        for token in ours.keys() & theirs.keys():
            difference = abs(ours[token] - theirs[token])
            self.result.largest = max(self.result.largest, difference)
            self.result.logprobs.add(difference <= TOLERANCE)
        for one, other in ((ours, theirs), (theirs, ours)):
            lowest = min(other.values())
            for token in one.keys() - other.keys():  # equal only if a tie for the last place
                self.result.logprobs.add(abs(one[token] - lowest) <= TOLERANCE)


END = -1
"""Stands behind the tokens of an answer that ended before its limit."""


def _ended(answer: Mapping[str, Any]) -> list[int]:
    tokens: list[int] = answer["tokens"]
    return [*tokens, END] if answer["stop_type"] == "eos" else tokens


def _first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int:
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((i for i, (one, other) in pairs if one != other), min(len(ours), len(theirs)))


def _logprobs(entry: Mapping[str, Any]) -> Logprobs:
    return {each["id"]: each["logprob"] for each in (*entry["top_logprobs"], entry)}


def _aligned(ours: Sequence[Any], theirs: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Entries of the same token: llama.cpp's server leaves out those inside a character."""
    rest = iter(ours)
    for other in theirs:
        for one in rest:
            if one["id"] == other["id"]:
                yield one, other
                break


def _gap(answer: Mapping[str, Any], one: int, other: int) -> float | None:
    entries = answer.get("completion_probabilities")  # llama.cpp's has none inside a character
    probs = {each["id"]: each["prob"] for each in entries[0]["top_probs"]} if entries else {}
    if not (probs.get(one) and probs.get(other)):
        return None
    return math.log(probs[one] / probs[other])


@contextlib.contextmanager
def both_servers(model: str) -> Iterator[Pair]:
    """Both servers with one slot and one model file, until the block is left."""
    is_exact = model == EXACT
    setting = Setting(
        model=model_path(model),
        num_slots=1,
        context_size=CONTEXT,
        num_threads=NUM_THREADS,
        cache_ram_mib=0,
        kv_type="f32" if is_exact else "f16",
        flash_attention="off" if is_exact else "auto",
    )
    with contextlib.ExitStack() as stack:
        clients = []
        for name in (SELF, LLAMA_CPP):
            address = stack.enter_context(started(name, setting)).address
            client = httpx.Client(
                base_url=f"http://{address.host}:{address.port}",
                timeout=REQUEST_LIMIT_S,
                trust_env=False,
            )
            clients.append(stack.enter_context(client))
        yield Pair(*clients)


def as_markdown(results: Sequence[Result]) -> str:
    """The figures of all model files, then each difference."""
    versions = ", ".join(f"{package} {version(package)}" for package in VERSIONS)
    lines = [
        "# This server and llama.cpp's own",
        "",
        f"{datetime.date.today().isoformat()}; {versions}. SmolLM2-135M-Instruct, one slot, "
        "`cache_prompt` false. "
        f"{EXACT.upper()}: weights and context memory in F32, plain attention.",
        "",
        f"| | {' | '.join(result.model.upper() for result in results)} |",
        f"|---|{'--:|' * len(results)}",
    ]
    rows: list[tuple[str, Sequence[object]]] = [
        ("prompts tokenized equally", [r.prompts for r in results]),
        (f"greedy answers of {ANSWER} tokens, equal", [r.answers for r in results]),
        (
            f"log-probabilities ({TOP} for each token) within {TOLERANCE:g}",
            [r.logprobs for r in results],
        ),
        ("largest difference of two", [f"{r.largest:.2g}" for r in results]),
        *_error_rows(results),
        *(
            (f"{CHAIN_ANSWER} tokens after {name}", [r.chains[name] for r in results])
            for name in CHAINS
        ),
    ]
    lines += [f"| {name} | {' | '.join(map(str, cells))} |" for name, cells in rows]
    lines += _difference_lines(results)
    return "\n".join(lines) + "\n"


def _error_rows(results: Sequence[Result]) -> list[tuple[str, Sequence[object]]]:
    exact = next((result.ours for result in results if result.model == EXACT), None)
    if exact is None:
        return []
    name = f"error against {EXACT.upper()} (root mean square, first tokens), "
    return [
        (name + "this server", [_error(result.ours, exact) for result in results]),
        (name + "llama.cpp's", [_error(result.theirs, exact) for result in results]),
    ]


def _error(found: Sequence[Logprobs], exact: Sequence[Logprobs]) -> str:
    differences = [
        one[token] - other[token]
        for one, other in zip(found, exact, strict=True)
        for token in one.keys() & other.keys()
    ]
    return f"{np.sqrt(np.mean(np.square(differences))):.2g}"


def _difference_lines(results: Sequence[Result]) -> list[str]:
    found = [(result.model, each) for result in results for each in result.differences]
    if not found:
        return []
    return [
        "",
        "Where answers part. The gap is the difference of the logarithms of both candidates' "
        "probabilities there, after the chain (at temperature 1 where it was greedy), as this "
        "server and as llama.cpp's sees it. A seeded draw may part anywhere.",
        "",
        "| weights | case | token | this server | llama.cpp's | gap |",
        "|---|---|--:|---|---|---|",
        *(
            f"| {model.upper()} | {_code(each.case)} | {each.place} | {_code(each.ours)} | "
            f"{_code(each.theirs)} | {' and '.join(_gap_text(gap) for gap in each.gaps)} |"
            for model, each in found
        ),
    ]


def _gap_text(gap: float | None) -> str:
    return "unknown" if gap is None else f"{gap:+.3f}"


def _code(text: str) -> str:
    shown = text.replace("\n", "\\n").replace("|", "\\|").replace("`", "'")
    return f"`{shown}`"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.parity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", default=f"{EXACT},{NAMES[0]}", help="by comma")
    parser.add_argument("--out", type=Path, help="file for what is else only shown")
    arguments = parser.parse_args()
    results = []
    for model in arguments.models.split(","):
        with both_servers(model) as pair:
            comparison = Comparison(model, pair)
            comparison.run()
        results.append(comparison.result)
    text = as_markdown(results)
    print(text)
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text, encoding="utf-8")
    sys.exit(0 if all(r.is_equal for r in results if r.model == EXACT) else 1)


if __name__ == "__main__":
    main()
