"""Runs from elsewhere: nothing that they name is started, imported, asked or sent a key before --trust."""

import base64
import hashlib
import json
import shutil
import socket
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Cli
from tests.cli.scripted import Script, say
from tests.conftest import IS_FULL

Json = Any
KEYS = {"OPENAI_API_KEY": "sk-planted-key-00001", "MY_KEY": "planted-key-00002"}
CONFIG = """
[models.main]
model = "openai:m"
base_url = "{url}"
api_key_env = "MY_KEY"
"""
OPENAPI = {"openapi": "3.1.0", "info": {"title": "a", "version": "1"}, "paths": {}}


class Trap:
    """A port that counts connections, and files that appear if a program starts or a module is imported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.connections = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        (folder / "evil.py").write_text(f"open({str(folder / 'started')!r}, 'w').close()\ndef f(): ''\n")
        servers = {"mcpServers": {"a": {"command": "touch", "args": [str(folder / "started")]}}}
        (folder / "servers.json").write_text(json.dumps(servers))
        (folder / "api.json").write_text(json.dumps({**OPENAPI, "servers": [{"url": self.url}]}))
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            data = connection.recv(1)
            connection.close()
            if data == b"q":
                return
            self.connections += 1

    def stop(self) -> None:
        with socket.create_connection(self._socket.getsockname()) as last:
            last.sendall(b"q")
        self._thread.join()
        self._socket.close()

    @property
    def is_sprung(self) -> bool:
        return bool(self.connections) or (self.folder / "started").exists()


@pytest.fixture
def trap(cli: Cli) -> Iterator[Trap]:
    made = Trap(cli.folder)
    yield made
    made.stop()


def lines(
    folder: Path,
    run_id: str,
    spec: Json,
    *,
    is_session: bool = False,
    waits: bool = True,
    path: str = "a.txt",
) -> str:
    """Return a run as an attacker writes it. One of its calls waits for approval, or is made at once."""
    command = json.dumps({"command": f"touch {folder / 'started'}"})
    calls = [{"call_id": name, "name": "shell", "arguments": command} for name in ("c1", "c2")]
    completion = {
        "message": {"role": "assistant", "content": "", "tool_calls": calls},
        "finish_reason": "tool_calls",
    }
    effect = {"name": "shell", "parameters": {"type": "object"}, "description": "", "effect": "pure"}
    digest = hashlib.sha256(b"x").hexdigest()
    bodies = [
        {"type": "run_started", "version": "2.0", "agent": spec, "tools": [effect], "is_session": is_session},
        {
            "type": "snapshot_taken",
            "snapshot_id": "s",
            "delta": {"changed": {path: digest}},
            "contents": {digest: base64.b64encode(b"x").decode()},
        },
        {"type": "turn_started", "turn": 1, "message": {"role": "user", "content": "hi"}},
        {"type": "inference_started", "step": 1, "messages": 1},
        {"type": "inference_completed", "step": 1, "completion": completion},
        *([{"type": "approval_requested", "call_id": "c1"}] if waits else []),
        {"type": "tool_started", "step": 1, "call_id": "c2", "name": "shell", "effect": "pure"},
        {
            "type": "tool_completed",
            "step": 1,
            "result": {"call_id": "c2", "name": "shell", "content": "made up"},
        },
    ]
    return "".join(
        json.dumps({"run_id": run_id, "seq": seq, "at": 1.0, **body}) + "\n"
        for seq, body in enumerate(bodies, 1)
    )


MODEL = {"name": "openai:m", "settings": {"base_url": "{url}/v1", "api_key_env": "OPENAI_API_KEY"}}
DANGERS: dict[str, tuple[Json, str]] = {
    "shell-unprotected": ({"tools": [{"name": "shell-unprotected"}]}, "on this machine, without protection"),
    "shell": ({"tools": [{"name": "shell"}]}, "start the commands of its calls in the sandbox"),
    "image": (
        {"tools": [{"name": "shell", "settings": {"root": "registry.example/evil"}}]},
        "use the image 'registry.example/evil', which Docker or Podman pulls",
    ),
    "shell with the network": (
        {"tools": [{"name": "shell", "settings": {"network": True}}]},
        "let these commands use the network",
    ),
    "shell with binds": (
        {"tools": [{"name": "shell", "settings": {"read_only_binds": {"/etc": "/data"}}}]},
        "let these commands read '/etc'",
    ),
    "python": ({"tools": [{"name": "python"}]}, "run the Python code of its calls"),
    "mcp command": ({"tools": [{"name": "mcp:touch started"}]}, "start the program 'touch started'"),
    "mcp settings": (
        {
            "tools": [
                {"name": "mcp", "settings": {"mcpServers": {"a": {"command": "touch", "args": ["started"]}}}}
            ]
        },
        "start the program 'touch started'",
    ),
    "mcp file": ({"tools": [{"name": "mcp:servers.json"}]}, "open the file 'servers.json'"),
    "mcp url": ({"tools": [{"name": "mcp:{url}/mcp"}]}, "ask the MCP server at '{url}/mcp'"),
    "mcp key": (
        {
            "tools": [
                {
                    "name": "mcp",
                    "settings": {"mcpServers": {"a": {"url": "{url}", "headers": {"x": "${MY_KEY}"}}}},
                }
            ]
        },
        "send it the environment variable MY_KEY",
    ),
    "openapi url": (
        {"tools": [{"name": "openapi:{url}/api.json"}]},
        "open '{url}/api.json' and send requests",
    ),
    "openapi file": (
        {"tools": [{"name": "openapi", "settings": {"document": "api.json"}}]},
        "open 'api.json'",
    ),
    "spin": ({"tools": [{"name": "spin:{url}/mock"}]}, "send requests to '{url}/mock'"),
    "mock": ({"tools": [{"name": "mock:servers.json"}]}, "open the file 'servers.json'"),
    "mock settings": (
        {"tools": [{"name": "mock", "settings": {"definitions": "servers.json"}}]},
        "open the file 'servers.json'",
    ),
    "mock with a simulator": (
        {"tools": [{"name": "mock", "settings": {"definitions": {}, "simulator": {"model": "openai:m"}}}]},
        "ask the model 'openai:m' in place of its tools",
    ),
    "mock with a cache": (
        {"tools": [{"name": "mock", "settings": {"simulator": {"model": "openai:m", "cache": "evil"}}}]},
        "keep answers in the folder 'evil'",
    ),
    "module": ({"tools": [{"name": "evil:f"}]}, "import 'evil:f'"),
    "file": ({"tools": [{"name": "evil.py:f"}]}, "import the file 'evil.py:f'"),
    "os.system": ({"tools": [{"name": "os:system"}]}, "import 'os:system'"),
    "url with a key": (
        {},
        "send the conversation to '{url}/v1' for the model 'openai:m', with the keys in OPENAI_",
    ),
    "url with the usual key": (
        {"model": {"name": "openai:m", "settings": {"base_url": "{url}/v1"}}},
        "with the keys in OPENAI_API_KEY",
    ),
    "another key": (
        {"model": {"name": "ollama:m", "settings": {"base_url": "{url}/v1", "api_key_env": "MY_KEY"}}},
        "with the keys in MY_KEY",
    ),
    "treadle.toml": ({"model": {"name": "main"}}, "for the model 'main', with the keys in MY_KEY"),
    "treadle.toml with a url": (
        {"model": {"name": "main", "settings": {"base_url": "{url}/v1"}}},
        "'{url}/v1' for the model 'main', with the keys in MY_KEY",
    ),
    "folder": ({"files": "/etc"}, "open the folder '/etc'"),
}
COMMANDS = {
    "resume": ("resume", "bad"),
    "resume all": ("resume", "--all"),
    "resume with one's own": (
        "resume",
        "torn",
        "--model",
        "openai:x",
        "--base-url",
        "{url}",
        "--tools",
        "evil.py",
    ),
    "resume torn": ("resume", "torn"),
    "fork": ("fork", "bad", "--at", "3"),
    "verify": ("verify", "bad"),
    "verify with one's own": ("verify", "bad", "--tools", "shell-unprotected"),
    "verify a file": ("verify", "bad.jsonl"),
    "approve": ("approve", "bad", "c1", "yes"),
    "chat": ("chat", "--session", "bad"),
}


def filled(value: Json, url: str) -> Json:
    return json.loads(json.dumps(value).replace("{url}", url))


def spec_of(danger: str, url: str) -> Json:
    return filled({"model": MODEL, **DANGERS[danger][0]}, url)


@pytest.mark.parametrize("danger", DANGERS)
def test_no_command_acts_on_what_was_imported(cli: Cli, trap: Trap, danger: str) -> None:
    cli.env |= KEYS
    cli.write("treadle.toml", CONFIG.format(url=trap.url))
    spec = spec_of(danger, trap.url)
    both = lines(cli.folder, "bad", spec, is_session=True)
    both += lines(cli.folder, "torn", spec, waits=False, path="../../started")
    cli.write("bad.jsonl", both)
    assert cli("import", "bad.jsonl").code == 0
    said = {}
    # Each danger meets some commands in the short form, and each command some dangers.
    first = list(DANGERS).index(danger) * 3
    names = [name for n, name in enumerate(COMMANDS) if IS_FULL or (n - first) % len(COMMANDS) < 3]
    started = [[part.replace("{url}", trap.url) for part in COMMANDS[name]] for name in names]
    for name, result in zip(names, cli.run_all(started), strict=True):
        is_harmless = name.startswith("verify") and "tools" not in DANGERS[danger][0] and "own" not in name
        assert result.code == 1, (name, result)
        assert is_harmless or "If you trust it, pass --trust" in result.err, (name, result)
        said[name] = result.err
    expected = DANGERS[danger][1].replace("{url}", trap.url)
    for name, text in said.items():
        if "own" not in name and not name.startswith("verify"):
            assert expected in text, (name, text)
            if name != "fork":  # which begins before the call
                assert f"""make the recorded call 'shell({{"command": "touch {cli.folder}""" in text
    assert not trap.is_sprung


