"""The address of a server, and removing its secrets from messages."""

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from treadle.core.masking import Mask, is_secret_name, secrets_of_url, words_of

_PATH_SECRETS = re.compile(r"/(?=[^/?#]*\d)([^/?#]{16,})")
"""The parts of a URL's path that look like a key."""


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
            found += words_of(value)
        if self.url is not None:
            found += [*secrets_of_url(self.url), *_PATH_SECRETS.findall(self.url)]
        return Mask(found).hide_pieces(text)

    def result_mask(self) -> Mask:
        """Return the mask for results. They are data, so only values whose name says that they are secret are
        hidden."""
        named = [*self.env.items(), *self.headers.items()]
        return Mask(word for name, value in named if is_secret_name(name) for word in words_of(value))
