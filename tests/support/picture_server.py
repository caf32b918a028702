"""A local HTTPS (or HTTP) server with a certificate of its own, for one test."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

HOST = "pictures.test"


def make_certificate(folder: Path) -> Path:
    """A new key and a self-signed certificate for `HOST` and 127.0.0.1, in one PEM file."""
    if shutil.which("openssl") is None:
        pytest.skip("the openssl program makes the certificate")
    key, certificate, both = folder / "key.pem", folder / "cert.pem", folder / "both.pem"
    names = f"subjectAltName=DNS:{HOST},DNS:localhost,IP:127.0.0.1"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"]
    command += ["ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", f"/CN={HOST}"]
    command += ["-addext", names, "-addext", "keyUsage=critical,digitalSignature,keyCertSign"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    return both


class PictureServer:
    """Answers `GET path` by calling `routes[path](handler)`; remembers the requests it saw."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.routes: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {}
        self.seen: list[BaseHTTPRequestHandler] = []
        self.server_names: list[str | None] = []
        """The names that clients asked for in their TLS greetings."""
        self.closing = threading.Event()
        """Set when the test is over: what a route that stays silent waits for."""

    def serve(self, path: str, body: bytes, status: int = 200, **fields: str) -> None:
        """Lets `path` answer with `body`; `fields` are headers, `_` for `-`."""

        def route(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(status)
            headers = {"content-length": str(len(body))}
            headers |= {name.replace("_", "-"): value for name, value in fields.items()}
            for name, value in headers.items():
                handler.send_header(name, value)
            handler.end_headers()
            handler.wfile.write(body)

        self.routes[path] = route


@contextmanager
def running_server(certificate: Path | None) -> Iterator[PictureServer]:
    """A server on a free port of 127.0.0.1, with TLS if there is a certificate."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.seen.append(self)
            server.routes[self.path](self)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Clients that go away are what many tests are about."""

    listener = Quiet(("127.0.0.1", 0), Handler)
    server = PictureServer(listener.server_address[1])
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        context.sni_callback = lambda _, name, __: server.server_names.append(name)
        listener.socket = context.wrap_socket(
            listener.socket, server_side=True, do_handshake_on_connect=False
        )
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        listener.shutdown()
        thread.join()
        listener.server_close()
