"""Every error that a person or a client can meet, in one tree.

    SelfError
    ├── RequestError                 this request fails, all others go on
    │   ├── InvalidRequest           400 invalid_request
    │   │   ├── ContextLengthExceeded    400, code context_length_exceeded
    │   │   └── MethodNotAllowed         405
    │   ├── UnsupportedImage         400 unsupported_image
    │   ├── Unauthorized             401 unauthorized
    │   ├── Forbidden                403 forbidden
    │   ├── NotFound                 404 not_found
    │   ├── RequestTooLarge          413 request_too_large
    │   ├── ImageTooLarge            413 image_too_large
    │   ├── UnsupportedCapability    422 unsupported_capability
    │   ├── QueueFull                429 queue_full
    │   ├── ImageFetchFailed         502 image_fetch_failed
    │   ├── RequestTimeout           504 timeout
    │   └── InternalError            500 internal_error
    ├── EngineUnavailable            503: nobody is served at the moment
    │   ├── ModelLoading             model_loading
    │   ├── RuntimeCrashed           runtime_crashed
    │   ├── ShuttingDown             shutting_down
    │   └── OutOfMemory              out_of_memory
    └── StartError                   the program ends with `exit_code`
        ├── SettingsError            a setting is unknown or out of range
        ├── AddressInUse             the socket cannot be bound
        ├── ModelNotFound            no such model, file or quantization
        ├── ModelLoadError           the file is damaged, or libllama refuses it
        ├── ModelTooLarge            it needs more memory than there is
        ├── LibraryError             the native library is missing or of the wrong version
        └── DownloadError            a file could not be fetched or did not match

Foreign errors (libllama codes, llguidance states, HTTP failures) become members of this tree
at the border where they are met, with the cause kept (`raise … from`).
"""

from __future__ import annotations

from typing import Any, ClassVar

MAX_SHOWN = 100
"""Characters of a client's value that a message repeats: enough to recognise it, no flood."""


class SelfError(Exception):
    """Root of the tree. `message` is written for the person who can mend the cause."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "internal_error"
    code: ClassVar[str] = "internal_error"
    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: int | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.details = details or {}
        """Fields that stand beside `message` in the body, such as `n_ctx`."""

    def body(self) -> dict[str, Any]:
        """The contract's error object: `{"error": {"type", "message", "param", "code", …}}`."""
        return {
            "error": {
                "type": self.type,
                "message": self.message,
                "param": self.param,
                "code": self.code,
                **self.details,
            }
        }


class RequestError(SelfError):
    """One request fails; nobody else notices."""


class InvalidRequest(RequestError):
    status, type, code = 400, "invalid_request", "invalid_request"


class ContextLengthExceeded(InvalidRequest):
    code = "context_length_exceeded"


class MethodNotAllowed(InvalidRequest):
    status = 405


class UnsupportedImage(RequestError):
    status, type, code = 400, "unsupported_image", "unsupported_image"


class Unauthorized(RequestError):
    status, type, code = 401, "unauthorized", "unauthorized"


class Forbidden(RequestError):
    status, type, code = 403, "forbidden", "forbidden"


class NotFound(RequestError):
    status, type, code = 404, "not_found", "not_found"


class RequestTooLarge(RequestError):
    status, type, code = 413, "request_too_large", "request_too_large"


class ImageTooLarge(RequestError):
    status, type, code = 413, "image_too_large", "image_too_large"


class UnsupportedCapability(RequestError):
    status, type, code = 422, "unsupported_capability", "unsupported_capability"


class QueueFull(RequestError):
    status, type, code = 429, "queue_full", "queue_full"


class ImageFetchFailed(RequestError):
    status, type, code = 502, "image_fetch_failed", "image_fetch_failed"


class RequestTimeout(RequestError):
    status, type, code = 504, "timeout", "timeout"


class InternalError(RequestError):
    """Our own fault. The message says nothing about the cause; the log does."""


class EngineUnavailable(SelfError):
    """The engine is not there for anyone right now; clients may come back."""

    status, type, code = 503, "runtime_crashed", "runtime_crashed"


class ModelLoading(EngineUnavailable):
    type, code = "model_loading", "model_loading"


class RuntimeCrashed(EngineUnavailable):
    type, code = "runtime_crashed", "runtime_crashed"


class ShuttingDown(EngineUnavailable):
    type, code = "shutting_down", "shutting_down"


class OutOfMemory(EngineUnavailable):
    type, code = "out_of_memory", "out_of_memory"


class StartError(SelfError):
    """The program cannot go on; the command line prints `Error [type]: message`."""

    type, code = "start", "start"


class SettingsError(StartError):
    type, code = "settings", "settings"


class AddressInUse(StartError):
    type, code = "address_in_use", "address_in_use"


class ModelNotFound(StartError):
    type, code = "model_not_found", "model_not_found"


class ModelLoadError(StartError):
    type, code = "model_load", "model_load"


class ModelTooLarge(StartError):
    type, code = "model_too_large", "model_too_large"


class LibraryError(StartError):
    type, code = "library", "library"


class DownloadError(StartError):
    type, code = "download", "download"


def shown(value: object) -> str:
    """A client's value for a message: its repr, cut to MAX_SHOWN, safe in UTF-8 and JSON."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deep, or an int of thousands of digits
        text = f"a {type(value).__name__}"
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


def _walk(cls: type[SelfError]) -> list[type[SelfError]]:
    return [cls] + [found for sub in cls.__subclasses__() for found in _walk(sub)]


def from_name(name: str, message: str, **fields: Any) -> SelfError:
    """The error of class `name`: how an error comes out of the engine process again."""
    for cls in _walk(SelfError):
        if cls.__name__ == name:
            return cls(message, **fields)
    return InternalError("the engine reported an unknown error")
