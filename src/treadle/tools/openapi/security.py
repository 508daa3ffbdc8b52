"""Credentials for the security schemes of a document: finding, sending and hiding them.

Source: OpenAPI 3.1.1, Security Scheme Object.
"""

import base64
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote, urlsplit

from treadle.core.errors import ConfigError, ToolError
from treadle.core.texts.masking import Mask, is_secret_name, words_of
from treadle.core.types import Json


class Secrets:
    """The credentials for one document."""

    def __init__(
        self,
        schemes: Mapping[str, Json],
        given: Mapping[str, str],
        headers: Mapping[str, str],
        *,
        is_host_named: bool,
    ) -> None:
        """Collect the credentials. `is_host_named` is true if the user named the server, which allows plain http.

        Raises: `ConfigError` for a credential of an unknown scheme.
        """
        for name in given:
            if name not in schemes:
                raise ConfigError(
                    f"the document has no security scheme {name!r}; it has {', '.join(schemes) or 'none'}"
                )
        self._schemes = schemes
        self._given = given
        self._is_host_named = is_host_named
        self._known = {
            word for name, value in headers.items() if is_secret_name(name) for word in words_of(value)
        }
        self._mask = self._learn(given.values())

    def sign(self, alternatives: Sequence[Sequence[str]], url: str, headers: dict[str, str]) -> str:
        """Add the credentials of the first alternative that has all of them, and return the URL, perhaps changed.

        Raises: `ToolError` that names the environment variables to set, if no alternative has all of them.
        """
        if not alternatives:
            return url
        found = [(names, [self._find(name, url) for name in names]) for names in alternatives]
        names, values = next(
            (item for item in found if item[0] and None not in item[1]),
            next((item for item in found if not item[0]), (None, [])),
        )
        if names is None:
            raise ToolError(self._describe_missing(found[0][0], url))
        for name, value in zip(names, values, strict=True):
            assert value is not None
            if value not in self._known:
                self._mask = self._learn([value])
            url = _add(name, self._schemes.get(name, {}), value, url, headers)
        return url

    def hide(self, text: str) -> str:
        """Return the text of an error without the secrets in it."""
        return self._mask.hide_pieces(text)

    def hide_bytes(self, data: bytes) -> bytes:
        """Return the body of a response without the secrets, which a server may repeat."""
        return self._mask.hide_bytes(data)

    def _learn(self, values: Iterable[str]) -> Mask:
        """Remember `values`, which may be `user:password`, and return the mask of all secrets."""
        for value in values:
            self._known |= {value, value.partition(":")[2]}
        return Mask(self._known)

    def _find(self, name: str, url: str) -> str | None:
        if name in self._given:
            return self._given[name]
        # A foreign document chooses the host. Variables of the environment belong to one host and need TLS.
        is_safe = self._is_host_named or urlsplit(url).scheme == "https"
        return (os.environ.get(variable_of(url, name)) or None) if is_safe else None

    def _describe_missing(self, names: Sequence[str], url: str) -> str:
        missing = [name for name in names if self._find(name, url) is None]
        if urlsplit(url).scheme != "https" and not self._is_host_named:
            return (
                f"the secret of {missing[0]!r} is not sent over http to a server that only the document names; "
                "give OpenAPI(..., base_url=...) or auth=..."
            )
        variables = " and ".join(variable_of(url, name) for name in missing)
        return (
            f"the secret of {' and '.join(map(repr, missing))} is missing: set {variables} in the environment"
        )


def variable_of(url: str, name: str) -> str:
    """Return the environment variable with the credential of a scheme. It is different for every host.

    For `bearerAuth` of api.example.com it is `OPENAPI_API_EXAMPLE_COM_BEARERAUTH`; a `-` of the host becomes `__`.
    """
    host = (urlsplit(url).hostname or "").replace("-", "__").replace(".", "_").replace(":", "_")
    return f"OPENAPI_{host}_{re.sub(r'[^A-Za-z0-9]', '', name)}".upper()


def _add(name: str, scheme: Mapping[str, Json], secret: str, url: str, headers: dict[str, str]) -> str:
    kind, key = scheme.get("type"), str(scheme.get("name", ""))
    if kind == "apiKey" and scheme.get("in") == "query":
        return f"{url}{'&' if '?' in url else '?'}{quote(key)}={quote(secret, safe='')}"
    if kind == "apiKey" and scheme.get("in") == "cookie":
        earlier = f"{headers['cookie']}; " if "cookie" in headers else ""
        headers["cookie"] = f"{earlier}{key}={quote(secret)}"
    elif kind == "apiKey":
        headers[key.lower()] = secret
    elif kind == "http" and str(scheme.get("scheme", "")).lower() == "basic":
        headers["authorization"] = f"Basic {base64.b64encode(secret.encode()).decode()}"
    elif kind in ("oauth2", "openIdConnect") or (
        kind == "http" and str(scheme.get("scheme", "")).lower() == "bearer"
    ):
        headers["authorization"] = f"Bearer {secret}"
    else:
        raise ToolError(f"the security scheme {name!r} is {kind!r}, which is not supported")
    return url
