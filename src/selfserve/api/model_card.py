"""What `/v1/model` tells about the model that is served."""

from __future__ import annotations

from typing import Any

from selfserve.api.sampling import told_defaults
from selfserve.api.service import Service

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
            "sampling": told_defaults(service.default_sampling),
        },
    }
