"""Requests, over real sockets, reach only the hosts and addresses that are allowed."""

import asyncio
import gzip
from collections.abc import Sequence

import pytest
from tests.tools.web import Asked, serve

from treadle.core.errors import ConfigError, ToolError
from treadle.http.guarded import GuardedHttp, Resolver, host_of, special_kind


def ok(asked: Asked) -> tuple[int, dict[str, str], bytes]:
    return 200, {"content-type": "text/plain"}, b"ok"


def known(**hosts: str | list[str]) -> Resolver:
    async def resolve(host: str, port: int) -> Sequence[str]:
        found = hosts[host.partition(".")[0]]
        return [found] if isinstance(found, str) else found

    return resolve


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.8.9.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0"),
        *("100.64.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1"),
        *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "::127.0.0.1"),
        *("64:ff9b:1::1", "2001::1", "fec0::1", "2001::5ef5:79fd:3866:3454:f7f7:f7f7"),
    ],
)
def test_addresses_that_are_not_of_the_public_internet(address: str) -> None:
    assert special_kind(address) is not None


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8"]
)
def test_addresses_that_are(address: str) -> None:
    assert special_kind(address) is None


async def test_only_named_hosts_and_ports_are_asked() -> None:
    with serve(ok) as web:
        http = GuardedHttp([], named_by_user=[f"127.0.0.1:{web.port}"])
        assert (await http.request("GET", f"{web.url}/a")).body == b"ok"
        for url in (f"http://127.0.0.2:{web.port}/", f"http://localhost:{web.port}/", "http://127.0.0.1:1/"):
            with pytest.raises(ToolError, match=r"is not allowed; allowed hosts: 127.0.0.1"):
                await http.request("GET", url)
        assert len(web.asked) == 1


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://example.org/", "neither http nor https"),
        ("file:///etc/passwd", "neither http nor https"),
        ("http://user:secret77@example.org/", "holds a user or password"),
        ("http://:secret77@example.org/", "holds a user or password"),
        ("http://example.org%2f@evil/", "holds a user or password"),
        ("http://example.org%2fevil/secret77", "the URL is not valid"),
        ("http://[::1/secret77", "the URL is not valid"),
        ("http://example.org:99999/secret77", "the URL is not valid"),
        ("/only/a/path", "the URL is not valid"),
        ("http://", "the URL is not valid"),
        ("http:///path", "the host 'path:80' is not allowed"),
        ("http://evil\\@example.org/", "the host 'evil:80' is not allowed"),
        ("http://2130706433/", "the host '127.0.0.1:80' is not allowed"),
        ("http://0x7f.1/", "the host '127.0.0.1:80' is not allowed"),
        ("http://0177.0.0.1/", "the host '127.0.0.1:80' is not allowed"),
        ("http://127。0。0。1/", "the host '127.0.0.1:80' is not allowed"),
        ("http://[::ffff:7f00:1]/", r"the host '\[::ffff:7f00:1\]:80' is not allowed"),
        ("http://evil.example.org/", "is not allowed"),
        ("http://exämple.org/", "the host 'xn--exmple-cua.org:80' is not allowed"),
        ("https://ported.example/", "the host 'ported.example:443' is not allowed"),
    ],
)
async def test_urls_that_are_refused(url: str, message: str) -> None:
    with pytest.raises(ToolError, match=message) as refused:
        await GuardedHttp(["example.org", "ported.example:80"]).request("GET", url)
    assert "secret77" not in str(refused.value)


async def test_a_named_host_that_leads_to_a_private_address_is_refused() -> None:
    with serve(ok) as web:
        for found in ("127.0.0.1", "169.254.169.254", "::1", ["8.8.8.8", "127.0.0.1"], "nonsense", []):
            http = GuardedHttp([f"api.example:{web.port}"], resolver=known(api=found))
            with pytest.raises(ToolError, match=r"no request is made|has no address"):
                await http.request("GET", f"http://api.example:{web.port}/")
        assert web.asked == []


