"""Opening a TCP connection to a host that may have several addresses, and the decision whether a proxy must do it.

The next address is tried when one has failed or has not answered for a moment, and the first connection wins (RFC
8305, happy eyeballs). uvloop's `create_connection` cannot be used, because it tries one address after the other.

The rules of proxies are pyreqwest's, which connects to the proxy. Source: hyper-util 0.1,
`client::proxy::matcher`, which reqwest 0.12 and 0.13 use.
"""

import asyncio
import errno
import ipaddress
import os
import socket
import ssl
import sys
from functools import cache, partial
from itertools import chain, zip_longest
from typing import Any

_STAGGER_SECONDS = 0.25
_KEEPALIVE_SECONDS = 60


def can_secure() -> bool:
    """Return whether Python's own TLS knows the certificates that this system trusts.

    On Linux it reads the same files as pyreqwest, also those of SSL_CERT_FILE and SSL_CERT_DIR. Elsewhere the
    system keeps its certificates in another way.
    """
    paths = ssl.get_default_verify_paths()
    return sys.platform == "linux" and bool(paths.cafile or paths.capath)


def tls_context() -> ssl.SSLContext:
    """Return the settings of TLS connections, which are read once for each place of trusted certificates."""
    return _tls_context(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@cache
def _tls_context(_file: str | None, _folder: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def explain_tls(error: OSError) -> str:
    """Return why a TLS handshake failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"invalid peer certificate: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return os.strerror(error.errno or errno.ECONNRESET).lower()


async def dial(loop: asyncio.AbstractEventLoop, host: str, port: int) -> socket.socket:
    """Return a connected socket. Raises: `OSError`, and `socket.gaierror` for a name that is not known."""
    addresses = await _look_up(loop, host, port)
    if len(addresses) == 1:
        return await _connect(loop, *addresses[0])
    return await connect_first(loop, addresses)


async def _look_up(
    loop: asyncio.AbstractEventLoop, host: str, port: int
) -> list[tuple[int, tuple[Any, ...]]]:
    """Return pairs of family and address, with the families alternating."""
    if (address := read_address(host)) is not None:  # it is looked up without a thread
        return [(socket.AF_INET if address.version == 4 else socket.AF_INET6, (host, port))]
    try:
        found = await look_up(loop, host, port)
    except UnicodeError:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known") from None
    first = [(item[0], item[4]) for item in found if item[0] == found[0][0]]
    others = [(item[0], item[4]) for item in found if item[0] != found[0][0]]
    return [item for item in chain.from_iterable(zip_longest(first, others)) if item is not None]


async def look_up(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[tuple[Any, ...]]:
    """Return the rows of `getaddrinfo` for TCP.

    They are looked up in a thread of Python. libuv's threads make a forked child crash when it exits. Raises:
    `socket.gaierror`.
    """
    find = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    return list(await loop.run_in_executor(None, find))


async def _connect(loop: asyncio.AbstractEventLoop, family: int, address: tuple[Any, ...]) -> socket.socket:
    connected = socket.socket(family, socket.SOCK_STREAM)
    try:
        connected.setblocking(False)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_SECONDS)
        await _reach(loop, connected, address)
    except BaseException:
        connected.close()
        raise
    return connected


async def _reach(loop: asyncio.AbstractEventLoop, connected: socket.socket, address: tuple[Any, ...]) -> None:
    """Connect a socket. uvloop's `sock_connect` would look the address up in a thread of libuv, see `look_up`."""
    if sys.platform == "win32":  # its event loop cannot wait for a socket to be writable
        await loop.sock_connect(connected, address)
        return
    code = connected.connect_ex(address)
    if code in (errno.EINPROGRESS, errno.EINTR):
        is_ready = asyncio.Event()
        loop.add_writer(connected, is_ready.set)
        try:
            await is_ready.wait()
        finally:
            loop.remove_writer(connected)
        code = connected.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, f"cannot connect to {address[0]}:{address[1]}: {os.strerror(code)}")


async def connect_first(
    loop: asyncio.AbstractEventLoop, addresses: list[tuple[int, tuple[Any, ...]]]
) -> socket.socket:
    """Return a socket connected to the first of the addresses that answers. Raises: `OSError` if none does."""
    waiting = addresses[::-1]
    running: set[asyncio.Task[socket.socket]] = set()
    failure: BaseException | None = None
    try:
        while waiting or running:
            if waiting:
                running.add(loop.create_task(_connect(loop, *waiting.pop())))
            pause = _STAGGER_SECONDS if waiting else None
            done, _ = await asyncio.wait(running, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                running.discard(task)
                failure = task.exception()
                if failure is None:
                    return task.result()
    finally:
        for task in running:
            if not task.done():
                task.cancel()
            elif task.exception() is None:
                task.result().close()
    raise failure or OSError(errno.EHOSTUNREACH, "no address")


_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_proxied(host: str, scheme: str = "http") -> bool:
    """Return whether the environment may name a proxy for requests to `host` with this scheme.

    `host` is a name in lower case or an address without brackets.
    """
    if "REQUEST_METHOD" not in os.environ:
        # Under CGI these variables can be set by a client's header, and pyreqwest ignores them.
        if _first(f"{scheme.upper()}_PROXY", f"{scheme}_proxy") or _first("ALL_PROXY", "all_proxy"):
            return not _is_exempt(host, _first("NO_PROXY", "no_proxy"))
        if sys.platform in ("darwin", "win32"):
            from urllib.request import getproxies

            return bool(getproxies())
    return False


def _first(*names: str) -> str:
    return next((os.environ[name] for name in names if name in os.environ), "")


def _is_exempt(host: str, exceptions: str) -> bool:
    address = read_address(host)
    for item in exceptions.split(","):
        item = item.strip().lower()
        if address is None:
            name = item.removeprefix(".")
            if item == "*" or (name and (host == name or host.endswith(f".{name}"))):
                return True
        elif _holds(item, address):
            return True
    return False


def _holds(item: str, address: _Address) -> bool:
    if "/" not in item:
        return read_address(item) == address
    try:
        return address in ipaddress.ip_network(item, strict=False)
    except ValueError:
        return False


def read_address(text: str) -> _Address | None:
    """Return the address that a text is; `None` if it is none, such as a name."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
