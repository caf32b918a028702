"""What llama.cpp's clients ask about a server: GET /props and GET /slots."""

from __future__ import annotations

from typing import Any

from selfserve.api.llamacpp.prompts import MEDIA_MARKER
from selfserve.api.llamacpp.settings import default_settings
from selfserve.api.service import Service
from selfserve.request import SlotState
from selfserve.text.template import CHATML


def properties(service: Service, version: str) -> dict[str, Any]:
    """The server's properties. Raises ModelLoading before the model is known."""
    ready, model, vocabulary = service.ready, service.model, service.vocabulary

    def text_of(token: int | None) -> str:
        piece = b"" if token is None else vocabulary.piece(token, special=True)
        return piece.decode("utf-8", "replace")

    settings = default_settings(service)
    return {
        "default_generation_settings": {
            "id": 0,
            "n_ctx": ready.context_size,
            "is_processing": False,
            "params": settings,
        },
        "total_slots": ready.num_slots,
        "model_alias": model.id,
        "model_path": model.id,
        "modalities": {"vision": service.has_vision, "audio": False, "video": False},
        "media_marker": MEDIA_MARKER,
        "endpoint_slots": True,
        "endpoint_props": False,
        "endpoint_metrics": True,
        "chat_template": vocabulary.chat_template or CHATML,
        "bos_token": text_of(vocabulary.bos_id),
        "eos_token": text_of(vocabulary.eos_id),
        "build_info": f"self {version}",
        "is_sleeping": False,
    }


def slots(service: Service) -> list[dict[str, Any]]:
    """The state of each slot as of the engine's last heartbeat. Whose request it is, and how far
    it got, only if the server was told to expose that. Raises ModelLoading."""
    ready = service.ready
    known = {slot.id: slot for slot in service.engine.heartbeat.slots}
    idle = (SlotState(id=i, request_id=None, num_tokens=0) for i in range(ready.num_slots))
    return [_slot(known.get(slot.id, slot), service) for slot in idle]


def _slot(slot: SlotState, service: Service) -> dict[str, Any]:
    state: dict[str, Any] = {
        "id": slot.id,
        "n_ctx": service.ready.context_size,
        "is_processing": slot.request_id is not None,
    }
    if service.settings.expose_slots:
        state |= {
            "request_id": slot.request_id,
            "n_tokens": slot.num_tokens,
            "n_prompt_tokens": slot.num_prompt,
            "next_token": [{"n_decoded": slot.num_generated}],
        }
    return state
