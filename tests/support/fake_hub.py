"""A model hub on this machine: the tree and resolve routes, and the faults that networks have.

The resolve route redirects to a storage route, as the real hub does; faults happen there.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

HTML = b"<!DOCTYPE html><html><body>Please log in to use this network.</body></html>"


@dataclass
class Faults:
    """What goes wrong with a file. `cuts` are used up, one for each answer."""

    cuts: list[int] = field(default_factory=list)
    """Bytes of a body after which the connection breaks."""
    ignore_ranges: bool = False
    ignore_if_range: bool = False
    no_length: bool = False
    """Bodies come without a length and end with the connection."""
    content: bytes | None = None
    """What is sent in the file's place."""
    etag: str | None = None
    content_type: str = "application/octet-stream"
    linked_sha256: str | None = None
    statuses: list[int] = field(default_factory=list)
    """Refusals to give first, one for each request."""
    gate: threading.Event | None = None
    """Bodies wait for it after their first half, so that a test can act in the middle."""


@dataclass(frozen=True)
class Seen:
    """One request to the storage route."""

    name: str
    range: str | None
    if_range: str | None
    token: str | None


class FakeHub:
    """`files` is (repository, name) → content; `requests` what was asked of the storage route."""

    def __init__(self) -> None:
        self.files: dict[tuple[str, str], bytes] = {}
        self.faults: dict[str, Faults] = {}
        self.requests: list[Seen] = []
        self.tree_requests = 0
        self.tree_body: bytes | None = None
        """What is sent in place of every file list."""
        self.page_size = 1000
        self.gated: set[str] = set()
        self.half_sent = threading.Event()
        """Set when a body waits at its gate."""
        self.url = ""

    def add(self, repository: str, name: str, content: bytes) -> str:
        """Adds a file; returns its sha256."""
        self.files[repository, name] = content
        return hashlib.sha256(content).hexdigest()

    def fault(self, name: str) -> Faults:
        return self.faults.setdefault(name, Faults())

    def tree(self, repository: str) -> list[dict[str, object]]:
        items: list[dict[str, object]] = [
            {"type": "file", "oid": "0" * 40, "size": 12, "path": "README.md"},
            {"type": "directory", "oid": "0" * 40, "size": 0, "path": "folder"},
        ]
        for (owner, name), content in self.files.items():
            if owner == repository:
                sha256 = hashlib.sha256(content).hexdigest()
                lfs = {"oid": sha256, "size": len(content), "pointerSize": 134}
                items.append(
                    {
                        "type": "file",
                        "oid": "1" * 40,
                        "size": len(content),
                        "path": name,
                        "lfs": lfs,
                    }
                )
        return items


@contextmanager
def running_hub() -> Iterator[FakeHub]:
    """Serves a FakeHub on a free port of the loopback address until the block ends."""
    hub = FakeHub()

    class Handler(_Handler):
        fake = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        for fault in hub.faults.values():
            if fault.gate is not None:
                fault.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    fake: FakeHub

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        if parts[:2] == ["api", "models"] and parts[4:5] == ["tree"]:
            self._tree("/".join(parts[2:4]), parse_qs(url.query))
        elif parts[2:3] == ["resolve"]:
            self._resolve("/".join(parts[:2]), "/".join(parts[4:]))
        elif parts[:1] == ["storage"]:
            self._storage("/".join(parts[1:3]), "/".join(parts[3:]))
        else:
            self._refuse(404)

    def _refuse(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _tree(self, repository: str, query: dict[str, list[str]]) -> None:
        self.fake.tree_requests += 1
        if repository in self.fake.gated:
            return self._refuse(403, X_Error_Code="GatedRepo")
        items = self.fake.tree(repository)
        if len(items) <= 2:
            return self._refuse(404, X_Error_Code="RepoNotFound")
        start = int(query.get("cursor", ["0"])[0])
        end = start + self.fake.page_size
        body = self.fake.tree_body or json.dumps(items[start:end]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if end < len(items):
            path = urlsplit(self.path).path
            self.send_header("Link", f'<{self.fake.url}{path}?cursor={end}>; rel="next"')
        self.end_headers()
        self.wfile.write(body)
        return None

    def _resolve(self, repository: str, name: str) -> None:
        content = self.fake.files.get((repository, name))
        if content is None:
            return self._refuse(404, X_Error_Code="EntryNotFound")
        fault = self.fake.fault(name)
        sha256 = fault.linked_sha256 or hashlib.sha256(content).hexdigest()
        return self._refuse(
            302,
            Location=f"/storage/{repository}/{name}",
            X_Linked_ETag=f'"{sha256}"',
            X_Linked_Size=str(len(content)),
            X_Repo_Commit="2" * 40,
        )

    def _storage(self, repository: str, name: str) -> None:
        fault = self.fake.fault(name)
        wanted, if_range = self.headers.get("Range"), self.headers.get("If-Range")
        token = self.headers.get("Authorization")
        self.fake.requests.append(Seen(name, wanted, if_range, token))
        if fault.statuses:
            return self._refuse(fault.statuses.pop(0))
        content = self.fake.files[repository, name] if fault.content is None else fault.content
        etag = fault.etag or f'"{hashlib.md5(content).hexdigest()}"'
        start = 0
        same = fault.ignore_if_range or if_range in (None, etag)
        if wanted is not None and same and not fault.ignore_ranges:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(content):
                return self._refuse(416)
        self._send(fault, content, start, etag)
        return None

    def _send(self, fault: Faults, content: bytes, start: int, etag: str) -> None:
        body = content[start:]
        self.send_response(206 if start else 200)
        self.send_header("ETag", etag)
        self.send_header("Content-Type", fault.content_type)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if not fault.no_length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if fault.gate is not None:
            half = len(body) // 2
            self.wfile.write(body[:half])
            self.wfile.flush()
            self.fake.half_sent.set()
            fault.gate.wait()
            body = body[half:]
        if fault.cuts:
            body = body[: fault.cuts.pop(0)]
        try:
            self.wfile.write(body)
        except OSError:
            self.close_connection = True  # the client has gone away
