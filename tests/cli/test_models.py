"""Commands about models, on a fake hub: what they print, what they leave, how they end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from threading import Event

import pytest
from tests.support.command_line import Command
from tests.support.fake_hub import HTML, FakeHub
from tests.support.small_catalogue import SmallCatalogue
from tests.support.tiny_gguf import gguf_bytes

ROOT = Path(__file__).parents[2]
PROJECTOR = "mmproj-F16.gguf"
MODEL = "Qwen3.5-9B-Q4_K_M.gguf"
REPOSITORY = Path("unsloth/Qwen3.5-9B-GGUF")


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The models folder."""
    folder = tmp_path / "models"
    monkeypatch.setenv("SELF_MODELS", str(folder))
    return folder


@pytest.mark.usefixtures("small_catalogue")
def test_pull_prints_only_paths_on_stdout(command: Command, models: Path) -> None:
    outcome = command("pull", "qwen3.5:9b")
    assert outcome.code == 0
    assert outcome.out.splitlines() == [
        str(models / REPOSITORY / MODEL),
        str(models / REPOSITORY / PROJECTOR),
    ]
    assert f"Fetching {MODEL} (" in outcome.err
    assert command("pull", "qwen3.5:9b").err == ""


@pytest.mark.usefixtures("small_catalogue")
def test_a_pulled_model_is_listed_and_gone_when_removed(command: Command, models: Path) -> None:
    command("pull", "gemma4:4b")
    listed = json.loads(command("ls", "--json").out)
    found = {model["reference"]: model for model in listed["models"]}
    assert found["gemma4:4b@q4"]["vision"] is True
    assert found["gemma4:4b@q4"]["size"] == sum(
        os.path.getsize(path) for path in found["gemma4:4b@q4"]["paths"]
    )
    assert "gemma4:4b@q4 " in command("ls").out
    removed = command("rm", "gemma4:4b")
    assert (removed.code, removed.out) == (0, "")
    assert "gemma4" not in command("ls").out
    again = command("rm", "gemma4:4b")
    assert (again.code, again.err[:25]) == (1, "Error [model_not_found]: ")


def test_the_models_folder_may_be_a_flag(
    command: Command, small_catalogue: SmallCatalogue, tmp_path: Path
) -> None:
    folder = str(tmp_path / "elsewhere")
    assert command("pull", "qwen3.5:9b", "--models-dir", folder).out.startswith(folder)
    assert "qwen3.5:9b@q4" in command("ls", "--models-dir", folder).out
    assert "qwen3.5" not in command("ls").out


@pytest.mark.usefixtures("small_catalogue", "models")
def test_the_catalogue_is_listed_with_what_is_here(command: Command) -> None:
    command("pull", "qwen3.5:9b@q8")
    listed = json.loads(command("ls-remote", "--json").out)["models"]
    assert {m["reference"] for m in listed if m["installed"]} == {"qwen3.5:9b@q8"}
    assert command("ls-remote").out.splitlines()[0].split()[:2] == ["MODEL", "SIZE"]


@pytest.mark.usefixtures("small_catalogue", "models")
def test_show_tells_the_files_before_and_after_they_are_fetched(command: Command) -> None:
    before = json.loads(command("show", "qwen3.5:9b", "--json").out)
    assert before["installed"] is False
    assert [file["name"] for file in before["files"]] == [PROJECTOR, MODEL]
    command("pull", "qwen3.5:9b")
    after = json.loads(command("show", "qwen3.5:9b", "--json").out)
    assert after["installed"] is True
    assert after["sampling"]["presence_penalty"] == 1.5


def test_show_estimates_the_memory(command: Command) -> None:
    shown = json.loads(command("show", "smollm2:135m", "--json", "--parallel", "2").out)
    assert shown["fits"] is True
    assert shown["run_as"] == {"context_size": 8192, "parallel": 2}
    assert shown["needed_bytes"] > shown["files"][0]["size"]
    assert "memory          needs " in command("show", "smollm2:135m").out


def test_show_of_a_repository_asks_the_hub(command: Command, hub: FakeHub, models: Path) -> None:
    hub.add("owner/models", "a-Q4_0.gguf", gguf_bytes())
    shown = json.loads(command("show", "hf:owner/models", "--json").out)
    assert [file["name"] for file in shown["files"]] == ["a-Q4_0.gguf"]


