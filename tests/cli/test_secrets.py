"""API keys given in every possible way must not appear in anything that a run leaves behind."""

import base64
import html
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.cli.command import Cli
from tests.cli.scripted import Script
from tests.conftest import IS_FULL

KEYS = {
    "OPENAI_API_KEY": "sk-planted-openai-00001",
    "MY_KEY": "planted-of-the-file-00002",
    "TEAM_TOKEN": "planted-in-a-header-00003",
}
CONFIG = """
model = "main"
[models.main]
model = "openai:m"
base_url = "{url}"
api_key_env = "MY_KEY"
headers = {{ "x-team-token" = "${{TEAM_TOKEN}}" }}
max_attempts = 2
fallback = ["other"]
cache = "kept"
[models.other]
model = "openai:n"
base_url = "{url}"
max_attempts = 1
"""


def everything(folder: Path) -> bytes:
    """Return the content of all files in the folder, concatenated."""
    return b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


@pytest.mark.parametrize("status", [200, 401, 429, 500])
def test_no_key_is_left_anywhere(cli: Cli, script: Script, status: int) -> None:
    sent_by = {"m": ("MY_KEY", "TEAM_TOKEN"), "n": ("OPENAI_API_KEY",)}

    def answer(body: dict[str, str]) -> object:
        # The server repeats the request in its error, as many servers do.
        echoed = " and ".join(KEYS[name] for name in sent_by[body["model"]])
        return {"content": "fine"} if status == 200 else (status, f"you sent {echoed}")

    server = script(answer)
    cli.env |= KEYS
    cli.write("treadle.toml", CONFIG.format(url=server.url))
    cli("models", "trust")
    outputs = []
    for arguments in (
        ("run", "Hello", "--run-id", "r"),
        ("run", "Hello", "--json", "--run-id", "s"),
        ("--debug", "run", "Hello", "--run-id", "t", "-m", "other"),
        ("show", "r", "--events"),
        ("runs",),
        ("models", "list", "--json"),
        ("models", "check", "main"),
        ("doctor",),
        ("export", "--all", "--format", "openai", "-o", "rows.jsonl"),
        ("export", "--all", "--format", "journal", "-o", "journal.jsonl"),
    ):
        done = cli(*arguments)
        outputs.append(done.out + done.err)
    assert server.requests
    sent = "".join(str(headers) for headers in server.headers)
    assert all(key in sent for key in KEYS.values())
    if status != 200:
        assert "you sent" in outputs[0]
    seen = everything(cli.folder) + "\n".join(outputs).encode()
    for name, key in KEYS.items():
        assert key.encode() not in seen, name


TIERS = """
[telemetry]
turn_log = "turns.jsonl"
[router]
name = "cascade"
[models.vectors]
model = "openai:e"
base_url = "{url}"
api_key_env = "MY_KEY"
"""
PERSONA = """
name: Ada
role: a tester
model: auto
autonomy: balanced
memory: {embeddings: vectors}
"""


@pytest.mark.sets(0)
@pytest.mark.parametrize("status", [200, 401])
def test_no_key_of_tiers_and_embeddings_is_left_anywhere(cli: Cli, script: Script, status: int) -> None:
    """Rules out keys in memories, in what is recalled, in turn logs, in recorded routes and personas, and in notes
    about tiers and embeddings that fail."""
    keys = {"TREADLE_OPENAI_API_KEY": "sk-planted-tiers-00008", "MY_KEY": "planted-of-vectors-00009"}

    def answer(body: dict[str, str]) -> object:
        if "input" in body or status != 200:
            return 401, f"you sent {keys['MY_KEY' if 'input' in body else 'TREADLE_OPENAI_API_KEY']}"
        return {"content": "I cannot help." if body["model"] == "weak" else "fine"}

    server = script(answer)
    cli.env |= keys
    cli.env |= {"TREADLE_OPENAI_BASE_URL": server.url}
    cli.env |= {"TREADLE_SMALL_MODELS": "openai/weak", "TREADLE_MID_MODELS": "openai/strong"}
    cli.write("treadle.toml", TIERS.format(url=server.url))
    cli("models", "trust")
    cli.write("ada.yaml", PERSONA)
    outputs = [
        cli(*arguments)
        for arguments in (
            ("run", "I like boats.", "--persona", "ada.yaml", "--trust", "--run-id", "r"),
            ("run", "What about boats?", "--persona", "ada.yaml", "--trust", "--run-id", "s", "--json"),
            ("--debug", "run", "And boats?", "--persona", "ada.yaml", "--trust", "--run-id", "t"),
            ("show", "s", "--events"),
            ("show", "s", "--context", "1"),
            ("stats",),
            ("models", "tiers"),
            ("models", "route", "Hello"),
            ("memory", "list", "--persona", "Ada", "--user", "default"),
            ("memory", "search", "boats", "--embeddings", "vectors", "--persona", "Ada", "--user", "default"),
            ("export", "--all", "--format", "journal", "-o", "journal.jsonl"),
        )
    ]
    told = "\n".join(done.out + done.err for done in outputs)
    sent = "".join(str(headers) for headers in server.headers)
    assert all(key in sent for key in keys.values()), told
    asked = {body["model"] for body in server.requests}
    assert asked == ({"weak", "strong", "e"} if status == 200 else asked | {"weak", "e"})
    assert (cli.folder / "turns.jsonl").read_text().count("\n") == 3
    seen = everything(cli.folder) + told.encode()
    assert b"you sent" in seen
    for name, key in keys.items():
        assert key.encode() not in seen, name


