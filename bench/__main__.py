"""Runs the scenarios against this server and its peers, in turn, and writes what came out.

    python -m bench                            # everything but memory, 5 repetitions
    python -m bench --quick                    # each once and short, only shown
    python -m bench --scenarios memory --out bench/results/memory

Run it from the root of the checkout on a machine that does nothing else. The peers are llama.cpp's
own server (pip install '.[bench]') and OpenVINO GenAI (pip install openvino-genai); those that are
not installed are left out.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from bench import models, report, servers
from bench.run import Run
from bench.scenarios import SCENARIOS
from selfserve.resources import available_cpus

RESULTS = Path(__file__).parent / "results"
GROWTH, MEMORY = "growth", "memory"
REPETITIONS = 5


def main() -> None:
    arguments = _arguments()
    # A shell starts what runs in the background with Ctrl-C ignored; here it always counts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chosen = set(arguments.scenarios)
    run = Run(
        servers=[name for name in servers.available() if name in arguments.servers],
        num_threads=arguments.threads,
        repetitions=arguments.repetitions or (1 if arguments.quick else REPETITIONS),
        is_quick=arguments.quick,
    )
    for name in arguments.servers:
        if name not in run.servers:
            run.say(f"note: {name} is left out; it needs the package {servers.PACKAGES[name]}")
    try:
        for model in arguments.models:
            path = models.model_path(model)
            run.scenarios(model, path, [s for s in SCENARIOS if s.name in chosen])
            if GROWTH in chosen:
                run.growth(model, path)
            if MEMORY in chosen:
                run.memory(model, path)
    except KeyboardInterrupt:
        run.say("interrupted; this is what was measured")
    print(report.as_markdown(run.report))
    folder = arguments.out or (RESULTS if _is_whole(arguments) else None)
    if folder is not None:
        report.write(run.report, folder)
        run.say(f"written to {folder}")
    sys.exit(1 if run.report.failures else 0)


def _arguments() -> argparse.Namespace:
    defaults = _defaults()
    names = [*defaults["scenarios"], MEMORY]
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--scenarios",
        type=_choice(names),
        default=defaults["scenarios"],
        help=f"by comma: {', '.join(names)} (default: all but {MEMORY}, which takes long)",
    )
    parser.add_argument("--models", type=_choice(models.NAMES), default=defaults["models"])
    parser.add_argument("--servers", type=_choice(defaults["servers"]), default=defaults["servers"])
    parser.add_argument("--repetitions", type=int, help=f"default {REPETITIONS}")
    parser.add_argument("--threads", type=int, default=available_cpus())
    parser.add_argument("--quick", action="store_true", help="each scenario once, and short")
    parser.add_argument(
        "--out", type=Path, help="folder for the results of a part, which are else only shown"
    )
    return parser.parse_args()


def _is_whole(arguments: argparse.Namespace) -> bool:
    """Whether this is the run that `results/` is for: nothing left out, nothing shortened."""
    return not arguments.quick and all(
        getattr(arguments, name) == default for name, default in _defaults().items()
    )


def _defaults() -> dict[str, list[str]]:
    return {
        "scenarios": [*(scenario.name for scenario in SCENARIOS), GROWTH],
        "models": list(models.NAMES),
        "servers": [servers.SELF, *servers.PACKAGES],
    }


def _choice(allowed: list[str] | tuple[str, ...]):  # type: ignore[no-untyped-def]
    """Reads names by comma; argparse shows what is wrong with them."""

    def read(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(allowed)}")
        return names

    return read


if __name__ == "__main__":
    main()
