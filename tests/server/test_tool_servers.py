"""`treadle tools serve` as a process, with a Spin client written from the description and the MCP SDK's client."""

import asyncio
import http.client
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from mcp import Client, StdioServerParameters
from tests.forks.process import FORKS, PYTHON

from treadle import ToolContext
from treadle.core.errors import ConfigError
from treadle.core.types import Effect
from treadle.sandbox.in_memory import MemorySandbox
from treadle.tools.context import Scope
from treadle.tools.mcp import MCPServer
from treadle.tools.spin import Spin, spin

TOOLS = """
import asyncio
from treadle import Attachment, ToolOutput, tool

@tool(effect="once")
async def fail() -> str:
    raise RuntimeError("it broke")

@tool(effect="idempotent")
async def wait(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "waited"
"""


class Served:
    """A server and its address."""

    def __init__(self, folder: Path, *options: str) -> None:
        (folder / "own.py").write_text(TOOLS)
        arguments = ["-m", "treadle", "tools", "serve", "--port", "0", "--json", *options]
        pipe = subprocess.PIPE
        self.process = FORKS.start(*arguments, cwd=folder, stdout=pipe, stderr=pipe)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()
        self.where = json.loads(line)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(urlsplit(self.where["spin"]).netloc, timeout=30)
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection.request(method, path, data, {"content-type": "application/json"})
        answer = connection.getresponse()
        said = answer.read()
        connection.close()
        return answer.status, json.loads(said) if said.startswith((b"{", b"[")) else said

    def execute(self, session: str, tool: str, route: str = "/vfs/execute", **args: Any) -> Any:
        status, said = self.ask("POST", route, {"session_id": session, "tool": tool, "args": args})
        assert status == 200
        return said

    def stop(self, ending: signal.Signals = signal.SIGINT) -> tuple[int, str]:
        self.process.send_signal(ending)
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "seed").mkdir()
    (folder / "seed" / "a.txt").write_text("planted")
    served = Served(folder, "--tools", "files", "--tools", "python", "--tools", "own.py", "--mount", "seed")
    yield served
    assert served.stop() == (130, "interrupted\n")


def test_the_file_tools_answer_as_deepfabric_knows_them(served: Served) -> None:
    assert served.execute("s1", "read_file", file_path="a.txt") == {"success": True, "result": "planted"}
    assert served.execute("s1", "write_file", file_path="b/__files__", content="é") == {
        "success": True,
        "result": "Successfully wrote 2 bytes to b/__files__",
    }
    assert served.execute("s1", "list_files") == {"success": True, "result": '["a.txt","b/__files__"]'}
    assert served.execute("s1", "delete_file", file_path="a.txt")["result"] == "Successfully deleted a.txt"
    assert served.execute("s1", "read_file", file_path="a.txt") == {
        "success": False,
        "result": "File not found: a.txt",
        "error_type": "FileNotFound",
    }
    assert served.execute("s1", "read_file")["error_type"] == "InvalidArguments"
    assert served.execute("s1", "read_file", file_path="../x")["error_type"] == "IOError"
    assert served.execute("s2", "list_files")["result"] == '["a.txt"]'


@pytest.mark.parametrize("path", ["/session/{}", "/vfs/session/{}"])
def test_both_addresses_free_a_session(served: Served, path: str) -> None:
    served.execute("gone", "write_file", file_path="x", content="1")
    before = served.ask("GET", "/health")[1]["sessions"]
    assert served.ask("DELETE", path.format("gone")) == (
        200,
        {"success": True, "session_id": "gone", "freed": True},
    )
    assert served.ask("GET", "/vfs/health")[1]["sessions"] == before - 1
    assert served.ask("DELETE", path.format("gone"))[1]["freed"] is False
    assert served.execute("gone", "list_files")["result"] == '["a.txt"]'


