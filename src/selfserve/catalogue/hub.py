"""The model hub over HTTP: addresses, credentials, the list of a repository's files.

huggingface_hub supplies addresses and the user's token. Requests are made here, with
one client for lists and files alike: a bad proxy value is named, a proxy is never used for this
machine itself, and failures are told in the words of this program.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

import httpx
from pydantic import ValidationError

from selfserve.catalogue.known import ModelFile
from selfserve.errors import DownloadError, ModelNotFound, SettingsError, shown

DEFAULT_ENDPOINT = "https://huggingface.co"
REVISION = "main"
TIMEOUT = httpx.Timeout(30.0, connect=10.0)
"""Seconds; the first is the longest silence inside a transfer."""
_MAX_LIST_BYTES = 64 << 20
_PROXY_VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
_TRUE = ("1", "true", "yes", "on")


def endpoint() -> str:
    """Address of the hub or of a mirror (`HF_ENDPOINT`), without a slash at the end.

    Raises SettingsError for a value that is no web address.
    """
    value = (os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")
    try:
        url = httpx.URL(value)
        usable = url.scheme in ("http", "https") and bool(url.host)
    except (ValueError, httpx.InvalidURL):
        usable = False
    if not usable:
        raise SettingsError(
            f"HF_ENDPOINT is not a web address: {shown(value)}", param="HF_ENDPOINT"
        )
    return value


def file_url(file: ModelFile) -> str:
    """Where the hub hands out `file`; usually a redirection to the place that stores it."""
    from huggingface_hub import hf_hub_url

    return hf_hub_url(str(file.repository), file.name, revision=REVISION, endpoint=endpoint())


@contextmanager
def hub_client() -> Iterator[httpx.Client]:
    """A client for the hub: user's token, proxies of the environment, redirections followed.

    Raises SettingsError for a proxy value that cannot be used, DownloadError when the
    environment forbids the network.
    """
    from huggingface_hub import get_token

    if os.environ.get("HF_HUB_OFFLINE", "").lower() in _TRUE:
        raise DownloadError("HF_HUB_OFFLINE is set: nothing is downloaded")
    _check_proxies()
    headers = {"user-agent": "self", "accept-encoding": "identity"}
    token = get_token()
    if token:
        headers["authorization"] = f"Bearer {token}"
    try:
        client = httpx.Client(
            headers=headers, timeout=TIMEOUT, follow_redirects=True, mounts=_direct_hosts()
        )
    except (ImportError, OSError, ValueError) as error:
        raise SettingsError(f"no connection can be made with these settings: {error}") from error
    with client:
        yield client


def list_repository(client: httpx.Client, repository: str) -> list[ModelFile]:
    """The GGUF files of `repository` with size and sha256. Blocks on the network.

    Raises ModelNotFound if there is no such repository, DownloadError if the list cannot be had.
    """
    url = f"{endpoint()}/api/models/{quote(repository)}/tree/{REVISION}?recursive=true"
    files: list[ModelFile] = []
    while url:
        try:
            response = client.get(url)
        except httpx.HTTPError as error:
            raise unreachable(url, error) from error
        check_status(response, repository)
        files += [file for item in _items(response) if (file := _model_file(repository, item))]
        following = response.links.get("next", {}).get("url", "")
        url = urljoin(url, following) if following else ""
    return files


def check_status(response: httpx.Response, repository: str) -> None:
    """Raises ModelNotFound or DownloadError for an answer that is a refusal."""
    status = response.status_code
    if status < 400:
        return
    host = response.url.host
    if response.headers.get("x-error-code") == "GatedRepo" or status in (401, 403):
        raise DownloadError(
            f"{host} does not give {repository} to you ({status}): it may not exist, or it must "
            "be asked for on its web page; then set HF_TOKEN or log in with `hf auth login`"
        )
    if status == 404:
        raise ModelNotFound(f"{host} has no repository or file {repository}")
    raise DownloadError(f"{host} answered {status} for {repository}")


def unreachable(url: str, error: Exception) -> DownloadError:
    """The error for a connection that could not be made or broke."""
    parts = urlsplit(url)
    hint = ""
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        hint = "; for a certificate authority of your own set SSL_CERT_FILE"
    elif isinstance(error, httpx.ProxyError):
        hint = "; check the proxy in " + "/".join(_PROXY_VARIABLES)
    detail = str(error) or type(error).__name__
    return DownloadError(f"{parts.scheme}://{parts.netloc} cannot be reached: {detail}{hint}")


def _items(response: httpx.Response) -> list[dict[str, Any]]:
    """A page of the list. A proxy or login page in its place is no JSON list."""
    if len(response.content) <= _MAX_LIST_BYTES:
        try:
            items = response.json()
        except (ValueError, RecursionError):
            items = None
        if isinstance(items, list) and all(isinstance(item, dict) for item in items):
            return items
    kind = response.headers.get("content-type", "something else")
    raise DownloadError(f"{response.url.host} answered with {shown(kind)}, not with a file list")


def _model_file(repository: str, item: dict[str, Any]) -> ModelFile | None:
    """A GGUF file of the list; None for what is no model, and for a file without a sha256, which
    could not be checked (the hub has one for every large file)."""
    path, lfs = item.get("path"), item.get("lfs")
    if item.get("type") != "file" or not isinstance(path, str) or not isinstance(lfs, dict):
        return None
    if not path.lower().endswith(".gguf"):
        return None
    try:
        fields = {"name": path, "size": lfs.get("size"), "sha256": lfs.get("oid")}
        return ModelFile.model_validate({"repository": repository, **fields})
    except ValidationError as error:
        raise DownloadError(f"{repository}: the hub's entry for {shown(path)} is bad") from error


def _check_proxies() -> None:
    for name in _PROXY_VARIABLES:
        for variable in (name, name.lower()):
            value = os.environ.get(variable, "").strip()
            if not value:
                continue
            try:
                proxy = httpx.Proxy(value if "://" in value else f"http://{value}")
                usable = bool(proxy.url.host) and not any(char.isspace() for char in value)
            except (ValueError, httpx.InvalidURL):
                usable = False
            if not usable:
                # What stands before an @ is a name and a password.
                without_secret = value.rpartition("@")[2]
                raise SettingsError(
                    f"{variable} is not the address of a proxy: {shown(without_secret)}",
                    param=variable,
                )


def _direct_hosts() -> dict[str, None]:
    """Patterns of addresses that no proxy may see: this machine itself."""
    hosts = {"localhost", "127.0.0.1", "[::1]"}
    host = urlsplit(endpoint()).hostname or ""
    try:
        if ipaddress.ip_address(host).is_loopback:
            hosts.add(f"[{host}]" if ":" in host else host)
    except ValueError:
        pass  # a name, not an address
    return {f"all://{host}": None for host in hosts}
