"""HTTP requests that go where they may and nowhere else.

A host must be named. Its addresses are looked up here, all are checked, and the connection is made to the one that
was checked, so that a name that changes its mind gets nowhere; redirects are followed one by one under the same
rules. No proxy of the environment is used. Answers are read up to a limit, after decompression.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any
from urllib.parse import urljoin, urlsplit

from msgspec import Struct

from treadle.core.errors import ConfigError, ToolError

MAX_REDIRECTS = 5
_KEPT_ACROSS_HOSTS = frozenset(("accept", "content-type", "user-agent"))
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_SHARED = ipaddress.ip_network("100.64.0.0/10")

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""From a host name and port to addresses as text."""


class HttpAnswer(Struct, frozen=True):
    """A whole answer, of any status."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case; the last of those that came several times."""
    body: bytes
    url: str
    """That it came from, after redirects."""


class GuardedHttp:
    """Makes requests to the hosts that are named."""

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
        """A host may have a port (`host:8080`), and then only this is allowed.

        Private, link-local and other special addresses are refused, but for a host in `named_by_user` that is such
        an address or `localhost`, or with `allow_private`.
        """
        named = [item.lower().rstrip(".") for item in named_by_user]
        self._hosts = {*(item.lower().rstrip(".") for item in allowed_hosts), *named}
        self._named = {item for item in named if _is_literal(item)}
        self._allow_private = allow_private
        self._max_bytes = max_response_bytes
        self._timeout_seconds = timeout_seconds
        self._resolver = resolver or _resolve

    async def request(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> HttpAnswer:
        """The answer after at most five redirects.

        Raises: `ToolError` for a host or address that is not allowed, an answer that is too large, takes too long
        or does not come. No header is quoted in it.
        """
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._follow(method, url, dict(headers or {}), body)
        except TimeoutError:
            where = _where(url)
            raise ToolError(
                f"{where} did not give its whole answer within {self._timeout_seconds:g} s"
            ) from None

    async def _follow(self, method: str, url: str, headers: dict[str, str], body: bytes | None) -> HttpAnswer:
        for _ in range(MAX_REDIRECTS + 1):
            answer = await self._send(method, url, headers, body)
            target = answer.headers.get("location")
            if answer.status not in (301, 302, 303, 307, 308) or target is None:
                return answer
            following = urljoin(url, target)
            if answer.status == 303 or (answer.status in (301, 302) and method == "POST"):
                method, body = ("HEAD" if method == "HEAD" else "GET"), None
                headers.pop("content-type", None)
            if _origin(following) != _origin(url):
                headers = {key: value for key, value in headers.items() if key.lower() in _KEPT_ACROSS_HOSTS}
            url = following
        raise ToolError(f"{_where(url)} redirects more than {MAX_REDIRECTS} times")

    async def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> HttpAnswer:
        host, port, address = await self._check(url)
        client = _client(host, port, address)
        try:
            builder = (
                client.request(method, url)
                .headers(dict(headers))
                .timeout(timedelta(seconds=self._timeout_seconds))
            )
            builder = builder if body is None else builder.body_bytes(body)
        except ValueError:
            raise ToolError(
                f"cannot send a request to {_where(url)}: the URL or a header is not valid"
            ) from None
        from pyreqwest import exceptions

        try:
            async with builder.build_streamed() as response:
                content = bytearray()
                while (chunk := await response.body_reader.read_chunk()) is not None:
                    content += chunk.to_bytes()
                    if len(content) > self._max_bytes:
                        raise ToolError(
                            f"the answer of {_where(url)} is larger than {self._max_bytes:,} bytes; ask for less"
                        )
                found = {name.lower(): value for name, value in response.headers.items()}
                return HttpAnswer(response.status, found, bytes(content), url)
        except exceptions.PyreqwestError as error:
            raise ToolError(f"{_where(url)} gave no answer: {_describe(error)}") from None

    async def _check(self, url: str) -> tuple[str, int, str]:
        """Host, port and the address to connect to. Raises: `ToolError` if one of them is not allowed."""
        try:
            parts = urlsplit(url)
            host, port = (parts.hostname or "").rstrip("."), parts.port
        except ValueError as error:
            raise ToolError(f"{url[:200]!r} is no URL: {error}") from None
        if parts.scheme not in ("http", "https"):
            raise ToolError(f"{_where(url)} is neither http nor https, so no request is made")
        if parts.username is not None or parts.password is not None:
            raise ToolError(f"the URL of {host!r} holds a user or password, so no request is made")
        port = port or (443 if parts.scheme == "https" else 80)
        if not host or any(char.isspace() or char in "\\%" for char in host):
            raise ToolError(f"{url[:200]!r} has no usable host")
        full = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if host not in self._hosts and full not in self._hosts:
            allowed = ", ".join(sorted(self._hosts)) or "none"
            raise ToolError(f"the host {full!r} is not allowed; allowed are: {allowed}")
        addresses = await self._resolver(host, port)
        if not addresses:
            raise ToolError(f"the host {host!r} has no address")
        is_exempt = self._allow_private or host in self._named or full in self._named
        for address in addresses:
            kind = None if is_exempt else special_kind(address)
            if kind is not None:
                raise ToolError(f"the host {host!r} leads to {address}, a {kind} address; no request is made")
        return host, port, addresses[0]


def special_kind(address: str) -> str | None:
    """What keeps `address` from being one of the public internet; `None` if nothing does."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    inner = _embedded(ip)
    if inner is not None:
        return special_kind(str(inner))
    for kind in ("loopback", "link_local", "multicast", "unspecified", "reserved", "private"):
        if getattr(ip, f"is_{kind}"):
            return kind.replace("_", "-")
    if ip.version == 4 and ip in _SHARED:
        return "shared"
    return None if ip.is_global else "special"


def _embedded(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that an IPv6 address stands for."""
    if isinstance(ip, ipaddress.IPv4Address):
        return None
    if ip in _NAT64 or (int(ip) >> 32 == 0 and int(ip) > 1):
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)


async def _resolve(host: str, port: int) -> Sequence[str]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ToolError(f"the host {host!r} is not known: {error}") from None
    return list(dict.fromkeys(str(item[4][0]) for item in found))


@lru_cache(maxsize=256)
def _client(host: str, port: int, address: str) -> Any:
    """A pooled client that connects to this address alone, whatever the name says later."""
    from pyreqwest.client import ClientBuilder

    builder = ClientBuilder().no_proxy().follow_redirects(False).user_agent("treadle")
    builder = builder.connect_timeout(timedelta(seconds=10)).pool_idle_timeout(timedelta(seconds=30))
    return builder.resolve(host, address, port).build()


def _is_literal(item: str) -> bool:
    host = urlsplit(f"//{item}").hostname or ""
    if host == "localhost":
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.rpartition("@")[2].lower()


def _where(url: str) -> str:
    """Scheme, host and port: nothing that may be secret."""
    scheme, netloc = _origin(url)
    return f"{scheme}://{netloc}"


def _describe(error: Any) -> str:
    causes = [str(item["message"]) for item in (getattr(error, "details", None) or {}).get("causes") or ()]
    return causes[-1].split(" (os error")[0].lower() if causes else type(error).__name__


def host_of(url: str) -> str:
    """Host and port of a URL that a user gave. Raises: `ConfigError`."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r} is no URL: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(f"{url!r} is no URL of a server; write http://host:port or https://host")
    port = port or (443 if parts.scheme == "https" else 80)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