def test_other_tools_are_reached_by_any_component(served: Served) -> None:
    code = "x = open('a.txt').read()\nx"
    for route in ("/execute", "/vfs/execute", "/tools/execute"):
        assert served.execute("s3", "python", route, code=code) == {"success": True, "result": "'planted'"}
    assert served.execute("s3", "python", "/execute", code="x")["result"] == "'planted'"
    failed = served.execute("s3", "fail", "/execute")
    assert failed == {"success": False, "result": "RuntimeError: it broke", "error_type": "IOError"}
    assert served.execute("s3", "nope", "/execute")["error_type"] == "UnknownTool"
    assert served.execute("s3", "python", "/execute", cod="1")["error_type"] == "InvalidArguments"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind"),
    [
        ("POST", "/execute", b"{", 400, "InvalidRequest"),
        ("POST", "/execute", b'{"session_id": "s", "args": ' + b"[" * 100_000, 400, "InvalidRequest"),
        (
            "POST",
            "/execute",
            b'{"session_id": "s", "tool": "f", "args": {"a": ' + b"[" * 9_000,
            400,
            "InvalidRequest",
        ),
        ("POST", "/execute", {"tool": "f"}, 400, "InvalidRequest"),
        ("POST", "/execute", {"session_id": "", "tool": "f"}, 400, "InvalidRequest"),
        ("POST", "/execute", {"session_id": "s", "tool": "f", "args": []}, 400, "InvalidRequest"),
        ("POST", "/github/execute", {"session_id": "s", "tool": "f"}, 404, "UnknownTool"),
    ],
)
def test_requests_that_cannot_be_read(
    served: Served, method: str, path: str, body: Any, status: int, kind: str
) -> None:
    found, said = served.ask(method, path, body)
    assert (found, said["success"], said["error_type"]) == (status, False, kind)


def test_calls_of_one_session_follow_each_other_and_sessions_run_side_by_side(served: Served) -> None:
    def append(number: int) -> Any:
        code = f"open('log', 'a').write('{number % 5};')"
        return served.execute(f"p{number // 5}", "python", "/execute", code=code)

    with ThreadPoolExecutor(10) as pool:
        assert all(item["success"] for item in pool.map(append, range(20)))
    for number in range(4):
        log = served.execute(f"p{number}", "read_file", file_path="log")["result"]
        assert sorted(log) == sorted("0;1;2;3;4;")


def test_the_mock_component(served: Served) -> None:
    schema = {"tools": [{"name": "f", "description": "d", "inputSchema": {"type": "object"}}]}
    assert served.ask("POST", "/mock/execute", {"name": "f", "arguments": {}})[0] == 404
    assert served.ask("POST", "/mock/load-schema", schema) == (200, {"loaded": 1, "tools": ["f"]})
    assert served.ask("GET", "/mock/list-tools")[1]["tools"][0]["name"] == "f"
    said = served.ask("POST", "/mock/execute", {"name": "f", "arguments": {"a": 1}})[1]["result"]
    assert said["mock_result"] == "Successfully executed f"
    served.ask("POST", "/mock/update-response", {"name": "f", "mockResponse": {"hello": "{{who}}"}})
    fixture = {"name": "f", "match": {"who": "a,b=c"}, "response": "matched"}
    assert served.ask("POST", "/mock/add-fixture", fixture)[1]["success"]
    for who, result in (("x", {"hello": "x"}), ("a,b=c", "matched")):
        assert served.ask("POST", "/mock/execute", {"name": "f", "arguments": {"who": who}}) == (
            200,
            {"result": result},
        )
    assert served.ask("POST", "/mock/load-schema", b"[")[0] == 400
    assert served.ask("POST", "/mock/add-fixture", {"name": "f"})[0] == 400
    assert [tool.spec.name for tool in spin(f"{served.where['spin']}/mock").tools()] == ["f"]
    assert served.ask("POST", "/mock/clear", {}) == (200, {"success": True})
    with pytest.raises(ConfigError, match="lists no tools"):
        spin(f"{served.where['spin']}/mock").tools()


async def test_our_own_client(served: Served) -> None:
    toolset: Spin = spin(served.where["spin"])
    scope = Scope()
    context = ToolContext("run9", "c", 1, MemorySandbox({"mine.txt": "own"}), scope=scope)
    tools = {tool.spec.name: tool for tool in toolset.tools()}
    assert (await tools["list_files"].call({}, context)).content == '["a.txt","mine.txt"]'
    before = served.ask("GET", "/health")[1]["sessions"]
    scope.is_run_over = True
    await scope.close()
    assert served.ask("GET", "/health")[1]["sessions"] == before - 1


