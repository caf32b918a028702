"""The engine process: loads the model and runs the loop until it is told to end."""

from __future__ import annotations

import os
import signal
import sys
import threading

import zmq

from selfserve.config import EngineSettings
from selfserve.engine.channel import EngineInbox, EngineOutbox
from selfserve.engine.costs import Costs
from selfserve.engine.intake import Inbox, Intake, Preparation
from selfserve.engine.llama_runner import LlamaRunner
from selfserve.engine.loop import EngineLoop, Outbox
from selfserve.engine.memory import PromptMemory
from selfserve.engine.pictures import PictureEncoder, Pictures
from selfserve.engine.runner import Runner
from selfserve.engine.scheduler import Scheduler, failed
from selfserve.engine.stats import EngineStats
from selfserve.errors import SelfError
from selfserve.logs import configure, get_logger
from selfserve.request import Loading, Ready
from selfserve.threads import collect_seldom

log = get_logger("engine")

START_FAILED = "start"
"""Id of the Failed message that tells why the model could not be loaded."""
ORPHAN_CHECK_S = 1.0
SWITCH_INTERVAL_S = 0.0005
"""After which a thread that prepares requests gives the interpreter to the loop: with Python's own
5 ms each call of libllama's samplers could end in such a wait."""


def run(settings: EngineSettings, folder: str) -> None:
    """Entry point of the process. Ends with code 1 after a message if the model cannot be used."""
    # The terminal sends Ctrl-C to both processes; the server decides when the engine ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    configure(settings.verbose)
    _end_with_parent()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    outbox = EngineOutbox(context, folder)
    inbox = EngineInbox(context, folder)
    runner = None
    try:
        runner = LlamaRunner(settings, on_progress=_reporter(outbox))
        collect_seldom()
        serve(settings, runner, inbox, outbox)
    except SelfError as error:
        outbox([failed(START_FAILED, error)])
        raise SystemExit(1) from error
    finally:
        outbox.close()
        inbox.close()
        context.term()
        if runner is not None:
            runner.close()


def serve(settings: EngineSettings, runner: Runner, inbox: Inbox, outbox: Outbox) -> None:
    """Puts the engine together around a loaded model and runs it until Shutdown."""
    capabilities = runner.capabilities
    warm_up = runner.warm_up()
    costs = Costs(
        settings.step_ms,
        capabilities.batch_size,
        capabilities.num_slots,
        batches=warm_up.batches,
        copy=warm_up.copy,
    )
    intake = Intake(inbox, Preparation(runner, costs if settings.speculate else None))
    memory = PromptMemory(runner, costs, settings.cache_ram_bytes or 0)
    pictures = None
    if runner.pictures is not None:
        pictures = Pictures(PictureEncoder(runner.pictures.encode, intake.wake))
    scheduler = Scheduler(capabilities, memory, costs, pictures=pictures)
    stats = EngineStats(scheduler, memory, pictures)
    loop = EngineLoop(runner, scheduler, stats, intake, outbox)
    outbox(
        [
            Ready(
                context_size=capabilities.context_size,
                num_slots=capabilities.num_slots,
                can_shift=capabilities.can_shift,
                info=runner.info,
            )
        ]
    )
    intake.start()
    try:
        loop.run()
    finally:
        intake.close()
    if pictures is not None:
        pictures.encoder.close()


def _reporter(outbox: EngineOutbox):  # type: ignore[no-untyped-def]
    """Sends the share that is loaded, in steps of a hundredth."""
    last = -1

    def report(share: float) -> None:
        nonlocal last
        if int(share * 100) > last:
            last = int(share * 100)
            outbox([Loading(progress=share)])

    return report


def _end_with_parent() -> None:
    """Ends this process when its parent is gone, even while a model is being loaded, which no
    loop of ours can interrupt."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            threading.Event().wait(ORPHAN_CHECK_S)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
