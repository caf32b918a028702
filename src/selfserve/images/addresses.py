"""Which addresses a fetch may connect to, and a network backend that holds to it.

A name is looked up once for each connection, every address of the answer is judged, and the
connection goes to one of exactly these addresses. So a name that answers differently the second
time, or with one good and one bad address, gains nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable

import httpcore

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Host and port to numeric addresses. Raises OSError if there is none."""

_GLOBAL_V6 = ipaddress.ip_network("2000::/3")
"""The only IPv6 range in public use. What lies outside (mapped, NAT64, local, multicast) either
is not public or stands for an IPv4 address that would have to be judged too."""

_REFUSED = [
    ipaddress.ip_network(network)
    for network in (
        "2002::/16",  # 6to4: an IPv4 address in disguise
        "3fff::/20",  # documentation; not in the tables of older Python versions
        "192.88.99.0/24",  # 6to4 relays
    )
]
_MAX_ATTEMPTS = 4
_CONNECT_S = 5.0
"""For each address: a dead first address must not use up the whole time of a fetch."""


def is_public(address: str) -> bool:
    """True if `address` (numeric) is a unicast address of the public internet."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if ip.version == 6 and ip not in _GLOBAL_V6:
        return False
    if ip.is_multicast or ip.is_reserved or not ip.is_global:
        return False
    return not any(ip in network for network in _REFUSED if network.version == ip.version)


async def resolve_host(host: str, port: int) -> list[str]:
    """All addresses of `host`, by the system's resolver; also reads numeric forms like `0x7f.1`.

    Each look-up has a daemon thread: the system's call cannot be cancelled, and neither other
    work nor the end of the program may wait for a name server that is silent.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def settle(addresses: list[str] | None, error: Exception | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(addresses or [])

    def look_up() -> None:
        addresses, failure = None, None
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        except (OSError, ValueError) as error:
            failure = OSError(f"look-up failed: {type(error).__name__}")
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, addresses, failure)

    threading.Thread(target=look_up, name="image-lookup", daemon=True).start()
    return await answer


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """Connects by TCP, to public addresses only (to any if `allow_private`)."""

    def __init__(
        self,
        *,
        allow_private: bool,
        resolve: Resolve = resolve_host,
        sockets: httpcore.AsyncNetworkBackend | None = None,
    ) -> None:
        self._allow_private = allow_private
        self._resolve = resolve
        self._sockets = sockets or httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Raises httpcore.ConnectError without any connection if one address is not public."""
        addresses = await self._resolve(host, port)
        if not self._allow_private and not all(map(is_public, addresses)):
            raise httpcore.ConnectError("an address of the host is not public")
        failure: Exception = httpcore.ConnectError("the host has no address")
        for address in addresses[:_MAX_ATTEMPTS]:
            try:
                return await self._sockets.connect_tcp(
                    address,
                    port,
                    min(timeout or _CONNECT_S, _CONNECT_S),
                    local_address,
                    socket_options,
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure
