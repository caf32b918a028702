"""Sampling parameters, each declared once: type, default, range, meaning, and when it leaves the
most probable token alone.

The record that travels to the engine is the table. Fields of requests and their description,
keys of model files, settings, what the catalogue recommends, the defaults that are shown and the
table in the docs are made from it. A parameter is added by one entry here and by what obeys it.
"""

# Annotations are values here: as strings they would be compiled anew whenever a command starts.

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from selfserve.limits import (
    INT32_MAX,
    MAX_BIASES,
    MAX_BREAKER_CHARACTERS,
    MAX_BREAKERS,
    MAX_MIN_KEEP,
    MAX_SAMPLERS,
    REAL_MAX,
    check_count,
    check_lengths,
    check_range,
)

RANDOM_SEED = 0xFFFF_FFFF
"""The 32-bit seed that libllama takes for "choose one yourself"."""

DEFAULT_SAMPLERS = (
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
)

Span = tuple[float, float]
REAL: Span = (-REAL_MAX, REAL_MAX)
POSITIVE: Span = (0, REAL_MAX)
FRACTION: Span = (0, 1)
COUNT: Span = (0, INT32_MAX)
WINDOW: Span = (-1, INT32_MAX)


def _never(_: Any) -> bool:
    return False


def _always(_: Any) -> bool:
    return True


def _at(neutral: float) -> Callable[[Any], bool]:
    return lambda value: bool(value == neutral)


def _only_bans(biases: tuple[tuple[int, float], ...]) -> bool:
    return all(bias == -math.inf for _, bias in biases)


@dataclass(frozen=True, slots=True)
class Rule:
    """What holds for one parameter beside its type and its default."""

    help: str
    span: Span | None = None
    """Lowest and highest value of a number."""
    keeps_best: Callable[[Any], bool] = _never
    """True for values with which, all others doing the same, the most probable token is chosen.
    Bans do not count: they are applied before anything is chosen."""
    chat_span: Span | None = None
    """A narrower span, where a value must be one of OpenAI's API too: on the chat endpoint, in
    settings and in the catalogue."""
    file_key: str = ""
    """Last part of its key in a GGUF file."""
    is_setting: bool = False
    """Whether settings and the catalogue may give it."""
    is_said: bool = True
    """False: the endpoint decides it, not the client."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one token is chosen. Raises InvalidRequest where a value is out of range."""

    temperature: Annotated[
        float,
        Rule(
            "Flattens (above 1) or sharpens the distribution; 0: always the most probable token.",
            POSITIVE,
            _at(0.0),
            chat_span=(0, 2),
            file_key="temp",
            is_setting=True,
        ),
    ] = 0.8
    dynatemp_range: Annotated[
        float,
        Rule(
            "The temperature is drawn by entropy from [t - range, t + range], not under 0; without"
            " effect at temperature 0.",
            POSITIVE,
            _always,
        ),
    ] = 0.0
    dynatemp_exponent: Annotated[
        float, Rule("Bends the curve between entropy and temperature.", POSITIVE, _always)
    ] = 1.0
    top_k: Annotated[
        int,
        Rule(
            "Only the k most probable tokens; 0 and -1: all.",
            WINDOW,
            _always,
            file_key="top_k",
            is_setting=True,
        ),
    ] = 40
    top_p: Annotated[
        float,
        Rule(
            "Only the most probable tokens whose probabilities sum to it; 1: all.",
            FRACTION,
            _always,
            file_key="top_p",
            is_setting=True,
        ),
    ] = 0.95
    min_p: Annotated[
        float,
        Rule(
            "Only tokens at least this probable, relative to the most probable one; 0: all.",
            FRACTION,
            _always,
            file_key="min_p",
            is_setting=True,
        ),
    ] = 0.05
    top_n_sigma: Annotated[
        float,
        Rule(
            "Only tokens within n standard deviations of the best logit; 0: the best one,"
            " below 0: all.",
            REAL,
            _always,
        ),
    ] = -1.0
    typical_p: Annotated[
        float, Rule("Locally typical sampling; 1: off.", FRACTION, _at(1.0), is_setting=True)
    ] = 1.0
    min_keep: Annotated[
        int,
        Rule("Candidates that each truncating sampler must leave.", (0, MAX_MIN_KEEP), _always),
    ] = 0
    repeat_penalty: Annotated[
        float,
        Rule(
            "Divides the logits of repeated tokens; 1: off.",
            (0.01, 100),
            _at(1.0),
            file_key="penalty_repeat",
            is_setting=True,
        ),
    ] = 1.0
    repeat_last_n: Annotated[
        int,
        Rule(
            "Tokens of prompt and answer that count as recent; 0: none, -1: the context.",
            WINDOW,
            _always,
            file_key="penalty_last_n",
        ),
    ] = 64
    presence_penalty: Annotated[
        float,
        Rule(
            "Once for each token that occurred: in a chat among the generated ones, else in the"
            " window of repeat_last_n.",
            REAL,
            _at(0.0),
            chat_span=(-2, 2),
            is_setting=True,
        ),
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        Rule(
            "For each time that a token occurred, counted as for presence_penalty.",
            REAL,
            _at(0.0),
            chat_span=(-2, 2),
            is_setting=True,
        ),
    ] = 0.0
    penalize_answer_only: Annotated[
        bool,
        Rule(
            "True on the chat endpoint: presence and frequency count all generated tokens and"
            " nothing else, as OpenAI's do.",
            keeps_best=_always,
            is_said=False,
        ),
    ] = False
    dry_multiplier: Annotated[
        float, Rule("Strength of the DRY repetition penalty; 0: off.", POSITIVE, _at(0.0))
    ] = 0.0
    dry_base: Annotated[float, Rule("Base of its growth; below 1: the default.", REAL, _always)] = (
        1.75
    )
    dry_allowed_length: Annotated[
        int, Rule("Length of repetitions that stay free.", COUNT, _always)
    ] = 2
    dry_penalty_last_n: Annotated[
        int, Rule("Tokens that it looks at; 0: none, -1: the context.", WINDOW, _always)
    ] = 64
    dry_sequence_breakers: Annotated[
        tuple[str, ...],
        Rule("Texts that end a repetition; empty ones are skipped.", keeps_best=_always),
    ] = ("\n", ":", '"', "*")
    xtc_probability: Annotated[
        float,
        Rule(
            "Chance of removing the most probable tokens; 0: off.",
            FRACTION,
            _at(0.0),
            file_key="xtc_probability",
        ),
    ] = 0.0
    xtc_threshold: Annotated[
        float,
        Rule(
            "Only tokens above it are removed; over 0.5: none.",
            FRACTION,
            _always,
            file_key="xtc_threshold",
        ),
    ] = 0.1
    mirostat: Annotated[
        int,
        Rule(
            "1 or 2 replace the truncating samplers; 0: off. Without effect at temperature 0.",
            (0, 2),
            _always,
            file_key="mirostat",
        ),
    ] = 0
    mirostat_tau: Annotated[
        float, Rule("Target entropy of Mirostat.", POSITIVE, _always, file_key="mirostat_tau")
    ] = 5.0
    mirostat_eta: Annotated[
        float, Rule("Learning rate of Mirostat.", POSITIVE, _always, file_key="mirostat_eta")
    ] = 0.1
    samplers: Annotated[
        tuple[str, ...],
        Rule(
            "Order and choice of the samplers: names, or a string of their letters.",
            keeps_best=_always,
            file_key="sequence",
        ),
    ] = DEFAULT_SAMPLERS
    seed: Annotated[
        int,
        Rule(
            "-1: random. The seed in use has 32 bits and is told in generation_settings.",
            (-(2**63), 2**63 - 1),
            _always,
        ),
    ] = 0
    """In the record the seed in use: never libllama's "random" value."""
    logit_bias: Annotated[
        tuple[tuple[int, float], ...],
        Rule("Added to the logits of tokens (ids or texts); false: never.", keeps_best=_only_bans),
    ] = ()
    """In the record (token id, bias); −inf bans the token."""
    ignore_eos: Annotated[
        bool, Rule("Bans all tokens that end a generation.", keeps_best=_always)
    ] = False

    def __post_init__(self) -> None:
        for name, parameter in NUMBERS.items():
            low, high = parameter.span
            check_range(name, getattr(self, name), low, high)
        check_range("seed", self.seed, 0, RANDOM_SEED - 1)
        check_count("samplers", len(self.samplers), MAX_SAMPLERS)
        check_count("logit_bias", len(self.logit_bias), MAX_BIASES)
        check_count("dry_sequence_breakers", len(self.dry_sequence_breakers), MAX_BREAKERS)
        check_lengths("dry_sequence_breakers", self.dry_sequence_breakers, MAX_BREAKER_CHARACTERS)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One entry of the table."""

    name: str
    type: type
    default: Any
    rule: Rule

    @property
    def span(self) -> Span:
        """Lowest and highest value of a number."""
        return self.rule.span or (-math.inf, math.inf)

    @property
    def chat_span(self) -> Span:
        """The span where OpenAI's API counts too."""
        return self.rule.chat_span or self.span


