"""The sampling and engine fields that both generating endpoints take, as a client writes them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    WithJsonSchema,
)
from pydantic_core import CoreSchema

from selfserve.api.field_types import Integer, Number, as_integer, checked_strings, invalid
from selfserve.limits import (
    MAX_BIAS,
    MAX_BIAS_CHARACTERS,
    MAX_BIASES,
    MAX_BREAKER_CHARACTERS,
    MAX_BREAKERS,
    MAX_PREDICT_MS,
    MAX_SAMPLERS,
)
from selfserve.sampling import DEFAULT_SAMPLERS, PARAMETERS, Parameter

SAMPLER_LETTERS = dict(zip("edskypmxt", DEFAULT_SAMPLERS, strict=True))
SAMPLER_NAMES = {name: name for name in DEFAULT_SAMPLERS} | {
    "typ": "typ_p",
    "typical": "typ_p",
    "typical_p": "typ_p",
    "temp": "temperature",
    "nucleus": "top_p",
    **{name.replace("_", "-"): name for name in DEFAULT_SAMPLERS if "_" in name},
}
"""Every name that clients write for a sampler."""

BiasKey = int | str
Bias = tuple[BiasKey, float]
"""A token id, or a text that stands for each of its tokens; −inf bans."""


def parse_samplers(value: object) -> tuple[str, ...]:
    """Names in order from `["top_k", …]` or the short form `"kp"`; for use as a validator."""
    if not isinstance(value, str | list):
        raise invalid("must be an array of sampler names or a string of their letters", got=value)
    if len(value) > MAX_SAMPLERS:
        raise invalid(f"must have at most {MAX_SAMPLERS} entries", got=len(value))
    is_short = isinstance(value, str)
    known: Mapping[str, str] = SAMPLER_LETTERS if is_short else SAMPLER_NAMES
    for index, name in enumerate(value):
        if not isinstance(name, str) or name not in known:
            path = "" if is_short else f"[{index}]"
            usual = SAMPLER_LETTERS if is_short else DEFAULT_SAMPLERS
            raise invalid(f"must be one of {', '.join(usual)}", got=name, path=path)
    return tuple(known[name] for name in value)


def parse_logit_bias(value: object) -> tuple[Bias, ...]:
    """Pairs from `{"15043": -1, "Hello": 5}` or `[[15043, 1.0], ["Hello", false]]`."""
    if not isinstance(value, dict | list):
        raise invalid("must be an object or an array of [token, bias] pairs", got=value)
    if len(value) > MAX_BIASES:
        raise invalid(f"must have at most {MAX_BIASES} entries", got=len(value))
    if isinstance(value, dict):
        pairs = [(f".{key[:100]}", _key_of_text(key), bias) for key, bias in value.items()]
    else:
        pairs = [_pair(index, entry) for index, entry in enumerate(value)]
    size = sum(len(key) for _, key, _ in pairs if isinstance(key, str))
    if size > MAX_BIAS_CHARACTERS:
        raise invalid(f"must have texts of at most {MAX_BIAS_CHARACTERS} characters", got=size)
    return tuple((key, _bias(path, bias)) for path, key, bias in pairs)


def _key_of_text(key: str) -> BiasKey:
    """JSON object keys are strings, so a whole number is a token id."""
    digits = key.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        return key
    size = int(digits.lstrip("0")[:20] or "0")  # cut, it still is no token of any model
    return -size if key.startswith("-") else size


def _pair(index: int, entry: object) -> tuple[str, BiasKey, object]:
    path = f"[{index}]"
    if not isinstance(entry, list) or len(entry) != 2:
        raise invalid("must be a pair [token, bias]", path=path, got=entry)
    key = entry[0] if isinstance(entry[0], str) else as_integer(entry[0])
    if key is None:
        raise invalid("must be a token id or a string", path=f"{path}[0]", got=entry[0])
    return path, key, entry[1]


def _bias(path: str, value: object) -> float:
    if value is False:
        return -math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
        raise invalid("must be a number or false", path=path, got=value)
    return float(max(-MAX_BIAS, min(MAX_BIAS, value)))


def parse_breakers(value: object) -> tuple[str, ...]:
    """Sequence breakers of DRY; empty ones are skipped."""
    breakers = checked_strings(value, MAX_BREAKERS)
    for index, breaker in enumerate(breakers):
        if len(breaker) > MAX_BREAKER_CHARACTERS:
            text = f"must have at most {MAX_BREAKER_CHARACTERS} characters"
            raise invalid(text, path=f"[{index}]", got=len(breaker))
    return tuple(breaker for breaker in breakers if breaker)


Samplers = Annotated[
    Any,
    BeforeValidator(parse_samplers),
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "array",
                    "items": {"enum": list(SAMPLER_NAMES)},
                    "maxItems": MAX_SAMPLERS,
                },
                {
                    "type": "string",
                    "pattern": f"^[{''.join(SAMPLER_LETTERS)}]{{0,{MAX_SAMPLERS}}}$",
                },
            ]
        }
    ),
]
_BIAS_SCHEMA = {"anyOf": [{"type": "number"}, {"const": False}]}
LogitBias = Annotated[
    Any,
    BeforeValidator(parse_logit_bias),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "object", "additionalProperties": _BIAS_SCHEMA},
                {
                    "type": "array",
                    "items": {
                        "type": "array",
                        "prefixItems": [
                            {"anyOf": [{"type": "integer"}, {"type": "string"}]},
                            _BIAS_SCHEMA,
                        ],
                        "minItems": 2,
                        "maxItems": 2,
                    },
                    "maxItems": MAX_BIASES,
                },
            ]
        }
    ),
]
Breakers = Annotated[
    Any,
    BeforeValidator(parse_breakers),
    WithJsonSchema(
        {
            "type": "array",
            "items": {"type": "string", "maxLength": MAX_BREAKER_CHARACTERS},
            "maxItems": MAX_BREAKERS,
        }
    ),
]
SHAPES: dict[str, Any] = {
    "samplers": Samplers,
    "logit_bias": LogitBias,
    "dry_sequence_breakers": Breakers,
}
"""Parameters that are no plain numbers or switches."""
Ignored = Annotated[Any, Field(description="Accepted and ignored.")]
Boolean = Annotated[bool, Field(strict=True)]
Text = Annotated[str, Field(strict=True)]
Object = Annotated[dict[str, Any], Field(strict=True)]
Count = Annotated[int, Integer(0)]


class RequestModel(BaseModel):
    """Base of request bodies: unknown fields are refused."""

    model_config = ConfigDict(
        extra="forbid", strict=True, hide_input_in_errors=True, use_attribute_docstrings=True
    )


class StreamOptions(RequestModel):
    """Details of a stream."""

    include_usage: Boolean | None = None
    """One more chunk with the usage at the end."""
    include_obfuscation: Boolean | None = None
    """Accepted without effect."""


@dataclass(frozen=True)
class Declared:
    """Annotation of a field whose limits and description are those of the parameter of its name."""

    in_chats: bool = False
    """True: a number has the limits of OpenAI's API."""

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        parameter = PARAMETERS[str(handler.field_name)]
        kind = SHAPES.get(parameter.name) or self._scalar(parameter)
        described = Annotated[kind | None, Field(description=parameter.rule.help)]  # type: ignore[valid-type]
        return handler.generate_schema(described)

    def _scalar(self, parameter: Parameter) -> Any:
        if parameter.type is bool:
            return Boolean
        low, high = parameter.chat_span if self.in_chats else parameter.span
        if parameter.type is int:
            return Annotated[int, Integer(int(low), int(high))]
        return Annotated[float, Number(low, high)]


