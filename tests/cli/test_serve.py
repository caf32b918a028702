"""Options become settings; what nobody sets comes from the machine and the model."""

from __future__ import annotations

import dataclasses
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from selfserve.catalogue import entries
from selfserve.cli import server
from selfserve.cli.known_settings import SETTINGS
from selfserve.cli.main import command_line
from selfserve.cli.options import DEFAULT_MODEL
from selfserve.config import EngineSettings, ModelInfo, ServerSettings
from selfserve.errors import AddressInUse, ModelTooLarge
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
        "--ping-interval 2.5 --step-ms 20 --cache-ram 10 --api-key one --api-key two --verbose "
        "--device cpu --gpu-layers 0 --kv-type q8_0 --flash-attention off --drain 1 --max-images 2 "
        "--preprocess-concurrency 3 --allow-http-images --allow-private-images --expose-slots "
        "--context-shift --allowed-origin https://a.example --set mmap=off --set speculate=no"
    )
    recorder.serve(model, *options.split())
    assert recorder.engine == EngineSettings(
        model_path=Path(model),
        context_size=512,
        num_slots=3,
        num_threads=5,
        step_ms=20,
        cache_ram_bytes=10 << 20,
        gpu_layers=0,
        device="cpu",
        flash_attention="off",
        kv_type="q8_0",
        use_mmap=False,
        speculate=False,
        verbose=True,
    )
    assert recorder.http == ServerSettings(
        port=0,
        queue_size=7,
        request_timeout_s=1.5,
        ping_s=2.5,
        drain_s=1,
        api_keys=("one", "two"),
        allowed_origins=("https://a.example",),
        expose_slots=True,
        context_shift=True,
        max_images=2,
        preprocess_concurrency=3,
        allow_http_images=True,
        allow_private_images=True,
    )


def test_every_field_of_the_records_can_be_set() -> None:
    decided_elsewhere = {"model_path"}
    fields = {item.name for item in dataclasses.fields(EngineSettings)}
    fields |= {item.name for item in dataclasses.fields(ServerSettings)}
    rows = {row.field for row in SETTINGS.values() if row.owner in ("engine", "server")}
    assert rows == fields - decided_elsewhere


def test_sampling_and_thinking_of_a_file_reach_the_model(
    recorder: Recorder, model: str, tmp_path: Path
) -> None:
    file = tmp_path / "settings.yml"
    file.write_text(f"top_k: 5\nmodels: {{{model}: {{temperature: 0.1, thinking: false}}}}")
    recorder.serve(model, "--settings-file", str(file))
    assert recorder.model.sampling == {"top_k": 5, "temperature": 0.1}
    assert recorder.model.thinking_default is False


def projector_beside(model: str) -> Path:
    path = Path(model).with_name("mmproj-tiny.gguf")
    path.write_bytes(Path(model).read_bytes())
    return path


def test_the_projector_is_the_one_beside_the_model_the_named_one_or_none(
    recorder: Recorder, model: str, tmp_path: Path
) -> None:
    recorder.serve(model)
    assert recorder.engine.projector_path is None
    beside = projector_beside(model)
    recorder.serve(model)
    assert recorder.engine.projector_path == beside
    other = tmp_path / "other.gguf"
    other.write_bytes(beside.read_bytes())
    recorder.serve(model, "--mmproj", str(other))
    assert recorder.engine.projector_path == other
    recorder.serve(model, "--mmproj", "none")
    assert recorder.engine.projector_path is None


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for about two of the small model's four slots."""
    monkeypatch.setattr("selfserve.cli.fitting.available_memory_bytes", lambda: 800 << 20)


@pytest.mark.usefixtures("little_memory")
def test_what_does_not_fit_is_made_to_fit_and_said(
    recorder: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder.serve()
    assert recorder.engine.num_slots == 2
    assert recorder.engine.context_size == 8192
    said = capsys.readouterr().err
    assert said.startswith("4 slots of 8192 tokens do not fit: the model needs 1.")
    assert "it fits with --context-size 8192 --parallel 2" in said


@pytest.mark.usefixtures("little_memory")
def test_what_was_named_and_does_not_fit_is_refused_unless_forced(recorder: Recorder) -> None:
    named = ("--parallel", "4", "--context-size", "8192")
    with pytest.raises(ModelTooLarge, match="it fits with --context-size 8192 --parallel 2"):
        recorder.serve("smollm2:135m", *named)
    recorder.serve("smollm2:135m", *named, "--force")
    assert recorder.engine.num_slots == 4


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
    monkeypatch.delattr(entries, "pull")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(AddressInUse):
            recorder.serve(model, "--port", port)


def test_the_socket_is_closed_at_the_end(recorder: Recorder, model: str) -> None:
    recorder.serve(model)
    with socket.create_server(("127.0.0.1", recorder.port)) as again:
        assert again.getsockname()[1] == recorder.port
