"""The loading of OpenAPI documents."""

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
    """The name of the document in messages."""
    url: str | None = None
    """The URL that the document came from."""


def is_location(document: str | Path | Mapping[str, Json]) -> bool:
    """Return whether `document` is a path or a URL, and not the text of a document or the document itself."""
    return isinstance(document, Path) or (
        isinstance(document, str) and not document.lstrip().startswith("{") and "\n" not in document
    )


def load(
    document: str | Path | Mapping[str, Json], *, allow_private: bool, resolver: Resolver | None
) -> Loaded:
    """Return the document at a path or URL, in a text, or given decoded. Raises: `ConfigError`."""
    if isinstance(document, Mapping):
        return Loaded(dict(document), _NAME)
    text = str(document)
    if isinstance(document, str) and text.startswith(("http://", "https://")):
        return _fetch(text, allow_private=allow_private, resolver=resolver)
    if not is_location(document):
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
    # A query may contain a key.
    origin = repr(url.partition("?")[0])
    try:
        answer = run_blocking(http.request("GET", url, {"accept": _ACCEPT}))
    except ToolError as error:
        raise ConfigError(f"cannot read {_NAME} {origin}: {error}") from error
    if answer.status != 200:
        raise ConfigError(f"cannot read {_NAME} {origin}: HTTP {answer.status}")
    return Loaded(decode_document(answer.body, origin), origin, answer.url)
