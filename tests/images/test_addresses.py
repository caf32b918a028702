from __future__ import annotations

import asyncio
from collections.abc import Iterable

import httpcore
import pytest

from selfserve.images.addresses import CheckedBackend, is_public, resolve_host

NOT_PUBLIC = """
127.0.0.1 127.255.0.1 0.0.0.0 10.0.0.1 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1
192.0.2.1 198.18.0.1 192.88.99.1 224.0.0.1 239.1.1.1 240.0.0.1 255.255.255.255
:: ::1 fe80::1 fe80::1%eth0 fc00::1 fd00::1 fec0::1 ff02::1 ff0e::1 2001:db8::1 3fff::1
2001::1 2002:7f00:1:: 2002:808:808::1 64:ff9b::7f00:1 64:ff9b::808:808 64:ff9b:1::1
::ffff:127.0.0.1 ::ffff:8.8.8.8 ::127.0.0.1 100::1 5f00::1 2130706433 0x7f.1 x
"""


class RecordingSockets(httpcore.AsyncNetworkBackend):
    """Connects nowhere; remembers where to. Addresses in `dead` do not answer."""

    def __init__(self, dead: tuple[str, ...] = ()) -> None:
        self.connected: list[tuple[str, int]] = []
        self.dead = dead

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        self.connected.append((host, port))
        if host in self.dead:
            raise httpcore.ConnectTimeout("no answer")
        return httpcore.AsyncMockStream([])


class Resolver:
    """Answers each look-up with the next list of addresses."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)

    async def __call__(self, host: str, port: int) -> list[str]:
        return self.answers.pop(0)


def connect(sockets: RecordingSockets, resolver: Resolver, allow_private: bool = False) -> None:
    backend = CheckedBackend(allow_private=allow_private, resolve=resolver, sockets=sockets)
    asyncio.run(backend.connect_tcp("name.test", 443))


@pytest.mark.parametrize("address", NOT_PUBLIC.split())
def test_no_other_address_is_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "2a00::1"])
def test_usual_addresses_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("bad", ["10.0.0.1", "::1", "::ffff:10.0.0.1"])
def test_one_private_address_among_public_ones_refuses_the_host(bad: str) -> None:
    for answer in (["1.1.1.1", bad], [bad, "1.1.1.1"]):
        sockets = RecordingSockets()
        with pytest.raises(httpcore.ConnectError):
            connect(sockets, Resolver(answer))
        assert sockets.connected == []


def test_the_connection_goes_to_the_judged_address_after_one_look_up() -> None:
    sockets = RecordingSockets()
    resolver = Resolver(["1.1.1.1"], ["127.0.0.1"])
    connect(sockets, resolver)
    assert sockets.connected == [("1.1.1.1", 443)]
    assert resolver.answers == [["127.0.0.1"]]


def test_the_next_address_is_tried_when_one_is_dead() -> None:
    sockets = RecordingSockets(dead=("1.1.1.1",))
    connect(sockets, Resolver(["1.1.1.1", "1.0.0.1"]))
    assert sockets.connected == [("1.1.1.1", 443), ("1.0.0.1", 443)]


def test_private_addresses_are_reached_only_when_allowed() -> None:
    sockets = RecordingSockets()
    connect(sockets, Resolver(["127.0.0.1"]), allow_private=True)
    assert sockets.connected == [("127.0.0.1", 443)]


def test_a_host_without_addresses_is_a_connect_error() -> None:
    with pytest.raises(httpcore.ConnectError):
        connect(RecordingSockets(), Resolver([]))


@pytest.mark.parametrize("host", ["127.0.0.1", "2130706433", "0x7f.1", "0177.0.0.1", "127.1"])
def test_numeric_forms_resolve_to_the_address_they_mean(host: str) -> None:
    assert asyncio.run(resolve_host(host, 443)) == ["127.0.0.1"]


@pytest.mark.parametrize("host", ["a" * 70 + ".invalid", "a..invalid", "fe80::1%nowhere", "\0"])
def test_a_host_that_cannot_be_looked_up_is_an_oserror(host: str) -> None:
    with pytest.raises(OSError, match="look-up failed"):
        asyncio.run(resolve_host(host, 443))
