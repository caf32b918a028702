"""The architecture, read from the sources: who imports whom, how long files are, who prints."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "selfserve"
SOURCES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
OTHERS = [path for name in ("bench", "tools") for path in sorted((ROOT / name).rglob("*.py"))]

ROWS = (
    {"errors", "logs"},
    {"limits"},
    {"config", "sampling", "resources", "threads"},
    {"request"},
    {"text", "native", "images", "catalogue"},
    {"engine"},
    {"api", "web"},
    {"cli"},
    {"__main__"},
)
"""A part imports from itself and from the rows above its own, never from its neighbours."""

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
HEAVY = {
    "numpy", "llama_cpp", "llguidance", "fastapi", "starlette", "uvicorn", "zmq",
    "jinja2", "PIL", "httpx", "huggingface_hub", "rich", "prometheus_client", "yaml",
}  # fmt: skip


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file's syntax tree."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"), name_of(path))))


def imports(path: Path) -> Iterator[str]:
    """Dotted names that a file imports anywhere, also inside functions."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports(path: Path) -> Iterator[tuple[str, ...]]:
    for name in imports(path):
        head, *parts = name.split(".")
        if head == "selfserve" and parts:
            yield tuple(parts)


def part_of(path: Path) -> str:
    """The part that a file belongs to: a folder or a module directly in the package."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def row_of(part: str) -> int:
    found = [number for number, row in enumerate(ROWS) if part in row]
    assert found, f"the part {part!r} has no row"
    return found[0]


def every(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=name_of)


@every([path for path in SOURCES if path != PACKAGE / "__init__.py"])
def test_imports_go_one_way(path: Path) -> None:
    part = part_of(path)
    for imported, *_ in own_imports(path):
        allowed = imported == part or row_of(imported) < row_of(part)
        assert allowed, f"{name_of(path)} imports {imported}"


@every(SOURCES)
def test_only_the_runner_imports_the_native_border(path: Path) -> None:
    if part_of(path) == "native" or path == PACKAGE / "engine" / "llama_runner.py":
        return
    assert "native" not in {parts[0] for parts in own_imports(path)}


@every(SOURCES)
def test_only_the_native_border_knows_the_library(path: Path) -> None:
    if part_of(path) != "native":
        assert not {name.split(".")[0] for name in imports(path)} & {"ctypes", "llama_cpp"}


@every(sorted((PACKAGE / "api").rglob("*.py")))
def test_the_two_apis_do_not_know_each_other(path: Path) -> None:
    other = {"openai": "llamacpp", "llamacpp": "openai"}.get(path.parent.name)
    assert other is None or ("api", other) not in {parts[:2] for parts in own_imports(path)}


@every(SOURCES)
def test_only_the_output_module_prints(path: Path) -> None:
    if path == PACKAGE / "cli" / "output.py":
        return
    for node in nodes_of(path):
        if isinstance(node, ast.Call):
            call = ast.unparse(node.func)
            assert call not in {"print", "sys.stdout.write", "sys.stderr.write"}, (
                f"{name_of(path)}:{node.lineno} prints"
            )


@every(SOURCES)
def test_no_module_has_state_that_changes(path: Path) -> None:
    for node in nodes_of(path):
        assert not isinstance(node, ast.Global), f"{name_of(path)}:{node.lineno}: global"


@every(SOURCES + TESTS + OTHERS)
def test_a_file_has_one_subject_and_stays_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_FILE_LINES


@every(SOURCES)
def test_a_function_fits_on_a_screen(path: Path) -> None:
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= MAX_FUNCTION_LINES, f"{node.name} has {lines} lines"


@every([path for path in TESTS if path.name.startswith("test_")])
def test_a_test_file_has_tests(path: Path) -> None:
    functions = (n for n in nodes_of(path) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    assert any(function.name.startswith("test_") for function in functions)


def test_test_files_have_unique_names() -> None:
    names = [path.name for path in TESTS if path.name.startswith("test_")]
    assert sorted(set(names)) == sorted(names)


def test_every_test_file_lies_in_the_tests_folder() -> None:
    assert not [path for path in SOURCES if path.name.startswith("test_")]


def python(code: str) -> str:
    """Runs `code` in a fresh interpreter; what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def test_the_help_imports_nothing_heavy() -> None:
    loaded = python(
        "import sys\n"
        "from selfserve.cli.main import command_line\n"
        "try: command_line()(['serve', '--help'])\n"
        "except SystemExit: pass\n"
        "print('LOADED', *sys.modules)"
    ).split("LOADED")[1]
    assert not {name.split(".")[0] for name in loaded.split()} & HEAVY


def test_importing_every_module_starts_no_work() -> None:
    modules = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in SOURCES
        if path.name != "__main__.py"
    ]
    left = python(
        "import importlib, sys, threading\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "import multiprocessing\n"
        "print(threading.active_count(), len(multiprocessing.active_children()))"
    )
    assert left.split() == ["1", "0"]
