"""The wire: every record arrives as it was sent, in order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq
from tests.support.builders import make_request

from selfserve.engine import channel
from selfserve.engine.channel import EngineInbox, EngineOutbox
from selfserve.request import (
    Abort,
    Command,
    Constraint,
    Delta,
    Failed,
    Finished,
    Heartbeat,
    Hold,
    Loading,
    Message,
    Progress,
    Ready,
    ReasoningSpec,
    SamplingParams,
    Shutdown,
    SlotState,
    StopType,
    Submit,
    Timings,
    TokenProbs,
)

COMMANDS: list[Command] = [
    Submit(
        request=make_request(
            "ü",
            range(300),
            sampling=SamplingParams(logit_bias=((3, -math.inf), (4, 1.5)), samplers=("top_k",)),
            constraint=Constraint(text='start: "a"'),
            reasoning=ReasoningSpec(start="<t>", end="</t>", marker_ids=((7, "<t>"),), budget=3),
            stop=("\n", "é"),
            n_keep=0,
        )
    ),
    Submit(request=make_request("plain", max_tokens=None)),
    Abort(id="ü"),
    Hold(id="ü", is_held=True),
    Hold(id="ü", is_held=False),
    Shutdown(),
]
PROBS = TokenProbs(
    id=1, piece=b"\xff\x00", value=-math.inf, top_ids=b"\1\0\0\0", top_values=bytes(4)
)
MESSAGES: list[Message] = [
    Loading(progress=0.5),
    Ready(context_size=512, num_slots=2, can_shift=True, info={"size": 1 << 40}),
    Progress(id="a", total=10, cache=1, processed=5, time_ms=1.5),
    Delta(id="a", content="é\u2028", tokens=(1, 2), probs=(PROBS,)),
    Finished(
        id="a",
        stop_type=StopType.WORD,
        prompt_tokens=1,
        cached_tokens=0,
        completion_tokens=2,
        slot=1,
        timings=Timings(predicted_ms=3.25),
    ),
    Failed(id="b", error="ContextLengthExceeded", message="m", details={"n_ctx": 512}),
    Heartbeat(slots=(SlotState(id=0, request_id=None, num_tokens=3),), counters={"steps": 1.0}),
]


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.term()


@pytest.fixture
def inbox(context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path) -> Iterator[EngineInbox]:
    inbox = EngineInbox(context, str(tmp_path))
    yield inbox
    inbox.close()


@pytest.fixture
def commands(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> Iterator[zmq.Socket[bytes]]:
    socket = context.socket(zmq.PUSH)
    socket.bind(channel.endpoint(str(tmp_path), channel.COMMANDS))
    yield socket
    socket.close(linger=0)


def test_commands_arrive_as_they_were_sent(commands: zmq.Socket[bytes], inbox: EngineInbox) -> None:
    for command in COMMANDS:
        commands.send(channel.encode([command]))
    received: list[Command] = []
    while len(received) < len(COMMANDS):
        received += inbox.receive(20.0)
    assert received == COMMANDS
    assert inbox.receive(0.0) == []


def test_a_command_that_breaks_its_own_rules_harms_no_other(
    commands: zmq.Socket[bytes], inbox: EngineInbox
) -> None:
    broken = msgspec.to_builtins([COMMANDS[1]])
    broken[0]["request"]["n_probs"] = 10**9
    for frame in (msgspec.msgpack.encode(broken), b"\xc1", msgspec.msgpack.encode([{"type": "?"}])):
        commands.send(frame)
    commands.send(channel.encode(COMMANDS[2:]))
    received: list[Command] = []
    while not received:
        received += inbox.receive(20.0)
    assert received == COMMANDS[2:]


def test_messages_arrive_as_they_were_sent(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    socket = context.socket(zmq.PULL)
    socket.setsockopt(zmq.RCVTIMEO, 20_000)
    socket.bind(channel.endpoint(str(tmp_path), channel.MESSAGES))
    outbox = EngineOutbox(context, str(tmp_path))
    outbox(MESSAGES)
    outbox(MESSAGES[:1])
    decoder = msgspec.msgpack.Decoder(list[Message])
    assert decoder.decode(socket.recv()) == MESSAGES
    assert decoder.decode(socket.recv()) == MESSAGES[:1]
    outbox.close()
    socket.close(linger=0)


def test_sending_never_blocks_although_nobody_reads(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    socket = context.socket(zmq.PULL)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.bind(channel.endpoint(str(tmp_path), channel.MESSAGES))
    outbox = EngineOutbox(context, str(tmp_path))
    for _ in range(5000):
        outbox(MESSAGES[:1])
    assert all(socket.recv() for _ in range(5000))
    outbox.close()
    socket.close(linger=0)
