"""The pictures of requests: counted before anything is fetched, loaded a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from selfserve.api.budget import ByteBudget, ByteShare
from selfserve.config import ServerSettings
from selfserve.errors import UnsupportedCapability
from selfserve.images.limits import ImageLimits
from selfserve.images.loader import ImageLoader
from selfserve.limits import PIXEL_BYTES, PIXEL_WAIT_S, REQUEST_PIXELS
from selfserve.request import Picture


class PictureIntake:
    """Loads what requests name. Belongs to the event loop's thread."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._limits = ImageLimits()
        self._pixels = ByteBudget(PIXEL_BYTES, wait_s=PIXEL_WAIT_S, what="pictures at a time")
        self._loader: ImageLoader | None = None

    def check_count(self, count: int, *, param: str) -> None:
        """Raises UnsupportedCapability for more pictures than one request may have."""
        most = self._settings.max_images
        if count > most:
            raise UnsupportedCapability(
                f"{param} must hold at most {most} pictures, got {count}", param=param
            )

    def share(self) -> ByteShare:
        """The room of one request's pictures. Close it when they are needed no more."""
        return self._pixels.share()

    async def from_urls(
        self, urls: Sequence[tuple[str, str]], room: ByteShare
    ) -> tuple[Picture, ...]:
        """The pictures behind (path of the field, URL), in that order, once there is room for
        them. Raises RequestError."""
        return await self._all(self._images().load, urls, room) if urls else ()

    async def from_base64(
        self, items: Sequence[tuple[str, str]], room: ByteShare
    ) -> tuple[Picture, ...]:
        """As `from_urls`, of (path of the field, base64)."""
        return await self._all(self._images().load_base64, items, room) if items else ()

    async def close(self) -> None:
        if self._loader is not None:
            await self._loader.close()

    def _images(self) -> ImageLoader:
        if self._loader is None:  # its HTTP client takes a while to be made, and text needs none
            self._loader = ImageLoader(
                concurrency=self._settings.preprocess_concurrency,
                allow_http=self._settings.allow_http_images,
                allow_private=self._settings.allow_private_images,
                limits=self._limits,
            )
        return self._loader

    async def _all(
        self,
        load: Callable[..., Awaitable[Picture]],
        items: Sequence[tuple[str, str]],
        room: ByteShare,
    ) -> tuple[Picture, ...]:
        most = min(self._limits.kept_pixels, REQUEST_PIXELS // len(items))
        await room.grow(3 * most * len(items))
        tasks = [
            asyncio.ensure_future(load(text, param=path if path else None, kept_pixels=most))
            for path, text in items
        ]
        try:
            pictures = tuple([await task for task in tasks])
            room.shrink(sum(len(picture.rgb) for picture in pictures))
            return pictures
        finally:
            for task in tasks:  # when one failed or the client left, the others are not needed
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
