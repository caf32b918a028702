"""The engine process: loads the model and runs the loop until it is told to end."""

from __future__ import annotations

import os
import signal
import threading

import zmq

from selfserve.config import EngineSettings
from selfserve.engine.channel import EngineInbox, EngineOutbox
from selfserve.engine.constraint import ConstraintFactory
from selfserve.engine.encoder import PictureEncoder
from selfserve.engine.grammars import GrammarBuilder
from selfserve.engine.llama_runner import LlamaRunner
from selfserve.engine.loop import EngineLoop
from selfserve.engine.pace import StepPace
from selfserve.engine.pictures import Pictures
from selfserve.engine.prefiller import Prefiller
from selfserve.engine.scheduler import Scheduler, failed
from selfserve.engine.slots import SlotTable
from selfserve.engine.speculation import StepCosts
from selfserve.engine.turns import ComputeTurns
from selfserve.errors import SelfError
from selfserve.logs import configure, get_logger
from selfserve.request import Loading, Ready

log = get_logger("engine")

START_FAILED = "start"
"""Id of the Failed message that tells why the model could not be loaded."""
ORPHAN_CHECK_S = 1.0


def run(settings: EngineSettings, folder: str) -> None:
    """Entry point of the process. Ends with code 1 after a message if the model cannot be used."""
    # The terminal sends Ctrl-C to both processes; the server decides when the engine ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    configure(settings.verbose)
    _end_with_parent()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    outbox = EngineOutbox(context, folder)
    inbox = EngineInbox(context, folder)
    runner = None
    try:
        runner = LlamaRunner(settings, on_progress=_reporter(outbox))
        _serve(settings, runner, inbox, outbox)
    except SelfError as error:
        outbox([failed(START_FAILED, error)])
        raise SystemExit(1) from error
    finally:
        outbox.close()
        inbox.close()
        context.term()
        if runner is not None:
            runner.close()


def _serve(
    settings: EngineSettings, runner: LlamaRunner, inbox: EngineInbox, outbox: EngineOutbox
) -> None:
    capabilities = runner.capabilities
    costs = StepCosts(runner.warm_up())
    pace = StepPace(settings.step_ms, capabilities.batch_size, capabilities.num_slots, costs)
    slots = SlotTable(runner, settings.cache_ram_bytes or 0)
    pictures = _pictures(runner, inbox)
    turns = ComputeTurns(settings.step_ms / 1e3)
    prefiller = None
    if runner.can_read_aside:
        prefiller = Prefiller(runner.open_side_memory, runner.copy_to_side, turns, inbox.wake)
    scheduler = Scheduler(
        runner,
        slots,
        pace,
        costs=costs if settings.speculate else None,
        pictures=pictures,
        prefiller=prefiller,
    )

    def make_factory() -> ConstraintFactory:
        vocabulary = runner.vocabulary
        return ConstraintFactory(
            runner.grammar_tokenizer(), eog_ids=vocabulary.eog_ids, vocab_size=vocabulary.size
        )

    grammars = GrammarBuilder(make_factory, inbox.wake)
    loop = EngineLoop(runner, scheduler, grammars, inbox, outbox, turns=turns)
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
    loop.run()
    grammars.close()
    scheduler.long_prompts.close()
    if pictures is not None:
        pictures.encoder.close()


def _pictures(runner: LlamaRunner, inbox: EngineInbox) -> Pictures | None:
    if runner.projector is None:
        return None
    encoder = PictureEncoder(runner.projector.encode, inbox.wake)
    return Pictures(runner.projector.layout, encoder, runner.capabilities.context_size)


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
