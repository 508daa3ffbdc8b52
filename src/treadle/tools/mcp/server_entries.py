"""MCP servers from the texts that a user writes: a file of `mcpServers`, JSON, a URL or a command line."""

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from treadle.core.errors import ConfigError
from treadle.core.registry import did_you_mean
from treadle.core.texts.documents import decode_document, read_data
from treadle.core.types import Json
from treadle.journal.named_files import read_named
from treadle.tools.mcp.servers import MCPServer, MCPServers
from treadle.tools.mcp.target import OF_RUN

_VARIABLE = re.compile(r"\$(\$?)\{([^{}]*)\}")
_INSIDE = re.compile(r"(?:env:)?(\w+)(?::-(.*))?", re.DOTALL)
_ASSIGNMENT = re.compile(r"\w+=.*", re.DOTALL)

_WORDS = read_data(__package__, "words")
_OPTIONS: dict[str, str] = _WORDS["options"]
_TRANSPORTS: dict[str, str] = _WORDS["transports"]
_KEYS = (*_WORDS["keys"], *_OPTIONS)


def mcp(text: str = "", **settings: Json) -> MCPServers:
    """Return the servers that `text` names: a JSON file with `mcpServers`, such JSON itself, a URL, or a command.

    Without a text, `settings` is the JSON. A command may begin with assignments, as in `KEY=value npx some-server`.
    `${NAME}` and `${NAME:-default}` are taken from the environment; `$${` stands for `${`. Raises: `ConfigError`.
    """
    text = text.strip()
    if settings:
        if text:
            raise ConfigError(f"mcp: {text!r} takes no settings; write all of it as 'mcpServers'")
        return read_servers(settings, "the settings of 'mcp'")
    if not text:
        raise ConfigError(
            "mcp: name a server, as in mcp:servers.json, mcp:https://host/mcp or mcp:'npx server'"
        )
    if text.startswith("{"):
        origin = "the JSON after mcp:"
        return read_servers(decode_document(text.encode(), origin, is_yaml=False), origin)
    if text.startswith(("http://", "https://")):
        return MCPServers([_from_entry(None, {"url": text}, "mcp")])
    path = Path(text).expanduser()
    if text.endswith(".json") and (" " not in text or path.is_file()):
        return read_file(path)
    return MCPServers([_from_command(text)])


def read_file(path: Path) -> MCPServers:
    """Return the servers of a file in the common `mcpServers` format. Raises: `ConfigError`."""
    origin = repr(str(path))
    return read_servers(
        decode_document(read_named("the MCP servers of ", path), origin, is_yaml=False), origin
    )


def read_servers(raw: Json, origin: str) -> MCPServers:
    """Return the servers of decoded JSON: `{"mcpServers": {name: {...}}}`, or the object of one server."""
    if not isinstance(raw, dict):
        raise ConfigError(f"{origin}: this is not an object with 'mcpServers'")
    found = raw.get("mcpServers", raw.get("servers"))
    if found is None and ("command" in raw or "url" in raw):
        found = {str(raw.get("name") or "server"): raw}
    if not isinstance(found, dict):
        known = ", ".join(repr(key) for key in raw) or "nothing"
        raise ConfigError(f"{origin}: it has no object 'mcpServers', only {known}")
    servers = [
        _from_entry(name, entry, f"{origin}: server {name!r}")
        for name, entry in found.items()
        if not _is_off(entry)
    ]
    if not servers:
        raise ConfigError(f"{origin}: all its servers are disabled")
    return MCPServers(servers)


def _is_off(entry: Json) -> bool:
    return isinstance(entry, dict) and (entry.get("disabled") is True or entry.get("enabled") is False)