async def test_mcp_over_http_keeps_sessions_apart_and_frees_them(served: Served) -> None:
    before = served.ask("GET", "/health")[1]["sessions"]
    url = served.where["mcp"]
    async with Client(url) as one, Client(url) as two:
        tools = {tool.name: tool for tool in (await one.list_tools()).tools}
        assert tools["read_file"].annotations is not None
        assert tools["read_file"].annotations.read_only_hint
        assert tools["write_file"].annotations.idempotent_hint  # type: ignore[union-attr]
        assert tools["python"].input_schema["required"] == ["code"]
        await one.call_tool("write_file", {"file_path": "b", "content": "1"})
        await one.call_tool("python", {"code": "x = 41"})
        assert (await one.call_tool("python", {"code": "x + 1"})).content[0].text == "42"  # type: ignore[union-attr]
        assert (await two.call_tool("list_files", {})).content[0].text == '["a.txt"]'  # type: ignore[union-attr]
        failed = await two.call_tool("fail", {})
        assert (failed.is_error, failed.content[0].text) == (True, "RuntimeError: it broke")  # type: ignore[union-attr]
        wrong = await two.call_tool("python", {"cod": "1"})
        assert wrong.is_error
        assert served.ask("GET", "/health")[1]["sessions"] == before + 2
    for _ in range(100):
        if served.ask("GET", "/health")[1]["sessions"] == before:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the sessions were not freed")


async def test_our_own_mcp_client_takes_the_effects_back(served: Served) -> None:
    async with MCPServer(url=served.where["mcp"]) as server:
        effects = {tool.spec.name: tool.spec.effect for tool in server.tools()}
        assert (effects["read_file"], effects["write_file"], effects["fail"]) == (
            Effect.PURE,
            Effect.IDEMPOTENT,
            Effect.ONCE,
        )


async def test_mcp_over_stdio(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("seed")
    arguments = [
        "-m",
        "treadle",
        "tools",
        "serve",
        "--mcp",
        "stdio",
        "-t",
        "python",
        "--mount",
        str(tmp_path),
    ]
    parameters = StdioServerParameters(command=PYTHON, args=arguments, env=FORKS.variables())
    async with Client(parameters) as client:
        await client.call_tool("python", {"code": "n = open('a.txt').read()"})
        assert (await client.call_tool("python", {"code": "n"})).content[0].text == "'seed'"  # type: ignore[union-attr]


def test_idle_sessions_are_freed_and_there_are_only_so_many(tmp_path: Path) -> None:
    served = Served(tmp_path, "--idle", "0.4", "--max-sessions", "2", "--spin")
    assert "mcp" not in served.where
    for name in "abc":
        served.execute(name, "write_file", file_path="x", content=name)
    assert served.ask("GET", "/health")[1]["sessions"] == 2
    assert served.execute("c", "read_file", file_path="x")["result"] == "c"
    deadline = 100
    while served.ask("GET", "/health")[1]["sessions"] and deadline:
        deadline -= 1
        import time

        time.sleep(0.05)
    assert served.ask("GET", "/health")[1]["sessions"] == 0
    assert served.stop(signal.SIGTERM)[0] == 130


def test_what_cannot_be_served(tmp_path: Path) -> None:
    def run(*options: str) -> tuple[int, str]:
        env = {**os.environ, "COLUMNS": "200"}
        arguments = ["-m", "treadle", "tools", "serve", *options]
        done = FORKS.start(*arguments, cwd=tmp_path, env=env, stderr=subprocess.PIPE)
        return done.wait(60), done.communicate()[1]

    served = Served(tmp_path)
    port = str(urlsplit(served.where["spin"]).port)
    code, errors = run("--port", port)
    assert (code, "Address already in use; try another --port, or 0" in errors) == (2, True), errors
    served.stop()
    assert run("--spin", "--mcp", "http")[0] == 2
    assert "unknown toolset 'fils'; did you mean 'files'" in run("--tools", "fils")[1]
    assert "there is no such file or folder" in run("--mount", "absent")[1]
