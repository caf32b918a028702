"""Compiles tools/blas_backend.cpp, which reads prompts of models in Q4_1 and Q5_1 faster.

Run it with the Python of the environment that it is for; tools/setup.py does so. It links the
installed llama-cpp-python with the OpenBLAS of the package scipy-openblas32. The sources of ggml
come from the source package of that very version. An option of llama-cpp-python's own build would
not do: pip keeps built wheels by their source alone, so an environment without OpenBLAS could get
one that needs it.

Standard library only. Where scipy-openblas32 is not installed there is nothing to do: on macOS
llama.cpp uses Apple's BLAS by itself, for other systems there is none.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "tools" / "blas_backend.cpp"
REQUIREMENTS = ROOT / "requirements" / "runtime.txt"
PACKAGE = "llama-cpp-python"
NEEDED = re.compile(
    r"[^/]+/vendor/llama\.cpp/ggml/"
    r"((?:include/[\w-]+\.h)|(?:src/[\w-]+\.h)|(?:src/ggml-blas/[\w-]+\.cpp))"
)
"""The files of the source package that are compiled."""

FLAGS = (
    "-O3", "-std=c++17", "-shared", "-fPIC", "-fopenmp", "-Wl,--no-undefined",
    "-DGGML_SHARED", "-DGGML_BACKEND_SHARED", "-DGGML_BACKEND_BUILD", "-DGGML_BACKEND_DL",
    "-DGGML_USE_OPENMP", "-DGGML_BLAS_USE_OPENBLAS",
)  # fmt: skip
PREFIXED = ("cblas_sgemm", "openblas_set_num_threads", "openblas_get_parallel")
"""What ggml calls and scipy-openblas32 exports with a prefix."""
INCLUDES = ("include", "src", "src/ggml-blas")


class BuildFailure(Exception):
    """The library cannot be built; the message is one line."""


def main() -> None:
    """Blocks for some seconds. Raises BuildFailure, OSError or CalledProcessError."""
    openblas = package_folder("scipy_openblas32")
    if sys.platform != "linux" or openblas is None:
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
        libraries = [llama_cpp / "lib", openblas / "lib"]
        command = compile_command(libraries, openblas / "include", target.parent, unfinished)
        try:
            subprocess.run(command, cwd=folder, check=True)
            unfinished.rename(target)
        finally:
            unfinished.unlink(missing_ok=True)


def target_path(version: str) -> Path:
    """Where selfserve.native.blas looks for the library for this version of llama-cpp-python."""
    return Path(sys.prefix) / "lib" / "selfserve" / f"libggml-blas-{version}.so"


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
    """Writes the needed files of the source package to `folder`."""
    with tarfile.open(package) as archive:
        for member in archive:
            found = NEEDED.fullmatch(member.name)
            content = archive.extractfile(member) if found else None
            if found and content:
                path = folder / found[1]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())


def compile_command(libraries: list[Path], include: Path, home: Path, output: Path) -> list[str]:
    """The compiler's command, to be run where the sources are. `home` is the folder in which the
    library will lie: it finds `libraries` from there, also when all of it is copied."""
    return [
        *compiler(),
        *FLAGS,
        *(f"-D{name}=scipy_{name}" for name in PREFIXED),
        *(f"-I{folder}" for folder in INCLUDES),
        f"-I{include}",
        str(SOURCE),
        "-o",
        str(output),
        *(f"-L{folder}" for folder in libraries),
        "-lggml-base",
        "-lscipy_openblas",
        *(f"-Wl,-rpath,$ORIGIN/{os.path.relpath(folder, home)}" for folder in libraries),
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
