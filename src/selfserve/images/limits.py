"""What a picture may cost, before and after it is decoded."""

from __future__ import annotations

from dataclasses import dataclass

from selfserve.errors import ImageTooLarge


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLimits:
    """Bounds of one picture. Everything beyond them is refused before it costs memory."""

    source_bytes: int = 20 << 20
    """Size of the file, before it is decoded."""
    pixels: int = 40_000_000
    side: int = 12_000
    """Longest width or height in pixels: strips cost an encoder more than their area says."""
    redirects: int = 3
    fetch_s: float = 15.0
    """Time of one fetch: look-up, connections, redirects and body together."""
    kept_pixels: int = 1 << 22
    """A larger picture is reduced to this many pixels once it is decoded. Encoders scale to about
    4 megapixels or less themselves, so this costs no detail that they would see, and bounds what
    waits in memory."""
    min_side: int = 16
    """Shorter sides are padded up: a side under one patch of an encoder (14 or 16 px) can round
    to no patch at all."""
    ratio: int = 16
    """Of a picture that is longer in proportion the shorter side is padded up: scaled down to an
    encoder's square, it would be less than a patch wide."""

    @property
    def kept_bytes(self) -> int:
        """Bytes of the largest picture that is kept."""
        return 3 * self.kept_pixels

    def check_source(self, num_bytes: int, *, param: str | None) -> None:
        """Raises ImageTooLarge if a file of `num_bytes` is over the limit."""
        if num_bytes > self.source_bytes:
            raise ImageTooLarge(
                f"the picture must be at most {self.source_bytes} bytes, got {num_bytes} or more",
                param=param,
            )

    def check_size(self, width: int, height: int, *, param: str | None) -> None:
        """Raises ImageTooLarge if `width` × `height` pixels are over a limit."""
        if max(width, height) > self.side:
            raise ImageTooLarge(
                f"the picture's sides must be at most {self.side} pixels, got {width} x {height}",
                param=param,
            )
        if width * height > self.pixels:
            raise ImageTooLarge(
                f"the picture must have at most {self.pixels} pixels, got {width} x {height}",
                param=param,
            )
