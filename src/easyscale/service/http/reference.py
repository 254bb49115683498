"""The API as a plain page, made from its schema. No script, nothing from another host."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from typing import Any

CSS = """\
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; }
code { font-family: ui-monospace, monospace; overflow-wrap: anywhere; }
section { border-top: 1px solid #8886; padding: 0.5rem 0; }
table { border-collapse: collapse; }
td { padding: 0.1rem 1rem 0.1rem 0; vertical-align: top; }
"""
HEAD = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    '<title>EasyScale API</title><link rel="stylesheet" href="/api/v1/docs.css"></head><body>'
)
EMPTY = f'{HEAD}<h1>EasyScale</h1><p>The service runs. <a href="/api/v1/docs">Its API</a>.</p></body></html>'


def page(schema: Mapping[str, Any]) -> str:
    return HEAD + "".join(_parts(schema)) + "</body></html>"


def _parts(schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"<h1>EasyScale API {_text(schema['info']['version'])}</h1>"
    yield "<p>Send <code>Authorization: Bearer TOKEN</code> with each request. Every answer that is not 2xx is a "
    yield '<a href="#Problem">Problem</a>. The whole schema: <a href="/api/v1/openapi.json">openapi.json</a>.</p>'
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            yield from _operation(method, path, operation)
    yield "<h2>Models</h2>"
    for name, model in sorted(schema["components"]["schemas"].items()):
        yield from _model(name, model)


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"<section><h3><code>{method.upper()} {_text(path)}</code></h3>"
    if "description" in operation:
        yield f"<p>{_text(operation['description'])}</p>"
    yield "<table>"
    for given in operation.get("parameters", []):
        yield _row(given["name"], f"{given['in']}, {_kind(given['schema'])}")
    for content in operation.get("requestBody", {}).get("content", {}).values():
        yield _row("body", _kind(content["schema"]))
    for status, answer in operation["responses"].items():
        kinds = [_kind(content.get("schema", {})) for content in answer.get("content", {}).values()]
        if status.startswith("2"):
            yield _row(f"answer {status}", ", ".join(kinds) or "nothing")
    yield "</table></section>"


def _model(name: str, model: Mapping[str, Any]) -> Iterator[str]:
    yield f'<section id="{_text(name)}"><h3>{_text(name)}</h3><p>{_text(model.get("description", ""))}</p><table>'
    needed = model.get("required", [])
    for field, schema in model.get("properties", {}).items():
        default = f", default {_text(str(schema['default']))}" if "default" in schema else ""
        yield _row(field, _kind(schema) + (" (needed)" if field in needed else default))
    yield "</table></section>"


def _row(name: str, kind: str) -> str:
    return f"<tr><td><code>{_text(name)}</code></td><td>{kind}</td></tr>"


def _kind(schema: Mapping[str, Any]) -> str:
    """The type in words, as HTML; models are links."""
    if "$ref" in schema:
        name = _text(schema["$ref"].rsplit("/", 1)[-1])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_kind(option) for option in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(_text(str(word)) for word in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    names = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "maxLength": "at most so long:"}
    limits = "".join(f", {word} {_text(str(schema[name]))}" for name, word in names.items() if name in schema)
    return _text(str(schema.get("type", "anything"))) + limits


def _text(text: str) -> str:
    return html.escape(text)
