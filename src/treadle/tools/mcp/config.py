"""From what a user writes (a file of `mcpServers`, JSON, a URL, a command line) to servers."""

import difflib
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import msgspec

from treadle.core.errors import ConfigError
from treadle.core.types import Effect, Json
from treadle.tools.mcp.server import MCPServer
from treadle.tools.mcp.servers import MCPServers

_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_ASSIGNMENT = re.compile(r"\w+=.*", re.DOTALL)

_KEYS = (
    "command",
    "args",
    "env",
    "cwd",
    "url",
    "headers",
    "perRun",
    "timeout",
    "startTimeout",
    "effects",
    "mayDiffer",
)
_IGNORED = ("type", "transport", "description", "name", "disabled", "autoApprove", "alwaysAllow", "gallery")
"""What other clients write, and what says nothing about how to connect."""


def mcp(text: str) -> MCPServers:
    """The servers that `text` names: a JSON file with `mcpServers`, such JSON itself, a URL, or a command.

    A command may begin with assignments, as `KEY=value npx some-server`. `${NAME}` and `${NAME:-default}` are
    taken from the environment. Raises: `ConfigError`.
    """
    text = text.strip()
    if not text:
        raise ConfigError(
            "mcp: say which server, as mcp:servers.json, mcp:https://host/mcp or mcp:'npx server'"
        )
    if text.startswith("{"):
        return read_servers(_decode(text.encode(), "the JSON after mcp:"), "the JSON after mcp:")
    if text.startswith(("http://", "https://")):
        return MCPServers([MCPServer(url=_expand(text, text), name=_name_of_url(text))])
    if text.endswith((".json", ".json5")) and " " not in text:
        return read_file(Path(text).expanduser())
    return MCPServers([_from_command(text)])


def read_file(path: Path) -> MCPServers:
    """The servers of a file in the usual `mcpServers` shape. Raises: `ConfigError`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        near = difflib.get_close_matches(path.name, [item.name for item in path.parent.glob("*.json")], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"cannot read the MCP servers of {str(path)!r}: {error.strerror}{hint}") from error
    return read_servers(_decode(data, repr(str(path))), repr(str(path)))


def read_servers(raw: Json, origin: str) -> MCPServers:
    """The servers of decoded JSON: `{"mcpServers": {name: {...}}}`, or one server's object."""
    if not isinstance(raw, dict):
        raise ConfigError(f"{origin}: this is no object with 'mcpServers'")
    found = raw.get("mcpServers", raw.get("servers"))
    if found is None and ("command" in raw or "url" in raw):
        found = {str(raw.get("name") or "server"): raw}
    if not isinstance(found, dict):
        known = ", ".join(repr(key) for key in raw) or "nothing"
        raise ConfigError(f"{origin}: there is no object 'mcpServers' in it, but {known}")
    servers = [
        _from_entry(name, entry, f"{origin}: server {name!r}")
        for name, entry in found.items()
        if not (isinstance(entry, dict) and entry.get("disabled") is True)
    ]
    if not servers:
        raise ConfigError(f"{origin}: there is no server in it that is not disabled")
    return MCPServers(servers)


def _from_entry(name: str, entry: Json, origin: str) -> MCPServer:
    if not isinstance(entry, dict):
        raise ConfigError(f"{origin} is no object")
    for key in entry:
        if key not in _KEYS and key not in _IGNORED:
            near = difflib.get_close_matches(key, _KEYS, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(_KEYS)}"
            raise ConfigError(f"{origin} has an unknown key {key!r}{hint}")
    if ("command" in entry) is ("url" in entry):
        raise ConfigError(f"{origin} needs either a 'command' or a 'url'")
    command = entry.get("command")
    arguments = entry.get("args", [])
    if not isinstance(arguments, list) or not all(isinstance(item, str) for item in arguments):
        raise ConfigError(f"{origin}: 'args' must be a list of texts")
    try:
        return MCPServer(
            _expand(_text(command, f"{origin}: 'command'"), origin) if command is not None else None,
            url=_expand(_text(entry["url"], f"{origin}: 'url'"), origin) if "url" in entry else None,
            args=[_expand(item, origin) for item in arguments],
            env=_expand_all(entry.get("env", {}), f"{origin}: 'env'"),
            headers=_expand_all(entry.get("headers", {}), f"{origin}: 'headers'"),
            cwd=_expand(_text(entry["cwd"], f"{origin}: 'cwd'"), origin) if "cwd" in entry else None,
            name=name,
            per_run=bool(entry.get("perRun", False)),
            effects={key: Effect(value) for key, value in entry.get("effects", {}).items()},
            may_differ=entry.get("mayDiffer"),
            **{
                ours: entry[theirs]
                for theirs, ours in (
                    ("timeout", "timeout_seconds"),
                    ("startTimeout", "start_timeout_seconds"),
                )
                if theirs in entry
            },
        )
    except (ValueError, TypeError, AttributeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{origin}: {error}") from error


def _from_command(text: str) -> MCPServer:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"mcp: {text!r} is no command line: {error}") from error
    env: dict[str, str] = {}
    while words and _ASSIGNMENT.fullmatch(words[0]):
        key, _, value = words.pop(0).partition("=")
        env[key] = _expand(value, f"mcp: {key}")
    if not words:
        raise ConfigError("mcp: there is no command after the assignments")
    command, *args = [_expand(word, "mcp") for word in words]
    return MCPServer(command, args=args, env=env, name=_name_of_command([command, *args]))


def _name_of_command(words: list[str]) -> str:
    """A short name for messages and clashes: the last word that looks like a program or package."""
    plain = [word for word in words if not word.startswith("-") and "=" not in word]
    runners = ("npx", "uvx", "uv", "run", "python", "python3", "node", "bunx", "docker", "sh")
    for word in plain:
        stem = Path(word).name.partition("@")[0] or Path(word).name.strip("@")
        stem = stem.removesuffix(".py").removesuffix(".js")
        if stem not in runners:
            return re.sub(r"[^a-zA-Z0-9_-]+", "_", stem) or "server"
    return Path(plain[0]).name if plain else "server"


def _name_of_url(url: str) -> str:
    host = re.sub(r"^https?://(?:[^/@]*@)?", "", url).partition("/")[0].partition(":")[0]
    return re.sub(r"[^a-zA-Z0-9_-]+", "_", host) or "server"


def _decode(data: bytes, origin: str) -> Json:
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{origin} is not valid JSON: {error}") from error


def _text(value: Json, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{what} is {value!r}; it must be a text")
    return value


def _expand_all(value: Json, what: str) -> Mapping[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise ConfigError(f"{what} must be an object of texts")
    return {key: _expand(item, f"{what} {key!r}") for key, item in value.items()}


def _expand(text: str, what: str) -> str:
    """`text` with its variables from the environment. Raises: `ConfigError` for one that is not set."""

    def replace(match: re.Match[str]) -> str:
        value = os.environ.get(match[1], match[2])
        if value is None:
            raise ConfigError(f"{what}: the environment has no {match[1]}, which ${{{match[1]}}} stands for")
        return value

    return _VARIABLE.sub(replace, text)
