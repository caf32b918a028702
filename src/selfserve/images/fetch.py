"""Fetches pictures by HTTPS, within bounds of time, size and redirects, from public hosts only.

The body is kept in memory and never decompressed: an encoded one is refused. Whatever goes wrong
beyond the URL itself gives one and the same error, so that nobody can map a network with it.
"""

from __future__ import annotations

import asyncio
import ssl

import httpcore
import httpx

from selfserve.errors import ImageFetchFailed, InvalidRequest, RequestError, shown
from selfserve.images.addresses import CheckedBackend
from selfserve.images.limits import ImageLimits
from selfserve.logs import get_logger

_MESSAGE = "the picture could not be fetched"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HEADERS = [
    (b"Accept", b"image/webp,image/png,image/jpeg"),
    (b"Accept-Encoding", b"identity"),
    (b"User-Agent", b"self"),
    (b"Connection", b"close"),
]


class _Failed(Exception):
    """The answer is not one that holds a picture."""


class ImageFetcher:
    """An HTTP client for pictures. Belongs to one event loop; `close` frees it.

    `network` replaces the backend that the flags describe, `ssl_context` the trusted certificates
    (which follow `SSL_CERT_FILE`); proxies of the environment are never used.
    """

    def __init__(
        self,
        *,
        allow_http: bool = False,
        allow_private: bool = False,
        limits: ImageLimits | None = None,
        network: httpcore.AsyncNetworkBackend | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._schemes = ("https", "http") if allow_http else ("https",)
        self._limits = limits or ImageLimits()
        self._log = get_logger("images")
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=ssl_context or httpx.create_ssl_context(),
            max_connections=None,
            max_keepalive_connections=0,
            network_backend=network or CheckedBackend(allow_private=allow_private),
        )

    async def fetch(self, url: str, *, param: str | None) -> bytes:
        """The body behind `url`.

        Raises InvalidRequest if the URL is malformed or of a kind that is not fetched,
        ImageTooLarge once the body is over the limit, ImageFetchFailed for everything else.
        """
        target = self._parse(url, param)
        try:
            async with asyncio.timeout(self._limits.fetch_s):
                return await self._follow(target, param)
        except RequestError:
            raise
        except Exception as error:  # sockets, TLS, HTTP, look-up, time: one answer for all
            self._log.debug("a picture was not fetched: %s", type(error).__name__)
            raise ImageFetchFailed(_MESSAGE, param=param) from error

    async def close(self) -> None:
        """Closes all connections. Fetches that still run fail."""
        await self._pool.aclose()

    def _parse(self, url: str, param: str | None) -> httpx.URL:
        try:
            target = httpx.URL(url.strip())
        except (httpx.InvalidURL, ValueError) as error:
            raise InvalidRequest(f"{param} is not a URL: {shown(url)}", param=param) from error
        if target.scheme not in self._schemes:
            hint = " (--allow-http-images allows http)" if target.scheme == "http" else ""
            raise InvalidRequest(
                f"{param} must be an https URL or a data URL{hint}, got {shown(url)}", param=param
            )
        if target.userinfo:
            raise InvalidRequest(f"{param} must not hold a user name or password", param=param)
        if not _has_address(target):
            raise InvalidRequest(f"{param} must name a host, got {shown(url)}", param=param)
        return target

    async def _follow(self, target: httpx.URL, param: str | None) -> bytes:
        for _ in range(self._limits.redirects + 1):
            answer = await self._get(target, param)
            if isinstance(answer, bytes):
                return answer
            target = target.join(answer)
            if target.scheme not in self._schemes or target.userinfo or not _has_address(target):
                raise _Failed("redirected to a kind of URL that is not fetched")
        raise _Failed("too many redirects")

    async def _get(self, target: httpx.URL, param: str | None) -> bytes | str:
        """The body, or where the answer redirects to."""
        url = httpcore.URL(
            scheme=target.raw_scheme,
            host=target.raw_host,
            port=target.port,
            target=target.raw_path,
        )
        headers = [(b"Host", target.netloc), *_HEADERS]
        async with self._pool.stream("GET", url, headers=headers) as response:
            fields = {name.lower(): value.strip() for name, value in response.headers}
            if response.status in _REDIRECTS and b"location" in fields:
                return fields[b"location"].decode("ascii")
            if response.status != 200:
                raise _Failed(f"status {response.status}")
            if fields.get(b"content-encoding", b"identity").lower() not in (b"", b"identity"):
                raise _Failed("the body is compressed")
            announced = fields.get(b"content-length", b"")
            if announced.isdigit():
                self._limits.check_source(int(announced), param=param)
            body = bytearray()
            async for part in response.aiter_stream():
                body += part
                self._limits.check_source(len(body), param=param)
            return bytes(body)


def _has_address(target: httpx.URL) -> bool:
    return bool(target.host) and (target.port is None or 1 <= target.port <= 65535)
