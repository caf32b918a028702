"""OpenVINO GenAI's continuous batching behind a thin HTTP server, on a free port.

    python -m bench.openvino_server FILE --context-size 4096 --parallel 8 --threads 2

OpenVINO GenAI is a library; this gives it the one route that the scenarios need. One thread steps
the pipeline while there is work; what comes out goes to the event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import itertools
import json
import queue
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

genai: Any = importlib.import_module("openvino_genai")

MIB_PER_GIB = 1024
BATCHED_TOKENS = 512
"""Prompt tokens of a step: as many as llama.cpp computes at once."""


@dataclass(slots=True, eq=False)
class Job:
    """One request on its way: in with the prompt, out with lists of token ids."""

    prompt: str
    config: Any
    loop: asyncio.AbstractEventLoop
    tokens: asyncio.Queue[list[int] | None] = field(default_factory=asyncio.Queue)
    """None: it is over."""
    handle: Any = None
    is_left: bool = False
    """The client has gone."""

    def tell(self, ids: list[int] | None) -> None:
        self.loop.call_soon_threadsafe(self.tokens.put_nowait, ids)


class Stepper:
    """Owns the pipeline's steps."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self._arrivals: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._running: list[Job] = []
        self._ids = itertools.count()

    def submit(self, job: Job) -> None:
        self._arrivals.put(job)

    def run(self) -> None:
        while True:
            for job in self._new():
                job.handle = self._pipeline.add_request(next(self._ids), job.prompt, job.config)
                self._running.append(job)
            self._pipeline.step()
            for job in list(self._running):
                self._deliver(job)

    def _new(self) -> Iterator[Job]:
        """Waits for a job only if there is nothing to compute."""
        if not self._running:
            yield self._arrivals.get()
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._arrivals.get_nowait()

    def _deliver(self, job: Job) -> None:
        if job.is_left:
            job.handle.cancel()
        while job.handle.can_read():
            for output in job.handle.read().values():
                job.tell(list(output.generated_ids))
        if job.handle.get_status() != genai.GenerationStatus.RUNNING:
            job.tell(None)
            self._running.remove(job)


def config_of(body: dict[str, Any]) -> Any:
    """The pipeline's generation settings for a chat request."""
    config = genai.GenerationConfig()
    config.max_new_tokens = body["max_tokens"]
    config.ignore_eos = bool(body.get("ignore_eos"))
    config.do_sample = body["temperature"] > 0
    if config.do_sample:
        config.temperature = body["temperature"]
        for name in ("top_k", "top_p", "min_p"):
            if name in body:
                setattr(config, name, body[name])
        config.rng_seed = body.get("seed", 0)
    if "response_format" in body:
        schema = json.dumps(body["response_format"]["json_schema"]["schema"])
        config.structured_output_config = genai.StructuredOutputConfig(json_schema=schema)
    return config


def application(pipeline: Any) -> Starlette:
    tokenizer = pipeline.get_tokenizer()
    stepper = Stepper(pipeline)
    threading.Thread(target=stepper.run, daemon=True).start()

    async def chat(request: Request) -> StreamingResponse:
        body = await request.json()
        prompt = tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True)
        job = Job(prompt, config_of(body), asyncio.get_running_loop())
        stepper.submit(job)
        num_prompt = tokenizer.encode(prompt).input_ids.shape[1]
        return StreamingResponse(
            _events(job, tokenizer, num_prompt), media_type="text/event-stream"
        )

    return Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])


async def _events(job: Job, tokenizer: Any, num_prompt: int) -> AsyncIterator[str]:
    count = 0
    try:
        while (ids := await job.tokens.get()) is not None:
            count += len(ids)
            yield _event({"choices": [{"delta": {"content": tokenizer.decode(ids)}}]})
        usage = {"prompt_tokens": num_prompt, "completion_tokens": count}
        yield _event({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": usage})
        yield "data: [DONE]\n\n"
    finally:
        job.is_left = True


def _event(fields: dict[str, Any]) -> str:
    return f"data: {json.dumps(fields)}\n\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--context-size", type=int, required=True, help="not limited here")
    parser.add_argument("--parallel", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--cache-ram", type=int, required=True, help="MiB")
    arguments = parser.parse_args()

    scheduler = genai.SchedulerConfig()
    scheduler.max_num_seqs = arguments.parallel
    scheduler.max_num_batched_tokens = BATCHED_TOKENS
    scheduler.enable_prefix_caching = True
    # One memory, in whole GiB, for what runs and for what may come again.
    scheduler.cache_size = 1 + -(-arguments.cache_ram // MIB_PER_GIB)
    pipeline = genai.ContinuousBatchingPipeline(
        arguments.model,
        scheduler_config=scheduler,
        device="CPU",
        properties={"INFERENCE_NUM_THREADS": arguments.threads},
    )
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(application(pipeline), log_level="error", access_log=False, ws="none")
    print(f"Ready: http://127.0.0.1:{listener.getsockname()[1]}", file=sys.stderr, flush=True)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
