"""The sampling and engine fields that both generating endpoints take, as a client writes them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from selfserve.api.field_types import Integer, Number, as_integer, invalid
from selfserve.request import DEFAULT_SAMPLERS

MAX_BIAS = 1e6
"""Any bias beyond decides alone; as a C float it stays finite."""

MAX_BIASES = 100_000
MAX_SAMPLERS = 64
MAX_BREAKERS = 64

SAMPLER_LETTERS = dict(zip("edskypmxt", DEFAULT_SAMPLERS, strict=True))
SAMPLER_ALIASES = {
    "typical": "typ_p",
    "typical_p": "typ_p",
    "temp": "temperature",
    "nucleus": "top_p",
}

BiasKey = int | str
Bias = tuple[BiasKey, float]
"""A token id, or a text that stands for each of its tokens; −inf bans."""


def parse_samplers(value: object) -> tuple[str, ...]:
    """Names in order from `["top_k", …]` or the short form `"kp"`; for use as a validator."""
    if isinstance(value, str):
        known: Mapping[str, str] = SAMPLER_LETTERS
        names: list[object] = list(value)
    elif isinstance(value, list):
        known = {name: name for name in DEFAULT_SAMPLERS} | SAMPLER_ALIASES
        names = [n.replace("-", "_") if isinstance(n, str) else n for n in value]
    else:
        raise invalid("must be an array of sampler names or a string of their letters", got=value)
    if len(names) > MAX_SAMPLERS:
        raise invalid(f"must have at most {MAX_SAMPLERS} entries", got=len(names))
    for index, name in enumerate(names):
        if not isinstance(name, str) or name not in known:
            path = f"[{index}]" if isinstance(value, list) else ""
            raise invalid(f"must be one of {', '.join(known)}", got=name, path=path)
    return tuple(known[str(name)] for name in names)


def parse_logit_bias(value: object) -> tuple[Bias, ...]:
    """Pairs from `{"15043": -1, "Hello": 5}` or `[[15043, 1.0], ["Hello", false]]`."""
    if isinstance(value, dict):
        pairs = [(f".{key[:100]}", _key_of_text(key), bias) for key, bias in value.items()]
    elif isinstance(value, list):
        pairs = [_pair(index, entry) for index, entry in enumerate(value)]
    else:
        raise invalid("must be an object or an array of [token, bias] pairs", got=value)
    if len(pairs) > MAX_BIASES:
        raise invalid(f"must have at most {MAX_BIASES} entries", got=len(pairs))
    return tuple((key, _bias(path, bias)) for path, key, bias in pairs)


def _key_of_text(key: str) -> BiasKey:
    """JSON object keys are strings, so a decimal number is a token id."""
    return int(key) if key.isascii() and key.isdigit() and len(key) <= 10 else key


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
    if not isinstance(value, list):
        raise invalid("must be an array of strings", got=value)
    if len(value) > MAX_BREAKERS:
        raise invalid(f"must have at most {MAX_BREAKERS} entries", got=len(value))
    for index, entry in enumerate(value):
        if not isinstance(entry, str):
            raise invalid("must be a string", path=f"[{index}]", got=entry)
    return tuple(entry for entry in value if entry)


Samplers = Annotated[
    Any,
    BeforeValidator(parse_samplers),
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "array",
                    "items": {"enum": [*DEFAULT_SAMPLERS, *SAMPLER_ALIASES]},
                    "maxItems": MAX_SAMPLERS,
                },
                {"type": "string", "pattern": "^[edskypmxt]{0,64}$"},
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
    WithJsonSchema({"type": "array", "items": {"type": "string"}, "maxItems": MAX_BREAKERS}),
]
Boolean = Annotated[bool, Field(strict=True)]
Text = Annotated[str, Field(strict=True)]
Object = Annotated[dict[str, Any], Field(strict=True)]
Fraction = Annotated[float, Number(0, 1)]
Positive = Annotated[float, Number(0)]
Count = Annotated[int, Integer(0)]
Window = Annotated[int, Integer(-1)]


class RequestModel(BaseModel):
    """Base of request bodies: unknown fields are refused."""

    model_config = ConfigDict(
        extra="forbid", strict=True, hide_input_in_errors=True, use_attribute_docstrings=True
    )


class SamplingFields(RequestModel):
    """Fields that mean the same on both endpoints. None: not said, so a default holds."""

    dynatemp_range: Positive | None = None
    dynatemp_exponent: Positive | None = None
    top_k: Annotated[int, Integer(-1)] | None = None
    top_p: Fraction | None = None
    min_p: Fraction | None = None
    top_n_sigma: Annotated[float, Number()] | None = None
    typical_p: Fraction | None = None
    min_keep: Count | None = None
    repeat_penalty: Annotated[float, Number(0.01, 100)] | None = None
    repeat_last_n: Window | None = None
    dry_multiplier: Positive | None = None
    dry_base: Annotated[float, Number()] | None = None
    dry_allowed_length: Count | None = None
    dry_penalty_last_n: Window | None = None
    dry_sequence_breakers: Breakers | None = None
    xtc_probability: Fraction | None = None
    xtc_threshold: Fraction | None = None
    mirostat: Annotated[int, Integer(0, 2)] | None = None
    mirostat_tau: Positive | None = None
    mirostat_eta: Positive | None = None
    samplers: Samplers | None = None
    seed: Annotated[int, Integer(-(2**63), 2**63 - 1)] | None = None
    ignore_eos: Boolean | None = None
    logit_bias: LogitBias | None = None
    grammar: Text | None = None
    json_schema: Object | None = None
    cache_prompt: Boolean | None = None
    id_slot: Annotated[int, Integer(-1)] | None = None
    t_max_predict_ms: Count | None = None
    timings_per_token: Boolean | None = None
    return_progress: Boolean | None = None
