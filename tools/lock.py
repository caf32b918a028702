"""Writes `requirements/*.txt` anew: the versions and file hashes of all that a checkout installs.

Run it after a change of a dependency in pyproject.toml: `.venv/bin/python tools/lock.py`. Options
are handed to uv, such as `--upgrade`, or `--upgrade-package NAME`; without one, versions stay
where the new requirements allow it. No index address is written: pip uses the user's own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "requirements"
NOTE = "# Written by tools/lock.py from pyproject.toml; do not edit.\n"
NATIVE = "--no-binary llama-cpp-python\n"
"""llama.cpp is compiled on the machine that runs it, even where an index offers a built wheel."""

COMMON = (
    "--generate-hashes", "--no-emit-index-url", "--no-header", "--no-annotate", "--quiet",
    "--python-version", "3.11", "--universal",
)  # fmt: skip


def lock(name: str, *options: str, head: str = "") -> None:
    """Writes one file. The old one, if there is one, says which versions are preferred."""
    target = ROOT / FOLDER / f"{name}.txt"
    command = [sys.executable, "-m", "uv", "pip", "compile", *COMMON, *options, *sys.argv[1:]]
    subprocess.run([*command, "--output-file", str(target)], cwd=ROOT, check=True)
    target.write_text(NOTE + head + target.read_text())


def main() -> None:
    (ROOT / FOLDER).mkdir(exist_ok=True)
    lock("build", "--group", "build")
    lock("model", "--group", "model", "--no-deps")
    lock("runtime", "pyproject.toml", head=NATIVE)
    runtime = f"{FOLDER}/runtime.txt"
    lock("dev", "pyproject.toml", "--extra", "dev", "--constraint", runtime, head=NATIVE)


if __name__ == "__main__":
    main()
