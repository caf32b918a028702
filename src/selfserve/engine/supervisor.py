"""The engine process from the outside: starting it, talking to it, noticing its end."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable
from multiprocessing.process import BaseProcess

import msgspec
import zmq

from selfserve.config import EngineSettings
from selfserve.engine import channel, process
from selfserve.request import Command, Message, Shutdown

SHUTDOWN_S = 2.0
"""Time that the process has to end by itself; a step that runs longer is killed."""


RETRY_S = 0.005
"""Until the next try to send to an engine whose socket is not connected yet."""


class EngineProcess:
    """One engine process at a time and the sockets to it. Belongs to the event loop's thread."""

    def __init__(
        self,
        settings: EngineSettings,
        *,
        on_message: Callable[[Message], None],
        on_end: Callable[[int | None], None],
    ) -> None:
        """`on_end` gets the exit code of a process that ended without being told to."""
        self._settings = settings
        self._on_message = on_message
        self._on_end = on_end
        self._process: BaseProcess | None = None
        self._starting: asyncio.Task[None] | None = None
        self._num_starts = 0
        self._unsent: deque[bytes] = deque()
        self._decoder = msgspec.msgpack.Decoder(list[Message])
        # Only this user may enter the folder, so only this user can reach the sockets in it.
        self._folder = tempfile.mkdtemp(prefix="self-")
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._commands: zmq.Socket[bytes] | None = None
        self._messages: zmq.Socket[bytes] | None = None

    async def start(self) -> None:
        """Spawns the process, in a thread: forking a large one takes its time."""
        folder = self._open()
        spawn = multiprocessing.get_context("spawn")
        self._process = spawn.Process(
            target=process.run, args=(self._settings, folder), name="self-engine", daemon=True
        )
        self._starting = asyncio.create_task(asyncio.to_thread(self._process.start))
        await asyncio.shield(self._starting)  # a process half-way made could not be ended
        asyncio.get_running_loop().add_reader(self._process.sentinel, self._ended)

    def _open(self) -> str:
        """New sockets for each process, in a folder of their own, which is returned: through old
        ones a command might go to the dead engine, whose end may not be noticed yet."""
        self._num_starts += 1
        folder = os.path.join(self._folder, str(self._num_starts))
        os.mkdir(folder, mode=0o700)
        self._commands = self._bind(zmq.PUSH, folder, channel.COMMANDS)
        self._messages = self._bind(zmq.PULL, folder, channel.MESSAGES)
        asyncio.get_running_loop().add_reader(self._messages.fileno(), self._receive)
        return folder

    def _bind(self, kind: int, folder: str, name: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.bind(channel.endpoint(folder, name))
        return socket

    def _shut(self) -> None:
        """Delivers what the engine still said and takes the sockets down."""
        if self._commands is None or self._messages is None:
            return
        self._receive()
        asyncio.get_running_loop().remove_reader(self._messages.fileno())
        self._commands.close(linger=0)
        self._messages.close(linger=0)
        self._commands = self._messages = None
        self._unsent.clear()

    def send(self, command: Command) -> None:
        """Never blocks. What is sent while no engine is there is lost: it knows no requests."""
        if self._commands is not None:
            self._unsent.append(channel.encode([command]))
            if len(self._unsent) == 1:  # else the next try is under way
                self._flush()

    def _flush(self) -> None:
        try:
            while self._commands is not None and self._unsent:
                self._commands.send(self._unsent[0], zmq.NOBLOCK)
                self._unsent.popleft()
        except zmq.Again:
            # An engine may say that it is ready before its end of this socket is connected.
            asyncio.get_running_loop().call_later(RETRY_S, self._flush)

    async def close(self) -> None:
        """Ends the process and takes down the sockets. What it still said is delivered before."""
        if self._starting is not None:
            await asyncio.gather(self._starting, return_exceptions=True)
        if self._process is not None and self._process.pid is not None:
            asyncio.get_running_loop().remove_reader(self._process.sentinel)
            self.send(Shutdown())
            await asyncio.to_thread(self._process.join, SHUTDOWN_S)
            if self._process.is_alive():
                self._process.kill()
                await asyncio.to_thread(self._process.join)
            self._process.close()
            self._process = None
        self._shut()
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _receive(self) -> None:
        """Reads all that is there. ZeroMQ signals only the change from empty, so none may stay."""
        while self._messages is not None:
            try:
                data = self._messages.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            for message in self._decoder.decode(data):
                self._on_message(message)

    def _ended(self) -> None:
        assert self._process is not None
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self._shut()
        self._process.join()
        code = self._process.exitcode
        self._process.close()
        self._process = None
        self._on_end(code)
