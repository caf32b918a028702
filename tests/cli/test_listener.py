"""The listening socket: taken ports, free ports, addresses of both families."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from selfserve.cli.listener import is_public, listen, url
from selfserve.errors import AddressInUse, SettingsError


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def ipv6() -> Iterator[None]:
    """Skips where the machine has no IPv6 loopback."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("no IPv6 on this machine")
    yield


def test_a_taken_port_is_refused_with_the_address() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(AddressInUse) as caught:
            listen("127.0.0.1", port)
    assert caught.value.message == (
        f"cannot listen on http://127.0.0.1:{port}: Address already in use; "
        "choose another place with --host and --port"
    )


def test_a_wildcard_does_not_join_a_taken_port() -> None:
    with listen("127.0.0.1", 0) as first, pytest.raises(AddressInUse):
        listen("0.0.0.0", first.getsockname()[1])


def test_port_0_takes_a_free_port_that_the_url_names() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert port != 0
        assert url(listener) == f"http://127.0.0.1:{port}"


def test_a_port_whose_old_connection_is_in_time_wait_is_free() -> None:
    with listen("127.0.0.1", 0) as first:
        address = first.getsockname()
        client = socket.create_connection(address)
        served, _ = first.accept()
        served.close()
        client.close()
    with listen(*address) as second:
        assert second.getsockname() == address


def test_the_socket_listens_before_anybody_accepts() -> None:
    with (
        listen("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname(), timeout=2) as client,
    ):
        assert client.getpeername() == listener.getsockname()


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_an_ipv6_address_works_with_and_without_brackets(host: str) -> None:
    with ipv6(), listen(host, 0) as listener:
        assert url(listener) == f"http://[::1]:{listener.getsockname()[1]}"
        assert not is_public(listener)


def test_a_wildcard_is_shown_as_loopback_and_is_public() -> None:
    with listen("0.0.0.0", 0) as listener:
        assert url(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert is_public(listener)


def test_loopback_is_not_public() -> None:
    with listen("127.0.0.1", 0) as listener:
        assert not is_public(listener)


@pytest.mark.parametrize("host", ["", "a" * 70 + ".invalid"])
def test_a_host_that_is_no_address_is_refused_by_name(host: str) -> None:
    with pytest.raises(SettingsError) as caught:
        listen(host, free_port())
    assert caught.value.param == "host"
    assert repr(host)[:50] in caught.value.message


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(AddressInUse, match=r"http://192\.0\.2\.1:8080: Cannot assign"):
        listen("192.0.2.1", 8080)
