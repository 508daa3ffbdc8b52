"""A real server on a thread, whose answers a test decides by role; the built-in teacher gives all others."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.testbed.threaded import ThreadedServer

from treadle.core.types import Json
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.generation import Continuation, GenerationResult, generate
from treadle.testbed.server.oracle_app import HttpReply, OracleApp, ServerSettings

Answers = Callable[[dict[str, Any]], Any]
"""Returns a reply for the body of a request: a text, tool calls as (name, arguments), a `HttpReply`, or `None` for
what the teacher says."""


class Server(ThreadedServer):
    """The server. `roles` maps `subtopics`, `scenario`, `user_turn`, `judgement` and `agent` to answers."""

    def __init__(self, **roles: Answers) -> None:
        self.asked: Counter[str] = Counter()
        """The number of requests by role."""
        self.usage: Json = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        self.tokens = 0
        outer = self

        class App(OracleApp):
            def answer(self, method: str, path: str, body: bytes) -> HttpReply:
                asked = json.loads(body)
                role = role_of(asked)
                outer.asked[role] += 1
                found = roles[role](asked) if role in roles else None
                if isinstance(found, HttpReply):
                    return found
                if found is None:
                    reply = super().answer(method, path, body)
                    usage = json.loads(reply.pieces[0]).get("usage")
                    outer.tokens += usage["total_tokens"] if usage else 0
                    return reply
                outer.tokens += outer.usage["total_tokens"] if outer.usage else 0
                return completion(found, outer.usage)

        super().__init__(App(ServerSettings()))


def role_of(asked: Mapping[str, Any]) -> str:
    """Return what a request asks for: the `write` of its facts, or `agent`."""
    for message in asked["messages"]:
        text = message.get("content") or ""
        if message["role"] != "assistant" and isinstance(text, str) and "<facts>\n" in text:
            facts = json.loads(text.partition("<facts>\n")[2].partition("\n</facts>")[0])
            return str(facts["write"])
    return "agent"


def completion(found: Any, usage: Json) -> HttpReply:
    """Return a completion with a text, or with tool calls."""
    message: dict[str, Any] = {"role": "assistant", "content": found}
    if isinstance(found, list):
        calls = [
            {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for number, (name, arguments) in enumerate(found)
        ]
        message = {"role": "assistant", "content": "I do it.", "tool_calls": calls}
    reason = "tool_calls" if isinstance(found, list) else "stop"
    value = {
        "id": "x", "object": "chat.completion", "created": 0, "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": usage,
    }  # fmt: skip
    return HttpReply(200, [json.dumps(value).encode()], {"Content-Type": "application/json"})


def make_config(server: Server, folder: Path, **sections: Json) -> GenerationConfig:
    """Return a small configuration that asks `server`."""
    value: dict[str, Any] = {
        "name": "hostile",
        "models": {"default": {"model": "openai:teacher", "base_url": server.url, "max_attempts": 2}},
        "topics": {"prompt": "Office work", "degree": 2, "depth": 1},
        "generation": {"num_samples": 2, "window": 2},
        "tools": {"use": ["files"], "files": "tasks:files"},
        "output": {"path": str(folder / "dataset")},
    }
    for name, section in sections.items():
        value[name] = value.get(name, {}) | section if isinstance(section, dict) else section
    return GenerationConfig.model_validate(value)


def run(config: GenerationConfig, **options: bool) -> GenerationResult:
    """Generate the dataset, or go on with it."""
    return asyncio.run(
        asyncio.wait_for(
            generate(config, DatasetFolder(config.output.path), options=Continuation(**options)), 100
        )
    )


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects of a file."""
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []
