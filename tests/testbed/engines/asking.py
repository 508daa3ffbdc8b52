"""Requests to mock engines, for tests."""

import json
from typing import Any

from treadle.core.types import Message, Role, ToolSpec
from treadle.formats.scanner.parsed import to_openai
from treadle.tasks.files import TASK_SET
from treadle.testbed.engines import EngineApp

TASK = TASK_SET.get("csv_sum-0001")
PATH = {"type": "object", "properties": {"file_path": {"type": "string"}}}
TOOLS = [ToolSpec("read_file", "Read a file.", PATH), ToolSpec("list_files", "List all files.", {})]
MESSAGES = [Message(Role.SYSTEM, TASK.instructions), Message(Role.USER, TASK.input)]


def chat(model: str = "oracle", **fields: Any) -> dict[str, Any]:
    messages = [{"role": item.role.value, "content": item.content} for item in MESSAGES]
    return {"model": model, "messages": messages, "tools": [to_openai(tool) for tool in TOOLS], **fields}


def prompt_of(app: EngineApp, model: str = "oracle") -> list[int]:
    return app.policy(model).template.render(MESSAGES, TOOLS)


def ask(app: EngineApp, path: str, body: Any = None) -> Any:
    """Return the decoded body of a response, or the list of the events of a stream."""
    data = b"" if body is None else json.dumps(body).encode()
    reply = app.answer("GET" if body is None else "POST", path, data)
    assert reply.status == 200, reply.pieces
    if reply.is_stream:
        assert reply.pieces[-1] == b"data: [DONE]\n\n"
        return [json.loads(piece[6:]) for piece in reply.pieces[:-1]]
    text = b"".join(reply.pieces)
    return json.loads(text) if text else None
