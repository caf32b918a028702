"""A server with the small model that sees."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from tests.support.live_server import live_server
from tests.support.picture_chat import PictureChat, projector_path
from tests.support.real_vocabulary import smollm2_path

from selfserve.config import ServerSettings

PATIENCE_S = 60.0
CONTEXT = 256
"""Tokens of a slot: enough for chats about four pictures, and soon full."""


@pytest.fixture(scope="session")
def seeing_url() -> Iterator[str]:
    smollm2_path()
    settings = ServerSettings(max_images=4)
    with live_server(settings, context_size=CONTEXT, projector_path=projector_path()) as url:
        yield url


@pytest.fixture(scope="session")
def http(seeing_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=seeing_url, timeout=PATIENCE_S, trust_env=False) as client:
        yield client


@pytest.fixture(scope="session")
def chat(http: httpx.Client) -> PictureChat:
    return PictureChat(http)
