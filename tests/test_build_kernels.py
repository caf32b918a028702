"""Compiling the kernels at set-up: what is compiled, where it goes, and when it is left."""

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

from selfserve.native import kernels

VERSION = importlib.metadata.version("llama-cpp-python")


@pytest.fixture
def build() -> ModuleType:
    return load("build_kernels")


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
    assert kernels.library_path() == target


def test_the_library_finds_its_libraries_from_its_own_place(build: ModuleType) -> None:
    libraries = Path("/env/lib/python3.11/site-packages/llama_cpp/lib")
    home, output = Path("/env/lib/selfserve"), Path("/env/out.so")
    command = build.compile_command(libraries, home, output)
    paths = [argument.partition("rpath,")[2] for argument in command if "rpath" in argument]
    assert paths == ["$ORIGIN/../python3.11/site-packages/llama_cpp/lib"]


def test_all_sources_of_the_folder_are_compiled(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("b.cpp", "a.cpp", "a.h", "notes.md"):
        (tmp_path / name).touch()
    monkeypatch.setattr(build, "KERNELS", tmp_path)
    command = build.compile_command(Path("/libraries"), Path("/home"), Path("/out.so"))
    sources = [argument for argument in command if argument.startswith(str(tmp_path))]
    assert sources == [str(tmp_path / "a.cpp"), str(tmp_path / "b.cpp")]
    # A linker that drops what it does not need yet wants the libraries last.
    assert command.index("-lggml-cpu") > command.index(sources[-1])


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
    names = ("include/ggml.h", "src/ggml-impl.h", "src/ggml-cpu/traits.h")
    others = ("src/ggml.c", "src/ggml-cpu/traits.cpp", "src/ggml-cpu/amx/amx.h")
    package = tmp_path / "package.tar.gz"
    with tarfile.open(package, "w:gz") as archive:
        for name in (
            *(f"{ggml}/{name}" for name in names + others),
            f"{ggml}/include/../../../x.h",
        ):
            member = tarfile.TarInfo(name)
            member.size = 4
            archive.addfile(member, io.BytesIO(b"text"))
    folder = tmp_path / "out"
    build.extract(package, folder)
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == set(names)


def pretend(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, system: str, machine: str, flags: str
) -> None:
    monkeypatch.setattr(build.platform, "system", lambda: system)
    monkeypatch.setattr(build.platform, "machine", lambda: machine)
    monkeypatch.setattr(build, "cpu_flags", lambda: set(flags.split()))


@pytest.mark.parametrize(
    ("system", "machine", "flags"),
    [
        ("Darwin", "x86_64", "avx2 fma f16c"),
        ("Linux", "aarch64", ""),
        ("Linux", "x86_64", "avx f16c"),
        ("Linux", "x86_64", "avx2 fma"),
    ],
)
def test_where_the_kernels_cannot_run_nothing_is_done(
    system: str,
    machine: str,
    flags: str,
    build: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend(build, monkeypatch, system, machine, flags)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(build, "download", lambda version, folder: pytest.fail("a download"))
    build.main()
    assert not list(tmp_path.iterdir())


def test_the_features_of_the_cpu_are_read_from_the_system(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("model name\t: a CPU\nflags\t\t: fpu avx2 fma f16c\nbugs\t\t: avx512f\n")
    assert build.cpu_flags(info) == {"fpu", "avx2", "fma", "f16c"}
    assert build.cpu_flags(tmp_path / "none") == set()
    pretend(build, monkeypatch, "Linux", "x86_64", "fpu avx2 fma f16c")
    assert build.is_supported()


def test_a_failed_compiler_leaves_nothing_and_keeps_the_old_library(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(build, "package_folder", lambda name: tmp_path / name)
    monkeypatch.setattr(build, "download", lambda version, folder: folder)
    monkeypatch.setattr(build, "extract", lambda package, folder: None)
    pretend(build, monkeypatch, "Linux", "x86_64", "avx2 fma f16c")
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
    (tmp_path / "tools" / "build_kernels.py").write_text(script)
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    stream = io.StringIO()
    setup._build_kernels(setup.Progress(stream))
    return stream.getvalue()


def test_a_failed_build_is_told_in_one_line_and_the_set_up_goes_on(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = told_by_set_up(setup, tmp_path, monkeypatch, "raise SystemExit('no such header')")
    assert told.startswith("The kernels could not be compiled: ")
    assert told.count("\n") == 1
    assert "no such header" in setup.LOG.read_text()


def test_a_build_that_works_says_nothing(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told_by_set_up(setup, tmp_path, monkeypatch, "") == ""
