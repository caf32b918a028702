"""Large real files (vocabularies, chat templates) that may lie beside a checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3] / "shared" / "data"


def shared_data(name: str) -> Path:
    """The path of `name`; skips the calling test where the file is not at hand."""
    path = ROOT / name
    if not path.exists():
        pytest.skip(f"{name} is not beside this checkout")
    return path
