"""Toolsets by name: how they are made, and what a recorded one would start, import, open, ask and send."""

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from treadle.core.errors import ConfigError
from treadle.core.registry import Registry
from treadle.core.spec import PartSpec
from treadle.core.texts.documents import decode_or
from treadle.core.types import Json
from treadle.tools.function.decorator import as_tool, check_tool_name, is_tool
from treadle.tools.protocol import Tool, ToolLike
from treadle.tools.toolset_parts import (
    attribute_of,
    check_file,
    full_name_of,
    load_file,
    load_module,
    reference_of,
    tools_of,
    without_secrets,
)

_OF_TREADLE = (
    *("client", "client-mcp", "file_search", "shop", "corpus"),
    *("harbor-shell:", "bfcl-tools:", "conversation-tools:", "tau-tools:"),
)
"""Toolsets that tasks and `treadle serve` give to runs by themselves."""
TOOLSETS: Registry[Any] = Registry(
    "toolset",
    "treadle.tools",
    {
        "ask": "treadle.tools.ask_user:AskToolset",
        "client": "treadle.tools.client_tools:ClientTools",
        "client-mcp": "treadle.tools.mcp.client_servers:client_servers",
        "files": "treadle.tools.file_tools:FilesToolset",
        "vfs": "treadle.tools.vfs:VfsToolset",
        "shell": "treadle.tools.shell:make_shell",
        "shell-unprotected": "treadle.tools.shell:make_unprotected_shell",
        "python": "treadle.tools.python.interpreter:make_python",
        "mcp:": "treadle.tools.mcp.server_entries:mcp",
        "mock:": "treadle.tools.mock.mocks:mock",
        "openapi:": "treadle.tools.openapi.operations:openapi",
        "spin:": "treadle.tools.spin:spin",
    },
    hidden=_OF_TREADLE,
)
"""Functions and classes that make toolsets. They are called with the settings of a part as keyword arguments.

A name that ends with a colon is written with a text, as in `mcp:npx some-server`; the text is the first
argument. A class from an entry point is called in the same way; any other object from an entry point is itself
a tool or toolset.
"""

_FILE = re.compile(r"(.+\.py)(?::(\w+))?", re.DOTALL)
REFERENCE = re.compile(r"([\w.]+):(\w+)")
_FORMS = "'name', 'name:text', 'package.module:attribute', 'path/to/file.py' or 'path/to/file.py:attribute'"


def resolve_tools(items: "Iterable[ToolLike] | ToolLike") -> tuple[Tool, ...]:
    """Return the tools of `items`, in order. A function becomes a tool with the effect `once`.

    A text is the name of a toolset, `name:text`, `package.module:attribute`, `file.py:attribute`, or `file.py`,
    which stands for the tools and toolsets that the file defines (not those it imports), or for its public
    functions if there are none. A `PartSpec` is such a text with settings.
    Raises: `ConfigError` for an item that is not a tool or cannot be loaded, for a name that providers refuse, and
    for two tools with the same name.
    """
    found: dict[str, tuple[Tool, str]] = {}
    for tool, origin in _flatten(items, ""):
        name = tool.spec.name
        check_tool_name(name, origin)
        if name in found:
            raise ConfigError(f"two tools are called {name!r}: one of {found[name][1]} and one of {origin}")
        found[name] = (tool, origin)
    return tuple(tool for tool, _ in found.values())


def part_of(item: "ToolLike") -> PartSpec:
    """Return the name and settings from which `resolve_tools` makes `item` again, or why it cannot.

    No secret enters a part: a text that may hold one gets a part that only names the kind of the toolset.
    """
    if isinstance(item, str | PartSpec):
        return without_secrets(PartSpec(name=item) if isinstance(item, str) else item)
    part = getattr(item, "part", None)
    return part if isinstance(part, PartSpec) else reference_of(item)


def parts_of(items: "Iterable[ToolLike] | ToolLike") -> tuple[PartSpec, ...]:
    """Return the parts of `items` as they were given to an agent, in order. Items may be nested in lists."""
    is_single = isinstance(items, str) or is_tool(items) or callable(getattr(items, "tools", None))
    if isinstance(items, Iterable) and not is_single:
        return tuple(part for item in items for part in parts_of(item))
    return (part_of(items),)  # type: ignore[arg-type]