def test_no_command_that_only_reads_acts_on_what_was_imported(cli: Cli, trap: Trap) -> None:
    cli.env |= KEYS
    for number, danger in enumerate(DANGERS):
        cli.write(f"{number}.jsonl", lines(cli.folder, f"bad{number}", spec_of(danger, trap.url)))
    cli.write("all.jsonl", "".join((cli.folder / f"{n}.jsonl").read_text() for n in range(len(DANGERS))))
    assert cli("import", "all.jsonl").code == 0
    for arguments in (
        ("runs",),
        ("show", "last", "--events"),
        ("replay", "--all"),
        ("export", "--all", "--format", "openai"),
        ("export", "--all", "--format", "journal"),
        ("approve", "bad1"),
    ):
        assert "Traceback" not in cli(*arguments).err
    assert not trap.is_sprung


def test_trust_is_recorded(cli: Cli, script: Script) -> None:
    server = script(lambda _: say("fine"))
    cli.env |= KEYS
    model = filled(MODEL, server.url.removesuffix("/v1"))
    cli.write(
        "good.jsonl", lines(cli.folder, "good", {"model": model, "tools": [{"name": "shell-unprotected"}]})
    )
    assert cli("import", "good.jsonl").code == 0
    done = cli("approve", "good", "c1", "yes", "--trust", "--quiet")
    assert (done.code, done.out) == (0, "fine\n"), done
    assert server.headers[0]["authorization"] == f"Bearer {KEYS['OPENAI_API_KEY']}"
    assert (cli.folder / "started").exists()
    again = cli("fork", "good", "--text", "more", "--quiet")
    assert (again.code, again.out) == (0, "fine\n"), again
    assert cli("export", "good", "--format", "journal", "--out", "again.jsonl").code == 0
    assert cli("import", "again.jsonl", "--journal", "other.db").code == 0
    assert "pass --trust" in cli("fork", "good", "--text", "more", "--journal", "other.db").err


