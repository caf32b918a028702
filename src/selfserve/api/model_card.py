"""What `/v1/model` tells about the model that is served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from selfserve.api.service import Service
from selfserve.request import SamplingParams

OWNER = "self"


async def model_card(service: Service) -> dict[str, Any]:
    """The contract's model object. Raises ModelLoading before the model is known."""
    ready, model, settings = service.ready, service.model, service.settings
    template = await service.chat_template()
    return {
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": OWNER,
        "type": "text",
        "quant": model.quant,
        "capabilities": {
            "input": ["text", "vision"] if service.has_vision else ["text"],
            "output": ["text"],
            "context_size": ready.context_size,
            "max_images": settings.max_images if service.has_vision else 0,
            "reasoning": template.supports_thinking,
        },
        "info": {
            "family": model.family,
            "parameters": model.parameters,
            "architecture": model.architecture,
            "license": model.license,
            "context_length": model.context_length,
        },
        "settings": {
            "context_size": ready.context_size,
            "parallel": ready.num_slots,
            "can_shift": ready.can_shift,
            "queue_size": settings.queue_size,
            "request_timeout_s": settings.request_timeout_s,
            "thinking": template.supports_thinking and model.thinking_default,
            "reasoning_budgets": dict(settings.reasoning_budgets),
            "sampling": default_sampling(service.recommended_sampling),
        },
    }


def default_sampling(recommended: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling of a request that says nothing; its seed is drawn anew for each."""
    known = SamplingParams.__struct_fields__
    params = SamplingParams(**{k: v for k, v in recommended.items() if k in known})
    fields = {name: getattr(params, name) for name in known}
    for name in ("seed", "logit_bias", "penalize_answer_only"):
        del fields[name]
    return dict(msgspec.to_builtins(fields))
