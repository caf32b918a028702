"""A file that has its final name is whole and right, whatever the network did."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_hub import HTML, FakeHub
from tests.support.tiny_gguf import gguf_bytes

from selfserve.catalogue import download as download_module
from selfserve.catalogue.download import amount, download, part_path, state_path
from selfserve.catalogue.hub import hub_client
from selfserve.catalogue.known import ModelFile
from selfserve.errors import DownloadError, ModelNotFound

REPOSITORY, NAME = "owner/models", "tiny.gguf"
CONTENT = gguf_bytes({"general.name": "x" * 1000}) + bytes(range(256)) * 4000
SIZE = len(CONTENT)


@pytest.fixture
def file(hub: FakeHub) -> ModelFile:
    sha256 = hub.add(REPOSITORY, NAME, CONTENT)
    return ModelFile(repository=REPOSITORY, name=NAME, size=SIZE, sha256=sha256)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "models" / NAME


def fetch(file: ModelFile, target: Path, **options: Any) -> list[float]:
    """Downloads; returns the pauses that were made between tries."""
    pauses: list[float] = []
    with hub_client() as client:
        download(client, file, target, pause=pauses.append, **options)
    return pauses


def leave_part(file: ModelFile, target: Path, data: bytes, etag: str | None = None) -> None:
    """What an earlier process left that was ended in the middle."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part_path(target).write_bytes(data)
    etag = etag or f'"{hashlib.md5(CONTENT).hexdigest()}"'
    state_path(target).write_text(json.dumps({"sha256": file.sha256, "etag": etag}))


def assert_whole(target: Path) -> None:
    assert target.read_bytes() == CONTENT
    assert [path.name for path in target.parent.iterdir()] == [NAME]


def test_a_file_arrives_and_nothing_else_is_left(file: ModelFile, target: Path) -> None:
    assert fetch(file, target) == []
    assert_whole(target)


def test_progress_counts_up_to_the_size(file: ModelFile, target: Path) -> None:
    seen: list[tuple[int, int]] = []
    fetch(file, target, on_progress=lambda done, total: seen.append((done, total)))
    assert seen[0] == (0, SIZE)
    assert seen[-1] == (SIZE, SIZE)
    assert seen == sorted(seen)


@pytest.mark.parametrize("share", [0.3, 0.99])
def test_a_cut_is_gone_on_from_where_it_happened(
    hub: FakeHub, file: ModelFile, target: Path, share: float
) -> None:
    cut = int(SIZE * share)
    hub.fault(NAME).cuts = [cut]
    assert fetch(file, target) == [0.5]
    assert_whole(target)
    etag = f'"{hashlib.md5(CONTENT).hexdigest()}"'
    first, second = hub.requests
    assert first.range is None
    assert second.range is not None
    assert 0 < int(second.range.removeprefix("bytes=").rstrip("-")) <= cut
    assert second.if_range == etag


@pytest.mark.parametrize("share", [0.3, 0.99, 1.0])
def test_a_later_process_goes_on_with_the_part(
    hub: FakeHub, file: ModelFile, target: Path, share: float
) -> None:
    kept = int(SIZE * share)
    leave_part(file, target, CONTENT[:kept])
    fetch(file, target)
    assert_whole(target)
    assert [seen.range for seen in hub.requests] == ([f"bytes={kept}-"] if kept < SIZE else [])


def test_a_server_that_ignores_ranges_sends_all_of_it_again(
    hub: FakeHub, file: ModelFile, target: Path
) -> None:
    hub.fault(NAME).ignore_ranges = True
    leave_part(file, target, CONTENT[:1000])
    fetch(file, target)
    assert_whole(target)


def test_a_part_of_an_older_version_on_the_server_is_dropped(
    hub: FakeHub, file: ModelFile, target: Path
) -> None:
    leave_part(file, target, b"GGUF of another time", etag='"older"')
    fetch(file, target)
    assert_whole(target)
    assert [seen.if_range for seen in hub.requests] == ['"older"']


