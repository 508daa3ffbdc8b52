"""HTTP requests of tools, to allowed hosts only.

The name of a host must be allowed. Its addresses are looked up and checked here, and the connection goes to a
checked address, so that a name server cannot answer differently the second time. Redirects are followed one by
one under the same rules, to another origin without credentials. URLs are parsed by the client that sends the
request, so that both read the same host from them. Proxies of the environment are not used. Answers are read up to
a limit, which counts after decompression.
"""

import asyncio
import ipaddress
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from treadle.core.errors import ConfigError, NoResultError, ToolError
from treadle.core.texts.masking import hide_in_url
from treadle.http import transport_errors
from treadle.http.plain.dial import look_up, read_address
from treadle.http.reqwest import (
    CancellationCheck,
    ClientSettings,
    Stage,
    client_for,
    describe,
    read_body,
    stage_of,
)

if TYPE_CHECKING:
    from pyreqwest.client import Client
    from pyreqwest.http import Url
    from pyreqwest.request import RequestBuilder

MAX_ADDRESSES = 4
"""How many addresses of one name are tried."""
_KEPT_ACROSS_HOSTS = frozenset(("accept", "content-type", "user-agent"))
_HOST = re.compile(r"(?P<name>.+?)(?::(?P<port>\d{1,5}))?", re.DOTALL)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_SPECIAL = {
    "shared": ipaddress.ip_network("100.64.0.0/10"),
    "translated": ipaddress.ip_network("64:ff9b:1::/48"),
    "tunnelled": ipaddress.ip_network("2001::/32"),
    "site-local": ipaddress.ip_network("fec0::/10"),
}

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""A function that returns the addresses of a host, given its name and port."""


class HttpAnswer(Struct, frozen=True):
    """A whole answer, with any status."""

    status: int
    headers: Mapping[str, str]
    """The headers with names in lower case. If a header occurs several times, the last one counts."""
    body: bytes
    url: str
    """The URL of the answer, after redirects."""


class GuardedHttp:
    """A client for requests to allowed hosts."""

    def __init__(
        self,
        allowed_hosts: Iterable[str],
        *,
        named_by_user: Iterable[str] = (),
        allow_private: bool = False,
        max_response_bytes: int = 1_000_000,
        timeout_seconds: float = 30.0,
        resolver: Resolver | None = None,
    ) -> None:
        """Create a client that may ask `allowed_hosts` and `named_by_user`.

        A host may have a port (`host:8080`); then only this port is allowed. Hosts that lead to private, link-local
        or other special addresses are refused, unless `allow_private` is set, or the host is in `named_by_user` and
        is itself such an address or `localhost`. Raises: `ConfigError` for an invalid host.
        """
        named = {_read_host(item) for item in named_by_user}
        self._hosts = {_read_host(item) for item in allowed_hosts} | named
        self._exempt = {item for item in named if item[0] == "localhost" or read_address(item[0])}
        self._allow_private = allow_private
        self._max_bytes = max_response_bytes
        self._timeout_seconds = timeout_seconds
        self._resolver = resolver or _resolve

    async def request(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> HttpAnswer:
        """Send a request, follow at most five redirects, and return the answer.

        Raises: `ToolError` for a host or address that is not allowed, and for an answer that is too large, takes
        too long or does not come. It quotes no header, and of the URL only the host and port.
        """
        target = _parse(url)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._follow(
                    method, target, {name.lower(): value for name, value in (headers or {}).items()}, body
                )
        except TimeoutError:
            raise NoResultError(
                f"{target.origin_ascii} did not give its whole answer within {self._timeout_seconds:g} s"
            ) from None

    async def check(self, url: str) -> None:
        """Check that requests to a URL are allowed. Raises: `ToolError`."""
        await self._check(_parse(url))

    async def _follow(
        self, method: str, url: "Url", headers: dict[str, str], body: bytes | None
    ) -> HttpAnswer:
        for _ in range(transport_errors.MAX_REDIRECTS + 1):
            answer = await self._send(method, url, headers, body)
            if answer.status not in transport_errors.STATUSES:
                return answer
            fault = f"{url.origin_ascii} answered {answer.status}, a redirect"
            location = answer.headers.get("location")
            if location is None:
                raise ToolError(f"{fault} without an address to go to (it has no Location header)")
            following = transport_errors.join(str(url), location)
            if following is None:
                raise ToolError(f"{fault} to an invalid URL: {location[:200]!r}")
            if method != "HEAD" and (
                answer.status == 303 or (answer.status in (301, 302) and method == "POST")
            ):
                method, body = "GET", None
                headers.pop("content-type", None)
            if following.origin_ascii != url.origin_ascii:
                headers = {name: value for name, value in headers.items() if name in _KEPT_ACROSS_HOSTS}
                try:
                    self._check_name(following)
                except ToolError as error:
                    raise ToolError(
                        f"{fault} to {following.origin_ascii}, another origin: {error}; if you trust it, use its "
                        "URL instead"
                    ) from None
            url = following
        raise ToolError(f"{url.origin_ascii} redirects more than {transport_errors.MAX_REDIRECTS} times")

    async def _send(
        self, method: str, url: "Url", headers: Mapping[str, str], body: bytes | None
    ) -> HttpAnswer:
        from pyreqwest import exceptions

        host, addresses = await self._check(url)
        where = url.origin_ascii
        # The client looks up a name itself if it differs from the pinned name, even by a dot.
        url = url if url.domain is None else url.with_host(host)
        left = list(addresses[:MAX_ADDRESSES])
        while True:
            try:
                builder = _client(host, left.pop(0)).request(method, url).headers(dict(headers))
                builder = builder if body is None else builder.body_bytes(body)
            except ValueError:
                raise ToolError(
                    f"cannot send a request to {where}: the URL or a header is not valid"
                ) from None
            try:
                return await self._receive(builder, url)
            except exceptions.PyreqwestError as error:
                # A request that was sent may have had an effect, so no other address is tried.
                stage = stage_of(error, is_https=url.scheme == "https")
                if stage is Stage.ASKING or not left:
                    said = f"{where} gave no answer: {describe(error)}"
                    if stage is Stage.SECURING:
                        said = str(transport_errors.no_tls(where, describe(error)))
                    raise NoResultError(said) from None

    async def _receive(self, builder: "RequestBuilder", url: "Url") -> HttpAnswer:
        cancelled = CancellationCheck()
        async with builder.build_streamed() as response:
            body = await read_body(response, self._max_bytes, cancelled)
            found = {name.lower(): value for name, value in response.headers.items()}
        cancelled.check()
        if body is None:
            raise ToolError(
                f"the answer of {url.origin_ascii} is larger than {self._max_bytes:,} bytes; ask for less"
            )
        return HttpAnswer(response.status, found, body, str(url))

    def _check_name(self, url: "Url") -> tuple[str, int]:
        """Return the host and port. Raises: `ToolError` if requests to them are not allowed."""
        if url.scheme not in ("http", "https"):
            raise ToolError(f"{url.scheme!r} is neither http nor https, so no request is made")
        host, port = _canonical(url.host_str or ""), url.port_or_known_default or 0
        if url.username or url.password is not None:
            raise ToolError(f"the URL of {host!r} holds a user or password, so no request is made")
        if not {(host, None), (host, port)} & self._hosts:
            allowed = ", ".join(sorted(_write_host(*item) for item in self._hosts)) or "none"
            raise ToolError(f"the host {_write_host(host, port)!r} is not allowed; allowed hosts: {allowed}")
        return host, port

    async def _check(self, url: "Url") -> tuple[str, Sequence[str]]:
        """Return the host and the addresses to connect to. Raises: `ToolError` if one of them is not allowed."""
        host, port = self._check_name(url)
        addresses = [host] if read_address(host) else await self._resolver(host, port)
        if not addresses:
            raise ToolError(f"the host {host!r} has no address")
        if not self._allow_private and not {(host, None), (host, port)} & self._exempt:
            try:
                _check_public(host, addresses)
            except ToolError as error:
                raise ToolError(f"{error} (allow_private=True allows it)") from None
        return host, addresses


async def find_public(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host. Raises: `ToolError` if there is none, or one is special."""
    addresses = [host] if read_address(host) else await _resolve(host, port)
    _check_public(host, addresses)
    return addresses


