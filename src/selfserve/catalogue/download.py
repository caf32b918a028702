"""One file from the hub to the disk, so that what has its final name is known to be right.

    <name>.part          what has arrived so far; kept when a download ends early
    <name>.part.json     which file that is: sha256 wanted, and the server's ETag
    <name>               only after size and sha256 were right, by one atomic rename

The transfer is made here and not by huggingface_hub, whose own one starts from zero after an
interruption. A part is continued with Range and If-Range; whatever a server makes of those, the
sha256 over the whole file decides.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import httpx

from selfserve.catalogue import hub
from selfserve.catalogue.gguf import trouble_with_magic
from selfserve.catalogue.known import ModelFile
from selfserve.errors import DownloadError
from selfserve.logs import get_logger

Progress = Callable[[int, int], None]
"""Called with (bytes there, bytes in all) after every piece. Must not block."""

ATTEMPTS = 5
"""Tries in a row that do not get further into the file than any before them."""
_CHUNK_BYTES = 1 << 20
_HEAD_BYTES = 64
_CONTENT_RANGE = re.compile(r"^bytes (\d+)-\d+/(\d+|\*)$")
_SHA256 = re.compile(r"^[0-9a-f]{64}$")
_RETRIED_STATUS = (408, 429, 500, 502, 503, 504)
_logger = get_logger("download")


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


class _Interrupted(Exception):
    """The transfer broke off in a way that another try may mend; the text says how."""


@dataclass(slots=True)
class _Part:
    """The unfinished file: open at its end, with the hash of what it holds."""

    file: BinaryIO
    size: int
    digest: _Hash
    etag: str

    def restart(self) -> None:
        self.file.seek(0)
        self.file.truncate()
        self.size, self.digest, self.etag = 0, hashlib.sha256(), ""

    def append(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            # Unbuffered, so that a full disk shows here and not when the file is closed.
            written = self.file.write(view) or 0
            view = view[written:]
        self.size += len(data)
        self.digest.update(data)


def part_path(target: Path) -> Path:
    return target.with_name(f"{target.name}.part")


def state_path(target: Path) -> Path:
    return target.with_name(f"{target.name}.part.json")


def part_size(target: Path) -> int:
    """Bytes of `target` that an earlier download left."""
    try:
        return part_path(target).stat().st_size
    except OSError:
        return 0


def remove_part(target: Path) -> None:
    part_path(target).unlink(missing_ok=True)
    state_path(target).unlink(missing_ok=True)


def check_disk_space(folder: Path, num_bytes: int) -> None:
    """Raises DownloadError if `folder`'s disk has less than `num_bytes` free."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise DownloadError(
            f"not enough disk space in {folder}: needs {amount(num_bytes)}, has {amount(free)}"
        )


