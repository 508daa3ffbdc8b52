"""Names of servers, for messages and clashes, and names of tools that providers accept."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

MAX_NAME_CHARS = 64

_UNSAFE = re.compile(r"[^a-zA-Z0-9_-]+")
_RUNNERS = (
    "npx",
    "uvx",
    "uv",
    "run",
    "pipx",
    "python",
    "python3",
    "node",
    "bunx",
    "deno",
    "docker",
    "sh",
    "env",
)


def safe_name(name: str) -> str:
    """Return a name that providers accept. A name that is too long ends with a part of its digest."""
    safe = re.sub(r"[^a-zA-Z0-9_-]", "_", name) or "tool"
    if len(safe) <= MAX_NAME_CHARS:
        return safe
    return f"{safe[: MAX_NAME_CHARS - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def name_of_command(words: Sequence[str]) -> str:
    """Return the first word of a command that names a program or package, without words such as `npx` that only
    start it."""
    plain = [word for word in words if not word.startswith("-") and "=" not in word]
    for word in plain:
        last = Path(word).name
        stem = (last.partition("@")[0] or last.strip("@")).removesuffix(".py").removesuffix(".js")
        if stem not in _RUNNERS:
            return _UNSAFE.sub("_", stem) or "server"
    return Path(plain[0]).name if plain else "server"


def name_of_url(url: str) -> str:
    """Return the host as a name."""
    host = re.sub(r"^https?://(?:[^/@]*@)?", "", url).partition("/")[0].partition(":")[0]
    return _UNSAFE.sub("_", host) or "server"