def _check_public(host: str, addresses: Sequence[str]) -> None:
    for address in addresses:
        if (kind := special_kind(address)) is not None:
            raise ToolError(f"the host {host!r} leads to {address}, a {kind} address; no request is made")


def special_kind(address: str) -> str | None:
    """Return the kind of a special `address`, as a text; `None` for an address of the public internet."""
    if (ip := read_address(address.partition("%")[0])) is None:
        return "malformed"
    for kind, network in _SPECIAL.items():
        if ip in network:
            return kind
    inner = _embedded(ip)
    if inner is not None:
        return special_kind(str(inner))
    for kind in ("loopback", "link_local", "multicast", "unspecified", "reserved", "private"):
        if getattr(ip, f"is_{kind}"):
            return kind.replace("_", "-")
    return None if ip.is_global else "special"


def _embedded(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that an IPv6 address contains, or `None`."""
    if isinstance(ip, ipaddress.IPv4Address):
        return None
    if ip in _NAT64 or (int(ip) >> 32 == 0 and int(ip) > 1):
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.ipv4_mapped or ip.sixtofour


async def _resolve(host: str, port: int) -> Sequence[str]:
    loop = asyncio.get_running_loop()
    try:
        found = await look_up(loop, host, port)
    except (OSError, UnicodeError) as error:
        raise ToolError(f"the host {host!r} is not known: {error}") from None
    return list(dict.fromkeys(str(item[4][0]) for item in found))


def _client(host: str, address: str) -> "Client":
    """Return a pooled client that connects only to this address, even if later look-ups of the name differ."""
    return client_for(ClientSettings(idle_timeout_seconds=30.0, pinned=(host, address.partition("%")[0])))


def _parse(url: str) -> "Url":
    from pyreqwest.http import Url

    try:
        return Url(url)
    except ValueError as error:
        raise ToolError(f"cannot make a request: the URL is not valid ({error})") from None


def _read_host(item: str) -> tuple[str, int | None]:
    """Return the host's name in the form that the client uses, and the port if there is one."""
    from pyreqwest.http import Url

    text = f"[{item}]" if ":" in item and read_address(item) else item
    match = _HOST.fullmatch(text)
    try:
        url = Url(f"http://{match['name']}") if match else None
    except ValueError:
        url = None
    if match is None or url is None or url.authority != url.host_str or str(url) != f"http://{url.host_str}/":
        raise ConfigError(
            f"{item!r} is not a host; write a name or an address, such as api.example.com or [::1]:8080"
        )
    return _canonical(url.host_str), int(match["port"]) if match["port"] else None


def _canonical(host: str) -> str:
    return host.removeprefix("[").removesuffix("]").rstrip(".")


def _write_host(host: str, port: int | None) -> str:
    name = f"[{host}]" if ":" in host else host
    return name if port is None else f"{name}:{port}"


def host_of(url: str) -> str:
    """Return the host and port of a URL. Raises: `ConfigError` for one that is not the URL of a server."""
    fault = ConfigError(
        f"{hide_in_url(url)!r} is not the URL of a server; write http://host:port or https://host"
    )
    try:
        parsed = _parse(url)
    except ToolError:
        raise fault from None
    if parsed.username or parsed.password is not None:
        raise ConfigError(f"the URL of {parsed.host_str!r} holds a user or password; give them as a header")
    if parsed.scheme not in ("http", "https"):
        raise fault
    return _write_host(_canonical(parsed.host_str or ""), parsed.port_or_known_default)
