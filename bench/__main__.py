"""Runs the scenarios against this server and llama.cpp's, in turn, and writes what came out.

    python -m bench                            # everything but memory, 5 repetitions
    python -m bench --quick                    # each once and short, only shown
    python -m bench --scenarios orders,chats --models q4_0

Run it from the root of the checkout on a machine that does nothing else. The peer needs the
package xllamacpp: pip install '.[bench]'.
"""

from __future__ import annotations

import argparse
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
    chosen = set(arguments.scenarios)
    run = Run(
        servers=[name for name in servers.available() if name in arguments.servers],
        num_threads=arguments.threads,
        repetitions=arguments.repetitions or (1 if arguments.quick else REPETITIONS),
        is_quick=arguments.quick,
    )
    if servers.LLAMA_CPP not in run.servers:
        run.say("note: llama.cpp's server is left out; it comes with the package xllamacpp")
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
    folder = arguments.out or (None if arguments.quick else RESULTS)
    if folder is not None:
        report.write(run.report, folder)
        run.say(f"written to {folder}")
    sys.exit(1 if run.report.failures else 0)


def _arguments() -> argparse.Namespace:
    names = [*(scenario.name for scenario in SCENARIOS), GROWTH, MEMORY]
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--scenarios",
        type=_choice(names),
        default=[name for name in names if name != MEMORY],
        help=f"by comma: {', '.join(names)} (default: all but {MEMORY}, which takes long)",
    )
    parser.add_argument("--models", type=_choice(models.NAMES), default=list(models.NAMES))
    every = (servers.SELF, servers.LLAMA_CPP)
    parser.add_argument("--servers", type=_choice(every), default=list(every))
    parser.add_argument("--repetitions", type=int, help=f"default {REPETITIONS}")
    parser.add_argument("--threads", type=int, default=available_cpus())
    parser.add_argument("--quick", action="store_true", help="each scenario once, and short")
    parser.add_argument("--out", type=Path, help="folder for the results")
    return parser.parse_args()


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
