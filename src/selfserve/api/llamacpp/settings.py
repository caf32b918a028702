"""`generation_settings`: every field of a completion as it took effect."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from selfserve.api.llamacpp.schema import CompletionRequest
from selfserve.api.sampling import told_defaults
from selfserve.api.service import Service
from selfserve.request import Request
from selfserve.sampling import SamplingParams, banned_ids


def generation_settings(
    body: CompletionRequest, request: Request, service: Service
) -> dict[str, Any]:
    """What a client would have to send to get the same, with the context and the model."""
    limit = -1 if request.max_tokens is None else request.max_tokens
    return {
        "n_ctx": service.ready.context_size,
        "model": service.model.id,
        **sampling_settings(request.sampling, service.vocabulary.eog_ids),
        "n_predict": limit,
        "max_tokens": limit,
        "n_keep": request.n_keep,
        "n_indent": request.n_indent,
        "stop": list(request.stop),
        "stream": bool(body.stream),
        "grammar": body.grammar or "",
        "json_schema": body.json_schema,
        "n_probs": request.n_probs,
        "post_sampling_probs": request.post_sampling_probs,
        "t_max_predict_ms": request.time_limit_ms,
        "id_slot": request.slot,
        "cache_prompt": request.cache_prompt,
        "return_tokens": bool(body.return_tokens),
        "timings_per_token": request.timings_per_token,
        "return_progress": request.return_progress,
        "response_fields": body.response_fields or [],
    }


def default_settings(service: Service) -> dict[str, Any]:
    """The settings of a request that has a prompt and nothing else; the seed is drawn anew for
    each."""
    body = CompletionRequest(prompt="")
    request = Request(
        id="", prompt=(), sampling=service.default_sampling, n_keep=service.default_keep
    )
    return {**generation_settings(body, request, service), "seed": -1}


def sampling_settings(sampling: SamplingParams, eog_ids: Iterable[int]) -> dict[str, Any]:
    """Sampling by field name; a bias of null bans its token."""
    banned = dict.fromkeys(banned_ids(sampling, eog_ids))
    biases = {**dict(sampling.logit_bias), **banned}
    return {
        **told_defaults(sampling),
        "seed": sampling.seed,
        "logit_bias": [{"token": token, "bias": bias} for token, bias in biases.items()],
    }
