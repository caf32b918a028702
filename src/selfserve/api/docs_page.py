"""`/docs`: the OpenAPI document as one page for people, without scripts and without other hosts."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.responses import HTMLResponse

HEADERS = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100%; margin: 1rem 0 }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem }
tr { border-bottom: 1px solid #8885 }
code { font-family: ui-monospace, monospace; font-size: .9em; overflow-wrap: anywhere }
h2 { margin-top: 3rem }
@media (prefers-color-scheme: dark) { body { background: #161616; color: #ddd } a { color: #8bf } }
"""

Schema = dict[str, Any]


def docs_router(app: FastAPI) -> APIRouter:
    """The route of the page about the routes of `app`."""
    router = APIRouter()

    @router.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(render_page(app.openapi()), headers=HEADERS)

    return router


def render_page(document: dict[str, Any]) -> str:
    """The page of an OpenAPI document."""
    models: dict[str, Schema] = document["components"]["schemas"]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width, initial-scale=1'>",
        f"<title>{escape(document['info']['title'])} API</title><style>{STYLE}</style>",
        f"<h1>{escape(document['info']['title'])} {escape(document['info']['version'])}</h1>",
        f"<p>{escape(document['info'].get('description', ''))} ",
        "The same as data: <a href='/openapi.json'>/openapi.json</a></p>",
    ]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts += [_operation(f"{method.upper()} {path}", operation)]
    parts += ["<h2>Objects</h2>", *(_model(name, model) for name, model in models.items())]
    return "".join(parts)


def _operation(title: str, operation: dict[str, Any]) -> str:
    rows = ""
    body = operation.get("requestBody")
    if body:
        rows += _row("Request", _type(body["content"]["application/json"]["schema"]))
    for status, answer in operation["responses"].items():
        types = [
            f"<code>{escape(kind)}</code> {_type(_shown(content['schema']))}"
            for kind, content in answer.get("content", {}).items()
        ]
        rows += _row(escape(status), "<br>".join([escape(answer["description"]), *types]))
    summary = escape(operation.get("summary", ""))
    return f"<h2><code>{escape(title)}</code></h2><p>{summary}</p><table>{rows}</table>"


def _shown(schema: Schema) -> Schema:
    """The schema itself; for an event of a stream, that of its data."""
    for form in schema.get("properties", {}).get("data", {}).get("anyOf", ()):
        if "contentSchema" in form:
            return dict(form["contentSchema"])
    return schema


def _model(name: str, model: Schema) -> str:
    required = model.get("required", ())
    rows = "".join(
        _row(
            f"<code>{escape(field)}</code>{' (required)' if field in required else ''}",
            f"{_type(schema)}<br>{escape(schema.get('description', ''))}",
        )
        for field, schema in model.get("properties", {}).items()
    )
    about = escape(model.get("description", ""))
    return f"<h3 id='{escape(name)}'>{escape(name)}</h3><p>{about}</p><table>{rows}</table>"


def _row(head: str, text: str) -> str:
    return f"<tr><th>{head}<td>{text}"


def _type(schema: Schema) -> str:
    """A type in words: links for objects, limits beside the name."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f"<a href='#{name}'>{name}</a>"
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(_type(option) for option in schema[key])
    for key in ("const", "enum"):
        if key in schema:
            values = schema[key] if key == "enum" else [schema[key]]
            return f"<code>{escape(', '.join(json.dumps(value) for value in values))}</code>"
    kind = schema.get("type", "any value")
    text = " or ".join(kind) if isinstance(kind, list) else kind
    if "items" in schema:
        text += f" of {_type(schema['items'])}"
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None or high is not None:
        text += f" {'' if low is None else low} … {'' if high is None else high}"
    return text
