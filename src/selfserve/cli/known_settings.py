"""The table of settings: their names, what values they take, and which record's field each one is.

One name serves everywhere: `context_size` in a settings file and in `--set`,
`--context-size` as a flag, `SELF_CONTEXT_SIZE` in the environment.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from selfserve.config import EngineSettings, ModelInfo, ServerSettings
from selfserve.errors import SettingsError, shown
from selfserve.sampling import PARAMETERS

MIB = 1 << 20
DEVICE = r"auto|cpu|metal|(cuda|vulkan)(:\d+)?"
NO_PROJECTOR = "none"

Owner = Literal["engine", "server", "sampling", "thinking", "store"]
"""Whose value it is: a settings record's, the model's, or that of the models folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row. `read` takes text or a YAML value and raises ValueError with what it wanted."""

    name: str
    help: str
    owner: Owner
    field: str
    read: Callable[[object], Any]
    default: Any = None
    default_text: str = ""
    """What a default of None stands for."""
    has_flag: bool = True
    is_list: bool = False
    is_secret: bool = False
    """Never shown."""
    metavar: str = ""
    low: float = -math.inf
    high: float = math.inf
    scale: int = 1
    """The record's unit in units of the setting."""
    other_variable: str = ""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return self.other_variable or "SELF_" + self.name.upper()

    def checked(self, value: object, source: str) -> Any:
        """The typed value. Raises SettingsError that names setting, value and source."""
        try:
            result = self.read(value)
            if isinstance(result, int | float) and not self.low <= result <= self.high:
                raise ValueError(f"between {self.low} and {self.high}")
        except ValueError as error:
            got = "" if self.is_secret else f", got {shown(value)}"
            raise SettingsError(
                f"{self.name} must be {error}{got} ({source})", param=self.name
            ) from error
        return result


# --- readers ------------------------------------------------------------------------------------