@pytest.mark.usefixtures("small_catalogue", "models")
@pytest.mark.parametrize("cut", [30_000, 99_000])
def test_a_download_that_broke_off_goes_on(command: Command, hub: FakeHub, cut: int) -> None:
    hub.fault(MODEL).cuts = [cut]
    assert command("pull", "qwen3.5:9b").code == 0
    assert [seen.range for seen in hub.requests if seen.name == MODEL] == [None, f"bytes={cut}-"]


@pytest.mark.usefixtures("small_catalogue")
def test_a_server_without_ranges_starts_again(command: Command, hub: FakeHub, models: Path) -> None:
    fault = hub.fault(MODEL)
    fault.cuts, fault.ignore_ranges = [50_000], True
    assert command("pull", "qwen3.5:9b").code == 0
    whole = hub.files[str(REPOSITORY), MODEL]
    assert (models / REPOSITORY / MODEL).read_bytes() == whole


@pytest.mark.usefixtures("small_catalogue")
@pytest.mark.parametrize("content", [HTML, b"GGUF" + bytes(50)])
def test_a_page_or_a_short_file_is_named_and_not_stored(
    command: Command, hub: FakeHub, models: Path, content: bytes
) -> None:
    hub.fault(MODEL).content = content
    outcome = command("pull", "qwen3.5:9b")
    assert (outcome.code, outcome.out) == (1, "")
    assert "Error [download]: " in outcome.err
    assert MODEL in outcome.err.splitlines()[-1]
    assert not (models / REPOSITORY / MODEL).exists()


@pytest.mark.usefixtures("models")
def test_missing_disk_space_is_told_with_both_figures(
    command: Command, small_catalogue: SmallCatalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 1000

    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage())
    outcome = command("pull", "qwen3.5:9b")
    assert outcome.code == 1
    assert "not enough disk space" in outcome.err
    assert "has 1000 B" in outcome.err


@pytest.mark.usefixtures("small_catalogue", "models")
@pytest.mark.parametrize("proxy", ["https://proxy:80*", "http://", "http://a b:1"])
def test_a_bad_proxy_is_named(
    command: Command, monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    outcome = command("pull", "qwen3.5:9b")
    assert outcome.code == 1
    assert "Error [settings]: HTTPS_PROXY" in outcome.err


@pytest.mark.usefixtures("small_catalogue", "models")
def test_a_proxy_is_not_used_for_this_machine(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert command("pull", "qwen3.5:9b").code == 0


def pulling(models: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "selfserve", "pull", "qwen3.5:9b"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.usefixtures("small_catalogue")
def test_ctrl_c_keeps_the_part_and_ends_with_130(
    command: Command, hub: FakeHub, models: Path
) -> None:
    fault = hub.fault(MODEL)
    fault.gate = Event()
    process = pulling(models)
    hub.half_sent.wait()
    part = models / REPOSITORY / f"{MODEL}.part"
    while process.poll() is None and not (part.exists() and part.stat().st_size):
        pass  # the first half is on its way
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=5)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    fault.gate.set()
    listed = json.loads(command("ls", "--json").out)
    assert [file["size"] for file in listed["unfinished"]] == [part.stat().st_size]
    assert f"Unfinished: {models / REPOSITORY / MODEL}" in command("ls").err
    assert command("pull", "qwen3.5:9b").code == 0
    assert not part.exists()


@pytest.mark.usefixtures("models")
def test_serve_on_a_taken_port_fetches_nothing(
    command: Command, small_catalogue: SmallCatalogue, hub: FakeHub
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        outcome = command("serve", "qwen3.5:9b", "--port", port)
    assert outcome.code == 1
    assert outcome.err.startswith(
        f"Error [address_in_use]: cannot listen on http://127.0.0.1:{port}"
    )
    assert hub.requests == []


@pytest.mark.usefixtures("models")
def test_serve_on_a_device_that_is_not_there_fetches_nothing(
    command: Command, small_catalogue: SmallCatalogue, hub: FakeHub
) -> None:
    outcome = command("serve", "qwen3.5:9b", "--port", "0", "--device", "vulkan:77")
    assert outcome.code == 1
    assert "vulkan:77" in outcome.err
    assert hub.requests == []


@pytest.mark.usefixtures("models")
def test_a_split_model_with_a_missing_part_is_told_by_name(
    command: Command, tmp_path: Path
) -> None:
    part = tmp_path / "m-00002-of-00003.gguf"
    part.write_bytes(gguf_bytes())
    outcome = command("serve", "--port", "0", str(part))
    assert outcome.code == 1
    assert "m-00001-of-00003.gguf, m-00003-of-00003.gguf" in outcome.err
