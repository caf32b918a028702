from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import httpcore
import pytest
from tests.support.picture_server import HOST, PictureServer, make_certificate, running_server

from selfserve.errors import ImageFetchFailed, ImageTooLarge, InvalidRequest
from selfserve.images.addresses import CheckedBackend
from selfserve.images.fetch import ImageFetcher
from selfserve.images.limits import ImageLimits

PARAM = "messages[0].content[0].image_url.url"
PUBLIC = "93.184.216.34"
LIMITS = ImageLimits(source_bytes=100_000)
LOCAL_HOSTS = """
127.0.0.1 localhost 127.1 0.0.0.0 2130706433 0x7f.1 0x7f000001 017700000001
[::1] [::] [::ffff:127.0.0.1] [64:ff9b::7f00:1] [2002:7f00:1::]
"""


class Detour(httpcore.AsyncNetworkBackend):
    """Leads connections to `PUBLIC` to this machine instead, and refuses all others."""

    def __init__(self) -> None:
        self.connected: list[str] = []
        self.sockets = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        self.connected.append(host)
        if host != PUBLIC:
            raise httpcore.ConnectError("only the public address was judged")
        return await self.sockets.connect_tcp("127.0.0.1", port, timeout)


class Names:
    """A resolver that knows `names` and counts; unknown ones are taken as numbers."""

    def __init__(self, **names: str) -> None:
        self.names = {HOST: PUBLIC, **names}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        return [self.names.get(host, host)]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def server(certificate: Path) -> Iterator[PictureServer]:
    with running_server(certificate) as server:
        yield server


@pytest.fixture
def trust(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificate)


def fetch(
    url: str,
    *,
    trust: ssl.SSLContext | None = None,
    names: Names | None = None,
    detour: Detour | None = None,
    limits: ImageLimits = LIMITS,
    allow_http: bool = False,
    allow_private: bool = False,
) -> bytes:
    async def run() -> bytes:
        network = None
        if not allow_private:
            network = CheckedBackend(
                allow_private=False, resolve=names or Names(), sockets=detour or Detour()
            )
        fetcher = ImageFetcher(
            allow_http=allow_http,
            allow_private=allow_private,
            limits=limits,
            network=network,
            ssl_context=trust,
        )
        try:
            return await fetcher.fetch(url, param=PARAM)
        finally:
            await fetcher.close()

    return asyncio.run(run())


def refused(url: str, **options: object) -> None:
    """Asserts that the fetch fails with the one neutral error."""
    with pytest.raises(ImageFetchFailed) as caught:
        fetch(url, **options)  # type: ignore[arg-type]
    assert caught.value.body()["error"] == {
        "type": "image_fetch_failed",
        "message": "the picture could not be fetched",
        "param": PARAM,
        "code": "image_fetch_failed",
    }


def url_of(server: PictureServer, path: str, host: str = HOST) -> str:
    return f"https://{host}:{server.port}{path}"


def test_a_public_picture_is_fetched_with_its_name_kept(
    server: PictureServer, trust: ssl.SSLContext
) -> None:
    server.serve("/a.png?x=1", b"picture")
    detour, names = Detour(), Names()
    assert fetch(url_of(server, "/a.png?x=1#f"), trust=trust, detour=detour, names=names) == (
        b"picture"
    )
    assert detour.connected == [PUBLIC]
    assert names.asked == [HOST]
    assert server.server_names == [HOST]
    assert server.seen[0].headers["host"] == f"{HOST}:{server.port}"
    assert server.seen[0].headers["accept-encoding"] == "identity"


def test_a_local_picture_is_fetched_when_private_addresses_are_allowed(
    server: PictureServer, trust: ssl.SSLContext
) -> None:
    server.serve("/", b"picture")
    assert fetch(url_of(server, "/", "127.0.0.1"), trust=trust, allow_private=True) == b"picture"


def test_plain_http_is_fetched_only_when_allowed() -> None:
    with running_server(None) as server:
        server.serve("/", b"picture")
        url = f"http://127.0.0.1:{server.port}/"
        with pytest.raises(InvalidRequest, match="--allow-http-images"):
            fetch(url, allow_private=True)
        assert server.seen == []
        assert fetch(url, allow_private=True, allow_http=True) == b"picture"


def test_a_numeric_host_keeps_its_brackets() -> None:
    with running_server(None) as server:
        server.serve("/", b"picture")
        host = f"[2606:4700::1111]:{server.port}"
        names = Names(**{"2606:4700::1111": PUBLIC})
        assert fetch(f"http://{host}/", names=names, allow_http=True) == b"picture"
        assert server.seen[0].headers["host"] == host


