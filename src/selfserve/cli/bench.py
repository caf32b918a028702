"""`self bench`: how fast a model, or a server that runs already, is on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfserve.cli import options, output
from selfserve.cli.options import DEFAULT_MODEL
from selfserve.errors import SettingsError

if TYPE_CHECKING:
    from selfserve.cli.chat_stream import Address, Answer

STREAMS = (1, 4, 8, 16)
PROMPT_WORDS = 500
QUESTION_WORDS = 60
PROMPT_ROUNDS = 3
TTFT_ROUNDS = 5
SLOT_CONTEXT = 2048
"""Tokens: the long prompt and the longest answer that `--tokens` allows."""
MAX_TOKENS = 1024

Target = Annotated[
    str, typer.Argument(metavar="MODEL|URL", help="A model to start, or a server's address.")
]
Tokens = Annotated[
    int, typer.Option("--tokens", min=8, max=MAX_TOKENS, help="Tokens of each answer.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")]
Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot", help="Write a picture of the speeds, as SVG, to this file.", show_default=False
    ),
]
ApiKey = Annotated[
    str, typer.Option("--api-key", envvar="SELF_API_KEY", help="Key of the server at URL.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Figures of a number of streams at once."""

    streams: int
    tokens_per_s: float
    """All streams together, see `decode_speed`."""
    ttft_ms: float
    """Median."""
    gap_p50_ms: float
    """Between two pieces of text of one stream."""
    gap_p99_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What `self bench` found out."""

    model: str
    prompt_tokens: int
    prompt_tokens_per_s: float
    ttft_ms: float
    """Median for a question of about QUESTION_WORDS words."""
    levels: tuple[Level, ...]


def bench(
    target: Target = DEFAULT_MODEL,
    tokens: Tokens = 64,
    threads: options.Threads = None,
    api_key: ApiKey = "",
    as_json: AsJson = False,
    plot: Plot = None,
) -> None:
    """Measure the speed of a model or a server."""
    import asyncio

    from selfserve.cli.chat_stream import parse_address

    if plot is not None and not plot.parent.is_dir():
        raise SettingsError(f"plot: there is no folder {plot.parent}", param="plot")
    with _server(target, threads) as url:
        address = parse_address(url, api_key)
        total = 1 + PROMPT_ROUNDS + TTFT_ROUNDS + sum(STREAMS)
        with _progress(total) as advance:
            report = asyncio.run(_measure(address, tokens, advance))
    if plot is not None:
        plot.write_text(picture(report), encoding="utf-8")
        output.status(f"Wrote {plot}")
    output.result(as_json_text(report) if as_json else table(report))


@contextlib.contextmanager
def _server(target: str, threads: int | None) -> Iterator[str]:
    """The address of the server to measure; one that is started for it ends with the block."""
    if target.startswith(("http://", "https://")):
        yield target
        return
    from selfserve.cli.child_server import child_server

    command = [sys.executable, "-m", "selfserve", "serve", target, "--port", "0"]
    command += ["--parallel", str(max(STREAMS)), "--context-size", str(SLOT_CONTEXT)]
    command += ["--threads", str(threads)] if threads else []
    output.status(f"Starting {target}")
    with child_server(command) as server:
        output.status(f"Ready in {server.start_s:.1f} s")
        yield server.url


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on a terminal, else a line for each new stage. The function that it yields counts one
    request of the named stage."""
    if not sys.stderr.isatty():
        seen: set[str] = set()

        def say(stage: str) -> None:
            if stage not in seen:
                seen.add(stage)
                output.status(stage)

        yield say
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda stage: bar.update(task, description=stage, advance=1)


async def _measure(address: Address, tokens: int, advance: Callable[[str], None]) -> Report:
    from random import Random

    from selfserve.cli.chat_stream import chat
    from selfserve.cli.sample_text import cold_text

    random = Random()

    async def ask(stage: str, num_words: int, max_tokens: int) -> Answer:
        body = _body(cold_text(random, num_words), max_tokens)
        answer = await chat(address, body)
        advance(stage)
        return answer

    await ask("warm-up", QUESTION_WORDS, 2)
    prompts = [await ask("prompt speed", PROMPT_WORDS, 1) for _ in range(PROMPT_ROUNDS)]
    questions = [await ask("time to first token", QUESTION_WORDS, 2) for _ in range(TTFT_ROUNDS)]
    levels = [await _level(ask, count, tokens) for count in STREAMS]
    return Report(
        model=await _model_id(address),
        prompt_tokens=prompts[0].prompt_tokens,
        prompt_tokens_per_s=statistics.median(a.prompt_tokens / a.ttft_s for a in prompts),
        ttft_ms=statistics.median(a.ttft_s for a in questions) * 1e3,
        levels=tuple(levels),
    )


