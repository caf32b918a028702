"""The listening socket, bound before anything costly happens."""

from __future__ import annotations

import os
import socket

from selfserve.errors import AddressInUse, SettingsError, shown

BACKLOG = 2048
WILDCARDS = ("0.0.0.0", "::")


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket on the first address that `host` stands for; port 0 takes a free one.

    The address may be in TIME_WAIT, but two servers never share one. Raises AddressInUse, or
    SettingsError where `host` names no address of this machine. The caller closes the socket.
    """
    bare = host.removeprefix("[").removesuffix("]")
    try:
        family, _, _, _, address = socket.getaddrinfo(bare, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise SettingsError(
            f"host {shown(host)} is no address or name of this machine: {error}", param="host"
        ) from error
    try:
        return socket.create_server(address, family=family, backlog=BACKLOG)
    except OSError as error:
        raise AddressInUse(
            f"cannot listen on {_url(bare, port)}: {os.strerror(error.errno or 0)}; "
            "choose another place with --host and --port"
        ) from error


def url(listener: socket.socket) -> str:
    """Where a person on this machine reaches the server; a wildcard address becomes loopback."""
    host, port = listener.getsockname()[:2]
    if host in WILDCARDS:
        host = "::1" if listener.family == socket.AF_INET6 else "127.0.0.1"
    return _url(host, port)


def is_public(listener: socket.socket) -> bool:
    """True if other machines may reach the address."""
    host = str(listener.getsockname()[0])
    return not (host.startswith("127.") or host == "::1")


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
