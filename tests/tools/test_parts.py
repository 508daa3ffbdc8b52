"""What a journal says of tools, and the tools that are made from it again."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.sandbox.here import needs_sandbox

from treadle.core.errors import ConfigError
from treadle.core.spec import PartSpec
from treadle.core.types import Effect, ToolSpec
from treadle.tools.file_tools import FilesToolset, files, read_file
from treadle.tools.function.decorator import tool
from treadle.tools.mcp import MCPServer, MCPServers, mcp
from treadle.tools.mock.mocks import Mock
from treadle.tools.mock.simulator import Simulator
from treadle.tools.openapi import OpenAPI
from treadle.tools.python import Python
from treadle.tools.resolve import part_of, parts_of, resolve_tools
from treadle.tools.shell import Shell
from treadle.tools.spin import Spin
from treadle.tools.toolset_parts import load_file, may_hold_secret
from treadle.tools.vfs import VfsToolset

SPEC = ToolSpec(
    "weather", "The weather.", {"type": "object", "properties": {"city": {"type": "string"}}}, Effect.PURE
)
API = {
    "openapi": "3.1.0",
    "info": {"title": "Numbers", "version": "1"},
    "servers": [{"url": "https://api.example.com"}],
    "components": {"securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "x-key"}}},
    "paths": {"/double": {"get": {"operationId": "double", "responses": {"200": {"description": "ok"}}}}},
}


def plain(a: int) -> int:
    return a


@tool(effect="pure")
def marked(a: int) -> int:
    return a


@tool
def _private(a: int) -> int:
    return a


renamed = tool(plain, name="other")


class Mine:
    def tools(self) -> list[Any]:
        return [marked]


mine = Mine()


class Sized:
    """A toolset of somebody else that says how it is made."""

    def __init__(self, size: int) -> None:
        self.part = PartSpec(name=f"{__name__}:Sized", settings={"size": size})

    def tools(self) -> list[Any]:
        return [tool(plain, description=self.part.name)]


def rebuilt(item: Any) -> list[ToolSpec]:
    """The definitions of the tools that a journal's copy of the part of `item` leads to."""
    part = msgspec.json.decode(msgspec.json.encode(part_of(item)), type=PartSpec)
    return [made.spec for made in resolve_tools([part])]


@pytest.mark.parametrize(
    ("item", "name"),
    [
        ("files", "files"),
        (plain, f"{__name__}:plain"),
        (marked, f"{__name__}:marked"),
        (renamed, f"{__name__}:renamed"),
        (read_file, "treadle.tools.file_tools:read_file"),
        (mine, f"{__name__}:mine"),
        (files, "files"),
        (Sized(3), f"{__name__}:Sized"),
    ],
)
def test_names(item: Any, name: str) -> None:
    part = part_of(item)
    assert (part.name, part.missing) == (name, None)
    assert rebuilt(item) == [made.spec for made in resolve_tools([item])]


TOOLSETS: list[Callable[[], Any]] = [
    lambda: FilesToolset(read_only=True),
    lambda: VfsToolset(["read_file"]),
    lambda: Python(max_seconds=3.0, name="code"),
    lambda: Mock([SPEC], fixtures={"weather": [{"match": {"city": "Oslo"}, "result": 4}]}, default="echo"),
    lambda: Mock({"tools": [{"name": "weather", "parameters": {}, "response": "fine"}]}),
    lambda: Spin("http://localhost:1/base", component="vfs", timeout_seconds=3.0, has_seed=False),
    lambda: Spin("http://localhost:1", component="x", tools=[SPEC]),
]


@pytest.mark.parametrize("make", TOOLSETS)
def test_toolsets_with_settings(make: Callable[[], Any]) -> None:
    assert part_of(make()).missing is None
    assert rebuilt(make()) == [made.spec for made in resolve_tools([make()])]


