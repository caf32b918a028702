"""Makes `.venv`: what a checkout needs to serve (`runtime`) or also to be tested (`dev`).

Called by tools/environment.sh with the kind and the checksum that the finished environment gets.
Rules of this file
    Standard library only: nothing is installed yet.
    One set-up at a time: the others wait for its lock, which ends with its process.
    `.venv/unfinished` stands as long as a set-up works. One that finds it begins from nothing:
    an interrupted pip leaves packages that look complete. pip's cache keeps that cheap.
    pip obeys the user's own configuration: indexes, mirrors, certificates, proxies.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn, TextIO

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
UNFINISHED = VENV / "unfinished"
LOG = VENV / "setup.log"

KINDS = {"runtime": ("runtime",), "dev": ("dev", "runtime")}
"""What is installed → the stamps that it earns: who may test may also serve."""

LINE_INTERVAL_S = 20.0
"""Without a terminal: seconds between two lines of progress."""
SHOWN_ON_FAILURE = 15


class SetupFailure(Exception):
    """The set-up cannot go on; the message is one line for the person at the terminal."""


class Progress:
    """What the set-up does at the moment: one line that changes, or plain lines now and then."""

    COMPILED = re.compile(r"\[(\d+)/(\d+)\]")
    STEPS = re.compile(r"(?:Collecting|Downloading) \S+|Installing collected packages")

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._next_line_s = time.monotonic() + LINE_INTERVAL_S
        self._compiling = False

    def say(self, text: str) -> None:
        """A line that stays."""
        self._clear()
        print(text, file=self._stream, flush=True)

    def pip_line(self, line: str) -> None:
        """Reads one line of pip's output and shows what it tells."""
        compiled = self.COMPILED.search(line)
        if "Building wheel for llama-cpp-python" in line and not self._compiling:
            self._compiling = True
            self.say("Compiling llama.cpp for this CPU: once, about 4 minutes on 2 cores")
        elif self._compiling and compiled:
            self._show(f"  compiled {compiled[1]} of {compiled[2]} files")
        elif step := self.STEPS.search(line):
            self._show(f"  {step[0].lower().strip()}")

    def done(self) -> None:
        self._clear()

    def _show(self, text: str) -> None:
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{text[:width]}", end="", file=self._stream, flush=True)
        elif time.monotonic() >= self._next_line_s:
            self._next_line_s = time.monotonic() + LINE_INTERVAL_S
            print(text, file=self._stream, flush=True)

    def _clear(self) -> None:
        if self._live:
            print("\r\x1b[K", end="", file=self._stream, flush=True)


def main(kind: str, checksum: str) -> None:
    progress = Progress(sys.stderr)
    with _only_one(progress):
        if _is_current(kind, checksum):
            return
        _check_machine()
        progress.say(f"Setting up {VENV} (needed once; details in {LOG})")
        _make_venv()
        try:
            for arguments in _installations(kind):
                _pip(arguments, progress)
            _build_kernels(progress)
        finally:
            progress.done()
        for earned in KINDS[kind]:
            _stamp(earned).write_text(_stamp_text(checksum))
        UNFINISHED.unlink()
        progress.say("Set-up done")


def _installations(kind: str) -> Iterator[list[str]]:
    """pip's arguments, step by step. The tools that build come first: the builds use these
    pinned ones instead of fetching whatever is newest."""
    locked = ["--require-hashes", "--no-build-isolation", "-r"]
    folder = ROOT / "requirements"
    yield ["--require-hashes", "-r", str(folder / "build.txt")]
    yield ["--verbose", *locked, str(folder / f"{kind}.txt")]
    yield ["--no-deps", *locked, str(folder / "model.txt")]
    yield ["--no-deps", "--no-build-isolation", "--editable", str(ROOT)]


@contextlib.contextmanager
def _only_one(progress: Progress) -> Iterator[None]:
    """Holds a lock on the checkout's folder; the system frees it when the process ends."""
    folder = os.open(ROOT, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say("Another set-up of this folder is at work; waiting for it")
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _check_machine() -> None:
    if importlib.util.find_spec("ensurepip") is None:
        raise SetupFailure("Python's venv is incomplete; on Debian: apt install python3-venv")
    compilers = [os.environ.get("CXX", "c++").split()[0], "g++", "clang++"]
    if not any(shutil.which(name) for name in compilers):
        raise SetupFailure("no C++ compiler was found; on Debian: apt install g++")


def _make_venv() -> None:
    """An environment with a working pip, kept if a finished set-up left one for this Python."""
    if UNFINISHED.exists() or not _has_pip():
        shutil.rmtree(VENV, ignore_errors=True)
    VENV.mkdir(exist_ok=True)
    UNFINISHED.touch()
    LOG.write_text("")
    for stamp in VENV.glob("*.stamp"):
        stamp.unlink()
    if not _has_pip():
        venv.create(VENV, with_pip=True, symlinks=True)


def _has_pip() -> bool:
    if not PYTHON.exists():
        return False
    check = f"import pip, sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]!r})"
    return subprocess.run([PYTHON, "-c", check], capture_output=True).returncode == 0


def _pip(arguments: list[str], progress: Progress) -> None:
    """Runs `pip install`."""
    if _run([str(PYTHON), "-m", "pip", "install", "--no-input", *arguments], progress) != 0:
        raise SetupFailure(f"pip failed; the end of {LOG}:\n{_log_end()}")


def _build_kernels(progress: Progress) -> None:
    """Compiles `kernels/`. Everything works without them, so a failure is only told."""
    if _run([str(PYTHON), str(ROOT / "tools" / "build_kernels.py")], progress) != 0:
        progress.say(
            "The kernels could not be compiled: everything takes longer than it could "
            f"(details in {LOG})"
        )


def _run(command: list[str], progress: Progress) -> int:
    """Runs a command, writes its output to the log and its progress to the terminal."""
    with (
        LOG.open("a") as log,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=os.environ | {"PYTHONUNBUFFERED": "1", "PIP_PROGRESS_BAR": "off"},
            start_new_session=True,
        ) as process,
    ):
        try:
            for line in process.stdout or ():
                log.write(line)
                progress.pip_line(line)
            return process.wait()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            raise


def _log_end() -> str:
    return "\n".join(LOG.read_text(errors="replace").splitlines()[-SHOWN_ON_FAILURE:])


def _is_current(kind: str, checksum: str) -> bool:
    with contextlib.suppress(OSError):
        return _stamp(kind).read_text() == _stamp_text(checksum)
    return False


def _stamp(kind: str) -> Path:
    return VENV / f"{kind}.stamp"


def _stamp_text(checksum: str) -> str:
    return f"{PYTHON.resolve()} {checksum}\n"


def _on_terminate(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _on_terminate)
    try:
        main(*sys.argv[1:])
    except SetupFailure as failure:
        sys.exit(f"Error [setup]: {failure}")
    except OSError as failure:
        sys.exit(f"Error [setup]: {failure}")
    except KeyboardInterrupt:
        print("Set-up interrupted; the next run starts it again", file=sys.stderr)
        sys.exit(130)
