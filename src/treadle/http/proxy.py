"""The decision whether a request to an http:// URL goes through a proxy, by the same rules as pyreqwest.

Source: hyper-util 0.1, `client::proxy::matcher`, which reqwest 0.12 and 0.13 use. This module only decides
whether there may be a proxy; pyreqwest then finds the proxy and connects to it.
"""

import ipaddress
import os
import sys

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_proxied(host: str) -> bool:
    """Return whether the environment may name a proxy for http:// requests to `host`.

    `host` is a name in lower case or an address without brackets.
    """
    if "REQUEST_METHOD" not in os.environ:
        # Under CGI these variables can be set by a client's header, and pyreqwest ignores them.
        if _first("HTTP_PROXY", "http_proxy") or _first("ALL_PROXY", "all_proxy"):
            return not _is_exempt(host, _first("NO_PROXY", "no_proxy"))
        return sys.platform in ("darwin", "win32") and _has_system_proxy()
    return False


def _first(*names: str) -> str:
    return next((os.environ[name] for name in names if name in os.environ), "")


def _has_system_proxy() -> bool:
    from urllib.request import getproxies

    return bool(getproxies())


def _is_exempt(host: str, exceptions: str) -> bool:
    address = _read_address(host)
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
        return _read_address(item) == address
    try:
        return address in ipaddress.ip_network(item, strict=False)
    except ValueError:
        return False


def _read_address(text: str) -> _Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
