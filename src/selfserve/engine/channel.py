"""The wire between the two processes: lists of records as msgpack, over two ZeroMQ sockets.

Sockets lie in a folder that only this user can enter; nothing listens on the network.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec
import zmq

from selfserve.errors import InvalidRequest
from selfserve.logs import get_logger
from selfserve.request import Command, Message

log = get_logger("engine")

COMMANDS = "commands"
MESSAGES = "messages"

_encoder = msgspec.msgpack.Encoder()


def endpoint(folder: str, name: str) -> str:
    return f"ipc://{os.path.join(folder, name)}"


def encode(records: Sequence[Command | Message]) -> bytes:
    return _encoder.encode(records)


class EngineInbox:
    """The engine's end of the command socket. Made, used and closed while no other thread does."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], folder: str) -> None:
        self._socket = context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.connect(endpoint(folder, COMMANDS))
        self._decoder = msgspec.msgpack.Decoder(list[Command])

    def receive(self, timeout_s: float) -> list[Command]:
        """All commands that are there; waits for the first one at most `timeout_s`."""
        commands: list[Command] = []
        if timeout_s > 0:
            self._socket.poll(int(timeout_s * 1e3))
        while True:
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return commands
            try:
                commands += self._decoder.decode(frame)
            except (msgspec.DecodeError, InvalidRequest):
                # Records check themselves, so nobody could have sent this; others must not suffer.
                log.exception("a command that breaks its own rules was dropped")

    def close(self) -> None:
        self._socket.close(linger=0)


class EngineOutbox:
    """The engine's end of the message socket. Called with what one step has to say."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], folder: str) -> None:
        self._socket = context.socket(zmq.PUSH)
        # No limit: what a step has to say is small, and blocking here would stop everybody.
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.connect(endpoint(folder, MESSAGES))

    def __call__(self, messages: Sequence[Message]) -> None:
        self._socket.send(encode(messages), zmq.NOBLOCK)

    def close(self) -> None:
        # Last words, such as why the model could not be loaded, must get out.
        self._socket.close(linger=1000)
