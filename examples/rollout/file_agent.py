"""An agent that knows nothing of Treadle: a loop over OpenAI's SDK, with tools for the files of its folder.

    pip install openai
    treadle rollout --command "python examples/rollout/file_agent.py" --task 'files:csv_sum-*' --groups 4

Each rollout starts this program in a folder with the task's files. The SDK finds the model by OPENAI_BASE_URL.
"""

import json
import os
from pathlib import Path
from typing import Any

from openai import OpenAI


def list_files(folder: str = "") -> str:
    """Return the paths of all files in a folder."""
    return json.dumps(sorted(str(path) for path in Path(folder).rglob("*") if path.is_file()))


def read_file(file_path: str) -> str:
    """Return the content of a file."""
    return Path(file_path).read_text()


def write_file(file_path: str, content: str) -> str:
    """Create a file, or replace its content."""
    Path(file_path).parent.mkdir(parents=True, exist_ok=True)
    Path(file_path).write_text(content)
    return f"wrote {file_path}"


TOOLS = {function.__name__: function for function in (list_files, read_file, write_file)}
PARAMETERS = {"list_files": ["folder"], "read_file": ["file_path"], "write_file": ["file_path", "content"]}


def describe(name: str) -> Any:
    """Return a tool as the API defines it."""
    properties = {key: {"type": "string"} for key in PARAMETERS[name]}
    required = [] if name == "list_files" else PARAMETERS[name]
    schema = {"type": "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {"name": name, "description": TOOLS[name].__doc__, "parameters": schema},
    }


def main() -> None:
    """Work on the task until the model answers without a call."""
    client = OpenAI()
    messages: list[Any] = [{"role": "user", "content": os.environ["TREADLE_TASK"]}]
    tools = [describe(name) for name in TOOLS]
    for _ in range(20):
        answer = client.chat.completions.create(model="rollout", messages=messages, tools=tools)
        said = answer.choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        if not said.tool_calls:
            print(said.content)
            return
        for call in said.tool_calls:
            try:
                result = TOOLS[call.function.name](**json.loads(call.function.arguments))
            except (KeyError, TypeError, ValueError, OSError) as error:
                result = f"error: {error!r}"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


if __name__ == "__main__":
    main()
