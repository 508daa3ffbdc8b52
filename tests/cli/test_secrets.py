"""API keys given in every possible way must not appear in anything that a run leaves behind."""

from pathlib import Path

import pytest
from tests.cli.command import Cli
from tests.cli.scripted import Script

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


PROVIDERS = {
    "anthropic": "ANTHROPIC_API_KEY",
    "gemini": "GEMINI_API_KEY",
    "ollama": "OLLAMA_API_KEY",
    "openai_responses": "OPENAI_API_KEY",
    "completions": "OPENAI_API_KEY",
}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_no_dialect_leaves_its_key(cli: Cli, script: Script, provider: str) -> None:
    key = "planted-of-a-dialect-00004"
    server = script(lambda _: (401, f"you sent {key} and Bearer {key}"))
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
    assert key.encode() not in seen
