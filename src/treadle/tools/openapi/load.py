"""Where an OpenAPI document comes from."""

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from treadle.core.documents import decode_document
from treadle.core.errors import ConfigError, ToolError
from treadle.core.types import Json
from treadle.http.background import run_blocking
from treadle.http.guarded import GuardedHttp, Resolver, host_of

MAX_DOCUMENT_BYTES = 32 * 1024 * 1024
_ACCEPT = "application/json, application/yaml;q=0.9, */*;q=0.5"
_NAME = "the OpenAPI document"


class Loaded(Struct, frozen=True):
    """A decoded document."""

    raw: Json
    origin: str
    """How messages name it."""
    url: str | None = None
    """That it came from."""


def load(
    document: str | Path | Mapping[str, Json], *, allow_private: bool, resolver: Resolver | None
) -> Loaded:
    """The document at a path or a URL, in a text, or given as it is. Raises: `ConfigError`."""
    if isinstance(document, Mapping):
        return Loaded(dict(document), _NAME)
    text = str(document)
    if isinstance(document, str) and text.startswith(("http://", "https://")):
        return _fetch(text, allow_private=allow_private, resolver=resolver)
    if isinstance(document, str) and (text.lstrip().startswith("{") or "\n" in text):
        return Loaded(decode_document(text.encode(), _NAME), _NAME)
    try:
        data = Path(text).expanduser().read_bytes()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot read {_NAME} {text!r}: {why}") from error
    return Loaded(
        decode_document(data, repr(text), is_yaml=False if text.endswith(".json") else None), repr(text)
    )


def _fetch(url: str, *, allow_private: bool, resolver: Resolver | None) -> Loaded:
    http = GuardedHttp(
        [],
        named_by_user=[host_of(url)],
        allow_private=allow_private,
        max_response_bytes=MAX_DOCUMENT_BYTES,
        resolver=resolver,
    )
    # A query may hold a key.
    origin = repr(url.partition("?")[0])
    try:
        answer = run_blocking(http.request("GET", url, {"accept": _ACCEPT}))
    except ToolError as error:
        raise ConfigError(f"cannot read {_NAME} {origin}: {error}") from error
    if answer.status != 200:
        raise ConfigError(f"cannot read {_NAME} {origin}: HTTP {answer.status}")
    return Loaded(decode_document(answer.body, origin), origin, answer.url)
