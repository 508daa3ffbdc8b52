"""Where a server is, and what of that must not be told."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import msgspec
from msgspec import Struct

MIN_SECRET_CHARS = 4
"""What is shorter cannot be told from other text."""

_URL_SECRETS = re.compile(r"//([^/@?#]+)@|[?&][^=&#]+=([^&#]+)|/(?=[^/?#]*\d)([^/?#]{16,})")
"""The user, values of the query, and parts of the path that look like a key."""


class Target(Struct, frozen=True):
    """Where a server is. Its `repr` holds no secrets."""

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
    """What else must not be told: values that came out of the environment."""

    def __repr__(self) -> str:
        return f"<MCP server {self.name!r}>"

    def hide(self, text: str) -> str:
        """`text` without the values of the environment and the headers, and what looks secret in the URL."""
        found = [*self.env.values(), *self.headers.values(), *self.secrets]
        for value in self.headers.values():
            found += value.split()[1:]
        for groups in _URL_SECRETS.findall(self.url or ""):
            found += groups
        forms = {form for secret in found for form in _forms_of(secret)}
        for form in sorted(forms, key=len, reverse=True):
            if len(form) >= MIN_SECRET_CHARS:
                text = text.replace(form, "***")
        return text


def _forms_of(secret: str) -> tuple[str, ...]:
    """How it may stand in a message: as it is, or as Python, JSON or a URL write it."""
    return secret, repr(secret)[1:-1], msgspec.json.encode(secret).decode()[1:-1], unquote(secret)