T = TypeVar("T")
Said = Annotated[T | None, Declared()]
SaidInChat = Annotated[T | None, Declared(in_chats=True)]


class SamplingFields(RequestModel):
    """The parameters of sampling as a client gives them. None: not said, so a default holds."""

    temperature: Said[float] = None
    dynatemp_range: Said[float] = None
    dynatemp_exponent: Said[float] = None
    top_k: Said[int] = None
    top_p: Said[float] = None
    min_p: Said[float] = None
    top_n_sigma: Said[float] = None
    typical_p: Said[float] = None
    min_keep: Said[int] = None
    repeat_penalty: Said[float] = None
    repeat_last_n: Said[int] = None
    presence_penalty: Said[float] = None
    frequency_penalty: Said[float] = None
    dry_multiplier: Said[float] = None
    dry_base: Said[float] = None
    dry_allowed_length: Said[int] = None
    dry_penalty_last_n: Said[int] = None
    dry_sequence_breakers: Said[tuple[str, ...]] = None
    xtc_probability: Said[float] = None
    xtc_threshold: Said[float] = None
    mirostat: Said[int] = None
    mirostat_tau: Said[float] = None
    mirostat_eta: Said[float] = None
    samplers: Said[tuple[str, ...]] = None
    seed: Said[int] = None
    logit_bias: Said[tuple[Bias, ...]] = None
    ignore_eos: Said[bool] = None


class GenerationFields(SamplingFields):
    """Fields that mean the same on both endpoints."""

    grammar: Text | None = None
    """GBNF that the answer follows."""
    json_schema: Object | None = None
    """Schema that the answer follows; {}: any JSON value."""
    cache_prompt: Boolean | None = None
    """False: the prompt is computed anew and nothing is kept."""
    id_slot: Annotated[int, Integer(-1)] | None = None
    """Runs in that slot; -1: any."""
    t_max_predict_ms: Annotated[int, Integer(0, MAX_PREDICT_MS)] | None = None
    """Time of generation from the first token; 0: no limit."""
    timings_per_token: Boolean | None = None
    """Adds timings to the events."""
    return_progress: Boolean | None = None
    """Events about a prompt that is being evaluated; only in streams."""
