"""The things that a recorded toolset would start, import, open, ask and send, in words. This module does none of
them."""

import re

import msgspec

from treadle.core.spec import PartSpec
from treadle.core.types import Json
from treadle.tools.resolve import FILE, REFERENCE, TOOLSETS

_VARIABLE = re.compile(r"(?<!\$)\$\{(?:env:)?(\w+)")
_FIXED = {
    "ask": (),
    "files": (),
    "vfs": (),
    "shell": ("start the commands of its calls in the sandbox",),
    "shell-unprotected": ("start the commands of its calls on this machine, without protection",),
    "python": ("run the Python code of its calls in the sandbox",),
}
"""The demands of toolsets whose names take no text. `files` and `vfs` demand nothing, because they work in
memory, and `ask` only asks the user."""


def demands_of_tools(part: PartSpec) -> list[str]:
    """Return what making a toolset from `part` and calling it would start, import, open, ask and send."""
    if part.missing is not None:
        return []
    if part.name in _FIXED:
        return list(_FIXED[part.name])
    kind, _, text = part.name.partition(":")
    settings = part.settings or {}
    if kind == "mcp":
        return [*_demands_of_mcp(text, settings), *_demands_of_variables(part)]
    if kind == "openapi":
        document, server = text or settings.get("document"), settings.get("base_url")
        where = "the servers that it names" if server is None else repr(server)
        return [
            f"open {document!r} and send requests to {where}, with the keys in the variables OPENAPI_<HOST>_<NAME>"
        ]
    if part.name == "memory":
        told = [f"read and change the memories in {settings.get('journal') or 'the default journal'!r}"]
        model = settings.get("embeddings")
        return (
            told
            if model is None
            else [*told, f"send memories and messages to the embeddings model {model!r}"]
        )
    if kind == "spin":
        urls = [text or settings.get("endpoint"), *filter(None, [settings.get("tools_endpoint")])]
        return [f"send requests to {url!r}" for url in urls]
    if kind == "mock":
        return [f"open the file {text!r}"]
    if FILE.fullmatch(part.name):
        return [f"import the file {part.name!r}"]
    if REFERENCE.fullmatch(part.name):
        return [f"import {part.name!r}"]
    known = part.name if part.name in TOOLSETS else f"{kind}:"
    return [f"load the installed toolset {known!r}" if known in TOOLSETS else f"load the tool {part.name!r}"]


def _demands_of_mcp(text: str, settings: dict[str, Json]) -> list[str]:
    raw: Json = settings
    if text.lstrip().startswith("{"):
        try:
            raw = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError):
            raw = None
    elif text.startswith(("http://", "https://")):
        return [f"ask the MCP server at {text!r}"]
    elif text:
        is_file = text.endswith(".json")
        return [
            f"open the file {text!r} and use its MCP servers" if is_file else f"start the program {text!r}"
        ]
    servers = raw.get("mcpServers", raw.get("servers")) if isinstance(raw, dict) else None
    found = []
    for entry in servers.values() if isinstance(servers, dict) else [raw]:
        if isinstance(entry, dict) and "url" in entry:
            found.append(f"ask the MCP server at {entry['url']!r}")
        elif isinstance(entry, dict) and "command" in entry:
            given = entry.get("args")
            words = [entry["command"], *(given if isinstance(given, list) else ())]
            found.append(f"start the program {' '.join(map(str, words))!r}")
        else:
            found.append(f"use the MCP server {entry!r}")
    return found


def _demands_of_variables(part: PartSpec) -> list[str]:
    names = _VARIABLE.findall(f"{part.name} {part.settings}")
    return [f"send it the environment variable {name}" for name in dict.fromkeys(names)]
