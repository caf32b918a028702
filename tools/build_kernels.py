"""Compiles `kernels/`, which computes products and attention faster than ggml does.

Run it with the Python of the environment that it is for; tools/setup.py does so. It links with the
installed llama-cpp-python; ggml's headers, also those that are not installed, come from the source
package of that very version.

Standard library only. The kernels are written for x86-64 with AVX2 and built on Linux; elsewhere
there is nothing to do, and ggml computes everything.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "kernels"
REQUIREMENTS = ROOT / "requirements" / "runtime.txt"
PACKAGE = "llama-cpp-python"
INCLUDES = ("include", "src", "src/ggml-cpu")
NEEDED = re.compile(rf"[^/]+/vendor/llama\.cpp/ggml/((?:{'|'.join(INCLUDES)})/[\w-]+\.h)")
"""The files of the source package that are included."""
CPU_FLAGS = {"avx2", "fma", "f16c"}
"""Without one of them, the kernels cannot be compiled for this CPU."""

FLAGS = (
    "-O3", "-std=c++17", "-march=native", "-fvisibility=hidden",
    "-shared", "-fPIC", "-Wl,--no-undefined",
    "-DGGML_SHARED", "-DGGML_BACKEND_SHARED", "-DGGML_USE_OPENMP",
)  # fmt: skip


class BuildFailure(Exception):
    """The library cannot be built; the message is one line."""


def main() -> None:
    """Blocks for some seconds. Raises BuildFailure, OSError or CalledProcessError."""
    if not is_supported():
        return
    llama_cpp = package_folder("llama_cpp")
    if llama_cpp is None:
        raise BuildFailure(f"{PACKAGE} is not installed")
    version = importlib.metadata.version(PACKAGE)
    target = target_path(version)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(f".{os.getpid()}.unfinished")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        extract(download(version, folder), folder)
        command = compile_command(llama_cpp / "lib", target.parent, unfinished)
        try:
            subprocess.run(command, cwd=folder, check=True)
            unfinished.rename(target)
        finally:
            unfinished.unlink(missing_ok=True)


def is_supported() -> bool:
    """Whether the kernels are for this system and its CPU."""
    system = (platform.system(), platform.machine())
    return system == ("Linux", "x86_64") and cpu_flags() >= CPU_FLAGS


def cpu_flags(path: Path = Path("/proc/cpuinfo")) -> set[str]:
    """Features of the first processor; none where the system does not tell."""
    try:
        found = re.search(r"^flags\s*:(.*)$", path.read_text(), re.MULTILINE)
    except OSError:
        return set()
    return set(found[1].split()) if found else set()


def target_path(version: str) -> Path:
    """Where selfserve.native.kernels looks for the library for this version of llama-cpp-python."""
    return Path(sys.prefix) / "lib" / "selfserve" / f"libselfserve-kernels-{version}.so"


def package_folder(name: str) -> Path | None:
    """The folder of an installed package, which is not imported."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def download(version: str, folder: Path) -> Path:
    """The source package of that version, with the hash that the lock file demands."""
    wanted = folder / "requirement.txt"
    wanted.write_text(locked_requirement(REQUIREMENTS.read_text(), version))
    options = ["--no-input", "--no-deps", "--no-build-isolation", "--require-hashes"]
    options += ["--no-binary", PACKAGE, "--dest", str(folder)]
    pip = [sys.executable, "-m", "pip", "download"]
    subprocess.run([*pip, *options, "-r", str(wanted)], check=True)
    return next(folder.glob("*.tar.gz"))


def locked_requirement(lock: str, version: str) -> str:
    """The lines of llama-cpp-python in a lock file. Raises BuildFailure for another version."""
    pattern = rf"^{PACKAGE}=={re.escape(version)} (?:.*\\\n)+.*$"
    found = re.search(pattern, lock, re.MULTILINE)
    if found is None:
        raise BuildFailure(f"{PACKAGE} {version} is installed, but not the one that is locked")
    return found[0] + "\n"


def extract(package: Path, folder: Path) -> None:
    """Writes the needed headers of the source package to `folder`."""
    with tarfile.open(package) as archive:
        for member in archive:
            found = NEEDED.fullmatch(member.name)
            content = archive.extractfile(member) if found else None
            if found and content:
                path = folder / found[1]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())


def compile_command(libraries: Path, home: Path, output: Path) -> list[str]:
    """The compiler's command, to be run where the headers are. `home` is the folder in which the
    library will lie: it finds `libraries` from there, also when all of it is copied."""
    return [
        *compiler(),
        *FLAGS,
        *(f"-isystem{folder}" for folder in INCLUDES),
        *(str(source) for source in sorted(KERNELS.glob("*.cpp"))),
        "-o",
        str(output),
        f"-L{libraries}",
        "-lggml-cpu",
        "-lggml-base",
        f"-Wl,-rpath,$ORIGIN/{os.path.relpath(libraries, home)}",
    ]


def compiler() -> list[str]:
    """The C++ compiler as the user names it, else the first that there is."""
    for candidate in (shlex.split(os.environ.get("CXX", "c++")), ["g++"], ["clang++"]):
        if candidate and shutil.which(candidate[0]):
            return candidate
    raise BuildFailure("no C++ compiler was found")


if __name__ == "__main__":
    try:
        main()
    except (BuildFailure, OSError, subprocess.CalledProcessError) as failure:
        sys.exit(f"Error [build]: {failure}")
