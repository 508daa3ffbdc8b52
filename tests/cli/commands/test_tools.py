"""`treadle tools list`, `call` and `import`, and runs with several toolsets, as processes."""

import json
import sys
from pathlib import Path

import pytest
from tests.cli.command import Cli
from tests.cli.scripted import Script, call_once

ODD = Path(__file__).parents[2] / "tools" / "mcp" / "odd_server.py"


def test_the_toolsets_and_tools_that_there_are(cli: Cli) -> None:
    done = cli("tools", "list")
    assert done.code == 0, done
    assert {line.split()[0] for line in done.out.splitlines()} >= {
        "files",
        "python",
        "shell",
        "mcp:",
        "mock:",
    }
    assert all(len(line.split()) > 1 for line in done.out.splitlines()), "each toolset has a description"
    done = cli("tools", "list", "-t", "files", "-t", "python")
    assert "read_file     pure        Read a text file." in done.out
    names = [item["name"] for item in cli("tools", "list", "-t", "files", "--json").lines]
    assert names[:2] == ["read_file", "write_file"]
    written = json.loads(cli("tools", "list", "-t", "files", "--format", "openai").out)
    assert written[0]["function"]["name"] == "read_file"
    assert "Commands" in cli("tools", "--help").out


def test_one_call(cli: Cli) -> None:
    cli.write("data/a.txt", "text")
    done = cli("tools", "call", "read_file", '{"file_path": "a.txt"}', "--mount", "data")
    assert (done.code, done.out) == (0, "text\n")
    done = cli("tools", "call", "python", "-", "-t", "python", text='{"code": "2 ** 10"}')
    assert (done.code, done.out) == (0, "1024\n")
    done = cli("tools", "call", "write_file", '{"file_path": "b", "content": ""}', "--mount", "data")
    assert "1 file changed in the sandbox: b" in done.err
    assert not (cli.folder / "data" / "b").exists()
    done = cli("tools", "call", "python", '{"code": "1/0"}', "-t", "python", "--json")
    assert (done.code, done.lines[0]["error_kind"]) == (1, "failed")
    done = cli("tools", "call", "once", "-t", f"mcp:{sys.executable} {ODD} plain")
    assert (done.code, done.out.startswith("did once")) == (0, True), done


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("call", "red_file"),
            "there is no tool 'red_file'; did you mean 'read_file'",
        ),
        (("call", "read_file", "{"), "not valid JSON"),
        (("call", "read_file", "{}"), "missing parameter 'file_path'"),
        (
            ("call", "read_file", "-t", "mcp:no-such-command"),
            "the command 'no-such-command' of the MCP server",
        ),
        (("call", "read_file", "--mount", "absent"), "cannot mount 'absent': there is no such file"),
        (("list", "-t", "files", "--format", "xml"), "'xml' is not one of"),
        (
            ("list", "--format", "mcp"),
            "--format prints the definitions of tools; name the tools with --tools",
        ),
        (("list", "-t", "mock:absent.json"), "cannot read the tools of 'absent.json'"),
        (("list", "-t", "openapi:absent.json"), "cannot read the OpenAPI document 'absent.json'"),
        (("import", "absent.json"), "cannot read the tools of 'absent.json'"),
        (("import", "absent"), "unknown toolset 'absent'"),
        (("import", "files", "-o", "."), "'.' exists"),
        (("import", "files", "--force", "-o", "."), "'.' is a folder"),
        (
            ("import", "files", "-o", "absent/x.json"),
            "cannot write 'absent/x.json': there is no folder 'absent'",
        ),
    ],
)
def test_what_cannot_be_is_told_in_a_line(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    done = cli("tools", *arguments)
    assert done.code == 2, done
    assert message in done.err
    assert "Traceback" not in done.err


def test_code_calls_the_other_tools(cli: Cli) -> None:
    cli.write("data/a.txt", "text")
    code = "print(read_file(file_path='a.txt'))"
    options = ("-t", "python", "-t", "files", "--mount", "data")
    done = cli("tools", "call", "python", json.dumps({"code": code}), *options)
    assert (done.code, done.out) == (0, "text\n"), done


def test_definitions_go_from_shape_to_shape(cli: Cli) -> None:
    function = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
    saved = [{"type": "function", "function": {**function, "strict": True}}]
    done = cli("tools", "import", "-", "--format", "deepfabric", "-o", "t.yaml", text=json.dumps(saved))
    assert (done.code, "a definition has no place for strict: f" in done.err) == (0, True), done
    assert (cli.folder / "t.yaml").read_text().startswith("tools:\n- name: f\n  description: d\n")
    done = cli("tools", "import", "t.yaml", "--format", "openai")
    assert json.loads(done.out) == [{"type": "function", "function": function}]
    assert done.err == ""
    done = cli("tools", "import", "files", "--format", "openai")
    told = (
        "the shape openai cannot hold effect: read_file, write_file, list_files, delete_file, edit_file and "
    )
    assert told in done.err
    assert [path.name for path in cli.folder.iterdir()] == ["t.yaml"]
    assert cli("tools", "import", "-", text=b"\xff").code == 2
    assert "not UTF-8" in cli("tools", "call", "read_file", "-", text=b"\xff").err


def test_a_model_in_a_tools_place(cli: Cli, script: Script) -> None:
    server = script(lambda body: {"content": "it rains"})
    cli.env |= {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "k"}
    simulator = {"model": "openai:m", "seed": 7, "cache": "kept"}
    cli.write("world.json", json.dumps({"tools": [{"name": "weather"}], "simulator": simulator}))
    for _ in range(2):
        done = cli("tools", "call", "weather", "-t", "mock:world.json", "--json")
        assert (done.code, done.lines[0]["content"], done.lines[0]["is_simulated"]) == (
            0,
            "it rains",
            True,
        ), done
    assert [request["seed"] for request in server.requests] == [7]


def test_definitions_are_saved_and_mocked(cli: Cli, script: Script) -> None:
    done = cli("tools", "import", f"mcp:{sys.executable} {ODD} plain", "-o", "tools.json")
    assert (done.code, "3 tools written to tools.json" in done.err) == (0, True), done
    assert cli("tools", "import", "tools.json", "-o", "tools.json").code == 2
    assert cli("tools", "import", "tools.json", "-o", "tools.json", "--force", "--format", "mcp").code == 0
    saved = json.loads((cli.folder / "tools.json").read_text())
    assert [tool["name"] for tool in saved["tools"]] == ["once", "look", "set"]
    saved["fixtures"] = {"look": [{"result": "a mocked view"}]}
    cli.write("tools.json", json.dumps(saved))
    server = script(call_once("look"))
    options = ("--model", "m", "--base-url", server.url, "--api-key", "k", "--run-id", "r")
    done = cli("run", "look around", "--tools", "mock:tools.json", *options)
    assert (done.code, "(simulated) a mocked view" in done.out) == (0, True), done
    row = json.loads(cli("export", "r", "--format", "trl").out)
    assert row["lineage"]["simulated"] == ["call_1"]
    verified = cli("verify", "r", "--tools", "mock:tools.json")
    assert "look (call_1): its result was simulated" in verified.out


def test_a_run_over_an_mcp_server_is_resumed_with_its_tools(cli: Cli, script: Script) -> None:
    server = script(call_once("once"))
    tools = f"mcp:{sys.executable} {ODD} plain"
    options = ("--model", "m", "--base-url", server.url, "--api-key", "k", "--run-id", "r")
    done = cli("run", "go", "--tools", tools, "--approve", "ask", *options)
    assert "waits for approval" in done.out, done
    done = cli("approve", "r", "all", "yes", "--api-key", "k", "-q")
    assert done.out.startswith("done: did once"), done


@pytest.mark.parametrize(
    ("tools", "is_kept"),
    [
        (f"mcp:KEY=planted77 {sys.executable} {ODD} plain", False),
        (f"mcp:KEY=${{KEY:-x}} {sys.executable} {ODD} plain", True),
        (f"mcp:{sys.executable} {ODD} plain", True),
    ],
)
def test_a_secret_among_the_tools_stays_out_of_the_journal(
    cli: Cli, script: Script, tools: str, is_kept: bool
) -> None:
    server = script(call_once("look"))
    done = cli(
        "run", "go", "-t", tools, "-m", "m", "--base-url", server.url, "--api-key", "k", "--run-id", "r"
    )
    assert done.code == 0, done
    exported = cli("export", "r", "--format", "journal").out
    assert ("odd_server" in exported) is is_kept
    assert "planted77" not in exported


def test_what_was_cut_is_kept_and_can_be_had(cli: Cli, script: Script) -> None:
    server = script(call_once("python", code="print('x' * 5000)"))
    options = ("-m", "m", "--base-url", server.url, "--api-key", "k", "--run-id", "r")
    done = cli("run", "go", "-t", "python", "--tool-limit", "python:chars=100", *options)
    assert "characters left out" in cli("show", "r", "--full").out, done
    shown = cli("show", "r").out
    digest = shown.split("[text of 5,001 bytes: ")[1][:12]
    whole = cli("show", "r", "--artifact", digest)
    assert (whole.code, whole.out) == (0, "x" * 5000 + "\n")
    absent = cli("show", "r", "--artifact", "ffff0000")
    assert (absent.code, f"the artifacts are: {digest}" in absent.err) == (2, True)
