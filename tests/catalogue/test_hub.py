"""Proxies, mirrors and refusals: what the environment says is done or named."""

from __future__ import annotations

import pytest
from tests.support.fake_hub import FakeHub
from tests.support.tiny_gguf import gguf_bytes

from selfserve.catalogue.entries import pull
from selfserve.catalogue.store import Store
from selfserve.errors import DownloadError, SettingsError

REFERENCE = "hf:owner/models"


@pytest.fixture
def filled(hub: FakeHub) -> FakeHub:
    hub.add("owner/models", "tiny.gguf", gguf_bytes())
    return hub


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "https_proxy"])
@pytest.mark.parametrize("value", ["https://proxy:80*", "ftp://proxy", "http://", "://", "a b"])
def test_a_proxy_value_that_cannot_be_used_is_named(
    hub: FakeHub, store: Store, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError, match=f"{variable} is not the address of a proxy") as caught:
        pull(REFERENCE, store=store)
    assert caught.value.param == variable


def test_a_proxys_password_is_not_repeated(
    hub: FakeHub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://me:secret@proxy:80*")
    with pytest.raises(SettingsError, match=r"proxy:80\*") as caught:
        pull(REFERENCE, store=store)
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_proxy_is_not_asked_for_this_machine(
    filled: FakeHub, store: Store, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", filled.url.replace("127.0.0.1", host))
    for variable in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:1")
    assert pull(REFERENCE, store=store).path.name == "tiny.gguf"


def test_a_proxy_is_asked_for_other_machines(
    filled: FakeHub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid/")
    monkeypatch.setenv("HTTP_PROXY", filled.url)
    assert pull(REFERENCE, store=store).path.name == "tiny.gguf"


def test_a_proxy_that_does_not_answer_is_an_error_of_ours(
    hub: FakeHub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with pytest.raises(DownloadError, match=r"http://hub\.invalid cannot be reached"):
        pull(REFERENCE, store=store)


@pytest.mark.parametrize("value", ["hub.invalid", "ftp://hub", "http://", "http://a:b*", "file:x"])
def test_a_mirror_address_that_cannot_be_used_is_named(
    store: Store, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", value)
    with pytest.raises(SettingsError, match="HF_ENDPOINT is not a web address"):
        pull(REFERENCE, store=store)


def test_offline_mode_is_kept(
    filled: FakeHub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE is set"):
        pull(REFERENCE, store=store)
    assert filled.tree_requests == 0


@pytest.mark.parametrize("body", [b"<html>log in</html>", b'{"error": 1}', b"[1]", b"[" * 9999])
def test_an_answer_that_is_no_file_list_is_named(
    filled: FakeHub, store: Store, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    filled.tree_body = body
    with pytest.raises(DownloadError, match="not with a file list"):
        pull(REFERENCE, store=store)


def test_the_users_token_goes_with_the_request(
    filled: FakeHub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", " hf_mine\n")
    pull(REFERENCE, store=store)
    assert filled.requests[0].token == "Bearer hf_mine"