def test_a_partial_answer_with_another_etag_is_not_appended(
    hub: FakeHub, file: ModelFile, target: Path
) -> None:
    hub.fault(NAME).ignore_if_range = True
    leave_part(file, target, CONTENT[:1000], etag='"older"')
    fetch(file, target)
    assert_whole(target)
    assert [seen.range for seen in hub.requests] == ["bytes=1000-", None]


def test_a_part_of_another_file_of_that_name_is_dropped(
    hub: FakeHub, file: ModelFile, target: Path
) -> None:
    leave_part(file, target, CONTENT[:1000])
    state_path(target).write_text(json.dumps({"sha256": "0" * 64, "etag": '"x"'}))
    fetch(file, target)
    assert_whole(target)
    assert hub.requests[0].range is None


@pytest.mark.parametrize("state", ["", "[]", "{}", '{"sha256": 1}', "[" * 5000])
def test_a_damaged_state_file_costs_the_part_and_no_more(
    file: ModelFile, target: Path, state: str
) -> None:
    leave_part(file, target, CONTENT[:1000])
    state_path(target).write_text(state)
    fetch(file, target)
    assert_whole(target)


def test_a_part_longer_than_the_file_is_dropped(file: ModelFile, target: Path) -> None:
    leave_part(file, target, CONTENT + b"more")
    fetch(file, target)
    assert_whole(target)


def test_a_part_with_wrong_bytes_is_deleted_and_the_next_download_works(
    file: ModelFile, target: Path
) -> None:
    leave_part(file, target, b"x" * 1000)
    with pytest.raises(DownloadError, match=f"expected {file.sha256}; it was deleted"):
        fetch(file, target)
    assert list(target.parent.iterdir()) == []
    fetch(file, target)
    assert_whole(target)


def test_a_wrong_hash_is_deleted_and_never_used(
    hub: FakeHub, file: ModelFile, target: Path
) -> None:
    hub.fault(NAME).content = CONTENT[:-1] + b"?"
    with pytest.raises(DownloadError, match="sha256"):
        fetch(file, target)
    assert list(target.parent.iterdir()) == []


def test_a_file_that_changed_on_the_hub_is_refused_before_any_byte(
    hub: FakeHub, file: ModelFile, target: Path
) -> None:
    hub.fault(NAME).linked_sha256 = "0" * 64
    with pytest.raises(DownloadError, match="has changed on the hub"):
        fetch(file, target)
    assert not target.exists()


@pytest.mark.parametrize("length", [0, 10, SIZE - 1, SIZE + 1])
def test_a_file_of_another_length_is_refused(
    hub: FakeHub, file: ModelFile, target: Path, length: int
) -> None:
    hub.fault(NAME).content = (CONTENT + b"?")[:length]
    with pytest.raises(DownloadError, match=f"has {length} bytes as {NAME}, expected {SIZE}"):
        fetch(file, target)
    assert not target.exists()


def test_a_file_that_ends_early_without_saying_so_is_never_used(
    hub: FakeHub, file: ModelFile, target: Path
) -> None:
    fault = hub.fault(NAME)
    fault.no_length, fault.content, fault.etag = True, CONTENT[:5000], '"short"'
    with pytest.raises(DownloadError, match=f"ended it at byte .* of {SIZE}"):
        fetch(file, target)
    assert not target.exists()


def test_more_bytes_than_the_file_has_are_refused(
    hub: FakeHub, file: ModelFile, target: Path
) -> None:
    fault = hub.fault(NAME)
    fault.no_length, fault.content = True, CONTENT + b"more"
    with pytest.raises(DownloadError, match=f"more than {SIZE} bytes"):
        fetch(file, target)
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize("content_type", ["text/html; charset=utf-8", "application/octet-stream"])
@pytest.mark.parametrize("no_length", [False, True])
def test_a_page_of_html_is_named_as_such_and_not_stored(
    hub: FakeHub, file: ModelFile, target: Path, content_type: str, no_length: bool
) -> None:
    fault = hub.fault(NAME)
    fault.content, fault.content_type, fault.no_length = HTML, content_type, no_length
    with pytest.raises(DownloadError, match="an HTML page"):
        fetch(file, target)
    assert not target.exists()
    assert not part_path(target).exists() or part_path(target).stat().st_size == 0