@needs_sandbox
def test_the_shell() -> None:
    shell = Shell(network=True, limits={"seconds": 3.0}, read_only_binds={"/usr/share": "/data"})
    settings = {"network": True, "limits": {"seconds": 3.0}, "read_only_binds": {"/usr/share": "/data"}}
    assert shell.part == PartSpec(name="shell", settings=settings)
    assert rebuilt(shell) == [made.spec for made in shell.tools()]
    assert Shell().part == PartSpec(name="shell")
    for more in ({"variables": {"STAGE": "test"}}, {"folders": {"/data": "", "/out": "results"}}):
        assert rebuilt(Shell(**more)) == [made.spec for made in Shell(**more).tools()]


def test_an_unprotected_shell_has_its_own_name() -> None:
    assert Shell(unprotected=True).part == PartSpec(name="shell-unprotected")
    assert rebuilt(Shell(unprotected=True))[0].effect is Effect.ONCE
    with pytest.raises(ConfigError, match=r"settings of 'shell' cannot be used.*unprotected"):
        resolve_tools([PartSpec(name="shell", settings={"unprotected": True})])


async def test_mock_answers_are_kept(tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_bytes(msgspec.json.encode({"tools": [{"name": "f", "parameters": {}}]}))
    path = str(tmp_path / "tools.json")
    mock = Mock(path, templates={"f": "from here"}, simulator=Simulator(NamedModel(), seed=3))
    settings = {"templates": {"f": "from here"}, "simulator": {"model": "openai:gpt-5-mini", "seed": 3}}
    assert part_of(mock) == PartSpec(name=f"mock:{path}", settings=settings)
    assert part_of(Mock(path, simulator=AnonymousModel())).missing


class AnonymousModel:
    name = "mine"
    infer: Any = None


class NamedModel(AnonymousModel):
    part = PartSpec(name="openai:gpt-5-mini")


class TestWhatCannotBeMadeAgain:
    def test_functions(self) -> None:
        def inner() -> None: ...

        made = tool(plain, name="nobody_holds_this")
        for item, why in (
            (inner, "within a function"),
            (tool(inner), "within a function"),
            (made, "object of the program"),
            (Python().call, "object of the program"),
            (partial(plain, 1), "object of the program"),
            (Mine(), "object of the program"),
        ):
            part = part_of(item)
            assert part.missing is not None
            assert why in part.missing
            with pytest.raises(ConfigError, match="cannot be built from its name: it is"):
                resolve_tools([part])

    def test_what_the_main_module_defines(self) -> None:
        namespace: dict[str, Any] = {"__name__": "__main__"}
        exec("def f(): ...", namespace)
        assert "__main__" in (part_of(namespace["f"]).missing or "")

    def test_a_module_that_nobody_can_import(self) -> None:
        namespace: dict[str, Any] = {"__name__": "made_up"}
        exec("def f(): ...", namespace)
        assert part_of(namespace["f"]) == PartSpec(name="made_up:f", missing="its module cannot be imported")


def test_a_plain_tool_of_a_function_is_the_function() -> None:
    (made,) = resolve_tools([plain])
    assert part_of(made) == PartSpec(name=f"{__name__}:plain")


def test_items_of_a_file_are_named_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text("def f() -> int:\n    return 1\n")
    (made,) = resolve_tools([str(path)])
    assert part_of(made) == PartSpec(name=f"{path}:f")
    assert rebuilt(made) == [made.spec]


def test_parts_of_nested_items() -> None:
    assert [part.name for part in parts_of(["files", [marked, (mine,)]])] == [
        "files",
        f"{__name__}:marked",
        f"{__name__}:mine",
    ]
    assert parts_of("files") == (PartSpec(name="files"),)
    assert parts_of([]) == ()


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (
            PartSpec(name="files", settings={"write_only": True}),
            "settings of 'files' cannot be used.*write_only",
        ),
        (PartSpec(name=f"{__name__}:marked", settings={}), "takes no settings"),
        (PartSpec(name="mcp"), "mcp: name a server"),
        (PartSpec(name="mcp:npx x", settings={"a": 1}), "takes no settings"),
        (PartSpec(name="mock"), "name a file of definitions"),
        (PartSpec(name="no_such"), "unknown toolset 'no_such'"),
    ],
)
def test_parts_that_lead_nowhere(part: PartSpec, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        resolve_tools([part])


@pytest.mark.parametrize(
    "text",
    [
        "mcp:KEY=abc npx server",
        "mcp:npx server --api-key abc",
        "mcp:npx server --api-key=abc",
        "mcp:npx server -token 'abc'",
        'mcp:{"command": "npx", "args": ["--api-key", "abc"]}',
        'mcp:{"command": "npx", "env": {"KEY": "abc"}}',
        "mcp:https://user:password@host/mcp",
        "mcp:https://host/mcp?key=abc",
        "mcp:https://host/api/NDk5YTk4ZjctYzA1Mi00/mcp",
        "openapi:https://host/openapi.json?token=abc",
    ],
)
def test_a_text_that_may_hold_a_secret_enters_no_part(text: str) -> None:
    assert may_hold_secret(text)
    part = part_of(text)
    assert part.missing == "its text may hold a secret"
    assert "abc" not in str(part)
    assert "password" not in part.name


@pytest.mark.parametrize(
    "text",
    [
        "files",
        "tools.py:key",
        "mcp:servers.json",
        "mcp:npx -y server-monkey /folder",
        "mcp:KEY=${KEY} npx server",
        "mcp:npx server --api-key ${KEY} --author Bob",
        "mcp:npx server --token --verbose",
        "mcp:https://host/mcp",
        "openapi:https://host/specs/openapi-v3.0.1-generated.json",
        "spin:http://localhost:3000/mock",
    ],
)
def test_a_text_without_one_is_a_name(text: str) -> None:
    assert part_of(text) == PartSpec(name=text)


class TestMCP:
    def test_a_server_is_made_again(self) -> None:
        server = str(Path(__file__).parent / "mcp" / "small_server.py")
        with MCPServer(
            sys.executable, args=["-S", server], effects={"add": "pure"}, timeout_seconds=9.0
        ) as made_once:
            specs = [made.spec for made in made_once.tools()]
        again = mcp(**(made_once.part.settings or {}))
        try:
            assert [made.spec for made in again.tools()] == specs
            assert again.part == made_once.part
        finally:
            again.close()

    def test_secrets_of_the_environment_are_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MY_TOKEN", "s3cret")
        local = MCPServer(
            "npx", args=["server", "${x}"], env={"MY_TOKEN": "s3cret"}, per_run=True, name="local"
        )
        remote = MCPServer(url="https://host/mcp", headers={"Authorization": "Bearer s3cret"}, name="remote")
        part = MCPServers([local, remote]).part
        assert part.settings == {
            "mcpServers": {
                "local": {
                    "command": "npx",
                    "args": ["server", "$${x}"],
                    "env": {"MY_TOKEN": "${MY_TOKEN}"},
                    "perRun": True,
                },
                "remote": {"url": "https://host/mcp", "headers": {"Authorization": "Bearer ${MY_TOKEN}"}},
            }
        }
        again = mcp(**part.settings)
        assert [server.target for server in again.servers] == [
            msgspec.structs.replace(local.target, secrets=("s3cret",)),
            msgspec.structs.replace(remote.target, secrets=("s3cret",)),
        ]
        assert "s3cret" not in str(part)

    def test_other_secrets_make_it_missing(self) -> None:
        for server in (
            MCPServer("npx", args=["server"], env={"KEY": "abc1"}),
            MCPServer("npx", args=["server", "--api-key", "abc1"]),
            MCPServer("npx", args=["server", "abc1"], secrets=["abc1"]),
            MCPServer(url="https://host/mcp", headers={"X": "abc1"}),
            MCPServer(url="https://host/mcp?key=abc1"),
            mcp("KEY=abc1 npx server"),
            mcp('{"mcpServers": {"a": {"url": "https://host", "headers": {"X": "abc1"}}}}'),
        ):
            part = part_of(server)
            assert part.missing is not None
            assert "may hold a secret" in part.missing
            assert "abc1" not in str(part)

    def test_a_server_object_is_missing(self) -> None:
        assert "object of the program" in (part_of(MCPServer(server=object(), name="x")).missing or "")

    def test_what_was_read_is_written_as_it_was(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MY_TOKEN", "s3cret")
        entry = {
            "command": "npx",
            "args": ["a", "${MY_TOKEN:-x}"],
            "env": {"K": "${MY_TOKEN}"},
            "effects": {"f": "pure"},
        }
        part = part_of(mcp(msgspec.json.encode({"mcpServers": {"a": {**entry, "icon": "x"}}}).decode()))
        assert part == PartSpec(name="mcp", settings={"mcpServers": {"a": entry}})


class TestOpenAPI:
    def test_a_document_at_a_path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "api.json"
        path.write_bytes(msgspec.json.encode(API))
        api = OpenAPI(path, include=["double"], effects={"double": "idempotent"})
        assert api.part == PartSpec(
            name=f"openapi:{path}", settings={"include": ["double"], "effects": {"double": "idempotent"}}
        )
        assert rebuilt(api) == [made.spec for made in api.tools()]
        assert OpenAPI(path).part == PartSpec(name=f"openapi:{path}")
        keyed = OpenAPI(path, auth={"key": "abc1"})
        assert "OPENAPI_API_EXAMPLE_COM_KEY" in (keyed.part.missing or "")
        monkeypatch.setenv("OPENAPI_API_EXAMPLE_COM_KEY", "abc1")
        assert OpenAPI(path, auth={"key": "abc1"}).part == PartSpec(name=f"openapi:{path}")
        assert "headers" in (OpenAPI(path, headers={"x-key": "abc1"}).part.missing or "")

    def test_a_document_of_the_program(self) -> None:
        assert "object of the program" in (part_of(OpenAPI(API)).missing or "")


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"command": "x", "env": {"MY_TOKEN": "planted"}}, "MY_TOKEN"),
        (
            {"mcpServers": {"a": {"url": "http://h", "headers": {"Authorization": "Bearer planted"}}}},
            "Authorization",
        ),
        ({"command": "x", "args": ["--api-key", "planted"]}, "args"),
        ({"url": "http://me:planted@h/mcp"}, "url"),
        ({"api_key": "planted"}, "api_key"),
    ],
)
def test_settings_that_hold_a_secret_are_not_in_the_part(settings: dict[str, Any], key: str) -> None:
    """Rules out a toolset, given by name and settings as in the file of a persona, whose keys get into the
    journal."""
    part = part_of(PartSpec(name="mcp", settings=settings))
    assert "planted" not in repr(part)
    assert part.missing is not None
    assert repr(key) in part.missing
    assert part_of(part) == part
    text = part_of(PartSpec(name="mcp:npx server --token planted"))
    assert (text.name, text.missing) == ("mcp:", "its text may hold a secret")


def test_settings_that_refer_to_variables_are_in_the_part() -> None:
    entry = {"command": "x", "args": ["--fast"], "env": {"A": "${A}"}, "headers": {"B": "Bearer ${B}"}}
    for part in (
        PartSpec(name="mcp", settings={"mcpServers": {"a": entry}}),
        PartSpec(name="m:f", settings={"key": "b", "tokens": 4, "token_env": "X"}),
    ):
        assert part_of(part) is part


def test_a_file_that_two_threads_load_is_whole_for_both(tmp_path: Path) -> None:
    """Rules out that the second thread gets a module whose file is still being executed."""
    path = tmp_path / "slow_tools.py"
    path.write_text("import time\n\ntime.sleep(0.1)\n\n\ndef act() -> str:\n    return 'acted'\n")
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda _: load_file(path).act(), range(4))) == ["acted"] * 4
