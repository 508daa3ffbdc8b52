"""Redirects: only a request to the same origin, with the same method and body, is repeated.

A request carries credentials (headers, or a key in the query) and a prompt, which no other origin may see. It is
therefore never sent to another origin, whatever its status and headers.
"""

from typing import TYPE_CHECKING

from treadle.core.errors import RequestError
from treadle.http.failures import origin_of
from treadle.http.protocol import Answer, StreamedAnswer

if TYPE_CHECKING:
    from pyreqwest.http import Url

STATUSES = frozenset((301, 302, 303, 307, 308))
MAX_REDIRECTS = 5
_ADVICE = "check the base URL (--base-url)"


def follow(method: str, urls: tuple[str, ...], answer: Answer | StreamedAnswer) -> str:
    """Return the URL to which a redirected request is to be sent again; it has the same origin.

    `urls` are the URLs that were asked so far. Raises: `RequestError` for every redirect that must not be followed.
    """
    status, origin = answer.status, origin_of(urls[-1])
    fault = f"{origin} answered {status}, a redirect"
    location = answer.header("location")
    if location is None:
        raise RequestError(
            f"{fault} that does not say where to (it has no Location): {_ADVICE}", status=status
        )
    found = join(urls[-1], location)
    if found is None:
        raise RequestError(f"{fault} to what is not a URL: {_ADVICE}", status=status)
    if found.origin_ascii != _parse(urls[-1]).origin_ascii:
        raise RequestError(refuse(origin, found.origin_ascii, status), status=status)
    if method == "POST" and status in (301, 302, 303):
        raise RequestError(
            f"{fault} to its path {found.path!r}, which would turn the POST into a GET, so it was not followed: "
            "give the URL that answers itself as the base URL (--base-url)",
            status=status,
        )
    if str(found) in urls:
        raise RequestError(f"{fault} that leads in a loop back to {found.path!r}: {_ADVICE}", status=status)
    if len(urls) > MAX_REDIRECTS:
        raise RequestError(f"{origin} redirects more than {MAX_REDIRECTS} times: {_ADVICE}", status=status)
    return str(found)


def refuse(origin: str, other: str, status: int) -> str:
    """Return the message for a redirect to another origin."""
    return (
        f"{origin} answered {status}, a redirect to {other}, another origin: the request was not sent there, "
        f"because it may hold credentials; if you trust {other}, give it in the base URL (--base-url)"
    )


def join(url: str, location: str) -> "Url | None":
    """Return the URL of a `location` header in an answer of `url`; `None` if it is not a valid URL."""
    try:
        return _parse(url).join(location)
    except ValueError:
        return None


def _parse(url: str) -> "Url":
    from pyreqwest.http import Url

    return Url(url)
