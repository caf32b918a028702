from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from PIL import Image
from tests.support.picture_files import encoded
from tests.support.picture_server import running_server

from selfserve.errors import (
    ImageFetchFailed,
    ImageTooLarge,
    InvalidRequest,
    ShuttingDown,
    UnsupportedImage,
)
from selfserve.images import loader as loader_module
from selfserve.images.fetch import ImageFetcher
from selfserve.images.limits import ImageLimits
from selfserve.images.loader import ImageLoader

PARAM = "messages[0].content[0].image_url.url"
Result = TypeVar("Result")


def red(width: int = 20, height: int = 30) -> bytes:
    return encoded(Image.new("RGB", (width, height), "red"), "PNG")


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


class StubFetcher(ImageFetcher):
    """Answers at once, or when `release` is set; counts who is inside."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data = data
        self.release = asyncio.Event()
        self.inside = 0
        self.most_inside = 0

    async def fetch(self, url: str, *, param: str | None) -> bytes:
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        try:
            await self.release.wait()
            return self.data
        finally:
            self.inside -= 1


def run(
    use: Callable[[ImageLoader], Awaitable[Result]],
    *,
    limits: ImageLimits | None = None,
    allow: bool = False,
    fetcher: ImageFetcher | None = None,
    concurrency: int = 8,
) -> Result:
    """The result of `use` with a loader that is closed afterwards."""

    async def main() -> Result:
        loader = ImageLoader(
            concurrency=concurrency,
            allow_http=allow,
            allow_private=allow,
            limits=limits,
            fetcher=fetcher,
        )
        try:
            return await use(loader)
        finally:
            await loader.close()

    return asyncio.run(main())


def test_a_data_url_a_fetched_url_and_bare_base64_give_the_same_picture() -> None:
    with running_server(None) as server:
        server.serve("/red.png", red(), content_type="text/html")
        url = f"http://127.0.0.1:{server.port}/red.png"
        fetched = run(lambda loader: loader.load(url, param=PARAM), allow=True)
    inline = run(lambda loader: loader.load(data_url(red(), "text/plain"), param=PARAM))
    bare = base64.urlsafe_b64encode(red()).decode().rstrip("=")
    assert fetched == inline == run(lambda loader: loader.load_base64(bare, param=PARAM))
    assert (fetched.width, fetched.height, fetched.rgb) == (20, 30, b"\xff\0\0" * 600)


def test_two_pictures_keep_their_order() -> None:
    async def use(loader: ImageLoader) -> list[int]:
        urls = [data_url(red(width)) for width in (90, 20, 50)]
        found = await asyncio.gather(*(loader.load(url, param=PARAM) for url in urls))
        return [picture.width for picture in found]

    assert run(use) == [90, 20, 50]


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("data:image/png;base64,!", InvalidRequest),
        ("file:///etc/passwd", InvalidRequest),
        (data_url(b"GIF89a"), UnsupportedImage),
        (data_url(red()[:-20]), UnsupportedImage),
        (data_url(red(200, 3)), ImageTooLarge),
        ("https://127.0.0.1:1/", ImageFetchFailed),
    ],
)
def test_every_failure_names_the_field(url: str, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        run(lambda loader: loader.load(url, param=PARAM), limits=ImageLimits(side=100))
    assert getattr(caught.value, "param", None) == PARAM


def test_no_more_than_concurrency_pictures_are_worked_on() -> None:
    async def use(loader: ImageLoader) -> int:
        tasks = [
            asyncio.ensure_future(loader.load("https://name.test/", param=PARAM)) for _ in range(10)
        ]
        while fetcher.inside < 3:
            await asyncio.sleep(0)
        fetcher.release.set()
        await asyncio.gather(*tasks)
        return fetcher.most_inside

    fetcher = StubFetcher(red())
    assert run(use, fetcher=fetcher, concurrency=3) == 3


def test_a_cancelled_load_gives_its_place_back() -> None:
    async def use(loader: ImageLoader) -> int:
        task = asyncio.ensure_future(loader.load("https://name.test/", param=PARAM))
        while not fetcher.inside:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return (await loader.load(data_url(red()), param=PARAM)).width

    fetcher = StubFetcher(red())
    assert run(use, fetcher=fetcher, concurrency=1) == 20


def test_decoding_leaves_the_event_loop_and_large_pictures_take_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, threads, inside, most = loader_module.decode, set(), [0], [0]
    guard = threading.Lock()

    def spy(*args: object, **options: object) -> object:
        with guard:
            threads.add(threading.get_ident())
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        try:
            return real(*args, **options)  # type: ignore[arg-type]
        finally:
            with guard:
                inside[0] -= 1

    async def use(loader: ImageLoader) -> None:
        url = data_url(red(400, 400))
        await asyncio.gather(*(loader.load(url, param=PARAM) for _ in range(12)))

    monkeypatch.setattr(loader_module, "decode", spy)
    run(use, limits=ImageLimits(kept_pixels=100))
    assert threading.get_ident() not in threads
    assert most[0] == 1


def test_a_closed_loader_says_so() -> None:
    async def use(loader: ImageLoader) -> None:
        await loader.close()
        with pytest.raises(ShuttingDown):
            await loader.load(data_url(red()), param=PARAM)

    run(use)
