"""What a command talks to: a server that runs already, or a model that it loads for itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from selfserve.cli.setting_sources import Given, choose

if TYPE_CHECKING:
    from selfserve.cli.server_client import ServerClient


@contextlib.contextmanager
def connected(
    target: str, given: Given, *, force: bool = False, key: str = "", slots: int = 1
) -> Iterator[ServerClient]:
    """A client of the server at the address `target`, or of the model `target`, which is loaded
    with `slots` slots and unloaded at the end. Raises what `prepare` raises, and StartError."""
    from selfserve.cli.server_client import ServerClient, is_address

    if is_address(target):
        with ServerClient(target, key) as client:
            yield client
        return
    from selfserve.cli.local_server import local_server, local_settings
    from selfserve.cli.preparation import prepare, server_settings

    flags = {"parallel": slots, **given.flags}
    choices = choose(Given(flags=flags, assignments=given.assignments, file=given.file), target)
    prepared = prepare(target, choices, force=force)
    settings = local_settings(server_settings(choices))
    with local_server(prepared, settings) as url, ServerClient(url) as client:
        yield client
