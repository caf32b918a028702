"""From the URL or base64 text of a request to a decoded picture, off the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

from selfserve.images.data_url import is_data_url, parse_base64, parse_data_url
from selfserve.images.decode import decode, inspect
from selfserve.images.fetch import ImageFetcher
from selfserve.images.limits import ImageLimits
from selfserve.request import Picture
from selfserve.threads import WorkerThreads, check_wanted


class ImageLoader:
    """Loads at most `concurrency` pictures at a time; the others wait.

    Belongs to one event loop. Decoding runs in threads of its own, and of pictures that are
    large enough to be felt in memory only one is decoded at a time. `fetcher` replaces the HTTP
    client that the flags describe; the loader closes it either way.
    """

    def __init__(
        self,
        *,
        concurrency: int = 8,
        allow_http: bool = False,
        allow_private: bool = False,
        limits: ImageLimits | None = None,
        fetcher: ImageFetcher | None = None,
    ) -> None:
        self._limits = limits or ImageLimits()
        self._fetcher = fetcher or ImageFetcher(
            allow_http=allow_http, allow_private=allow_private, limits=self._limits
        )
        self._places = asyncio.Semaphore(concurrency)
        self._threads = WorkerThreads(concurrency, concurrency, name="image")
        self._large = threading.Lock()

    async def load(self, url: str, *, param: str | None, kept_pixels: int | None = None) -> Picture:
        """The picture behind a data URL or an HTTPS URL, made smaller if it has more than
        `kept_pixels`; None: what the limits say.

        Raises InvalidRequest, UnsupportedImage, ImageTooLarge or ImageFetchFailed with `param`,
        OutOfMemory, or ShuttingDown after `close`.
        """
        limits = self._within(kept_pixels)
        async with self._places:
            if is_data_url(url):
                return await self._in_thread(
                    lambda: self._decode(
                        parse_data_url(url, param=param, limits=limits), param, limits
                    )
                )
            data = await self._fetcher.fetch(url, param=param)
            return await self._in_thread(lambda: self._decode(data, param, limits))

    async def load_base64(
        self, data: str, *, param: str | None, kept_pixels: int | None = None
    ) -> Picture:
        """The picture in bare base64. Raises what `load` raises, except ImageFetchFailed."""
        limits = self._within(kept_pixels)
        async with self._places:
            return await self._in_thread(
                lambda: self._decode(parse_base64(data, param=param, limits=limits), param, limits)
            )

    def _within(self, kept_pixels: int | None) -> ImageLimits:
        return (
            self._limits if kept_pixels is None else replace(self._limits, kept_pixels=kept_pixels)
        )

    async def close(self) -> None:
        """Drops what waits and closes connections. Does not wait for decoding threads."""
        self._threads.close()
        await self._fetcher.close()

    async def _in_thread(self, work: Callable[[], Picture]) -> Picture:
        return await self._threads.run(work)

    def _decode(self, data: bytes, param: str | None, limits: ImageLimits) -> Picture:
        source = inspect(data, param=param, limits=limits)
        is_large = source.width * source.height > limits.kept_pixels
        with self._large if is_large else nullcontext():
            check_wanted()
            return decode(source, param=param, limits=limits)