async def test_a_name_that_the_user_gave_may_lead_to_no_private_address_either() -> None:
    with serve(ok) as web:
        http = GuardedHttp([], named_by_user=["api.example"], resolver=known(api="127.0.0.1"))
        with pytest.raises(ToolError, match=r"a loopback address; .* \(allow_private=True allows it\)"):
            await http.request("GET", f"http://api.example:{web.port}/")
        assert web.asked == []


async def test_spellings_of_an_address_gain_nothing() -> None:
    hosts = [
        "2130706433",
        "127.1",
        "0177.0.0.1",
        "0x7f000001",
        "127.0.0.1.",
        "127。0。0。1",
        "[::ffff:127.0.0.1]",
    ]
    with serve(ok) as web:
        http = GuardedHttp(hosts)
        for host in hosts:
            with pytest.raises(ToolError, match=r"leads to .*, a loopback address"):
                await http.request("GET", f"http://{host}:{web.port}/")
        assert web.asked == []


async def test_spellings_of_a_name_are_one_name() -> None:
    resolver = known(**{"xn--exmple-cua": "127.0.0.1", "api": "127.0.0.1"})
    with serve(ok) as web:
        http = GuardedHttp(["EXÄMPLE.org", "api.example."], allow_private=True, resolver=resolver)
        for host in ("exämple.org", "xn--exmple-cua.ORG", "API.example", "api.example."):
            assert (await http.request("GET", f"http://{host}:{web.port}/")).body == b"ok"
    assert {asked.headers["host"].partition(":")[0] for asked in web.asked} == {
        "xn--exmple-cua.org",
        "api.example",
    }


@pytest.mark.parametrize("name", ["rebind.example", "rebind.example.", "REBIND.example"])
async def test_the_connection_goes_to_the_address_that_was_checked(name: str) -> None:
    """A name may change its address between two look-ups: each request checks the address and then uses it."""
    answers = iter([["127.0.0.99", "127.0.0.1"], ["127.0.0.99"]])

    async def changing(host: str, port: int) -> Sequence[str]:
        return next(answers)

    with serve(ok) as web:
        http = GuardedHttp(["rebind.example"], allow_private=True, resolver=changing)
        assert (await http.request("GET", f"http://{name}:{web.port}/")).body == b"ok"
        assert web.asked[0].headers["host"] == f"rebind.example:{web.port}"
        with pytest.raises(ToolError, match="gave no answer"):
            await http.request("GET", f"http://{name}:{web.port}/")


async def test_a_name_that_turns_private_is_refused_the_second_time() -> None:
    answers = iter(["8.8.8.8", "127.0.0.1"])

    async def changing(host: str, port: int) -> Sequence[str]:
        return [next(answers)]

    with serve(ok) as web:
        http = GuardedHttp(["rebind.example"], resolver=changing, timeout_seconds=0.3)
        for message in ("gave no answer|whole answer", "leads to 127.0.0.1, a loopback address"):
            with pytest.raises(ToolError, match=message):
                await http.request("GET", f"http://rebind.example:{web.port}/")
    assert web.asked == []


async def test_localhost_may_be_named() -> None:
    with serve(ok) as web:
        http = GuardedHttp([], named_by_user=["localhost"])
        assert (await http.request("GET", f"http://localhost:{web.port}/")).body == b"ok"


@pytest.mark.parametrize("host", ["", "a b", "http://x.org", "x.org/path", "u@x.org", "x.org?q", "[::1"])
def test_what_is_no_host(host: str) -> None:
    with pytest.raises(ConfigError, match="is not a host; write a name or an address"):
        GuardedHttp([host])


