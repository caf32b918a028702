"""Encodes pictures beside the engine's loop, which goes on with everybody else's tokens."""

from __future__ import annotations

import queue
import threading
from collections import OrderedDict
from collections.abc import Callable

from selfserve.engine.media import Embeddings
from selfserve.errors import InternalError, SelfError
from selfserve.logs import get_logger
from selfserve.request import Picture

log = get_logger("engine")

CACHE_BYTES = 256 << 20
"""Of embeddings that no running request waits for. A picture takes between 20 kB and 64 MB."""

Encoded = tuple[Embeddings, ...]
"""The embeddings of each of a picture's chunks."""
Result = Encoded | SelfError


class PictureEncoder:
    """A thread of its own, and the embeddings by the digests of the pixels.

    The thread ends with the last picture that is ordered: libgomp counts the threads of each thread
    that ever computed, and with more of them than processors all wait in their sleep.

    What a request wants is kept until it forgets it; of the rest the newest are, within the limit.
    All methods belong to the engine's thread and none blocks, except `close`.
    """

    def __init__(
        self,
        encode: Callable[[Picture], Encoded],
        wake: Callable[[], None],
        *,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        """`encode` and `wake` are called on the encoder's thread, `wake` whenever a picture is
        done."""
        self._encode = encode
        self._wake = wake
        self._cache_bytes = cache_bytes
        self._thread: threading.Thread | None = None
        self._orders: queue.SimpleQueue[Picture | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[str, Result | None]] = queue.SimpleQueue()
        self._wanted: dict[str, set[str]] = {}
        """Digest → the requests that want it."""
        self._ordered: set[str] = set()
        self._results: dict[str, Result] = {}
        """Of wanted pictures."""
        self._cache: OrderedDict[str, Encoded] = OrderedDict()
        """Of all others, least recently used first."""
        self.num_bytes = 0
        """Of the cache."""
        self.num_encoded = 0
        self.num_reused = 0

    def get(self, picture: Picture, request_id: str) -> Result | None:
        """The picture's embeddings, or why there are none; None: they are being made, and the
        request wants them from now on."""
        self._take_done()
        digest = picture.digest
        requests = self._wanted.setdefault(digest, set())
        is_new = request_id not in requests
        requests.add(request_id)
        result = self._results.get(digest)
        if result is None:
            result = self._from_cache(digest)
        if result is None and digest not in self._ordered:
            self._order(picture)
        elif is_new:
            self.num_reused += 1
        return result

    def forget(self, request_id: str) -> None:
        """The request wants nothing any more."""
        for digest in [d for d, requests in self._wanted.items() if request_id in requests]:
            requests = self._wanted[digest]
            requests.discard(request_id)
            if not requests:
                del self._wanted[digest]
                self._keep(digest, self._results.pop(digest, None))

    def close(self) -> None:
        """Ends the thread after the picture that it works on."""
        self._wanted.clear()
        self._end_thread()

    def _end_thread(self) -> None:
        if self._thread is not None:
            self._orders.put(None)
            self._thread.join()
            self._thread = None

    def _order(self, picture: Picture) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="pictures", daemon=True)
            self._thread.start()
        self._ordered.add(picture.digest)
        self._orders.put(picture)

    def _take_done(self) -> None:
        while not self._done.empty():
            digest, result = self._done.get()
            self._ordered.discard(digest)
            self.num_encoded += isinstance(result, tuple)
            if result is not None and digest in self._wanted:
                self._results[digest] = result
            else:
                self._keep(digest, result)
        if not self._ordered:
            self._end_thread()  # it has nothing left to do but to take this order

    def _from_cache(self, digest: str) -> Encoded | None:
        found = self._cache.pop(digest, None)
        if found is not None:
            self.num_bytes -= _size(found)
            self._results[digest] = found
        return found

    def _keep(self, digest: str, result: Result | None) -> None:
        """Puts embeddings that nobody waits for into the cache, if they fit."""
        if not isinstance(result, tuple) or _size(result) > self._cache_bytes:
            return
        while self.num_bytes + _size(result) > self._cache_bytes:
            _, oldest = self._cache.popitem(last=False)
            self.num_bytes -= _size(oldest)
        self._cache[digest] = result
        self.num_bytes += _size(result)

    def _work(self) -> None:
        while (picture := self._orders.get()) is not None:
            # Whoever wanted it may have left meanwhile.
            result = self._try(picture) if picture.digest in self._wanted else None
            self._done.put((picture.digest, result))
            self._wake()

    def _try(self, picture: Picture) -> Result:
        try:
            return self._encode(picture)
        except SelfError as error:
            return error
        except Exception:
            log.exception("a picture could not be encoded")
            return InternalError("the picture could not be encoded")


def _size(encoded: Encoded) -> int:
    return sum(embeddings.nbytes for embeddings in encoded)