def is_code(name: str) -> bool:
    """Return whether a file or a module is imported, and so runs, when the toolset `name` is loaded."""
    return not _is_known(name) and (split_file(name) or REFERENCE.fullmatch(name)) is not None


def _is_known(name: str) -> bool:
    return name in TOOLSETS or f"{name.partition(':')[0]}:" in TOOLSETS


def split_file(name: str) -> tuple[str, str | None] | None:
    """Return the Python file that the name of a toolset begins with, and the attribute after it.

    `None` if it names no file: the text of `mcp:python server.py` is a command.
    """
    found = None if _is_known(name) else _FILE.fullmatch(name)
    return None if found is None else (found[1], found[2])


def check_part(part: PartSpec) -> None:
    """Check a toolset as far as possible without importing its code or asking its server. Raises: `ConfigError`."""
    if file := split_file(part.name):
        check_file(Path(file[0]))
    elif not is_code(part.name):
        check = getattr(_load(part.name, part.settings), "check", None)
        if callable(check):
            check()


def place_in(item: Json, folder: Path) -> Json:
    """Return the name of a toolset, or of one in a mapping, with a path in it made relative to `folder`."""
    if isinstance(item, dict) and "name" in item:
        return item | {"name": place_in(item["name"], folder)}
    if not isinstance(item, str):
        return item
    if found := split_file(item):
        name = f":{found[1]}" if found[1] else ""
        return f"{folder / Path(found[0]).expanduser()}{name}"
    kind, colon, text = item.partition(":")
    file = folder / text
    return f"{kind}:{file}" if colon and text and "\n" not in text and file.is_file() else item


def _flatten(item: Any, origin: str) -> Iterator[tuple[Tool, str]]:
    if isinstance(item, str):
        yield from _flatten(_load(item, None), repr(item))
    elif isinstance(item, PartSpec):
        if item.missing is not None:
            raise ConfigError(f"the tool {item.name!r} cannot be built from its name: {item.missing}")
        yield from _flatten(_load(item.name, item.settings), repr(item.name))
    elif is_tool(item):
        yield item, _join_origin(origin, item)
    elif inspect.iscoroutine(item):
        item.close()
        name = item.__qualname__
        raise ConfigError(f"{name}() is a coroutine; give the function {name} itself, without calling it")
    elif isinstance(item, type):
        raise ConfigError(f"{_join_origin(origin, item)} is a class; give an instance of it")
    elif callable(getattr(item, "tools", None)):
        yield from _flatten(tuple(item.tools()), origin or type(item).__qualname__)
    elif isinstance(item, Iterable):
        for part in item:
            yield from _flatten(part, origin)
    elif callable(item):
        yield as_tool(item), _join_origin(origin, item)
    else:
        where = f"{origin}: " if origin else ""
        raise ConfigError(f"{where}{item!r} is not a tool, a toolset, a function or a name")


def _join_origin(origin: str, item: Any) -> str:
    own = full_name_of(item)
    return f"{origin} ({own})" if origin else own


def _load(text: str, settings: Mapping[str, Json] | None) -> Any:
    """Return what `text` names, made with `settings`. Raises: `ConfigError`."""
    kind, colon, rest = text.partition(":")
    if text not in TOOLSETS and f"{kind}:" in TOOLSETS:
        return _make(TOOLSETS.load(f"{kind}:"), text, settings, rest)
    file = split_file(text)
    reference = REFERENCE.fullmatch(text)
    if file:
        module = load_file(Path(file[0]))
        found = attribute_of(module, file[1], text) if file[1] else tools_of(module, text, is_tool)
    elif reference:
        found = attribute_of(load_module(reference[1], text), reference[2], text)
    else:
        name = f"{kind}:" if colon else text
        try:
            found = TOOLSETS.load(name)
        except ConfigError as error:
            raise error if name in TOOLSETS else ConfigError(f"{error}. Write {_FORMS}") from error
        if name in TOOLSETS.table or isinstance(found, type):
            return _make(found, text, settings)
    return found if settings is None else _make(found, text, settings)