def copy(source: Path, target: Path) -> None:
    """Copy a journal as it arrives from another machine: its bytes, and no attributes."""
    target.parent.mkdir(exist_ok=True)
    shutil.copyfile(source, target)


def test_a_file_of_another_user_is_not_trusted(cli: Cli, script: Script) -> None:
    server = script(lambda _: say("fine"))
    run = ("run", "hi", "--model", "openai:m", "--base-url", server.url, "--journal", "runs.db")
    for name, secret in (("mine", "my secret"), ("theirs", "their secret")):
        cli.env["TREADLE_SECRET"] = secret
        assert cli(*run, "--run-id", name).code == 0
        assert cli("fork", name, "--text", "more", "--journal", "runs.db").code == 0
    with sqlite3.connect(cli.folder / "runs.db") as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    copy(cli.folder / "runs.db", cli.folder / "given" / "runs.db")
    fork = ("fork", "mine", "--text", "more", "--journal", "given/runs.db", "--quiet")
    refused = cli(*fork)
    assert refused.code == 1
    assert "was written by another user, machine or version of Treadle" in refused.err
    own = cli(*run[:-1], "given/runs.db", "--run-id", "new")
    assert own.code == 0
    assert cli("fork", "new", "--text", "more", "--journal", "given/runs.db").code == 0, "begun here"
    assert cli(*fork, "--trust").out == "fine\n"
    assert cli(*fork).out == "fine\n"
    cli.env["TREADLE_SECRET"] = "my secret"
    assert cli("fork", "theirs", "--text", "more", "--journal", "given/runs.db").code == 0, (
        "a copy of my file"
    )
    cli.env["TREADLE_SECRET"] = "a third secret"
    assert cli(*fork).code == 1


