"""Options become settings; what nobody sets comes from the machine and the model."""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from selfserve.catalogue import entries
from selfserve.cli import server
from selfserve.cli.main import command_line
from selfserve.cli.options import DEFAULT_MODEL
from selfserve.config import EngineSettings, ModelInfo, ServerSettings
from selfserve.errors import AddressInUse
from selfserve.resources import available_cpus, available_memory_bytes


class Recorder:
    """Stands for the server; keeps what it was started with."""

    def __init__(self) -> None:
        self.engine: EngineSettings
        self.http: ServerSettings
        self.model: ModelInfo
        self.port = 0

    def run(self, engine: Any, http: Any, model: Any, listener: socket.socket) -> None:
        self.engine, self.http, self.model = engine, http, model
        self.port = listener.getsockname()[1]

    def serve(self, *arguments: str) -> None:
        command_line()(["serve", "--port", "0", *arguments], standalone_mode=False)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(server, "run", recorder.run)
    return recorder


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    return str(path)


def test_defaults_are_those_of_the_records_and_the_machine(recorder: Recorder, model: str) -> None:
    recorder.serve(model)
    assert recorder.http == ServerSettings(port=0)
    assert recorder.engine.num_threads == available_cpus()
    assert recorder.engine.num_slots == EngineSettings(model_path=Path(model)).num_slots
    assert recorder.engine.context_size is None
    quarter = available_memory_bytes() / 4
    assert recorder.engine.cache_ram_bytes == pytest.approx(quarter, rel=0.2)


def test_every_option_reaches_its_setting(recorder: Recorder, model: str) -> None:
    options = (
        "--context-size 512 --parallel 3 --threads 5 --queue-size 7 --request-timeout 1.5 "
        "--ping-interval 2.5 --step-ms 20 --cache-ram 10 --api-key one --api-key two --verbose"
    )
    recorder.serve(model, *options.split())
    assert recorder.engine == EngineSettings(
        model_path=Path(model),
        context_size=512,
        num_slots=3,
        num_threads=5,
        step_ms=20,
        cache_ram_bytes=10 << 20,
        verbose=True,
    )
    assert recorder.http == ServerSettings(
        port=0, queue_size=7, request_timeout_s=1.5, ping_s=2.5, api_keys=("one", "two")
    )


def test_keys_may_come_from_the_environment(
    recorder: Recorder, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SELF_API_KEY", "secret")
    recorder.serve(model)
    assert recorder.http.api_keys == ("secret",)


def test_without_a_model_the_default_one_is_served(recorder: Recorder) -> None:
    recorder.serve()
    assert recorder.model.id == DEFAULT_MODEL == entries.DEFAULT_MODEL


def test_a_taken_port_ends_it_before_the_model_is_looked_at(
    recorder: Recorder, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(entries, "resolve")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(AddressInUse):
            recorder.serve(model, "--port", port)


def test_the_socket_is_closed_at_the_end(recorder: Recorder, model: str) -> None:
    recorder.serve(model)
    with socket.create_server(("127.0.0.1", recorder.port)) as again:
        assert again.getsockname()[1] == recorder.port
