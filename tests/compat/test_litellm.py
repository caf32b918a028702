"""LiteLLM as a client of an OpenAI-compatible server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("litellm_script.py")


@pytest.fixture(scope="module")
def found(compat_url: str) -> Any:
    """What the script saw."""
    command = (sys.executable, str(SCRIPT), compat_url)
    ended = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_streamed_and_whole_are_the_same(found: Any) -> None:
    assert found["whole"]
    assert found["streamed"] == found["whole"]
    assert found["tokens"] <= 8


def test_structured_output(found: Any) -> None:
    assert isinstance(found["flag"]["is_on"], bool)


def test_refusals_are_its_own_classes(found: Any) -> None:
    assert found["range"] == "BadRequestError"
    assert found["context"] == "ContextWindowExceededError"
    assert found["unsupported"] == "BadRequestError", "what it makes of every 422"


def test_text_completions(found: Any) -> None:
    assert found["completion"]
