"""Requests to https:// URLs, on the event loop and through pyreqwest.

`authority.pem` has signed the certificate in `server.pem` for localhost and 127.0.0.1, until 2126.
"""

import asyncio
import ssl
from pathlib import Path

import pytest
from tests.http.ways import TRANSPORTS, WAYS, over_pyreqwest, whole
from tests.models.server import STALL, End, Reply, serve

from treadle import Agent
from treadle.core.errors import HandshakeError, ToolError, TransportError
from treadle.core.types import Fault
from treadle.http.guarded import GuardedHttp
from treadle.http.pinned import PinnedConnection
from treadle.http.plain.dial import can_secure
from treadle.http.reqwest import client_for
from treadle.http.transport import HttpTransport
from treadle.models import FallbackModel, OpenAIChatModel, RetryModel, ScriptedModel

FOLDER = Path(__file__).parents[1] / "data" / "tls"
UNTRUSTED = r"cannot connect to https://.*certificate.*SSL_CERT_FILE"

pytestmark = pytest.mark.skipif(not can_secure(), reason="the system keeps its certificates elsewhere")


@pytest.fixture
def context():
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(FOLDER / "server.pem")
    return made


@pytest.fixture
def trusted(monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(FOLDER / "authority.pem"))


@TRANSPORTS
@WAYS
async def test_a_companys_certificate_is_trusted_if_its_file_is_named(make, ask, context, trusted):
    async with serve([Reply(b"ok")], tls=context) as server:
        for host in ("localhost", "127.0.0.1"):
            # pyreqwest reads the certificates when a client with new time-outs is made.
            transport = make(timeout_seconds=100.0 + server.port)
            url = f"https://{host}:{server.port}/v1"
            assert [await ask(transport, url) for _ in range(3)] == [(200, b"ok")] * 3


async def test_on_the_loop_a_connection_is_used_again_and_closed_when_its_request_is_cancelled(
    context, trusted
):
    async with serve([Reply(b"ok"), Reply(b"ok"), STALL], tls=context) as server:
        transport = HttpTransport(timeout_seconds=5.0)
        for _ in range(2):
            assert await whole(transport, server.origin) == (200, b"ok")
        assert server.connections == 1
        task = asyncio.create_task(whole(transport, server.origin))
        while len(server.requests) < 3:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(5):
            while server._writers:
                await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(raw=b"", end=End.CLOSE),
        Reply(raw=b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", end=End.CLOSE),
    ],
)
async def test_a_secure_connection_that_breaks_is_a_failure_that_is_tried_again(reply, context, trusted):
    async with serve([reply], tls=context) as server:
        with pytest.raises(TransportError, match="broke before the whole answer came") as caught:
            await whole(HttpTransport(timeout_seconds=5.0), server.origin)
    assert caught.value.is_retryable


@TRANSPORTS
@WAYS
async def test_a_certificate_that_is_not_trusted_is_said_once_with_what_to_do(make, ask, context):
    async with serve([Reply(b"ok")], tls=context) as server:
        with pytest.raises(HandshakeError, match=UNTRUSTED) as caught:
            await ask(make(timeout_seconds=200.0 + server.port), server.origin)
    assert (caught.value.is_retryable, caught.value.may_be_billed) == (False, False)


@TRANSPORTS
async def test_a_file_of_certificates_that_is_not_there_is_named(make, context, tmp_path, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "gone.pem"))
    async with serve([Reply(b"ok")], tls=context) as server:
        with pytest.raises(HandshakeError, match=r"gone\.pem' now, and there is no such file"):
            await whole(make(timeout_seconds=240.0 + server.port), server.origin)


@TRANSPORTS
@WAYS
async def test_a_server_of_plain_http_is_not_asked_again_over_https(make, ask):
    async def refuse(reader, writer):
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")

    listener = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with listener:
        with pytest.raises(HandshakeError, match="right to say https"):
            await ask(make(), f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}")


async def test_a_pinned_connection_and_a_tool_say_it_too(context):
    async with serve([Reply(b"ok")], tls=context) as server:
        with pytest.raises(HandshakeError, match=UNTRUSTED):
            await PinnedConnection.open(server.origin)
        host = f"127.0.0.1:{server.port}"
        client_for.cache_clear()  # a client that an earlier test has made may trust the authority
        with pytest.raises(ToolError, match=UNTRUSTED):
            await GuardedHttp((), named_by_user=[host]).request("GET", server.origin)


async def test_a_run_ends_at_once_and_says_that_it_is_the_users_to_mend(context):
    async def no_sleep(_):
        raise AssertionError("it is tried again")

    async with serve([Reply(b"ok")], tls=context) as server:
        for transport in (HttpTransport(), over_pyreqwest(timeout_seconds=300.0 + server.port)):
            model = RetryModel(
                OpenAIChatModel("m", base_url=server.origin, transport=transport), sleep=no_sleep
            )
            run = await Agent(model, journal="memory:").run("Hello?")
            assert run.fault is Fault.USER
            assert "SSL_CERT_FILE" in run.error
            spare = FallbackModel([model, ScriptedModel(["Sunny."])], cooldown_seconds=0)
            assert (await Agent(spare, journal="memory:").run("Hello?")).output == "Sunny."