def test_hosts_of_urls() -> None:
    assert host_of("https://Example.ORG./a?b") == "example.org:443"
    assert host_of("http://[::1]/") == "[::1]:80"
    for url, message in (
        ("example.org", "is not the URL of a server"),
        ("ftp://example.org", "is not the URL of a server"),
        ("http://u:secret77@example.org", "holds a user or password"),
    ):
        with pytest.raises(ConfigError, match=message) as refused:
            host_of(url)
        assert "secret77" not in str(refused.value)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_checked_again(status: int) -> None:
    def lead(asked: Asked) -> tuple[int, dict[str, str], bytes]:
        targets = {
            "/out": "http://127.0.0.2/",
            "/meta": "http://169.254.169.254/",
            "/file": "file:///etc/passwd",
        }
        if asked.path == "/here":
            kind = asked.headers.get("content-type", "nothing")
            return 200, {}, f"{asked.method} {len(asked.body)} {kind}".encode()
        if asked.path == "/loop":
            return status, {"location": "/loop"}, b""
        if asked.path == "/nowhere":
            return status, {}, b""
        return status, {"location": targets.get(asked.path, "/here")}, b""

    with serve(lead) as web:
        http = GuardedHttp([], named_by_user=[f"127.0.0.1:{web.port}"])
        same = await http.request("POST", f"{web.url}/start", {"content-type": "text/plain"}, b"body")
        assert same.body == (b"POST 4 text/plain" if status in (307, 308) else b"GET 0 nothing")
        for path, message in (
            ("out", "not allowed"),
            ("meta", "not allowed"),
            ("file", "neither http nor https"),
        ):
            with pytest.raises(ToolError, match=message):
                await http.request("GET", f"{web.url}/{path}")
        with pytest.raises(ToolError, match="redirects more than 5 times"):
            await http.request("GET", f"{web.url}/loop")
        with pytest.raises(
            ToolError, match=rf"{web.url} answered {status}, a redirect to http://127.0.0.2, ano"
        ):
            await http.request("GET", f"{web.url}/out")
        with pytest.raises(ToolError, match=f"answered {status}, a redirect without an address to go to"):
            await http.request("GET", f"{web.url}/nowhere")


async def test_secrets_do_not_follow_a_redirect_to_another_host() -> None:
    with serve(ok) as other, serve(lambda asked: (307, {"location": f"{other.url}/"}, b"")) as web:
        hosts = [f"127.0.0.1:{item.port}" for item in (web, other)]
        http = GuardedHttp([], named_by_user=hosts)
        headers = {"authorization": "Bearer s", "x-api-key": "s", "cookie": "s", "accept": "text/plain"}
        assert (await http.request("GET", f"{web.url}/", headers)).body == b"ok"
    assert web.asked[0].headers["authorization"] == "Bearer s"
    assert {"authorization", "x-api-key", "cookie"}.isdisjoint(other.asked[0].headers)
    assert other.asked[0].headers["accept"] == "text/plain"


async def test_answers_are_read_up_to_a_limit_after_decompression() -> None:
    bomb = gzip.compress(b"\0" * 20_000_000)

    def large(asked: Asked) -> tuple[int, dict[str, str], bytes]:
        if asked.path == "/bomb":
            return 200, {"content-encoding": "gzip"}, bomb
        return 200, {}, b"x" * int(asked.path[1:])

    with serve(large) as web:
        http = GuardedHttp([], named_by_user=[f"127.0.0.1:{web.port}"], max_response_bytes=1000)
        assert len((await http.request("GET", f"{web.url}/1000")).body) == 1000
        for path in ("1001", "5000000", "bomb"):
            with pytest.raises(ToolError, match="is larger than 1,000 bytes"):
                await http.request("GET", f"{web.url}/{path}")


async def test_an_answer_that_drips_is_given_up() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n")
        for _ in range(100):
            writer.write(b"x")
            await asyncio.sleep(0.05)

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    http = GuardedHttp([], named_by_user=[f"127.0.0.1:{port}"], timeout_seconds=0.4)
    with pytest.raises(ToolError, match=r"within 0.4 s"):
        await http.request("GET", f"http://127.0.0.1:{port}/")
    server.close()


async def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(ok) as proxy, serve(ok) as web:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        resolver = known(proxied="127.0.0.1")
        http = GuardedHttp(["proxied.example"], allow_private=True, resolver=resolver)
        await http.request("GET", f"http://proxied.example:{web.port}/")
    assert (len(web.asked), len(proxy.asked)) == (1, 0)


async def test_a_server_that_is_not_there_says_so_without_headers() -> None:
    http = GuardedHttp([], named_by_user=["127.0.0.1:9"])
    with pytest.raises(ToolError, match=r"http://127.0.0.1:9 gave no answer") as failed:
        await http.request("GET", "http://127.0.0.1:9/", {"authorization": "Bearer s3cret"})
    assert "s3cret" not in str(failed.value)