def _make(factory: Any, name: str, settings: Mapping[str, Json] | None, *text: str) -> Any:
    if not callable(factory) or is_tool(factory):
        raise ConfigError(f"{name!r} takes no settings")
    try:
        return factory(*text, **(settings or {}))
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"the settings of {name!r} cannot be used: {error}") from error


_VARIABLE = re.compile(r"(?<!\$)\$\{(?:env:)?(\w+)")
_FIXED = {
    "ask": (),
    "client": (),
    "files": (),
    "vfs": (),
    "shell": ("start the commands of its calls in the sandbox",),
    "shell-unprotected": ("start the commands of its calls on this machine, without protection",),
    "python": ("run the Python code of its calls in the sandbox",),
}
"""The demands of toolsets whose names take no text. `files` and `vfs` demand nothing, because they work in
memory, `ask` only asks the user, and the calls of `client` are made by whoever uses the run."""


def demands_of_tools(part: PartSpec) -> list[str]:
    """Return texts that say what making and calling the toolset of `part` would start, import, open and send."""
    if part.missing is not None:
        return []
    kind, _, text = part.name.partition(":")
    settings = part.settings or {}
    if part.name in _FIXED:
        return [*_FIXED[part.name], *_demands_of_shell(settings)]
    if kind in ("mcp", "client-mcp"):
        from treadle.tools.mcp.target import OF_RUN

        names = dict.fromkeys(_VARIABLE.findall(f"{part.name} {part.settings}"))
        sent = [f"send it the environment variable {name}" for name in names if name not in OF_RUN]
        return [*_demands_of_mcp(text, settings), *sent]
    if kind == "openapi":
        document, server = text or settings.get("document"), settings.get("base_url")
        where = "the servers that it names" if server is None else repr(server)
        return [
            f"open {document!r} and send requests to {where}, with the keys in the variables OPENAPI_<HOST>_<NAME>"
        ]
    if part.name == "file_search":
        return [f"search the files of the vector stores {settings.get('vector_store_ids')!r} of the journal"]
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
        return _demands_of_mock(text or settings.get("definitions"), settings.get("simulator"))
    if split_file(part.name):
        return [f"import the file {part.name!r}"]
    if REFERENCE.fullmatch(part.name):
        return [f"import {part.name!r}"]
    known = part.name if part.name in TOOLSETS else f"{kind}:"
    return [f"load the installed toolset {known!r}" if known in TOOLSETS else f"load the tool {part.name!r}"]


def _demands_of_shell(settings: dict[str, Json]) -> list[str]:
    root, binds = settings.get("root"), settings.get("read_only_binds")
    found = ["let these commands use the network"] if settings.get("network") else []
    found += [f"let these commands read {path!r}" for path in (binds if isinstance(binds, dict) else ())]
    if root is not None:
        found.append(f"use the image {root!r}, which Docker or Podman pulls if it is not here")
    return found


def _demands_of_mock(definitions: Json, simulator: Json) -> list[str]:
    asked = simulator if isinstance(simulator, dict) else {"model": simulator}
    found = [f"open the file {definitions!r}"] if isinstance(definitions, str) else []
    if simulator is not None:
        found.append(f"ask the model {asked.get('model')!r} in place of its tools")
    return found + ([f"keep answers in the folder {asked['cache']!r}"] if asked.get("cache") else [])


def _demands_of_mcp(text: str, settings: dict[str, Json]) -> list[str]:
    raw: Json = settings
    if text.lstrip().startswith("{"):
        raw = decode_or(text)
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
        if isinstance(entry, dict) and "command" in entry:
            given = entry.get("args")
            words = [entry["command"], *(given if isinstance(given, list) else ())]
            found.append(f"start the program {' '.join(map(str, words))!r}")
        if isinstance(entry, dict) and "url" in entry:
            found.append(f"ask the MCP server at {entry['url']!r}")
        if not isinstance(entry, dict) or not {"command", "url"} & entry.keys():
            found.append(f"use the MCP server {entry!r}")
    return found
