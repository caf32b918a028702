"""From what the client wrote about sampling to what takes effect."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from pydantic import ValidationError

from selfserve.api.sampling_fields import Bias, SamplingFields
from selfserve.engine.interface import Vocabulary
from selfserve.errors import InvalidRequest
from selfserve.logs import get_logger
from selfserve.sampling import PARAMETERS, RANDOM_SEED, SamplingParams, effective

log = get_logger("api")

FILE_KEYS = {name: row.rule.file_key for name, row in PARAMETERS.items() if row.rule.file_key}
"""Parameter → last part of its key in a GGUF file."""


def sampling_params(
    fields: SamplingFields,
    recommended: Mapping[str, Any],
    vocabulary: Vocabulary,
    context_size: int,
    *,
    penalize_answer_only: bool = False,
) -> SamplingParams:
    """What the request says, else what the model recommends, else the contract's defaults.

    Tokenizes the strings of `logit_bias`: call it in a worker thread. Raises InvalidRequest.
    """
    said = {name: getattr(fields, name) for name in SamplingFields.model_fields}
    chosen = {name: value for name, value in said.items() if value is not None}
    resolved = {
        "seed": resolve_seed(fields.seed),
        "logit_bias": resolve_bias(fields.logit_bias or (), vocabulary),
        "penalize_answer_only": penalize_answer_only,
    }
    return effective({**recommended, **chosen, **resolved}, context_size)


def told_defaults(params: SamplingParams) -> dict[str, Any]:
    """Parameters by name for people and programs, without those that belong to one request."""
    return {
        name: msgspec.to_builtins(getattr(params, name))
        for name, row in PARAMETERS.items()
        if row.rule.is_said and name not in ("seed", "logit_bias")
    }


def file_sampling(metadata: Mapping[str, str]) -> dict[str, Any]:
    """What a model file recommends in its own metadata, by parameter; values that a request
    could not have are left out."""
    found: dict[str, Any] = {}
    for name, key in FILE_KEYS.items():
        text = metadata.get(f"general.sampling.{key}")
        if text is None:
            continue
        value: Any = text.split(";") if name == "samplers" else _number(text)
        try:
            fields = SamplingFields.model_validate({name: value})
        except ValidationError:
            log.warning("the model file's general.sampling.%s is invalid and not used", key)
        else:
            found[name] = getattr(fields, name)
    return found


def _number(text: str) -> object:
    try:
        return float(text)
    except ValueError:
        return text


def resolve_seed(seed: int | None) -> int:
    """The 32-bit seed in use; None and −1 draw one. Seeds under 2³² − 1 stay what they are."""
    if seed is None or seed == -1:
        return secrets.randbelow(RANDOM_SEED)
    bits = seed & 0xFFFF_FFFF_FFFF_FFFF
    folded = (bits ^ (bits >> 32)) & 0xFFFF_FFFF
    return folded if folded != RANDOM_SEED else RANDOM_SEED >> 1


def resolve_bias(pairs: Iterable[Bias], vocabulary: Vocabulary) -> tuple[tuple[int, float], ...]:
    """Biases by token id; a text biases each of its tokens, several biases of one token add up."""
    total: dict[int, float] = {}
    for key, bias in pairs:
        if isinstance(key, int):
            ids = [key]
            if not 0 <= key < vocabulary.size:
                raise InvalidRequest(
                    f"logit_bias must name tokens between 0 and {vocabulary.size - 1}, got {key}",
                    param="logit_bias",
                )
        else:
            ids = vocabulary.tokenize(key, add_special=False, parse_special=False)
        for token in ids:
            total[token] = total.get(token, 0.0) + bias
    return tuple(total.items())
