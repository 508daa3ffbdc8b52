"""The errors of the transports, with the same texts for every transport, and the redirects that they refuse.

Errors name the server's origin, which contains no secrets, and nothing else of the request. A request carries
credentials (headers, or a key in the query) and a prompt, which no other origin may see. After a redirect it is
therefore only sent again to the same origin, with the same method and body.
"""

import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec import Struct

from treadle.core.errors import (
    ConfigError,
    HandshakeError,
    ProviderTimeoutError,
    RequestError,
    TransportError,
)
from treadle.http.protocol import MAX_ANSWER_BYTES, Answer, StreamedAnswer

if TYPE_CHECKING:
    from pyreqwest.http import Url

SERVER_DOWN = "is the server running? check the base URL"
UNKNOWN_HOST = "the host name is not known; check the base URL and the network"
NO_TLS = "check that the base URL is right to say https, and the server's certificate"
_UNTRUSTED = (
    "the certificate is not trusted: if it is your company's, set the environment variable SSL_CERT_FILE to the "
    "file with its certificates; else check the base URL"
)


class Timeouts(Struct, frozen=True):
    """The time-outs of a request, in seconds."""

    silence: float = 600.0
    """The longest time in which no byte of the answer arrives. Every byte starts it again."""
    connect: float = 10.0
    """The longest time for opening a connection."""
    total: float = 1800.0
    """The longest time from the start of the request to the end of the answer's body."""

    def __post_init__(self) -> None:
        for name, value in (
            ("timeout_seconds", self.silence),
            ("connect_timeout_seconds", self.connect),
            ("total_timeout_seconds", self.total),
        ):
            if not 0 < value <= 1e9:
                raise ConfigError(f"{name} is {value!r}; give a positive number of seconds")


def origin_of(url: str) -> str:
    """Return the scheme, host and port of `url`, which contain no secrets."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an invalid URL"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def address_of(url: str) -> str:
    """Return `url` without user, password, query and fragment, which may be secret."""
    origin = origin_of(url)
    return origin + urlsplit(url).path if "://" in origin else origin


def invalid_url(url: str, reason: str) -> ConfigError:
    """Return the error for a URL to which no request can be sent."""
    return ConfigError(
        f"cannot send a request to {origin_of(url)}: invalid URL ({reason}); check the base URL"
    )


def invalid_header(origin: str, name: str | None = None) -> ConfigError:
    """Return the error for a header that HTTP does not allow, without its value."""
    which = "a header" if name is None else f"the header {name!r}"
    return ConfigError(
        f"cannot send a request to {origin}: {which} holds a character that HTTP does not allow; "
        "check the API key and headers"
    )


def cannot_connect(origin: str, detail: str, hint: str) -> TransportError:
    """Return the error for a server that could not be reached."""
    return _unsent(TransportError(f"cannot connect to {origin} ({detail}): {hint}"))


def no_tls(origin: str, detail: str) -> TransportError:
    """Return the error for a TLS handshake that failed. A connection that broke meanwhile may work later."""
    if "certificate" in detail:
        given = os.environ.get("SSL_CERT_FILE")
        missing = (
            f"; it names {given!r} now, and there is no such file"
            if given and not os.path.isfile(given)
            else ""
        )
        return _unsent(HandshakeError(f"cannot connect to {origin} ({detail}): {_UNTRUSTED}{missing}"))
    if "reset" in detail or "end of file" in detail or "eof" in detail:
        return cannot_connect(origin, detail, NO_TLS)
    return _unsent(HandshakeError(f"cannot connect to {origin} ({detail}): {NO_TLS}"))


def connect_timeout(origin: str, timeouts: Timeouts) -> TransportError:
    """Return the error for a connection that was not made in time."""
    return _unsent(
        ProviderTimeoutError(
            f"cannot connect to {origin} within {timeouts.connect:g} s; check the base URL and "
            "the network, or raise connect_timeout_seconds"
        )
    )


def _unsent(error: TransportError) -> TransportError:
    error.was_sent = False
    return error


def answer_timeout(origin: str, timeouts: Timeouts, *, is_total: bool) -> ProviderTimeoutError:
    """Return the error for an answer that stopped for too long, or was not complete in time."""
    if is_total:
        what = f"did not give its whole answer within {timeouts.total:g} s; raise total_"
    else:
        what = f"sent nothing for {timeouts.silence:g} s; raise "
    return ProviderTimeoutError(f"{origin} {what}timeout_seconds if the model needs longer")


def not_http(origin: str, detail: str) -> TransportError:
    """Return the error for bytes that are not an HTTP answer."""
    return TransportError(f"{origin} did not answer in HTTP ({detail}); check the base URL")


def bad_body(origin: str, detail: str) -> TransportError:
    """Return the error for a body that ends early or cannot be decompressed."""
    return TransportError(f"the body of the answer of {origin} is cut off or damaged ({detail})")


def broken(origin: str, detail: str) -> TransportError:
    """Return the error for a connection that was lost before the end of the answer."""
    return TransportError(f"the connection to {origin} broke before the whole answer came ({detail})")


def too_long(origin: str) -> RequestError:
    """Return the error for an answer larger than `MAX_ANSWER_BYTES`."""
    return RequestError(f"the answer of {origin} is longer than {MAX_ANSWER_BYTES} bytes")


STATUSES = frozenset((301, 302, 303, 307, 308))
MAX_REDIRECTS = 5
BASE_URL = "base_url of the model in treadle.toml or in Python, or --base-url of a command that has it"
"""Where the address of a model's server is given."""
_ADVICE = f"check the base URL ({BASE_URL})"


def follow(method: str, urls: tuple[str, ...], answer: Answer | StreamedAnswer) -> str:
    """Return the URL to which a redirected request is to be sent again; it has the same origin.

    `urls` are the URLs that were asked so far. Raises: `RequestError` for every redirect that must not be followed.
    """
    status, origin = answer.status, origin_of(urls[-1])
    fault = f"{origin} answered {status}, a redirect"
    location = answer.header("location")
    if location is None:
        raise RequestError(
            f"{fault} without an address to go to (it has no Location header): {_ADVICE}", status=status
        )
    found = join(urls[-1], location)
    if found is None:
        raise RequestError(f"{fault} to a place that is not a URL: {_ADVICE}", status=status)
    if found.origin_ascii != _parse(urls[-1]).origin_ascii:
        raise RequestError(refuse(origin, found.origin_ascii, status), status=status)
    if method == "POST" and status in (301, 302, 303):
        raise RequestError(
            f"{fault} to its path {found.path!r}, which would turn the POST into a GET, so it was not followed: "
            f"give the URL that answers itself as the base URL ({BASE_URL})",
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
        f"because it may hold credentials; if you trust {other}, give it in the base URL ({BASE_URL})"
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
