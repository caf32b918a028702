"""A server as a child process: it is ready, or it says why not; it never outlives its block."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from selfserve.cli.child_server import child_server
from selfserve.errors import StartError


def python(code: str) -> list[str]:
    return [sys.executable, "-c", f"import sys, signal, threading\n{code}"]


READY = "print('Ready in 0.1 s: http://127.0.0.1:1234', file=sys.stderr, flush=True)\n"
WAIT = "threading.Event().wait()\n"


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_address_comes_from_the_childs_words_and_it_ends_with_the_block() -> None:
    with child_server(python("print('Loading', file=sys.stderr)\n" + READY + WAIT)) as server:
        assert server.url == "http://127.0.0.1:1234"
        assert is_alive(server.pid)
    assert not is_alive(server.pid)


def test_it_ends_when_the_block_fails() -> None:
    pids: list[int] = []

    def fail() -> None:
        with child_server(python(READY + WAIT)) as server:
            pids.append(server.pid)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not is_alive(pids[0])


def test_a_child_that_ends_before_it_is_ready_tells_why() -> None:
    code = "sys.exit('Error [model_not_found]: there is no file x.gguf')"
    with (
        pytest.raises(StartError, match=r"did not start: Error \[model_not_found\]: there is no"),
        child_server(python(code)),
    ):
        pass


def test_a_child_that_is_never_ready_is_ended_after_the_limit() -> None:
    with (
        pytest.raises(StartError, match="not ready after 0 s"),
        child_server(python(WAIT), limit_s=0.05),
    ):
        pass


def test_a_child_that_writes_much_does_not_block() -> None:
    code = READY + "for _ in range(5000): print('x' * 100, file=sys.stderr)\n"
    code += "print('written', flush=True)\n" + WAIT
    with child_server(python(code)) as server:
        assert is_alive(server.pid)


def test_a_terminated_parent_takes_its_child_along() -> None:
    code = f"""
from selfserve.cli.child_server import child_server
child = [sys.executable, "-c", {"import sys, threading; " + READY.strip() + "; " + WAIT!r}]
with child_server(child) as server:
    print(server.pid, flush=True)
    threading.Event().wait()
"""
    parent = subprocess.Popen(python(code), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert parent.stdout is not None
    with parent, parent.stdout as lines:
        pid = int(lines.readline())
        parent.terminate()
    assert not is_alive(pid)
