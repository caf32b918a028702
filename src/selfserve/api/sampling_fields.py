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
    if isinstance(value, str):
        known: Mapping[str, str] = SAMPLER_LETTERS
        names: list[object] = list(value)
    elif isinstance(value, list):
        known, names = SAMPLER_NAMES, value
    else:
        raise invalid("must be an array of sampler names or a string of their letters", got=value)
    if len(names) > MAX_SAMPLERS:
        raise invalid(f"must have at most {MAX_SAMPLERS} entries", got=len(names))
    for index, name in enumerate(names):
        if not isinstance(name, str) or name not in known:
            path = f"[{index}]" if isinstance(value, list) else ""
            shortest = DEFAULT_SAMPLERS if isinstance(value, list) else SAMPLER_LETTERS
            raise invalid(f"must be one of {', '.join(shortest)}", got=name, path=path)
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
                    "items": {"enum": list(SAMPLER_NAMES)},
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
Ignored = Annotated[Any, Field(description="Accepted and ignored.")]
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


class StreamOptions(RequestModel):
    """Details of a stream."""

    include_usage: Boolean | None = None
    """One more chunk with the usage at the end."""
    include_obfuscation: Boolean | None = None
    """Accepted without effect."""


class SamplingFields(RequestModel):
    """Fields that mean the same on both endpoints. None: not said, so a default holds."""

    dynatemp_range: Positive | None = None
    """The temperature is drawn by entropy from [t - range, t + range], not under 0."""
    dynatemp_exponent: Positive | None = None
    """Bends the curve between entropy and temperature."""
    top_k: Annotated[int, Integer(-1)] | None = None
    """Only the k most probable tokens; 0 and -1: all."""
    top_p: Fraction | None = None
    """Only the most probable tokens whose probabilities sum to it; 1: all."""
    min_p: Fraction | None = None
    """Only tokens at least this probable, relative to the most probable one; 0: all."""
    top_n_sigma: Annotated[float, Number()] | None = None
    """Only tokens within n standard deviations of the best logit; below 0: all."""
    typical_p: Fraction | None = None
    """Locally typical sampling; 1: off."""
    min_keep: Count | None = None
    """Candidates that each truncating sampler must leave."""
    repeat_penalty: Annotated[float, Number(0.01, 100)] | None = None
    """Divides the logits of repeated tokens; 1: off."""
    repeat_last_n: Window | None = None
    """Tokens that count as recent; 0: none, -1: the context."""
    dry_multiplier: Positive | None = None
    """Strength of the DRY repetition penalty; 0: off."""
    dry_base: Annotated[float, Number()] | None = None
    """Base of its growth; below 1: the default."""
    dry_allowed_length: Count | None = None
    """Length of repetitions that stay free."""
    dry_penalty_last_n: Window | None = None
    """Tokens that it looks at; 0: none, -1: the context."""
    dry_sequence_breakers: Breakers | None = None
    """Texts that end a repetition; empty ones are skipped."""
    xtc_probability: Fraction | None = None
    """Chance of removing the most probable tokens; 0: off."""
    xtc_threshold: Fraction | None = None
    """Only tokens above it are removed; over 0.5: none."""
    mirostat: Annotated[int, Integer(0, 2)] | None = None
    """1 or 2 replace the truncating samplers; 0: off."""
    mirostat_tau: Positive | None = None
    """Target entropy of Mirostat."""
    mirostat_eta: Positive | None = None
    """Learning rate of Mirostat."""
    samplers: Samplers | None = None
    """Order and choice of the samplers: names, or a string of their letters."""
    seed: Annotated[int, Integer(-(2**63), 2**63 - 1)] | None = None
    """-1: random."""
    ignore_eos: Boolean | None = None
    """Bans all tokens that end a generation."""
    logit_bias: LogitBias | None = None
    """Added to the logits of tokens (ids or texts); false: never."""
    grammar: Text | None = None
    """GBNF that the answer follows."""
    json_schema: Object | None = None
    """Schema that the answer follows; {}: any JSON value."""
    cache_prompt: Boolean | None = None
    """False: the prompt is computed anew and nothing is kept."""
    id_slot: Annotated[int, Integer(-1)] | None = None
    """Runs in that slot; -1: any."""
    t_max_predict_ms: Count | None = None
    """Time of generation from the first token; 0: no limit."""
    timings_per_token: Boolean | None = None
    """Adds timings to the events."""
    return_progress: Boolean | None = None
    """Events about a prompt that is being evaluated; only in streams."""
