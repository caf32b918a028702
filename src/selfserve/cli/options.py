"""The options of the command line. Ranges and defaults are those of the settings records."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer

from selfserve.config import EngineSettings, ServerSettings

DEFAULT_MODEL = "smollm2:135m"
MIB = 1 << 20


def default(settings: type[EngineSettings] | type[ServerSettings], field: str) -> Any:
    """The value that the record's `field` has when nobody sets it."""
    return {item.name: item.default for item in dataclasses.fields(settings)}[field]


def _engine(field: str, name: str, help: str, **more: Any) -> Any:
    low, high = EngineSettings.LIMITS[field]
    return typer.Option(name, min=low, max=high, help=help, **more)


def _server(field: str, name: str, help: str, **more: Any) -> Any:
    low, high = ServerSettings.LIMITS[field]
    return typer.Option(name, min=low, max=high, help=help, **more)


Model = Annotated[str, typer.Argument(help="A known model's name, or the path of a GGUF file.")]

Host = Annotated[str, typer.Option("--host", help="Address to listen on.")]

Port = Annotated[int, _server("port", "--port", "Port to listen on; 0: any free one.")]

ContextSize = Annotated[
    int | None,
    _engine(
        "context_size",
        "--context-size",
        "Tokens of one conversation, prompt and answer together.",
        show_default=f"the model's own, at most {EngineSettings.DEFAULT_CONTEXT}",
    ),
]

Parallel = Annotated[int, _engine("num_slots", "--parallel", "Requests computed at once.")]

Threads = Annotated[
    int | None,
    _engine(
        "num_threads",
        "--threads",
        "Threads to compute on.",
        show_default="the CPUs that this process may use",
    ),
]

QueueSize = Annotated[
    int, _server("queue_size", "--queue-size", "Requests that may wait for their turn.")
]

RequestTimeout = Annotated[
    float,
    _server(
        "request_timeout_s", "--request-timeout", "Seconds that one request may take; 0: no limit."
    ),
]

PingInterval = Annotated[
    float,
    _server(
        "ping_s",
        "--ping-interval",
        "Seconds of silence in a stream after which a comment is sent; 0: never.",
    ),
]

StepMs = Annotated[
    float,
    _engine(
        "step_ms",
        "--step-ms",
        "Longest pause in milliseconds that a new prompt may cause in running answers.",
    ),
]

CacheRam = Annotated[
    int | None,
    typer.Option(
        "--cache-ram",
        min=0,
        max=EngineSettings.LIMITS["cache_ram_bytes"][1] // MIB,
        help="MiB of memory for prompts that may come again.",
        show_default="a quarter of what this process may use",
    ),
]

ApiKeys = Annotated[
    list[str] | None,
    typer.Option(
        "--api-key",
        envvar="SELF_API_KEY",
        help="Key that clients must send. May be given several times.",
        show_default="none is needed",
    ),
]

Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log what the engine does.")]