def test_a_proxy_of_the_environment_is_not_used(
    server: PictureServer, trust: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    server.serve("/", b"picture")
    assert fetch(url_of(server, "/"), trust=trust) == b"picture"


def test_an_untrusted_certificate_is_refused(server: PictureServer) -> None:
    server.serve("/", b"picture")
    refused(url_of(server, "/"))
    assert server.seen == []


@pytest.mark.parametrize("host", LOCAL_HOSTS.split())
def test_nothing_connects_to_a_private_address(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)

        async def run() -> None:
            fetcher = ImageFetcher(limits=LIMITS)
            try:
                with pytest.raises(ImageFetchFailed, match="could not be fetched"):
                    await fetcher.fetch(f"https://{host}:{listener.getsockname()[1]}/", param=PARAM)
            finally:
                await fetcher.close()

        asyncio.run(run())
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_a_name_that_changes_its_address_is_judged_at_each_connection(
    server: PictureServer, trust: ssl.SSLContext
) -> None:
    names, detour = Names(), Detour()

    def rebind(handler: BaseHTTPRequestHandler) -> None:
        names.names[HOST] = "127.0.0.1"
        handler.send_response(302)
        handler.send_header("location", "/again")
        handler.end_headers()

    server.routes["/"] = rebind
    server.serve("/again", b"secret")
    refused(url_of(server, "/"), trust=trust, names=names, detour=detour)
    assert detour.connected == [PUBLIC]
    assert [request.path for request in server.seen] == ["/"]


@pytest.mark.parametrize(
    "location",
    [
        "https://127.0.0.1/",
        "https://169.254.169.254/latest/meta-data",
        "//[::ffff:127.0.0.1]/",
        "https://user:secret@pictures.test/",
        "http://pictures.test/",
        "file:///etc/passwd",
        "https://[",
        "https://pictures.test:0/",
        "\xff",
    ],
)
def test_a_redirect_to_what_is_not_fetched_is_refused(
    server: PictureServer, trust: ssl.SSLContext, location: str
) -> None:
    server.serve("/", b"", status=302, location=location)
    detour = Detour()
    refused(url_of(server, "/"), trust=trust, detour=detour)
    assert detour.connected == [PUBLIC]


def test_three_redirects_are_followed_and_four_are_not(
    server: PictureServer, trust: ssl.SSLContext
) -> None:
    for number, status in enumerate((301, 302, 307, 308)):
        server.serve(f"/{number}", b"", status=status, location=f"{number + 1}")
    server.serve("/4", b"picture")
    assert fetch(url_of(server, "/1"), trust=trust) == b"picture"
    refused(url_of(server, "/0"), trust=trust)


@pytest.mark.parametrize("status", [204, 206, 300, 304, 400, 401, 403, 404, 500, 503])
def test_any_other_status_is_the_same_failure(
    server: PictureServer, trust: ssl.SSLContext, status: int
) -> None:
    server.serve("/", b"", status=status)
    refused(url_of(server, "/"), trust=trust)


def test_a_compressed_body_is_refused(server: PictureServer, trust: ssl.SSLContext) -> None:
    server.serve("/", b"x", content_encoding="gzip")
    refused(url_of(server, "/"), trust=trust)


def test_a_body_that_is_announced_too_large_is_not_read(
    server: PictureServer, trust: ssl.SSLContext
) -> None:
    def announce(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("content-length", str(LIMITS.source_bytes + 1))
        handler.end_headers()
        handler.wfile.flush()
        server.closing.wait()

    server.routes["/"] = announce
    with pytest.raises(ImageTooLarge) as caught:
        fetch(url_of(server, "/"), trust=trust)
    assert caught.value.param == PARAM


def test_an_endless_body_ends_at_the_limit(server: PictureServer, trust: ssl.SSLContext) -> None:
    sent = 0

    def pour(handler: BaseHTTPRequestHandler) -> None:
        nonlocal sent
        handler.send_response(200)
        handler.end_headers()
        while not server.closing.is_set():
            sent += handler.wfile.write(bytes(10_000))

    server.routes["/"] = pour
    with pytest.raises(ImageTooLarge):
        fetch(url_of(server, "/"), trust=trust)
    assert sent < 50_000_000


def test_a_body_of_exactly_the_limit_is_fetched(
    server: PictureServer, trust: ssl.SSLContext
) -> None:
    server.serve("/", bytes(LIMITS.source_bytes))
    assert len(fetch(url_of(server, "/"), trust=trust)) == LIMITS.source_bytes


def test_a_body_that_is_cut_off_is_a_failure(server: PictureServer, trust: ssl.SSLContext) -> None:
    server.serve("/", b"picture", content_length="100")
    refused(url_of(server, "/"), trust=trust)


@pytest.mark.parametrize("headers_first", [True, False])
def test_silence_ends_when_the_time_is_up(
    server: PictureServer, trust: ssl.SSLContext, headers_first: bool
) -> None:
    def wait(handler: BaseHTTPRequestHandler) -> None:
        if headers_first:
            handler.send_response(200)
            handler.end_headers()
            handler.wfile.write(b"x")
        server.closing.wait()

    server.routes["/"] = wait
    refused(url_of(server, "/"), trust=trust, limits=ImageLimits(fetch_s=0.2))


def test_a_resolver_that_is_silent_ends_when_the_time_is_up() -> None:
    class Silent(Names):
        async def __call__(self, host: str, port: int) -> list[str]:
            await asyncio.Event().wait()
            return []

    refused(f"https://{HOST}/", names=Silent(), limits=ImageLimits(fetch_s=0.05))


def test_a_closed_port_and_a_refused_address_look_the_same() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    refused(f"https://{HOST}:{port}/")
    refused(f"https://127.0.0.1:{port}/")
    refused(f"https://unknown.test:{port}/")


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://pictures.test/a.png",
        "gopher://pictures.test/",
        "http://pictures.test/",
        "javascript:alert(1)",
        "/a.png",
        "pictures.test/a.png",
        "",
        "https://",
        "https:///a.png",
        "https://[::1",
        "https://pictures.test:99999/",
        "https://pictures.test:0/",
        "https://pictures.test:port/",
        "https://user:secret@pictures.test/",
        "https://user@pictures.test/",
        "https://pictures\ud800.test/",
        "https://pictures.test/\x00",
        "https://pictures.test/" + "a" * 100_000,
    ],
)
def test_a_url_that_is_not_fetched_is_the_clients_mistake(url: str) -> None:
    names = Names()
    with pytest.raises(InvalidRequest) as caught:
        fetch(url, names=names)
    assert caught.value.param == PARAM
    assert PARAM in caught.value.message
    assert "secret" not in caught.value.message
    caught.value.message.encode()
    assert names.asked == []