def read_int(value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d{1,18}", value.strip()):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError("a whole number")


def read_float(value: object) -> float:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise ValueError("a number") from None
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise ValueError("a number")
    return float(value)


def read_bool(value: object) -> bool:
    word = value.strip().lower() if isinstance(value, str) else value
    if word in ("true", "yes", "on", "1") or word is True:
        return True
    if word in ("false", "no", "off", "0") or word is False:
        return False
    raise ValueError("true or false")


def read_text(value: object) -> str:
    if isinstance(value, str) and value.strip():
        return value
    raise ValueError("text, in quotes in a file")


def one_of(*choices: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        # YAML reads a bare `on` and `off` as true and false.
        word = {True: "on", False: "off"}[value] if isinstance(value, bool) else value
        if word not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return str(word)

    return read


def read_device(value: object) -> str:
    if isinstance(value, str) and re.fullmatch(DEVICE, value.strip().lower()):
        return value.strip().lower()
    raise ValueError("auto, cpu, cuda[:N], metal or vulkan[:N]")


def read_path(value: object) -> Path:
    if isinstance(value, Path):
        return value
    return Path(read_text(value)).expanduser()


def read_projector(value: object) -> Path | str:
    """A path, or the word that switches pictures off."""
    return NO_PROJECTOR if value == NO_PROJECTOR else read_path(value)


def read_keys(value: object) -> tuple[str, ...]:
    """A blank key would let everyone in who sends a blank one."""
    keys = _texts(value)
    for key in keys:
        if not key.strip() or not key.isascii() or not key.isprintable():
            raise ValueError("printable ASCII and not blank")
    return keys


def read_origins(value: object) -> tuple[str, ...]:
    origins = _texts(value)
    for origin in origins:
        if not re.fullmatch(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s]+/?", origin, re.IGNORECASE):
            raise ValueError("an origin such as https://app.example, *, or null")
    return origins


def _texts(value: object) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise ValueError("text or a list of texts, in quotes in a file")
    return tuple(items)


def read_budgets(value: object) -> dict[str, int | None]:
    """Tokens by effort; those that are not named keep their default, null is no limit."""
    known = dict(_default(ServerSettings, "reasoning_budgets"))
    if not isinstance(value, dict):
        raise ValueError("a mapping such as {low: 256}")
    for effort, tokens in value.items():
        if effort not in known:
            raise ValueError(f"a mapping of {', '.join(known)}")
        if tokens is not None and (type(tokens) is not int or not 1 <= tokens <= 1 << 24):
            raise ValueError("a mapping to numbers of tokens from 1 on, or null")
    return {**known, **value}


# --- rows ---------------------------------------------------------------------------------------


def _default(record: type[Any], field: str) -> Any:
    found = {item.name: item for item in dataclasses.fields(record)}[field]
    if found.default_factory is not dataclasses.MISSING:
        return found.default_factory()
    return None if found.default is dataclasses.MISSING else found.default


def _row(
    record: type[EngineSettings] | type[ServerSettings],
    field: str,
    name: str,
    read: Callable[[object], Any],
    help: str,
    **more: Any,
) -> Setting:
    """A row whose default and range are those of the record's field."""
    scale = more.get("scale", 1)
    low, high = record.LIMITS.get(field, (-math.inf, math.inf))
    if scale > 1:
        low, high = low // scale, high // scale
    default = more.pop("default", _default(record, field))
    return Setting(
        name=name,
        help=help,
        owner="engine" if record is EngineSettings else "server",
        field=field,
        read=read,
        default=default,
        low=low,
        high=high,
        **more,
    )


def _engine(
    field: str, name: str, read: Callable[[object], Any], help: str, **more: Any
) -> Setting:
    return _row(EngineSettings, field, name, read, help, **more)


def _server(
    field: str, name: str, read: Callable[[object], Any], help: str, **more: Any
) -> Setting:
    return _row(ServerSettings, field, name, read, help, **more)


def _sampling_rows() -> tuple[Setting, ...]:
    """Sampling of requests that do not say; a value must do for chats too."""
    return tuple(
        Setting(
            name=parameter.name,
            help=parameter.rule.help,
            owner="sampling",
            field=parameter.name,
            read=read_int if parameter.type is int else read_float,
            low=parameter.chat_span[0],
            high=parameter.chat_span[1],
            has_flag=False,
            default_text="the model file's, else that of the API",
        )
        for parameter in PARAMETERS.values()
        if parameter.rule.is_setting
    )


def _rows() -> tuple[Setting, ...]:
    return (
        *_listening(),
        *_machine_rows(),
        *_computing_rows(),
        *_picture_rows(),
        *_model_rows(),
    )


def _listening() -> tuple[Setting, ...]:
    return (
        _server("host", "host", read_text, "Address to listen on.", metavar="ADDRESS"),
        _server("port", "port", read_int, "Port to listen on; 0: any free one."),
        _server(
            "api_keys",
            "api_key",
            read_keys,
            "Key that clients must send. May be given several times.",
            is_list=True,
            is_secret=True,
            metavar="KEY",
            default_text="none is needed",
        ),
        _server(
            "allowed_origins",
            "allowed_origin",
            read_origins,
            "Origin whose web pages may use the server. May be given several times.",
            is_list=True,
            metavar="ORIGIN",
            default_text="the server's own pages only",
        ),
        _server("queue_size", "queue_size", read_int, "Requests that may wait for their turn."),
        _server(
            "request_timeout_s",
            "request_timeout",
            read_float,
            "Seconds that one request may take; 0: no limit.",
        ),
        _server(
            "ping_s",
            "ping_interval",
            read_float,
            "Seconds of silence in a stream after which a comment is sent; 0: never.",
        ),
        _server("drain_s", "drain", read_float, "Seconds that running requests have at the end."),
        _server("expose_slots", "expose_slots", read_bool, "Let clients read GET /slots."),
        _server(
            "context_shift",
            "context_shift",
            read_bool,
            "Go on when a context is full, by dropping its older half.",
        ),
        _server(
            "reasoning_budgets",
            "reasoning_budgets",
            read_budgets,
            "Tokens of thinking for each reasoning_effort; null: no limit.",
            has_flag=False,
        ),
    )


def _machine_rows() -> tuple[Setting, ...]:
    return (
        _engine(
            "context_size",
            "context_size",
            read_int,
            "Tokens of one conversation, prompt and answer together.",
            default_text=f"the model's own, at most {EngineSettings.DEFAULT_CONTEXT}",
        ),
        _engine("num_slots", "parallel", read_int, "Requests computed at once."),
        _engine(
            "num_threads",
            "threads",
            read_int,
            "Threads to compute on.",
            default=None,
            default_text="the CPUs that this process may use",
        ),
        _engine(
            "device",
            "device",
            read_device,
            "What to compute on: auto, cpu, cuda[:N], metal or vulkan[:N].",
            metavar="DEVICE",
        ),
        _engine(
            "gpu_layers",
            "gpu_layers",
            read_int,
            "Layers of the model that the GPU computes; -1: all.",
        ),
        _engine(
            "cache_ram_bytes",
            "cache_ram",
            read_int,
            "MiB of memory for prompts that may come again.",
            scale=MIB,
            default_text="a quarter of what this process may use",
        ),
    )


def _computing_rows() -> tuple[Setting, ...]:
    return (
        _engine(
            "step_ms",
            "step_ms",
            read_float,
            "Longest pause in milliseconds that a new prompt may cause in running answers.",
        ),
        _engine("batch_size", "batch_size", read_int, "Tokens of one step, at most."),
        _engine("ubatch_size", "ubatch_size", read_int, "Tokens that libllama computes at once."),
        _engine(
            "kv_type",
            "kv_type",
            one_of("f32", "f16", "bf16", "q8_0", "q4_0"),
            "Type of the numbers in the context memory: f32, f16, bf16, q8_0 or q4_0.",
            metavar="TYPE",
        ),
        _engine(
            "flash_attention",
            "flash_attention",
            one_of("auto", "on", "off"),
            "Fused attention: auto, on or off.",
            metavar="WHEN",
        ),
        _engine("use_mmap", "mmap", read_bool, "Map the model file instead of reading it."),
        _engine("speculate", "speculate", read_bool, "Guess tokens from the text so far."),
        _engine("verbose", "verbose", read_bool, "Log what the engine does."),
    )


def _picture_rows() -> tuple[Setting, ...]:
    return (
        Setting(
            name="mmproj",
            help="Projector file for pictures, or none to do without.",
            owner="engine",
            field="projector_path",
            read=read_projector,
            default_text="the model's own",
            metavar="FILE",
        ),
        _server("max_images", "max_images", read_int, "Pictures that one request may have."),
        _server(
            "preprocess_concurrency",
            "preprocess_concurrency",
            read_int,
            "Pictures that are fetched or decoded at once.",
        ),
        _server(
            "allow_http_images",
            "allow_http_images",
            read_bool,
            "Fetch pictures from http:// addresses too.",
        ),
        _server(
            "allow_private_images",
            "allow_private_images",
            read_bool,
            "Fetch pictures from private addresses too.",
        ),
    )


def _model_rows() -> tuple[Setting, ...]:
    thinking = {item.name: item.default for item in dataclasses.fields(ModelInfo)}
    return (
        Setting(
            name="models_dir",
            help="Folder of the models.",
            owner="store",
            field="root",
            read=read_path,
            default_text="in your data folder",
            metavar="FOLDER",
            other_variable="SELF_MODELS",
        ),
        Setting(
            name="thinking",
            help="Whether requests that do not say think, if the model can.",
            owner="thinking",
            field="thinking_default",
            read=read_bool,
            default=thinking["thinking_default"],
            has_flag=False,
        ),
        *_sampling_rows(),
    )


SETTINGS = {setting.name: setting for setting in _rows()}
"""Every setting by name, in the order in which they are shown."""