async def _level(
    ask: Callable[[str, int, int], Awaitable[Answer]], count: int, tokens: int
) -> Level:
    import asyncio

    stage = f"{count} streams" if count > 1 else "1 stream"
    answers = await asyncio.gather(*(ask(stage, QUESTION_WORDS, tokens) for _ in range(count)))
    gaps = sorted(gap for answer in answers for gap in answer.gaps_s) or [0.0]
    return Level(
        streams=count,
        tokens_per_s=decode_speed(answers),
        ttft_ms=statistics.median(a.ttft_s for a in answers) * 1e3,
        gap_p50_ms=percentile(gaps, 0.5) * 1e3,
        gap_p99_ms=percentile(gaps, 0.99) * 1e3,
    )


def decode_speed(answers: Sequence[Answer]) -> float:
    """Tokens per second of all answers together while all of them are being written. If there was
    no such time (fewer slots than requests), from the first token of all to the last."""
    begin_s = max(answer.times_s[0] for answer in answers)
    end_s = min(answer.end_s for answer in answers)
    if end_s <= begin_s:
        begin_s = min(answer.times_s[0] for answer in answers)
        end_s = max(answer.end_s for answer in answers)
    if end_s <= begin_s:
        return 0.0
    return sum(_tokens_between(answer, begin_s, end_s) for answer in answers) / (end_s - begin_s)


def _tokens_between(answer: Answer, begin_s: float, end_s: float) -> float:
    """A piece of text may stand for several tokens; each counts as the mean of its answer."""
    num_pieces = sum(begin_s < time_s <= end_s for time_s in answer.times_s)
    return num_pieces * answer.completion_tokens / len(answer.times_s)


def percentile(ordered: list[float], share: float) -> float:
    """The smallest of the values, in rising order, that `share` of them do not exceed."""
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def _body(text: str, max_tokens: int) -> dict[str, object]:
    # The system message comes first in every template, so nothing before it can be cached.
    return {
        "messages": [
            {"role": "system", "content": text},
            {"role": "user", "content": "Write a long story with these words."},
        ],
        "max_tokens": max_tokens,
        "temperature": 0.8,
        "ignore_eos": True,
    }


async def _model_id(address: Address) -> str:
    import httpx

    host = f"[{address.host}]" if ":" in address.host else address.host
    headers = {"Authorization": f"Bearer {address.key}"} if address.key else {}
    url = f"http://{host}:{address.port}{address.path}/v1/models"
    async with httpx.AsyncClient(trust_env=False) as client:
        try:
            answer = (await client.get(url, headers=headers)).json()
            return str(answer["data"][0]["id"])
        except (httpx.HTTPError, ValueError, LookupError, TypeError):
            return "?"


# --- showing ------------------------------------------------------------------------------------


def as_json_text(report: Report) -> str:
    import json

    return json.dumps(dataclasses.asdict(report), indent=2)


def table(report: Report) -> str:
    """The figures for a terminal."""
    lines = [
        f"Model                {report.model}",
        f"Prompt speed         {report.prompt_tokens_per_s:.0f} tokens/s "
        f"({report.prompt_tokens} tokens)",
        f"Time to first token  {report.ttft_ms:.0f} ms ({QUESTION_WORDS} words)",
        "",
        "streams  tokens/s  per stream  first token  between tokens: p50      p99",
    ]
    for level in report.levels:
        lines.append(
            f"{level.streams:7}  {level.tokens_per_s:8.1f}  "
            f"{level.tokens_per_s / level.streams:10.1f}  {level.ttft_ms:8.0f} ms  "
            f"{level.gap_p50_ms:16.1f} ms  {level.gap_p99_ms:6.1f} ms"
        )
    return "\n".join(lines)


def picture(report: Report) -> str:
    """The speeds over the number of streams, as SVG."""
    from selfserve.cli.chart import Series, line_chart

    together = [(float(level.streams), level.tokens_per_s) for level in report.levels]
    each = [(count, speed / count) for count, speed in together]
    series = [Series("all streams", together), Series("each stream", each)]
    return line_chart(report.model, "streams at once", "tokens/s", series, log_x=True)
