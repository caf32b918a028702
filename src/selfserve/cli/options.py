"""Options that several commands share and that are no settings."""

from __future__ import annotations

from typing import Annotated

import typer

from selfserve.config import EngineSettings

DEFAULT_MODEL = "smollm2:135m"

SERVING = (
    "host port context_size parallel threads device gpu_layers mmproj max_images models_dir "
    "queue_size request_timeout ping_interval drain step_ms cache_ram kv_type flash_attention "
    "api_key allowed_origin expose_slots context_shift allow_http_images allow_private_images "
    "preprocess_concurrency verbose"
).split()
"""Settings that `serve` takes as flags; `--set` reaches the others."""
LOADING = "context_size threads device gpu_layers mmproj models_dir cache_ram verbose".split()
"""Those of commands that load a model for themselves."""


def model_names(incomplete: str) -> list[str]:
    """Names that begin with `incomplete`, for a shell that completes one."""
    from selfserve.catalogue.known import catalogue

    names = [f"{entry.id}@{quant}" for entry in catalogue().models for quant in entry.quants]
    names += [entry.id for entry in catalogue().models]
    return sorted(name for name in names if name.startswith(incomplete))


_MODEL_HELP = "A known name, hf:owner/repo[:quant], or the path of a GGUF file."

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help=_MODEL_HELP, autocompletion=model_names)
]

_TARGET_HELP = "A model, or the address of a server."

Target = Annotated[
    str, typer.Argument(metavar="MODEL|URL", help=_TARGET_HELP, autocompletion=model_names)
]
System = Annotated[str, typer.Option("--system", metavar="TEXT", help="System message.")]

Force = Annotated[bool, typer.Option("--force", help="Try even if it does not seem to fit.")]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

ApiKey = Annotated[
    str,
    typer.Option(
        "--api-key", metavar="KEY", envvar="SELF_API_KEY", help="Key of the server at URL."
    ),
]

Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=EngineSettings.LIMITS["num_threads"][0],
        max=EngineSettings.LIMITS["num_threads"][1],
        help="Threads to compute on.",
        show_default="the CPUs that this process may use",
    ),
]
