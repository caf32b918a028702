"""`self serve`: from choices to a server."""

from __future__ import annotations

from selfserve.cli import options
from selfserve.cli.options import DEFAULT_MODEL
from selfserve.cli.setting_flags import takes_settings
from selfserve.cli.setting_sources import Given, choose


@takes_settings(options.SERVING)
def serve(given: Given, model: options.Model = DEFAULT_MODEL, force: options.Force = False) -> None:
    """Serve a model over HTTP until Ctrl-C.

    What is missing of it is fetched first.
    """
    from selfserve.cli.listener import listen
    from selfserve.cli.preparation import prepare, server_settings

    choices = choose(given, model)
    settings = server_settings(choices)
    # A taken port is told at once and not after gigabytes were fetched and loaded.
    with listen(settings.host, settings.port) as listener:
        prepared = prepare(model, choices, force=force)
        from selfserve.cli import server

        server.run(prepared.engine, settings, prepared.model, listener)
