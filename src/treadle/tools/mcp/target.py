"""The address of a server, and removing its secrets from messages."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import msgspec
from msgspec import Struct

MIN_SECRET_CHARS = 4
"""The length from which a secret is recognised. Shorter ones could also be ordinary text."""

_URL_SECRETS = re.compile(r"//([^/@?#]+)@|[?&][^=&#]+=([^&#]+)|/(?=[^/?#]*\d)([^/?#]{16,})")
"""The user, the values of the query, and parts of the path that look like a key."""


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

    def __repr__(self) -> str:
        return f"<MCP server {self.name!r}>"

    def hide(self, text: str) -> str:
        """Return `text` without the values of `env` and `headers`, and without what looks secret in the URL."""
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
    """Return the forms that a secret may have in a message: plain, or escaped by Python, JSON or a URL."""
    return secret, repr(secret)[1:-1], msgspec.json.encode(secret).decode()[1:-1], unquote(secret)
