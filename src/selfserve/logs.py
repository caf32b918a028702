"""Logging set-up. stdout belongs to results, so every log line goes to stderr.

Prompts and answers are never logged, at any level: they are other people's words.
"""

from __future__ import annotations

import logging
import sys

LOGGER_NAME = "self"


def get_logger(part: str) -> logging.Logger:
    """The logger of one part, such as `self.engine`."""
    return logging.getLogger(f"{LOGGER_NAME}.{part}")


def configure(verbose: bool = False) -> None:
    """Sets the process's logging up once; libllama's chatter only when verbose."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(LOGGER_NAME).setLevel(logging.DEBUG if verbose else logging.INFO)
    libllama = logging.getLogger(f"{LOGGER_NAME}.libllama")
    libllama.setLevel(logging.INFO if verbose else logging.ERROR)
