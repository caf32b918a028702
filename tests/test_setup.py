"""The set-up of a checkout: what it shows, and what it says is missing."""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUILDING = "  Building wheel for llama-cpp-python (pyproject.toml): started"
EXPLAINED = "Compiling llama.cpp for this CPU: once, about 4 minutes on 2 cores\n"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"checkout_{name}", ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def setup() -> ModuleType:
    return load("setup")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_how_far_the_build_is_on_one_line(setup: ModuleType) -> None:
    stream = Terminal()
    progress = setup.Progress(stream)
    for line in (BUILDING, BUILDING, "  [1/193] g++ -c a.cpp", "  [2/193] g++ -c b.cpp"):
        progress.pip_line(line)
    shown = stream.getvalue()
    assert shown.count(EXPLAINED) == 1
    assert shown.endswith("\r\x1b[K  compiled 1 of 193 files\r\x1b[K  compiled 2 of 193 files")


def test_elsewhere_a_line_is_printed_now_and_then(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(setup.time, "monotonic", lambda: now)
    stream = io.StringIO()
    progress = setup.Progress(stream)
    progress.pip_line(BUILDING)
    for second in range(50):
        now = float(second)
        progress.pip_line(f"[{second}/193] g++")
    assert stream.getvalue() == (
        EXPLAINED + "  compiled 20 of 193 files\n  compiled 40 of 193 files\n"
    )


def test_a_step_of_another_package_is_not_taken_for_the_build(setup: ModuleType) -> None:
    stream = Terminal()
    setup.Progress(stream).pip_line("  [1/3] cythonizing")
    assert stream.getvalue() == ""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that the set-up reads, in a folder of their own."""
    folder = tmp_path / "a checkout"
    for name in ("requirements", "tools", "kernels"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("self", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def call(checkout: Path, programs: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs `./self` where only the shell's basics and `programs` (name → script) are installed."""
    folder = checkout / "programs"
    folder.mkdir()
    for name in ("sh", "cat", "cksum", "readlink", "dirname"):
        (folder / name).symlink_to(shutil.which(name) or name)
    for name, script in programs.items():
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    return subprocess.run(
        [checkout / "self", "--version"],
        env={"PATH": str(folder), "HOME": os.environ["HOME"]},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_missing_python_is_named_in_one_line(checkout: Path) -> None:
    done = call(checkout, {"python3": "#!/bin/sh\nexit 1\n"})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "Error [setup]: Python 3.11 or newer is needed; "
        "on Debian 12: apt install python3 python3-venv\n"
    )


def test_a_missing_compiler_is_named_in_one_line(checkout: Path) -> None:
    python = getattr(sys, "_base_executable", sys.executable)
    done = call(checkout, {"python3": f'#!/bin/sh\nexec "{python}" "$@"\n'})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == ("Error [setup]: no C++ compiler was found; on Debian: apt install g++\n")
    assert not (checkout / ".venv").exists()


def test_a_finished_environment_is_used_without_a_set_up(checkout: Path) -> None:
    bin_folder = checkout / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    command = bin_folder / "self"
    command.write_text('#!/bin/sh\necho "installed: $*"\n')
    command.chmod(0o755)
    (bin_folder / "python").symlink_to(sys.executable)
    record = (
        'root=$1; . "$root/tools/environment.sh"; readlink -f "$root/.venv/bin/python"; checksum'
    )
    stamp = subprocess.run(
        ["sh", "-c", record, "sh", checkout], capture_output=True, text=True, check=True
    ).stdout.split("\n")
    (checkout / ".venv" / "runtime.stamp").write_text(f"{stamp[0]} {stamp[1]}\n")
    done = call(checkout, {})
    assert (done.returncode, done.stdout, done.stderr) == (0, "installed: --version\n", "")
