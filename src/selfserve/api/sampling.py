"""From what the client wrote about sampling to what takes effect."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from selfserve.api.sampling_fields import Bias, Positive, SamplingFields
from selfserve.engine.interface import Vocabulary
from selfserve.errors import InvalidRequest
from selfserve.logs import get_logger
from selfserve.request import SamplingParams

log = get_logger("api")

RANDOM_SEED = 0xFFFF_FFFF
"""The 32-bit seed that libllama takes for "choose one yourself"."""

_RESOLVED = frozenset({"seed", "logit_bias", "penalize_answer_only"})
_COPIED = tuple(name for name in SamplingParams.__struct_fields__ if name not in _RESOLVED)

_FILE_KEYS = {
    "samplers": "sequence",
    "temperature": "temp",
    "repeat_last_n": "penalty_last_n",
    "repeat_penalty": "penalty_repeat",
} | {
    name: name
    for name in (
        "top_k",
        "top_p",
        "min_p",
        "xtc_probability",
        "xtc_threshold",
        "mirostat",
        "mirostat_tau",
        "mirostat_eta",
    )
}
"""Field name → last part of the key in a GGUF file."""


class _FileFields(SamplingFields):
    temperature: Positive | None = None


def sampling_params(
    fields: BaseModel,
    recommended: Mapping[str, Any],
    vocabulary: Vocabulary,
    *,
    penalize_answer_only: bool = False,
) -> SamplingParams:
    """What the request says, else what the model recommends, else the contract's defaults.

    `fields` may have any of SamplingParams' fields; None: not said. Tokenizes the strings of
    `logit_bias`: call it in a worker thread. Raises InvalidRequest.
    """
    known = {name: recommended[name] for name in _COPIED if name in recommended}
    said = ((name, getattr(fields, name, None)) for name in _COPIED)
    known.update((name, value) for name, value in said if value is not None)
    if known.get("top_k", 0) < 0:
        known["top_k"] = 0  # both mean off
    if known.get("dry_base", 1.0) < 1.0:
        del known["dry_base"]
    return SamplingParams(
        **known,
        seed=resolve_seed(getattr(fields, "seed", None)),
        logit_bias=resolve_bias(getattr(fields, "logit_bias", None) or (), vocabulary),
        penalize_answer_only=penalize_answer_only,
    )


def file_sampling(metadata: Mapping[str, str]) -> dict[str, Any]:
    """What a model file recommends in its own metadata, by field name; values that a request
    could not have are left out."""
    found: dict[str, Any] = {}
    for name, key in _FILE_KEYS.items():
        text = metadata.get(f"general.sampling.{key}")
        if text is None:
            continue
        value: Any = text.split(";") if name == "samplers" else _number(text)
        try:
            fields = _FileFields.model_validate({name: value})
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
