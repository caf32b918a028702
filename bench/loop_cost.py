"""What the engine's loop costs: everything between two calls of `llama_decode`.

    python -m bench.loop_cost [--sequences 8] [--tokens 200] [--model q4_1] [--threads 2]

Runs the real loop, scheduler, runner and sockets in this process, with requests that all decode
at once, and takes the time of each `llama_decode`. What is left of the time between two of them is
the loop's own: planning, filling the batch, choosing tokens, text, stop decisions, messages.
The part of it that libllama's samplers take is shown apart, since no Python could save it.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import zmq

from bench.models import NAMES, model_path
from selfserve.config import EngineSettings
from selfserve.engine import channel
from selfserve.engine.channel import EngineInbox, EngineOutbox
from selfserve.engine.costs import Costs
from selfserve.engine.intake import Intake, Preparation
from selfserve.engine.llama_runner import LlamaRunner
from selfserve.engine.loop import EngineLoop
from selfserve.engine.memory import PromptMemory
from selfserve.engine.scheduler import Scheduler
from selfserve.engine.stats import EngineStats
from selfserve.native import library
from selfserve.request import Request, SamplingParams, Submit

TARGET = 0.08
STEP_MS = 50.0
EDGE_STEPS = 5
"""At both ends, where prompts are read and sequences end."""
PROMPT_WORDS = "Write a very long story about the following number: "
KINDS = {
    "greedy": SamplingParams(temperature=0, ignore_eos=True),
    "sampled": SamplingParams(ignore_eos=True),
}


@dataclass(slots=True)
class Clock:
    """Seconds spent inside one foreign function, and when its calls began and ended."""

    spans: list[tuple[float, float]] = field(default_factory=list)

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            begin_s = time.perf_counter()
            result = function(*arguments)
            self.spans.append((begin_s, time.perf_counter()))
            return result

        return timed

    def between(self, begin_s: float, end_s: float) -> float:
        return sum(end - begin for begin, end in self.spans if begin_s <= begin < end_s)


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians over the steps, in milliseconds."""

    step_ms: float
    own_ms: float
    sampling_ms: float

    @property
    def share(self) -> float:
        return self.own_ms / self.step_ms


@contextmanager
def timed(name: str) -> Iterator[Clock]:
    """Takes the time of a function of libllama while the block runs."""
    lib = library.load()
    original = getattr(lib, name)
    clock = Clock()
    setattr(lib, name, clock.wrap(original))
    try:
        yield clock
    finally:
        setattr(lib, name, original)


@contextmanager
def sockets() -> Iterator[tuple[EngineInbox, EngineOutbox, zmq.Socket[bytes]]]:
    """The engine's two sockets, connected to ends of ours as in the server."""
    with tempfile.TemporaryDirectory() as folder, zmq.Context() as context:
        commands = context.socket(zmq.PUSH)
        commands.bind(channel.endpoint(folder, channel.COMMANDS))
        messages = context.socket(zmq.PULL)
        messages.setsockopt(zmq.RCVHWM, 0)
        messages.bind(channel.endpoint(folder, channel.MESSAGES))
        inbox, outbox = EngineInbox(context, folder), EngineOutbox(context, folder)
        try:
            yield inbox, outbox, commands
        finally:
            inbox.close()
            outbox.close()
            for socket in (commands, messages):
                socket.close(linger=0)


def measure(runner: LlamaRunner, params: SamplingParams, sequences: int, tokens: int) -> Cost:
    """Lets so many sequences decode `tokens` tokens each and looks at the steps that all share."""
    capabilities = runner.capabilities
    costs = Costs(STEP_MS, capabilities.batch_size, capabilities.num_slots)
    memory = PromptMemory(runner, costs, 0)
    scheduler = Scheduler(capabilities, memory, costs)
    with sockets() as (inbox, outbox, commands):
        intake = Intake(inbox, Preparation(runner, None))
        stats = EngineStats(scheduler, memory)
        loop = EngineLoop(runner, scheduler, stats, intake, outbox)
        commands.send(channel.encode([*_requests(runner, params, sequences, tokens)]))
        with timed("llama_decode") as decode, timed("llama_sampler_sample") as sample:
            intake.start()
            try:
                has_work = False
                while not has_work:
                    loop.step()  # waits for the commands
                    has_work = scheduler.has_work
                while scheduler.has_work:
                    loop.step()
            finally:
                intake.close()
    return _cost(decode, sample)


def _requests(
    runner: LlamaRunner, params: SamplingParams, sequences: int, tokens: int
) -> Iterator[Submit]:
    for number in range(sequences):
        prompt = runner.vocabulary.tokenize(
            f"{PROMPT_WORDS}{number}", add_special=True, parse_special=False
        )
        yield Submit(
            request=Request(
                id=f"request {number}",
                prompt=tuple(prompt),
                sampling=msgspec.structs.replace(params, seed=number),
                max_tokens=tokens,
            )
        )


def _cost(decode: Clock, sample: Clock) -> Cost:
    """Of the steps in the middle, where every sequence decodes."""
    steps = list(itertools.pairwise(decode.spans[EDGE_STEPS:-EDGE_STEPS]))
    return Cost(
        step_ms=statistics.median(after[0] - before[0] for before, after in steps) * 1e3,
        own_ms=statistics.median(after[0] - before[1] for before, after in steps) * 1e3,
        sampling_ms=statistics.median(
            sample.between(before[1], after[0]) for before, after in steps
        )
        * 1e3,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--model", choices=NAMES, default=NAMES[0])
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    settings = EngineSettings(
        model_path=model_path(arguments.model),
        context_size=max(512, 2 * arguments.tokens),
        num_slots=arguments.sequences,
        num_threads=arguments.threads,
    )
    runner = LlamaRunner(settings)
    try:
        runner.warm_up()
        for kind, params in KINDS.items():
            cost = measure(runner, params, arguments.sequences, arguments.tokens)
            print(
                f"{kind}: step {cost.step_ms:.2f} ms, loop {cost.own_ms:.2f} ms = "
                f"{cost.share:.1%} (target < {TARGET:.0%}), of that sampling in libllama "
                f"{cost.sampling_ms:.2f} ms"
            )
    finally:
        runner.close()


if __name__ == "__main__":
    main()