def table_of(record: type[SamplingParams]) -> dict[str, Parameter]:
    """The entries of a record by name. Raises ValueError for a field that is not declared by a
    Rule."""
    hints = get_type_hints(record, include_extras=True)
    found = {}
    for field in msgspec.structs.fields(record):
        kind, rule = get_args(hints[field.name])
        found[field.name] = Parameter(field.name, get_origin(kind) or kind, field.default, rule)
    return found


PARAMETERS: Mapping[str, Parameter] = table_of(SamplingParams)
"""Every parameter by name, in the order of the record."""
NUMBERS: Mapping[str, Parameter] = {
    name: parameter for name, parameter in PARAMETERS.items() if parameter.rule.span
}


def effective(said: Mapping[str, Any], context_size: int) -> SamplingParams:
    """What takes effect of `said`, defaults for the rest: one value for all that mean the same."""
    params = SamplingParams(**said)
    return msgspec.structs.replace(
        params,
        top_k=max(params.top_k, 0),
        dry_base=params.dry_base if params.dry_base >= 1.0 else PARAMETERS["dry_base"].default,
        dynatemp_range=params.dynatemp_range if params.temperature > 0 else 0.0,
        repeat_last_n=min(params.repeat_last_n, context_size),
        dry_penalty_last_n=min(params.dry_penalty_last_n, context_size),
    )


def is_greedy(params: SamplingParams) -> bool:
    """True if the most probable token that is not banned is always the one chosen, so that no
    sampler need run."""
    return all(
        parameter.rule.keeps_best(getattr(params, name)) for name, parameter in PARAMETERS.items()
    )


def banned_ids(params: SamplingParams, eog_ids: Iterable[int]) -> tuple[int, ...]:
    """Tokens that must never be written; `eog_ids` are the model's ends of generation."""
    banned = [token for token, bias in params.logit_bias if bias == -math.inf]
    if params.ignore_eos:
        banned += sorted(eog_ids)
    return tuple(dict.fromkeys(banned))


def finite_bias(params: SamplingParams) -> tuple[tuple[int, float], ...]:
    """What is added to logits; bans are not among them."""
    return tuple(pair for pair in params.logit_bias if pair[1] != -math.inf)