def amount(num_bytes: int) -> str:
    """Bytes for a person: `5.3 GiB`."""
    value, unit = float(num_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{int(value)} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def download(
    client: httpx.Client,
    file: ModelFile,
    target: Path,
    *,
    on_progress: Progress | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Fetches `file` to `target`. Blocks; KeyboardInterrupt passes up and the part is kept.

    The caller sees to it that nobody else fetches the same target. `pause` waits between tries.
    Raises DownloadError (ModelNotFound for a file that the hub has not); what came is then
    either a part that a later call goes on with, or deleted because it was wrong.
    """
    transfer = _Transfer(client, file, target, on_progress, pause)
    try:
        transfer.run()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise DownloadError(f"{target}: cannot be written: {error.strerror}") from error
        raise DownloadError(
            f"the disk of {target.parent} is full: {file.name} needs "
            f"{amount(file.size - part_size(target))} more, the disk has "
            f"{amount(shutil.disk_usage(target.parent).free)}; "
            f"what arrived is kept, the next download goes on from there"
        ) from error


class _Transfer:
    """The download of one file: tries, what the server says, what is written."""

    def __init__(
        self,
        client: httpx.Client,
        file: ModelFile,
        target: Path,
        on_progress: Progress | None,
        pause: Callable[[float], None],
    ) -> None:
        self._client = client
        self._file = file
        self._target = target
        self._on_progress = on_progress
        self._pause = pause
        self._url = hub.file_url(file)
        self._connected = False

    def run(self) -> None:
        self._target.parent.mkdir(parents=True, exist_ok=True)
        etag = self._matching_state()
        check_disk_space(self._target.parent, self._file.size - part_size(self._target))
        try:
            with part_path(self._target).open("ab+", buffering=0) as raw:
                part = _open_part(raw, self._file.size, etag)
                self._report(part)
                self._fill(part)
                self._check(part)
                os.fsync(raw.fileno())
        except _Wrong as error:
            remove_part(self._target)
            raise DownloadError(str(error)) from error
        os.replace(part_path(self._target), self._target)
        state_path(self._target).unlink(missing_ok=True)

    def _matching_state(self) -> str:
        """The ETag that belongs to the part. A part of another file is removed."""
        try:
            state = json.loads(state_path(self._target).read_text("utf-8"))
            if state["sha256"] == self._file.sha256:
                return str(state["etag"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            pass
        remove_part(self._target)
        return ""

    def _fill(self, part: _Part) -> None:
        """Tries until the part has its full size."""
        failures, furthest = 0, part.size
        while part.size < self._file.size:
            try:
                self._request(part)
                trouble = f"the server ended it at byte {part.size} of {self._file.size}"
            except _Interrupted as error:
                trouble = str(error)
            if part.size >= self._file.size:
                return
            # Not the last size: a server may let a file begin anew each time.
            failures = 0 if part.size > furthest else failures + 1
            furthest = max(furthest, part.size)
            if failures >= ATTEMPTS:
                kept = "; what arrived is kept" if part.size else ""
                raise DownloadError(f"{self._file.name}: {trouble}{kept}")
            _logger.info("%s: %s, trying again", self._file.name, trouble)
            self._pause(2.0**failures / 2)

    def _request(self, part: _Part) -> None:
        headers = {}
        if part.size:
            headers["Range"] = f"bytes={part.size}-"
            if part.etag:
                headers["If-Range"] = part.etag
        try:
            with self._client.stream("GET", self._url, headers=headers) as response:
                self._connected = True
                if self._accept(part, response):
                    self._receive(part, response)
        except (httpx.ConnectError, httpx.ProxyError) as error:
            if not self._connected:
                raise hub.unreachable(self._url, error) from error
            raise _Interrupted(hub.unreachable(self._url, error).message) from error
        except httpx.HTTPError as error:
            raise _Interrupted(hub.unreachable(self._url, error).message) from error

    def _accept(self, part: _Part, response: httpx.Response) -> bool:
        """Compares the answer with what is wanted; False: the part was reset, ask again."""
        if response.status_code in _RETRIED_STATUS:
            raise _Interrupted(f"{response.url.host} answered {response.status_code}")
        if response.status_code == 416:
            part.restart()
            return False
        hub.check_status(response, f"{self._file.repository}/{self._file.name}")
        if response.headers.get("content-type", "").startswith("text/html"):
            raise DownloadError(
                f"{response.url.host} sent an HTML page instead of {self._file.name}: "
                "a proxy or a login page answers in the hub's place"
            )
        self._check_hub_hash(response)
        etag = _strong(response.headers.get("etag", ""))
        if response.status_code != 206:
            self._check_length(response)
            part.restart()
        elif not self._continues(part, response, etag):
            part.restart()
            return False
        if not part.size or part.etag != etag:
            part.etag = etag
            state = {"sha256": self._file.sha256, "etag": etag}
            state_path(self._target).write_text(json.dumps(state), "utf-8")
        return True

    def _continues(self, part: _Part, response: httpx.Response, etag: str) -> bool:
        """True if a partial answer goes on exactly where the part ends, with the same file."""
        match = _CONTENT_RANGE.match(response.headers.get("content-range", ""))
        if match is None or int(match[1]) != part.size:
            return False
        if part.etag and etag and part.etag != etag:
            return False
        return match[2] in ("*", str(self._file.size))

    def _check_hub_hash(self, response: httpx.Response) -> None:
        """The hub names the sha256 of large files beforehand: no byte is fetched of another one."""
        for answer in (*response.history, response):
            named = _strong(answer.headers.get("x-linked-etag", "")).strip('"')
            if _SHA256.match(named) and named != self._file.sha256:
                raise DownloadError(
                    f"{self._file.name} has changed on the hub: its sha256 is {named}, "
                    f"expected {self._file.sha256}"
                )

    def _check_length(self, response: httpx.Response) -> None:
        length = response.headers.get("content-length", "")
        if "content-encoding" in response.headers or not length.isdecimal():
            return
        if int(length) != self._file.size:
            head = next(response.iter_bytes(_HEAD_BYTES), b"")
            trouble = trouble_with_magic(head)
            raise DownloadError(
                f"{response.url.host} has {length} bytes as {self._file.name}, "
                f"expected {self._file.size}" + (f": {trouble}" if trouble else "")
            )

    def _receive(self, part: _Part, response: httpx.Response) -> None:
        head = None if part.size else b""
        for data in response.iter_bytes():
            if head is not None:
                head += data
                if len(head) < _HEAD_BYTES and len(head) < self._file.size:
                    continue
                self._check_head(head)
                data, head = head, None
            if part.size + len(data) > self._file.size:
                raise _Wrong(f"{self._file.name}: more than {self._file.size} bytes came")
            part.append(data)
            self._report(part)
        if head:
            self._check_head(head)

    def _report(self, part: _Part) -> None:
        if self._on_progress is not None:
            self._on_progress(part.size, self._file.size)

    def _check_head(self, head: bytes) -> None:
        trouble = trouble_with_magic(head)
        if trouble is not None:
            raise _Wrong(f"what came as {self._file.name} is {trouble}")

    def _check(self, part: _Part) -> None:
        found = part.digest.hexdigest()
        if found != self._file.sha256:
            raise _Wrong(
                f"{self._file.name}: its sha256 is {found}, expected {self._file.sha256}; "
                "it was deleted"
            )


class _Wrong(Exception):
    """What arrived can never become the file."""


def _open_part(file: BinaryIO, limit: int, etag: str) -> _Part:
    """The part with the hash of what is in it; emptied if it is longer than the file."""
    part = _Part(file, 0, hashlib.sha256(), etag)
    file.seek(0)
    while data := file.read(_CHUNK_BYTES):
        part.digest.update(data)
        part.size += len(data)
    if part.size > limit:
        part.restart()
    return part


def _strong(etag: str) -> str:
    """An ETag that stands for the very bytes; empty for a weak one, which If-Range may not use."""
    return "" if etag.startswith("W/") else etag


def sha256_of(path: Path) -> str:
    """Reads the whole file; about 2 s for each GiB."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(_CHUNK_BYTES):
            digest.update(data)
    return digest.hexdigest()
