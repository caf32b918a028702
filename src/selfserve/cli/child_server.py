"""A server as a child process: started, waited for, ended."""

from __future__ import annotations

import contextlib
import queue
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from selfserve.errors import StartError

READY = re.compile(r"Ready\b.*(http://\S+)")
START_LIMIT_S = 900.0
"""A large model on a slow disk takes minutes."""
END_LIMIT_S = 10.0
LINES_KEPT = 5


@dataclass(frozen=True, slots=True)
class ChildServer:
    """A server that is ready."""

    url: str
    pid: int
    start_s: float
    """Seconds from its start to ready."""


@contextlib.contextmanager
def child_server(
    command: Sequence[str], *, limit_s: float = START_LIMIT_S
) -> Iterator[ChildServer]:
    """Starts `command`, waits for its line `Ready …: http://…` on stderr, ends it on exit.

    Blocks until then. Raises StartError with the child's last words if it ends before. For the
    main thread only: SIGTERM becomes KeyboardInterrupt meanwhile, so that the child ends too.
    """
    begin_s = time.monotonic()
    old_handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    found: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    last: deque[str] = deque(maxlen=LINES_KEPT)
    reader = threading.Thread(target=_read, args=(process, found, last), daemon=True)
    reader.start()
    try:
        try:
            url = found.get(timeout=limit_s)
        except queue.Empty:
            raise StartError(f"the server was not ready after {limit_s:.0f} s") from None
        if url is None:
            raise StartError(f"the server did not start: {' | '.join(last) or 'it said nothing'}")
        yield ChildServer(url, process.pid, time.monotonic() - begin_s)
    finally:
        _end(process)
        reader.join()
        signal.signal(signal.SIGTERM, old_handler)


def _read(
    process: subprocess.Popen[str], found: queue.SimpleQueue[str | None], last: deque[str]
) -> None:
    """Reads stderr to its end, so that the child never waits for room in the pipe."""
    assert process.stderr is not None
    with process.stderr as lines:
        for line in lines:
            last.append(line.strip())
            if match := READY.search(line):
                found.put(match[1])
    found.put(None)


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(END_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