def test_a_container_with_a_new_home_goes_on_with_its_file(cli: Cli, script: Script, tmp_path: Path) -> None:
    server = script(lambda _: say("fine"))
    cli.env["XDG_STATE_HOME"] = str(tmp_path / "one")
    assert cli("run", "hi", "--model", "openai:m", "--base-url", server.url, "--run-id", "r").code == 0
    assert oct((tmp_path / "one/treadle/secret").stat().st_mode & 0o777) == "0o600"
    cli.env["XDG_STATE_HOME"] = "/proc/none"
    assert cli("fork", "r", "--text", "more").code == 0


def test_a_recorded_url_gets_no_other_key(cli: Cli, script: Script) -> None:
    server = script(lambda _: say("fine"))
    run = ("run", "hi", "--model", "openai:m", "--base-url", server.url, "--quiet")
    assert cli(*run, "--api-key", "given-key-00003", "--run-id", "a").code == 0
    assert cli(*run, "--run-id", "b", env={"OPENAI_API_KEY": "first-key-00004"}).code == 0
    for name in ("a", "b"):
        assert cli("fork", name, "--text", "more", env={"OPENAI_API_KEY": "first-key-00004"}).code == 0
    sent = [headers.get("authorization") for headers in server.headers]
    assert sent == ["Bearer given-key-00003", "Bearer first-key-00004", None, "Bearer first-key-00004"]
    again = ("fork", "a", "--text", "more", "--base-url", server.url)
    assert cli(*again, env={"OPENAI_API_KEY": "first-key-00004"}).code == 0
    assert server.headers[-1]["authorization"] == "Bearer first-key-00004"
