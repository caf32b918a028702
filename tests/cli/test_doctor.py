"""`self doctor`: what is there, and what is wrong."""

from __future__ import annotations

import json
import socket

import pytest
from tests.support.command_line import Command

from selfserve.cli import doctor
from selfserve.errors import LibraryError


def test_the_report_has_library_processor_memory_disk_and_port(command: Command) -> None:
    report = json.loads(command("doctor", "--port", "0", "--json").out)
    assert report["libllama"].startswith("llama-cpp-python ")
    assert any(device.startswith("CPU (") for device in report["devices"])
    for name in ("self", "python", "cpus", "memory", "models", "disk", "port", "features"):
        assert report[name]
    assert report["kernels"] in ([], ["Q4_0", "Q4_1", "Q4_K", "Q6_K", "Q8_0"])


def test_a_taken_port_is_a_trouble(command: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        outcome = command("doctor", "--port", str(taken.getsockname()[1]))
    assert outcome.code == 0
    assert "trouble           cannot listen on" in outcome.out


def test_a_missing_library_ends_with_code_1(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise LibraryError("libllama cannot be loaded")

    monkeypatch.setattr("selfserve.engine.llama_runner.system_info", broken)
    outcome = command("doctor", "--port", "0")
    assert outcome.code == 1
    assert "libllama          missing" in outcome.out
    assert "trouble           libllama cannot be loaded" in outcome.out


def test_features_that_the_build_leaves_unused_are_a_trouble(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_cpu_flags", lambda: {"avx2", "amx_int8"})
    monkeypatch.setattr(doctor, "FEATURES", {"avx2": "AVX2", "amx_int8": "NEVER_BUILT"})
    out = command("doctor", "--port", "0").out
    assert "the processor has NEVER_BUILT, but libllama was built without" in out
