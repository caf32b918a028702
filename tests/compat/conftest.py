"""A real server with a short queue, for the clients that people already have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.live_server import live_server

from selfserve.config import ServerSettings

QUEUE_SIZE = 1


@pytest.fixture(scope="package")
def compat_url() -> Iterator[str]:
    """Base URL, `/v1` included, of a server with the small model."""
    with live_server(ServerSettings(queue_size=QUEUE_SIZE)) as url:
        yield f"{url}/v1"
