"""The official JavaScript client, where it is installed:

npm install --no-package-lock --prefix tests/compat/js
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.compat.conftest import QUEUE_SIZE
from tests.support.live_server import NUM_SLOTS

FOLDER = Path(__file__).parent / "js"


@pytest.fixture(scope="module")
def found(compat_url: str) -> Any:
    """What the script saw."""
    node = shutil.which("node")
    if node is None or not (FOLDER / "node_modules").is_dir():
        pytest.skip("node or the npm package openai is not installed")
    numbers = (str(NUM_SLOTS), str(NUM_SLOTS + QUEUE_SIZE))
    command = (node, str(FOLDER / "check.mjs"), compat_url, *numbers)
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_streamed_and_whole_are_the_same(found: Any) -> None:
    assert found["whole"]
    assert found["streamed"] == found["helper"] == found["whole"]
    assert found["usage"]["completion_tokens"] <= 8


def test_structured_output(found: Any) -> None:
    assert found["parsed"]["size"] in ("small", "large")
    assert found["object"] == "{"


def test_refusals_are_the_clients_own_classes(found: Any) -> None:
    bad = {"status": 400, "code": "invalid_request", "param": "temperature"}
    assert found["range"] == {"name": "BadRequestError", **bad}
    assert found["streamRefused"] == found["range"]
    unsupported = {"status": 422, "code": "unsupported_capability", "param": "n"}
    assert found["unsupported"] == {"name": "UnprocessableEntityError", **unsupported}
    assert (found["tooLarge"]["status"], found["tooLarge"]["code"]) == (413, "request_too_large")


def test_a_full_queue_and_streams_that_are_left(found: Any) -> None:
    assert found["full"] == {"name": "RateLimitError", "status": 429, "code": "queue_full"}
    assert found["free"]


def test_the_model_is_listed(found: Any) -> None:
    assert found["models"] == ["smollm2:135m"]
