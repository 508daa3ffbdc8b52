"""Which requests go through a proxy of the environment."""

import pytest
from tests.http.ways import TRANSPORTS, WAYS
from tests.models.server import Reply, serve

from treadle.http.plain.dial import is_proxied
from treadle.http.transport import HttpTransport

VARIABLES = ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy", "REQUEST_METHOD")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Start without any proxy."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("variables", "is_expected"),
    [
        ({}, False),
        ({"HTTP_PROXY": "http://proxy"}, True),
        ({"http_proxy": "proxy:3128"}, True),
        ({"ALL_PROXY": "socks5://proxy"}, True),
        ({"all_proxy": "http://proxy"}, True),
        ({"HTTPS_PROXY": "http://proxy"}, False),
        ({"HTTP_PROXY": "", "http_proxy": "http://proxy"}, False),
        ({"HTTP_PROXY": "", "ALL_PROXY": "http://proxy"}, True),
        ({"HTTP_PROXY": "http://proxy", "REQUEST_METHOD": "GET"}, False),
    ],
)
def test_the_variables_that_name_a_proxy(environment, variables, is_expected):
    for name, value in variables.items():
        environment.setenv(name, value)
    assert is_proxied("engine.example") is is_expected


@pytest.mark.parametrize(
    ("exceptions", "exempt", "proxied"),
    [
        ("*", ["a.b", "localhost"], ["127.0.0.1"]),
        ("foo.bar", ["foo.bar", "www.foo.bar"], ["notfoo.bar", "bar", "foo.bar.org"]),
        (".foo.bar", ["foo.bar", "www.foo.bar"], ["notfoo.bar"]),
        ("Foo.Bar , localhost", ["foo.bar", "localhost"], ["other"]),
        ("10.42.1.1/24,10.124.7.8", ["10.42.1.100", "10.124.7.8"], ["10.43.1.1", "10.124.7.7", "a.b"]),
        ("::1,2001::/17", ["::1", "2001:db8::1"], ["2005:db8::1", "ffff::1"]),
        ("127.0.0.1", ["127.0.0.1"], ["localhost", "127.0.0.2"]),
        ("", [], ["a.b", "127.0.0.1"]),
        (",,", [], ["a.b", "127.0.0.1"]),
        ("10.0.0.0/99", [], ["10.0.0.0"]),
    ],
)
def test_the_hosts_that_are_exempt(environment, exceptions, exempt, proxied):
    environment.setenv("HTTP_PROXY", "http://proxy")
    environment.setenv("NO_PROXY", exceptions)
    assert [host for host in exempt if is_proxied(host)] == []
    assert [host for host in proxied if not is_proxied(host)] == []


@TRANSPORTS
@WAYS
async def test_a_proxy_is_asked_unless_the_host_is_exempt(environment, make, ask):
    async with serve([Reply(b"proxy")]) as proxy, serve([Reply(b"server")]) as server:
        environment.setenv("HTTP_PROXY", proxy.origin)
        # Each pair of time-outs has a client of its own, which reads the environment when it is made.
        assert await ask(make(timeout_seconds=11.0 + proxy.port), server.origin + "/v1") == (200, b"proxy")
        assert proxy.requests[0].path == f"{server.origin}/v1"
        environment.setenv("NO_PROXY", "127.0.0.0/8")
        assert await ask(make(timeout_seconds=12.0 + proxy.port), server.origin + "/v1") == (200, b"server")


async def test_without_a_proxy_plain_http_is_spoken_on_the_event_loop():
    async with serve([Reply(b"ok")]) as server:
        await HttpTransport().post(server.origin, {}, b"")
        assert server.requests[0].headers["accept-encoding"] == "gzip, deflate"
