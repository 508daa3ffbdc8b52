"""Secrets of a configuration are not stored with the dataset."""

import json
from pathlib import Path

from treadle.datagen.config.fingerprint import explain_changes, fingerprint
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.config.loading import read_config, write_config
from treadle.jobs.config_changes import find_changes

SECRET = "planted-0123456789"
PLACE = "Bearer ${TOKEN}"


def make(secret: str) -> GenerationConfig:
    return GenerationConfig.model_validate(
        {
            "topics": {"prompt": "x"},
            "models": {
                "default": {
                    "model": "openai:m",
                    "base_url": f"http://me:{secret}@localhost:1/v1",
                    "headers": {"X-Team": secret, "Authorization": PLACE},
                    "extra": {"metadata": {"user_token": secret}, "top_k": 5, "api_key": PLACE},
                    "options": {"server_tools": [{"type": "mcp", "authorization": secret}]},
                }
            },
            "tools": {
                "use": [
                    "files",
                    f"mcp:https://example.org/mcp?token={secret}",
                    f"mcp:server --api-key {secret}",
                    {"name": f"spin:http://u:{secret}@localhost:3000", "settings": {"component": "vfs"}},
                    {
                        "name": "mcp:server",
                        "settings": {
                            "env": {"A": [secret, 5]},
                            "api_token": secret,
                            "url": f"http://x@{secret}",
                        },
                    },
                ]
            },
        }
    )


def test_the_copy_of_the_configuration_has_no_secrets_and_can_be_read(tmp_path: Path) -> None:
    write_config(tmp_path, make(SECRET))
    text = (tmp_path / "config.yaml").read_text()
    assert SECRET not in text
    assert PLACE in text
    copy = read_config(tmp_path)
    assert copy is not None
    assert copy.tools.use[0] == "files"
    assert [part.name.partition(":")[0] for part in copy.tools.parts()] == [
        "files",
        "mcp",
        "mcp",
        "spin",
        "mcp",
    ]


def test_the_ledger_has_no_secrets_and_another_key_is_no_other_configuration() -> None:
    stored = fingerprint(make(SECRET))
    assert SECRET[:8] not in json.dumps(stored)
    assert list(find_changes(stored, fingerprint(make("another-9876543210")))) == []
    changed = make(SECRET).model_copy(update={"seed": 5})
    changes = find_changes(stored, fingerprint(changed))
    assert [item.key for item in changes] == ["seed"]
    fewer = changed.tools.model_copy(update={"use": ["files"]})
    now = fingerprint(changed.model_copy(update={"tools": fewer}))
    text = explain_changes(list(find_changes(stored, now)), "undo it")
    assert "tools.use" in text
    assert SECRET[:8] not in text
