"""The web page that shows runs, datasets and rollouts: one HTML file, which `make viewer` builds from `web/`.

A server sends it as it is, and the page asks the server's API. A file also has the answers to the page's questions,
so that it works from disk. The page's own policy lets no other script run, and nothing be loaded from elsewhere.
"""

import gzip
from base64 import b64encode
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from treadle.core.errors import ConfigError
from treadle.export.whole import write_whole

_PLACE = '<script type="application/octet-stream" id="data"></script>'
_TITLE = "<title>Treadle</title>"
HOW_TO_BUILD = (
    "the viewer is not built: run `make viewer` in a checkout of Treadle, which needs Node.js 20 or newer"
)


class NotBuiltError(ConfigError):
    """Raised if the package has no page, because it was not built."""


def escape_part(text: str) -> str:
    """Return a text as a part of an address, with the same escapes as the page writes."""
    return quote(text, "!~*'()")


def is_built() -> bool:
    """Return whether the package has the page."""
    return files("treadle.viewer").joinpath("bundle.html").is_file()


def check_built() -> None:
    """Check that the package has the page. Raises: `NotBuiltError`."""
    if not is_built():
        raise NotBuiltError(HOW_TO_BUILD)


def read_bundle() -> str:
    """Return the page without data. Raises: `NotBuiltError`."""
    check_built()
    return files("treadle.viewer").joinpath("bundle.html").read_text("utf-8")


def encode_bundle(title: str, start: str, answers: Mapping[str, Any]) -> bytes:
    """Return the page with data in it.

    `start` is the address of the page that is shown first, such as `#/run/ID`. `answers` has the answers of the API
    by the address of the request, such as `/v1/runs`; a value may be a `msgspec.Raw`. The data is compressed and in
    base64, so that no text in it can end the HTML element around it. Raises: `NotBuiltError`.
    """
    page = read_bundle()
    texts = {address: msgspec.json.encode(answer).decode() for address, answer in answers.items()}
    given = msgspec.json.encode({"title": title, "start": start, "answers": texts})
    data = b64encode(gzip.compress(given, 6, mtime=0)).decode()
    page = page.replace(_TITLE, f"<title>{escape(title)}</title>", 1)
    return page.replace(_PLACE, _PLACE.replace("><", f">{data}<", 1), 1).encode()


def write_bundle(title: str, start: str, answers: Mapping[str, Any], out: Path) -> Path:
    """Write the page with data as one file, and return its path. Raises: `ConfigError` if that is not possible."""
    write_whole([encode_bundle(title, start, answers)], out)
    return out