def _from_entry(name: str | None, entry: Json, origin: str) -> MCPServer:
    if not isinstance(entry, dict):
        raise ConfigError(f"{origin} is not an object")
    for key in entry:
        if key not in _KEYS and key not in _WORDS["ignored_keys"]:
            hint = did_you_mean(key, _KEYS, f"the keys are {', '.join(_KEYS)}")
            raise ConfigError(f"{origin} has an unknown key {key!r}{hint}")
    if ("command" in entry) is ("url" in entry):
        raise ConfigError(f"{origin} needs either a 'command' or a 'url'")
    for key in ("perRun", "runFiles", "publicOnly"):
        if not isinstance(entry.get(key, False), bool):
            raise ConfigError(f"{origin}: {key!r} is {entry[key]!r}; it must be true or false")
    for key in ("effects", "mayDiffer"):
        if not isinstance(entry.get(key, {}), dict):
            raise ConfigError(f"{origin}: {key!r} must be an object with a value for each tool")
    variables = _Variables()
    texts: dict[str, Any] = {
        key: variables.expand(_text(entry[key], f"{origin}: {key!r}"), f"{origin}: {key!r}")
        for key in ("command", "url", "cwd")
        if key in entry
    }
    arguments = entry.get("args", [])
    if not isinstance(arguments, list) or not all(isinstance(item, str) for item in arguments):
        raise ConfigError(f"{origin}: 'args' must be a list of strings")
    args = [variables.expand(item, f"{origin}: 'args'") for item in arguments]
    env = variables.expand_all(entry.get("env", {}), f"{origin}: 'env'")
    headers = variables.expand_all(entry.get("headers", {}), f"{origin}: 'headers'")
    options = {ours: entry[theirs] for theirs, ours in _OPTIONS.items() if theirs in entry}
    transport = _read_transport(entry, origin)
    try:
        server = MCPServer(
            **texts,
            args=args,
            env=env,
            headers=headers,
            name=name,
            transport=transport,
            secrets=variables.values,
            **options,
        )
    except ConfigError as error:
        said = str(error).removeprefix(f"MCPServer {name!r}: ")
        raise ConfigError(f"{origin}: {said}") from error
    server.source = {key: value for key, value in entry.items() if key in _KEYS}
    return server


def _read_transport(entry: dict[str, Json], origin: str) -> str | None:
    wanted = entry.get("type", entry.get("transport"))
    if wanted is None:
        return None
    if not isinstance(wanted, str) or wanted not in _TRANSPORTS:
        raise ConfigError(f"{origin}: 'type' is {wanted!r}; it can be {', '.join(_TRANSPORTS)}")
    return _TRANSPORTS[wanted]


def _from_command(text: str) -> MCPServer:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"mcp: {text!r} is not a command line: {error}") from error
    env: dict[str, str] = {}
    while words and _ASSIGNMENT.fullmatch(words[0]):
        key, _, value = words.pop(0).partition("=")
        env[key] = value
    if not words:
        raise ConfigError("mcp: there is no command after the assignments")
    return _from_entry(None, {"command": words[0], "args": words[1:], "env": env}, "mcp")


def _text(value: Json, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{what} is {value!r}; it must be a string")
    return value


class _Variables:
    """Environment variables in texts. Their values are remembered, because they may be secret."""

    def __init__(self) -> None:
        self.values: list[str] = []

    def expand(self, text: str, what: str) -> str:
        """Return `text` with the values of its variables. Raises: `ConfigError` for a variable that is not set."""
        return _VARIABLE.sub(lambda match: self._replace(match, what), text)

    def _replace(self, match: re.Match[str], what: str) -> str:
        if match[1]:
            return match[0][1:]
        inside = _INSIDE.fullmatch(match[2])
        if inside is None:
            raise ConfigError(
                f"{what}: {match[0]!r} is not understood; write ${{NAME}} or ${{NAME:-default}} for a variable "
                "of the environment, and $${ for a literal ${{"
            )
        name, default = inside[1], inside[2]
        if name in OF_RUN:
            return match[0]
        value = os.environ.get(name)
        if value is not None:
            self.values.append(value)
            return value
        if default is None:
            raise ConfigError(
                f"{what}: the environment variable {name} is not set; set it, or write a default as "
                f"${{{name}:-default}}"
            )
        return default

    def expand_all(self, value: Json, what: str) -> Mapping[str, str]:
        """Return an object of texts with the values of their variables. Raises: `ConfigError`."""
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise ConfigError(f"{what} must be an object with string values")
        return {key: self.expand(item, f"{what} {key!r}") for key, item in value.items()}
