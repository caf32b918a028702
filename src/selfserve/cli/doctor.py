"""`self doctor`: what this machine and this installation have to offer."""

from __future__ import annotations

import os
import platform
import re
import socket
from pathlib import Path
from typing import Any

import typer

from selfserve.cli import options, output
from selfserve.cli.setting_flags import takes_settings
from selfserve.cli.setting_sources import Choices, Given, choose
from selfserve.errors import LibraryError
from selfserve.resources import available_cpus, available_memory_bytes

BROKEN = 1
LITTLE_DISK = 8 << 30
"""Bytes: a small model of the catalogue with its projector."""
FEATURES = {
    "avx": "AVX",
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "avx512f": "AVX512",
    "avx512_vnni": "AVX512_VNNI",
    "avx_vnni": "AVX_VNNI",
    "amx_int8": "AMX_INT8",
}
"""CPU features that count for speed: the kernel's name and libllama's."""


@takes_settings(("models_dir", "host", "port"))
def doctor(given: Given, as_json: options.AsJson = False) -> None:
    """Look at this machine and this installation."""
    report, troubles = examine(choose(given))
    if as_json:
        output.result_json({**report, "troubles": troubles})
    else:
        for name, value in report.items():
            output.result(f"{name.replace('_', ' '):<18}{_text(value)}")
        for trouble in troubles:
            output.result(f"{'trouble':<18}{trouble}")
    if report["libllama"] is None:
        raise typer.Exit(BROKEN)


def examine(choices: Choices) -> tuple[dict[str, Any], list[str]]:
    """What is there by name, and what is wrong with it."""
    from selfserve.api.app import package_version
    from selfserve.catalogue.download import amount

    report: dict[str, Any] = {
        "self": package_version(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": f"{available_cpus()} to compute on, of {os.cpu_count()}",
        "memory": f"{amount(available_memory_bytes())} may be used",
    }
    troubles: list[str] = []
    _library(report, troubles)
    _disk(choices, report, troubles)
    _port(choices, report, troubles)
    return report, troubles


def _library(report: dict[str, Any], troubles: list[str]) -> None:
    from selfserve.engine.llama_runner import system_info

    try:
        info = system_info()
    except LibraryError as error:
        report["libllama"] = None
        troubles.append(error.message)
        return
    used = re.findall(r"(\w+) = 1", info.features)
    report["libllama"] = f"llama-cpp-python {info.version}"
    report["features"] = used
    report["devices"] = [f"{device.name} ({device.description})" for device in info.devices]
    report["kernels"] = list(info.kernels)
    missing = [name for flag, name in FEATURES.items() if flag in _cpu_flags() and name not in used]
    if missing:
        troubles.append(
            f"the processor has {', '.join(missing)}, but libllama was built without: build it on "
            "this machine with `pip install --force-reinstall --no-deps --no-binary "
            "llama-cpp-python llama-cpp-python`"
        )


def _cpu_flags(path: Path = Path("/proc/cpuinfo")) -> set[str]:
    """Features of the first processor; none where the system does not tell."""
    try:
        match = re.search(r"^flags\s*:(.*)$", path.read_text(), re.MULTILINE)
    except OSError:
        return set()
    return set(match[1].split()) if match else set()


def _disk(choices: Choices, report: dict[str, Any], troubles: list[str]) -> None:
    import shutil

    from selfserve.catalogue.download import amount
    from selfserve.cli.preparation import store_of

    store = store_of(choices)
    folder = store.root
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    report["models"] = f"{len(store.installed())} in {store.root}"
    report["disk"] = f"{amount(free)} free"
    if free < LITTLE_DISK:
        troubles.append(f"{folder} has room for small models only: {amount(free)}")
    if not os.access(folder, os.W_OK):
        troubles.append(f"{folder} cannot be written")


def _port(choices: Choices, report: dict[str, Any], troubles: list[str]) -> None:
    from selfserve.cli.listener import listen
    from selfserve.errors import StartError

    host, port = choices["host"].value, choices["port"].value
    try:
        listener: socket.socket = listen(host, port)
    except StartError as error:
        report["port"] = f"{port} is taken"
        troubles.append(error.message)
    else:
        listener.close()
        report["port"] = f"{port} is free"


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return "missing" if value is None else str(value)
