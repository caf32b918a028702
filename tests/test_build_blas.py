"""Compiling the BLAS backend at set-up: what is compiled, where it goes, and when it is left."""

from __future__ import annotations

import importlib.metadata
import io
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest
from tests.test_setup import load

from selfserve.native import blas

VERSION = importlib.metadata.version("llama-cpp-python")


@pytest.fixture
def build() -> ModuleType:
    return load("build_blas")


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The set-up with this Python and a log of its own."""
    module = load("setup")
    monkeypatch.setattr(module, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(module, "LOG", tmp_path / "setup.log")
    return module


def test_the_library_lies_where_the_server_looks_for_it(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    target = build.target_path(VERSION)
    target.parent.mkdir(parents=True)
    target.touch()
    assert blas.library_path() == target


def test_the_library_finds_its_libraries_from_its_own_place(build: ModuleType) -> None:
    packages = Path("/env/lib/python3.11/site-packages")
    libraries = [packages / "llama_cpp" / "lib", packages / "scipy_openblas32" / "lib"]
    command = build.compile_command(
        libraries, Path("/headers"), Path("/env/lib/selfserve"), Path("/env/out.so")
    )
    paths = [argument.partition("rpath,")[2] for argument in command if "rpath" in argument]
    assert paths == [
        "$ORIGIN/../python3.11/site-packages/llama_cpp/lib",
        "$ORIGIN/../python3.11/site-packages/scipy_openblas32/lib",
    ]
    assert "-march=native" not in command  # OpenBLAS chooses its kernels when it is loaded


def test_the_compiler_that_the_user_names_is_taken(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", f"{sys.executable} -x")
    assert build.compiler() == [sys.executable, "-x"]
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(build.shutil, "which", lambda name: name == "clang++")
    assert build.compiler() == ["clang++"]
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    with pytest.raises(build.BuildFailure):
        build.compiler()


def test_the_sources_are_those_of_the_installed_version_with_the_locked_hash(
    build: ModuleType,
) -> None:
    lock = build.REQUIREMENTS.read_text()
    lines = build.locked_requirement(lock, VERSION).splitlines()
    assert lines[0].startswith(f"llama-cpp-python=={VERSION} ")
    assert len(lines) >= 2
    assert all(line.startswith("    --hash=sha256:") for line in lines[1:])
    with pytest.raises(build.BuildFailure, match=r"0\.0\.1 is installed"):
        build.locked_requirement(lock, "0.0.1")


def test_only_needed_files_leave_the_package(build: ModuleType, tmp_path: Path) -> None:
    ggml = "llama/vendor/llama.cpp/ggml"
    names = ("include/ggml.h", "src/ggml-impl.h", "src/ggml-blas/ggml-blas.cpp", "src/ggml.c")
    package = tmp_path / "package.tar.gz"
    with tarfile.open(package, "w:gz") as archive:
        for name in (*(f"{ggml}/{name}" for name in names), f"{ggml}/include/../../../x.h"):
            member = tarfile.TarInfo(name)
            member.size = 4
            archive.addfile(member, io.BytesIO(b"text"))
    folder = tmp_path / "out"
    build.extract(package, folder)
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == set(names[:3])


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_without_openblas_nothing_is_done(
    platform: str, build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(build, "package_folder", lambda name: None)
    build.main()
    assert not list(tmp_path.iterdir())


def test_a_failed_compiler_leaves_nothing_and_keeps_the_old_library(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(build, "package_folder", lambda name: tmp_path / name)
    monkeypatch.setattr(build, "download", lambda version, folder: folder)
    monkeypatch.setattr(build, "extract", lambda package, folder: None)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(build, "compiler", lambda: ["false"])
    target = build.target_path(VERSION)
    target.parent.mkdir(parents=True)
    target.write_text("the old one")
    with pytest.raises(subprocess.CalledProcessError):
        build.main()
    assert [path.read_text() for path in target.parent.iterdir()] == ["the old one"]


def told_by_set_up(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> str:
    """What the set-up shows of a build by `script`."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "build_blas.py").write_text(script)
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    stream = io.StringIO()
    setup._build_blas(setup.Progress(stream))
    return stream.getvalue()


def test_a_failed_build_is_told_in_one_line_and_the_set_up_goes_on(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = told_by_set_up(setup, tmp_path, monkeypatch, "raise SystemExit('no such header')")
    assert told.startswith("The BLAS backend could not be compiled: ")
    assert told.count("\n") == 1
    assert "no such header" in setup.LOG.read_text()


def test_a_build_that_works_says_nothing(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told_by_set_up(setup, tmp_path, monkeypatch, "") == ""
