"""`self bench` on a scripted server: figures, output and errors."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from selfserve.cli import bench as bench_module
from selfserve.cli.bench import Level, Report, decode_speed, percentile, picture, table
from selfserve.cli.chat_stream import Answer, RequestFailed
from selfserve.cli.main import command_line
from selfserve.errors import SettingsError, StartError


class Handler(http.server.BaseHTTPRequestHandler):
    """Streams as many words as are asked for."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(asked)  # type: ignore[attr-defined]
        if self.server.refusal:  # type: ignore[attr-defined]
            self._send(503, "application/json", b'{"error": {"message": "the model is loading"}}')
            return
        count = asked["max_tokens"]
        events: list[dict[str, Any]] = [{"choices": [{"delta": {"content": "a "}}]}] * count
        events.append({"choices": [], "usage": {"prompt_tokens": 500, "completion_tokens": count}})
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        self._send(200, "text/event-stream", "".join([*lines, "data: [DONE]\n\n"]).encode())

    def do_GET(self) -> None:
        self._send(200, "application/json", b'{"data": [{"id": "scripted"}]}')

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class ScriptedServer(http.server.ThreadingHTTPServer):
    request_queue_size = 64

    def __init__(self, *, refusal: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []
        self.refusal = refusal

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextlib.contextmanager
def serving(server: ScriptedServer) -> Iterator[ScriptedServer]:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def run(*arguments: str) -> None:
    command_line()(["bench", *arguments], standalone_mode=False)


def test_json_on_stdout_has_all_figures_and_stages_go_to_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving(ScriptedServer()) as server:
        run(server.url, "--json", "--tokens", "8")
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["model"] == "scripted"
    assert found["prompt_tokens"] == 500
    assert found["prompt_tokens_per_s"] > 0
    assert found["ttft_ms"] > 0
    assert [level["streams"] for level in found["levels"]] == [1, 4, 8, 16]
    assert set(found["levels"][0]) == set(Level.__slots__)
    assert err.splitlines()[:2] == ["warm-up", "prompt speed"]


def test_no_two_prompts_begin_alike_and_answers_have_the_wanted_length() -> None:
    with serving(ScriptedServer()) as server:
        run(server.url, "--tokens", "9")
    prompts = [asked["messages"][0]["content"] for asked in server.asked]
    assert len({prompt[:40] for prompt in prompts}) == len(prompts) == 1 + 3 + 5 + 1 + 4 + 8 + 16
    assert [asked["max_tokens"] for asked in server.asked].count(9) == 1 + 4 + 8 + 16
    assert all(asked["ignore_eos"] for asked in server.asked)


def test_the_table_is_the_result_and_the_picture_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "speed.svg"
    with serving(ScriptedServer()) as server:
        run(server.url, "--tokens", "8", "--plot", str(file))
    out, err = capsys.readouterr()
    assert out.startswith("Model                scripted\nPrompt speed")
    assert f"Wrote {file}" in err
    assert ET.parse(file).getroot().tag.endswith("svg")


def test_a_refusal_of_the_server_ends_it_with_the_servers_words() -> None:
    with (
        serving(ScriptedServer(refusal=True)) as server,
        pytest.raises(RequestFailed, match="the model is loading"),
    ):
        run(server.url)


def test_a_folder_that_is_not_there_is_noticed_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="there is no folder"):
        run("http://127.0.0.1:1", "--plot", str(tmp_path / "no" / "x.svg"))


def test_a_secure_address_is_refused() -> None:
    with pytest.raises(StartError, match="http://host:port"):
        run("https://127.0.0.1:1")


def test_a_model_that_is_not_there_ends_it_with_the_servers_reason(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="there is no file"):
        run(str(tmp_path / "missing.gguf"))


def test_a_model_is_served_with_a_slot_for_each_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    @contextlib.contextmanager
    def recorded(command: list[str]) -> Iterator[Any]:
        commands.append(command)
        raise StartError("recorded")
        yield

    monkeypatch.setattr("selfserve.cli.child_server.child_server", recorded)
    with pytest.raises(StartError, match="recorded"):
        run("some:model", "--threads", "3")
    [command] = commands
    assert command[1:5] == ["-m", "selfserve", "serve", "some:model"]
    assert command[5:] == ("--port 0 --parallel 16 --context-size 2048 --threads 3".split())


def answer(times: list[float], tokens: int) -> Answer:
    return Answer(
        sent_s=0.0,
        times_s=tuple(times),
        text="",
        finish_reason="length",
        completion_tokens=tokens,
    )


def test_speed_counts_the_time_in_which_all_streams_run() -> None:
    early, late = answer([1, 2, 3, 4], 4), answer([2, 2.5, 3, 3.5, 4, 5, 6], 7)
    assert decode_speed([early, late]) == (2 + 4) / 2


def test_speed_counts_tokens_and_not_pieces_of_text() -> None:
    assert decode_speed([answer([0, 1, 2], 6)]) == 2 * 2 / 2


def test_speed_of_streams_that_never_ran_at_once_counts_the_whole_time() -> None:
    assert decode_speed([answer([1, 2], 2), answer([3, 4, 5], 3)]) == 4 / 4
    assert decode_speed([answer([1], 1)]) == 0


@pytest.mark.parametrize(
    ("share", "value"),
    [(0.0, 1.0), (0.01, 1.0), (0.5, 50.0), (0.505, 51.0), (0.99, 99.0), (1, 100)],
)
def test_a_percentile_is_one_of_the_values(share: float, value: float) -> None:
    assert percentile([float(n) for n in range(1, 101)], share) == value


REPORT = Report(
    model="m",
    prompt_tokens=500,
    prompt_tokens_per_s=1234.4,
    ttft_ms=45.6,
    levels=(
        Level(streams=1, tokens_per_s=100, ttft_ms=40, gap_p50_ms=10, gap_p99_ms=12.34),
        Level(streams=16, tokens_per_s=400, ttft_ms=300, gap_p50_ms=40, gap_p99_ms=101),
    ),
)


def test_the_table_shows_each_level_on_a_line() -> None:
    assert table(REPORT).splitlines() == [
        "Model                m",
        "Prompt speed         1234 tokens/s (500 tokens)",
        "Time to first token  46 ms (60 words)",
        "",
        "streams  tokens/s  per stream  first token  between tokens: p50      p99",
        "      1     100.0       100.0        40 ms              10.0 ms    12.3 ms",
        "     16     400.0        25.0       300 ms              40.0 ms   101.0 ms",
    ]


def test_the_picture_shows_the_speed_of_all_and_of_each() -> None:
    lines = [e for e in ET.fromstring(picture(REPORT)).iter() if e.tag.endswith("polyline")]
    assert len(lines) == 2


def test_on_a_terminal_the_bar_counts_the_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(bench_module.sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with bench_module._progress(2) as advance:
        advance("prompt speed")
        advance("16 streams")
    assert "16 streams" in terminal.getvalue()