def test_a_page_of_html_does_not_cost_the_part(hub: FakeHub, file: ModelFile, target: Path) -> None:
    fault = hub.fault(NAME)
    fault.content, fault.content_type, fault.ignore_ranges = HTML, "text/html", True
    leave_part(file, target, CONTENT[:1000])
    with pytest.raises(DownloadError, match="an HTML page"):
        fetch(file, target)
    assert part_path(target).read_bytes() == CONTENT[:1000]


def test_what_is_no_gguf_is_refused_with_its_first_bytes(
    hub: FakeHub, file: ModelFile, target: Path
) -> None:
    hub.fault(NAME).content = b"PK\x03\x04" + CONTENT[4:]
    with pytest.raises(DownloadError, match=r"not a GGUF \(magic b'PK"):
        fetch(file, target)
    assert list(target.parent.iterdir()) == []


def test_a_server_that_is_busy_is_asked_again(hub: FakeHub, file: ModelFile, target: Path) -> None:
    hub.fault(NAME).statuses = [503, 429]
    assert fetch(file, target) == [1.0, 2.0]
    assert_whole(target)


def test_a_server_that_stays_busy_ends_the_download(
    hub: FakeHub, file: ModelFile, target: Path
) -> None:
    hub.fault(NAME).statuses = [503] * 100
    with pytest.raises(DownloadError, match="answered 503"):
        fetch(file, target)
    assert len(hub.requests) == download_module.ATTEMPTS


def test_a_missing_file_is_not_asked_for_again(hub: FakeHub, file: ModelFile, target: Path) -> None:
    absent = file.model_copy(update={"name": "absent.gguf"})
    with pytest.raises(ModelNotFound, match=r"absent\.gguf"):
        fetch(absent, target)


def test_a_server_that_cannot_be_reached_is_named_at_once(
    file: ModelFile, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(DownloadError, match=r"127\.0\.0\.1:1 cannot be reached"):
        fetch(file, target)


def test_too_little_disk_space_is_said_before_anything_is_fetched(
    hub: FakeHub, file: ModelFile, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Usage(free=500 << 10))
    with pytest.raises(DownloadError, match=r"needs 1001\.1 KiB, has 500\.0 KiB"):
        fetch(file, target)
    assert hub.requests == []


class _Usage:
    def __init__(self, free: int) -> None:
        self.free = free


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up_keeps_the_part_and_the_next_download_goes_on(
    hub: FakeHub, file: ModelFile, target: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    append = download_module._Part.append

    def full(part: Any, data: bytes) -> None:
        if part.size > SIZE // 2:
            raise OSError(code, os.strerror(code))
        append(part, data)

    with monkeypatch.context() as patch:
        patch.setattr(download_module._Part, "append", full)
        with pytest.raises(DownloadError, match=r"is full: tiny\.gguf needs .* more"):
            fetch(file, target)
    kept = part_path(target).stat().st_size
    assert kept > SIZE // 2
    fetch(file, target)
    assert_whole(target)
    assert hub.requests[-1].range == f"bytes={kept}-"


def test_ctrl_c_passes_up_and_the_part_is_gone_on_with(
    hub: FakeHub, file: ModelFile, target: Path
) -> None:
    def interrupt(done: int, total: int) -> None:
        if done > total // 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(file, target, on_progress=interrupt)
    kept = part_path(target).stat().st_size
    assert kept > SIZE // 3
    assert not target.exists()
    fetch(file, target)
    assert_whole(target)
    assert hub.requests[-1].range == f"bytes={kept}-"


def test_the_users_token_is_sent_to_the_hub_only(
    hub: FakeHub, file: ModelFile, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    fetch(file, target)
    assert hub.requests[0].token == "Bearer hf_secret"


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 << 50, "5120.0 TiB")],
)
def test_amounts_are_readable(num_bytes: int, text: str) -> None:
    assert amount(num_bytes) == text
