"""The servers that are compared, started with equal settings and measured from outside."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from selfserve.cli.chat_stream import Address, parse_address
from selfserve.cli.child_server import child_server

SELF = "self"
LLAMA_CPP = "llama.cpp"
OPENVINO = "OpenVINO"
PACKAGES = {LLAMA_CPP: "xllamacpp", OPENVINO: "openvino_genai"}
"""Peer → the module that it needs."""
IDLE_WINDOW_S = 1.0
IDLE_SHARE = 0.02
"""Of one processor: a server that needs more while nobody asks would slow down the other one."""
SETTLE_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True)
class Setting:
    """What all servers of one run are started with."""

    model: Path
    num_slots: int
    context_size: int
    """Tokens of one slot."""
    num_threads: int
    cache_ram_mib: int
    kv_type: str = "f16"
    """f32 or f16; OpenVINO GenAI has its own."""
    flash_attention: str = "auto"
    """auto or off; the same."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    name: str
    address: Address
    pid: int

    @property
    def rss_mib(self) -> float:
        """Resident memory of its process and all children; shared pages count in each."""
        return float(sum(each.memory_info().rss for each in self._processes())) / 2**20

    @property
    def cpu_s(self) -> float:
        """Processor time so far."""
        times = [process.cpu_times() for process in self._processes()]
        return float(sum(each.user + each.system for each in times))

    def _processes(self) -> list[psutil.Process]:
        root = psutil.Process(self.pid)
        return [root, *root.children(recursive=True)]


def available() -> tuple[str, ...]:
    """Names of the servers that are installed."""
    peers = [name for name, module in PACKAGES.items() if importlib.util.find_spec(module)]
    return (SELF, *peers)


@contextlib.contextmanager
def started(name: str, setting: Setting) -> Iterator[Server]:
    """Starts one server; it has ended when the block is left."""
    with child_server(COMMANDS[name](setting)) as child:
        yield Server(name, parse_address(child.url), child.pid)


def idle_share(server: Server) -> float:
    """Share of one processor that a server uses while nobody asks anything. Blocks until it has
    settled, or for SETTLE_LIMIT_S."""
    limit_s = time.monotonic() + SETTLE_LIMIT_S
    while True:
        before_s = server.cpu_s
        time.sleep(IDLE_WINDOW_S)
        share = (server.cpu_s - before_s) / IDLE_WINDOW_S
        if share <= IDLE_SHARE or time.monotonic() > limit_s:
            return share


def _options(setting: Setting) -> list[str]:
    return [
        *(str(setting.model), "--context-size", str(setting.context_size)),
        *("--parallel", str(setting.num_slots), "--threads", str(setting.num_threads)),
        *("--cache-ram", str(setting.cache_ram_mib)),
    ]


def _llama_options(setting: Setting) -> list[str]:
    attention = ("--kv-type", setting.kv_type, "--flash-attention", setting.flash_attention)
    return [*_options(setting), *attention]


def _self_command(setting: Setting) -> list[str]:
    return [sys.executable, "-m", "selfserve", "serve", "--port", "0", *_llama_options(setting)]


def _llama_cpp_command(setting: Setting) -> list[str]:
    return [sys.executable, "-m", "bench.llama_cpp_server", *_llama_options(setting)]


def _openvino_command(setting: Setting) -> list[str]:
    return [sys.executable, "-m", "bench.openvino_server", *_options(setting)]


COMMANDS: Mapping[str, Callable[[Setting], list[str]]] = {
    SELF: _self_command,
    LLAMA_CPP: _llama_cpp_command,
    OPENVINO: _openvino_command,
}
