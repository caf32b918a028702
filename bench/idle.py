"""Processor time of a server that nobody asks anything.

python -m bench.idle [--seconds 60] [--model MODEL]
"""

from __future__ import annotations

import argparse
import sys
import time

import psutil

from selfserve.cli.child_server import child_server
from selfserve.cli.options import DEFAULT_MODEL

TARGET = 0.01
"""Of one processor."""
SETTLE_S = 3.0


def cpu_s(processes: list[psutil.Process]) -> float:
    """Processor time of the processes so far."""
    times = [process.cpu_times() for process in processes]
    return float(sum(each.user + each.system for each in times))


def idle_share(pid: int, seconds: float) -> float:
    """Share of one processor that a process and its children use. Blocks for `seconds`."""
    root = psutil.Process(pid)
    processes = [root, *root.children(recursive=True)]
    before_s, begin_s = cpu_s(processes), time.monotonic()
    time.sleep(seconds)
    return (cpu_s(processes) - before_s) / (time.monotonic() - begin_s)


def main() -> None:
    parser = argparse.ArgumentParser(description="Processor time of an idle server.")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    arguments = parser.parse_args()
    command = [sys.executable, "-m", "selfserve", "serve", arguments.model, "--port", "0"]
    with child_server(command) as server:
        time.sleep(SETTLE_S)
        share = idle_share(server.pid, arguments.seconds)
    print(f"{share:.2%} of a processor over {arguments.seconds:g} s (target: under {TARGET:.0%})")
    sys.exit(0 if share < TARGET else 1)


if __name__ == "__main__":
    main()
