"""`self serve`: from options to settings, and on to the server."""

from __future__ import annotations

from selfserve.cli import options
from selfserve.cli.listener import listen
from selfserve.cli.options import DEFAULT_MODEL, MIB, default
from selfserve.config import EngineSettings, ServerSettings
from selfserve.errors import SettingsError
from selfserve.resources import available_cpus, available_memory_bytes


def serve(
    model: options.Model = DEFAULT_MODEL,
    host: options.Host = default(ServerSettings, "host"),
    port: options.Port = default(ServerSettings, "port"),
    context_size: options.ContextSize = None,
    parallel: options.Parallel = default(EngineSettings, "num_slots"),
    threads: options.Threads = None,
    queue_size: options.QueueSize = default(ServerSettings, "queue_size"),
    request_timeout: options.RequestTimeout = default(ServerSettings, "request_timeout_s"),
    ping_interval: options.PingInterval = default(ServerSettings, "ping_s"),
    step_ms: options.StepMs = default(EngineSettings, "step_ms"),
    cache_ram: options.CacheRam = None,
    api_key: options.ApiKeys = None,
    verbose: options.Verbose = False,
) -> None:
    """Load a model and serve it over HTTP until Ctrl-C."""
    server_settings = ServerSettings(
        host=host,
        port=port,
        queue_size=queue_size,
        request_timeout_s=request_timeout,
        ping_s=ping_interval,
        api_keys=_checked_keys(api_key or []),
    )
    with listen(host, port) as listener:
        from selfserve.catalogue.entries import resolve
        from selfserve.cli import server

        resolved = resolve(model)
        engine_settings = EngineSettings(
            model_path=resolved.path,
            context_size=resolved.context_size if context_size is None else context_size,
            num_slots=parallel,
            num_threads=available_cpus() if threads is None else threads,
            step_ms=step_ms,
            cache_ram_bytes=_cache_ram_bytes(cache_ram),
            verbose=verbose,
        )
        server.run(engine_settings, server_settings, resolved.info, listener)


def _cache_ram_bytes(mib: int | None) -> int:
    return available_memory_bytes() // 4 if mib is None else mib * MIB


def _checked_keys(keys: list[str]) -> tuple[str, ...]:
    """A blank key would let everyone in who sends a blank one."""
    for key in keys:
        if not key.strip() or not key.isascii() or not key.isprintable():
            raise SettingsError("api_key must be printable ASCII and not blank", param="api_key")
    return tuple(keys)
