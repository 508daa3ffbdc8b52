"""The address of a server, its name, and its entry in `mcpServers` without secrets; names of its tools."""

import hashlib
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import ConfigError
from treadle.core.spec import PartSpec
from treadle.core.texts.documents import read_data
from treadle.core.texts.masking import Mask, is_secret_name, secrets_of_url, words_of
from treadle.core.types import Json
from treadle.tools.toolset_parts import OBJECT, SECRET, without_secrets

_PATH_SECRETS = re.compile(r"/(?=[^/?#]*\d)([^/?#]{16,})")
"""The parts of a URL's path that look like a key."""


RUN_ID = "TREADLE_RUN_ID"
"""The variable with the id of the run that a server serves alone. It is empty while only its tools are listed."""
RUN_FILES = "TREADLE_RUN_FILES"
"""The variable with the path of the folder of this run's files."""
OF_RUN = (RUN_ID, RUN_FILES)


class Target(Struct, frozen=True):
    """The address of a server. Its `repr` contains no secrets."""

    name: str
    command: str | None
    args: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None
    url: str | None
    headers: Mapping[str, str]
    transport: str
    """`stdio`, `http`, `sse` or `memory`."""
    server: Any
    """An SDK server object in this process."""
    start_timeout_seconds: float
    secrets: tuple[str, ...] = ()
    """Further texts that no message may contain: values of environment variables."""
    variables: Mapping[str, str] = {}
    """Variables of the process besides `env`, which are not secret."""
    is_public_only: bool = False
    """True if the URL must lead to addresses of the public internet."""

    def fill(self, variables: Mapping[str, str]) -> "Target":
        """Return the target with further variables. `${NAME}` in its texts stands for the value of one of them."""

        def put(text: str) -> str:
            for name, value in variables.items():
                text = text.replace(f"${{{name}}}", value)
            return text

        return replace(
            self,
            args=tuple(map(put, self.args)),
            env={key: put(value) for key, value in self.env.items()},
            variables={**self.variables, **variables},
        )

    def check_command(self) -> None:
        """Check that the command is installed, without starting it. Raises: `ConfigError`."""
        command = self.command
        if command is not None and os.path.dirname(command):
            command = os.path.join(self.cwd or "", command)
        if command is not None and shutil.which(command, path=self.env.get("PATH")) is None:
            raise ConfigError(self.explain_command(is_absent=not os.path.exists(command)))

    def explain_command(self, *, is_absent: bool) -> str:
        """Return the text about a command that is absent, or is no program."""
        hint = "install it, or give its full path" if is_absent else "is it a program?"
        if " " in (self.command or "") and is_absent:
            hint = "pass the words after the program as args"
        how = "was not found" if is_absent else "cannot be executed"
        return f"the command {self.command!r} of the MCP server {self.name!r} {how}; {hint}"

    def __repr__(self) -> str:
        return f"<MCP server {self.name!r}>"

    def hide(self, text: str) -> str:
        """Return `text` without the values of `env` and `headers`, and without what looks secret in the URL."""
        found = [*self.env.values(), *self.headers.values(), *self.secrets]
        for value in self.headers.values():
            found += words_of(value)
        if self.url is not None:
            found += [*secrets_of_url(self.url), *_PATH_SECRETS.findall(self.url)]
        return Mask(found).hide_pieces(text)

    def result_mask(self) -> Mask:
        """Return the mask for results, which are data: it hides only values that are named as secret."""
        named = [*self.env.items(), *self.headers.items()]
        return Mask(word for name, value in named if is_secret_name(name) for word in words_of(value))


MAX_NAME_CHARS = 64

_UNSAFE = re.compile(r"[^a-zA-Z0-9_-]+")


def safe_name(name: str) -> str:
    """Return a name that providers accept. A name that is too long ends with a part of its digest."""
    safe = re.sub(r"[^a-zA-Z0-9_-]", "_", name) or "tool"
    if len(safe) <= MAX_NAME_CHARS:
        return safe
    return f"{safe[: MAX_NAME_CHARS - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def name_of_command(words: Sequence[str]) -> str:
    """Return the first word of a command that names a program or package, after words such as `npx`."""
    plain = [word for word in words if not word.startswith("-") and "=" not in word]
    for word in plain:
        last = Path(word).name
        stem = (last.partition("@")[0] or last.strip("@")).removesuffix(".py").removesuffix(".js")
        if stem not in read_data(__package__, "words")["runners"]:
            return _UNSAFE.sub("_", stem) or "server"
    return Path(plain[0]).name if plain else "server"


def name_of_url(url: str) -> str:
    """Return the host as a name."""
    host = re.sub(r"^https?://(?:[^/@]*@)?", "", url).partition("/")[0].partition(":")[0]
    return _UNSAFE.sub("_", host) or "server"


_MIN_VALUE_CHARS = 4
"""The length from which a value is recognised as that of a variable. A shorter value may be equal by chance."""


def make_part(entries: Mapping[str, dict[str, Json] | str]) -> PartSpec:
    """Return the part for servers. `entries` has each one by name: its entry, or why it has none."""
    for name, entry in entries.items():
        missing = (
            entry if isinstance(entry, str) else without_secrets(PartSpec(name="mcp", settings=entry)).missing
        )
        if missing is not None:
            return PartSpec(name="mcp", missing=f"of its server {name!r}: {missing}")
    return PartSpec(name="mcp", settings={"mcpServers": dict(entries)})


def write_entry(target: Target, options: Mapping[str, Json]) -> dict[str, Json] | str:
    """Return the configuration entry for a server, or a text that says why it cannot be written.

    A value of `env` or `headers` that equals an environment variable of this process is written as `${NAME}`.
    """
    if target.server is not None:
        return OBJECT
    where = {"command": target.command, "cwd": target.cwd, "url": target.url}
    entry: dict[str, Json] = {key: _escape(value) for key, value in where.items() if value is not None}
    if target.args:
        entry["args"] = [_escape(item) for item in target.args]
    if target.env:
        entry["env"] = {key: _refer(value, key) for key, value in target.env.items()}
    if target.headers:
        entry["headers"] = {key: _refer(value) for key, value in target.headers.items()}
    if target.transport == "sse":
        entry["type"] = "sse"
    if target.is_public_only:
        entry["publicOnly"] = True
    texts = [*entry.get("args", ()), *(entry[key] for key in where if key in entry)]
    if any(secret in text for secret in target.secrets if secret for text in texts):
        return SECRET
    return {**entry, **options}


def _escape(text: str) -> str:
    return text.replace("${", "$${")


def _refer(value: str, name: str = "") -> str:
    """Return a reference to the environment variable that holds `value` or its last word, if there is one."""
    scheme, space, rest = value.rpartition(" ")
    for candidate in (name, *sorted(os.environ)):
        held = os.environ.get(candidate)
        if held is not None and len(held) >= _MIN_VALUE_CHARS and held in (value, rest):
            return f"${{{candidate}}}" if held == value else f"{scheme}{space}${{{candidate}}}"
    return value