PROVIDERS = {
    "anthropic": "ANTHROPIC_API_KEY",
    "gemini": "GEMINI_API_KEY",
    "ollama": "OLLAMA_API_KEY",
    "openai_responses": "OPENAI_API_KEY",
    "completions": "OPENAI_API_KEY",
}


ECHOES: dict[str, Callable[[str], str]] = {
    "plain": lambda key: f"you sent {key} and Bearer {key}",
    "percent": lambda key: f"you sent {quote(key, safe='')}",
    "html": lambda key: f"<b>you sent {html.escape(key)}</b>",
    "base64": lambda key: f"you sent {base64.b64encode(f'me:{key}'.encode()).decode()}",
    "late": lambda key: f"{'.' * 380} you sent {key}",
}


@pytest.mark.parametrize("echo", ECHOES)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_no_dialect_leaves_its_key(cli: Cli, script: Script, provider: str, echo: str) -> None:
    if not IS_FULL and (list(PROVIDERS).index(provider) + list(ECHOES).index(echo)) % 3:
        pytest.skip("the long form; set TREADLE_FULL=1")
    key = "planted-of/a+dialect<00004>"
    server = script(lambda _: (401, ECHOES[echo](key)))
    cli.env[PROVIDERS[provider]] = key
    outputs = [
        cli(*arguments)
        for arguments in (
            ("run", "Hello", "-m", f"{provider}:m", "--base-url", server.url, "--run-id", "r"),
            ("show", "r", "--events"),
            ("export", "r", "--format", "journal", "-o", "journal.jsonl"),
        )
    ]
    seen = "".join(done.out + done.err for done in outputs).encode() + everything(cli.folder)
    assert b"you sent" in seen
    assert any(key in str(headers) for headers in server.headers)
    for written in (key, quote(key, safe=""), html.escape(key), base64.b64encode(key.encode()).decode()):
        half = len(written) // 2
        assert written[:half].encode() not in seen
        assert written[half:].encode() not in seen


def test_no_part_of_a_url_is_left(cli: Cli, script: Script) -> None:
    secrets = ("hunter2-planted-5", "q99-planted-00006")
    server = script(lambda _: (404, f"no {url.partition('://')[2]} here"))
    url = server.url.replace("http://", f"http://me:{secrets[0]}@") + f"?code={secrets[1]}"
    cli.write("treadle.toml", f'model = "main"\n[models.main]\nmodel = "openai:m"\nbase_url = "{url}"\n')
    outputs = [
        cli(*arguments)
        for arguments in (
            ("run", "Hello", "--run-id", "r"),
            ("--debug", "run", "Hello", "--model", "openai:m", "--base-url", url, "--run-id", "s"),
            (
                "run",
                "Hello",
                "--model",
                "openai:m",
                "--base-url",
                url.replace("http", "ftp"),
                "--run-id",
                "t",
            ),
            ("resume", "s"),
            ("models", "list"),
            ("models", "check", "main"),
            ("doctor",),
            ("show", "r", "--events"),
            ("runs", "--json"),
            ("export", "r", "--format", "journal", "--out", "journal.jsonl"),
        )
    ]
    (cli.folder / "treadle.toml").unlink()
    seen = "".join(done.out + done.err for done in outputs).encode() + everything(cli.folder)
    assert server.requests
    for secret in secrets:
        assert secret[: len(secret) // 2 + 1].encode() not in seen
