"""A model server that answers what a test wrote down, for clients of one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Message = dict[str, Any]
"""`content`, and perhaps `reasoning_content`, of an answer; or `error`, a refusal's text."""


class ScriptedServer:
    """`script` turns a request's body into a message; `bodies` are those that came."""

    def __init__(self) -> None:
        self.script: Callable[[dict[str, Any]], Message] = lambda _: {"content": "one two three"}
        self.bodies: list[dict[str, Any]] = []
        self.capabilities: dict[str, Any] = {"input": ["text"], "context_size": 1024}
        self.keys: list[str | None] = []
        self.pause: threading.Event | None = None
        """Streams wait for it after their first piece."""
        self.url = ""


@contextmanager
def scripted_server() -> Iterator[ScriptedServer]:
    """Serves on a free port of the loopback address until the block ends."""
    scripted = ScriptedServer()

    class Handler(_Handler):
        server_script = scripted

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    scripted.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield scripted
    finally:
        if scripted.pause is not None:
            scripted.pause.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server_script: ScriptedServer

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        card = {"id": "scripted", "capabilities": self.server_script.capabilities}
        self._json(200, {"object": "list", "data": [card]})

    def do_POST(self) -> None:
        scripted = self.server_script
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        scripted.bodies.append(body)
        scripted.keys.append(self.headers.get("Authorization"))
        message = scripted.script(body)
        if "error" in message:
            self._json(400, {"error": {"message": message["error"]}})
        elif body.get("stream"):
            self._stream(message)
        else:
            self._json(200, {"choices": [{"message": message, "finish_reason": "stop"}]})

    def _json(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, message: Message) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for field in ("reasoning_content", "content"):
            for word in message[field].split(" ") if field in message else ():
                self._event({"choices": [{"delta": {field: f"{word} "}}]})
                if self.server_script.pause is not None:
                    self.server_script.pause.wait()
        if message.get("broken"):
            self._event({"error": {"message": message["broken"]}})
            return
        self._event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        self._event({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, value: Any) -> None:
        try:
            # Raw: some servers write characters in JSON that other readers take for line ends.
            text = json.dumps(value, ensure_ascii=False)
            self.wfile.write(f": ping\n\ndata: {text}\n\n".encode())
            self.wfile.flush()
        except OSError:
            self.close_connection = True  # the client has gone away
