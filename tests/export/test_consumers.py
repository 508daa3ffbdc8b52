"""Rows in the code of LLaMA-Factory and Axolotl that reads them, without torch.

`pip install --no-deps llamafactory==0.9.5 axolotl==0.19.0` in the environment of the tests makes them run. Only the
modules that read rows are loaded, because their packages load a GPU's libraries.
"""

import ast
import importlib
import importlib.util
import json
import logging
import sys
import types
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.export.test_files import example
from tests.export.test_row_changes import make_row

from treadle.export import FORMATS, Row, encode_row

pytestmark = pytest.mark.full
PARAMETER = {"type": "string", "description": "Which one.", "enum": ["x", "y"]}
SCHEMA = {"type": "object", "properties": {"a": PARAMETER}, "required": ["a"]}
"""A schema that the style `default` of LLaMA-Factory can write; see docs/rows.md."""
ROWS = [
    replace(row, tools=tuple([replace(tool, parameters=SCHEMA) for tool in row.tools]))
    for row in (example(), make_row(), replace(make_row(), untrained=()))
]


def folder_of(package: str) -> Path:
    """Return the folder of a package that need not be importable as a whole."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    return Path(next(iter(found.submodule_search_locations)))


def written(row: Row, name: str) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(encode_row(row, FORMATS.load(name)))
    return raw


def calls_of(raw: dict[str, Any]) -> list[Any]:
    calls = [call["function"] for item in raw["messages"] for call in item.get("tool_calls") or ()]
    return [(call["name"], call["arguments"]) for call in calls]


@pytest.fixture
def factory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return LLaMA-Factory's modules that read rows, as `converter` and `formatter`."""
    root = folder_of("llamafactory")
    told: list[str] = []

    def get_logger(name: str) -> Any:
        return types.SimpleNamespace(warning_rank0=told.append, warning_rank0_once=told.append)

    class Roles(StrEnum):
        USER, ASSISTANT, SYSTEM = "user", "assistant", "system"
        FUNCTION, OBSERVATION = "function", "observation"

    stubs: dict[str, dict[str, Any]] = {
        "llamafactory": {"__path__": [str(root)]},
        "llamafactory.data": {"__path__": [str(root / "data")]},
        "llamafactory.extras": {"__path__": []},
        "llamafactory.extras.logging": {"get_logger": get_logger},
        "llamafactory.data.data_utils": {"Role": Roles, "SLOTS": list},
    }
    for name, values in stubs.items():
        module = types.ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    vars(sys.modules["llamafactory.extras"])["logging"] = sys.modules["llamafactory.extras.logging"]
    names = ("converter", "formatter")
    yield types.SimpleNamespace(
        told=told, **{name: importlib.import_module(f"llamafactory.data.{name}") for name in names}
    )
    for name in list(sys.modules):
        if name.startswith("llamafactory.data."):
            monkeypatch.delitem(sys.modules, name, raising=False)


TAGS = {
    "messages": "conversations", "tools": "tools", "role_tag": "from", "content_tag": "value", "user_tag": "human",
    "assistant_tag": "gpt", "observation_tag": "observation", "function_tag": "function_call",
    "system_tag": "system",
    "load_from": "file", "ranking": False, "kto_tag": None, "images": None, "videos": None, "audios": None,
    "system": None, "chosen": None, "rejected": None,
}  # fmt: skip


@pytest.mark.parametrize("style", ["default", "qwen", "llama3", "mistral"])
def test_llama_factory_reads_each_row_of_sharegpt_with_all_its_calls(style: str, factory: Any) -> None:
    convert = factory.converter.SharegptDatasetConverter(types.SimpleNamespace(**TAGS), None)
    calls = factory.formatter.FunctionFormatter(slots=["{{content}}"], tool_format=style)
    tools = factory.formatter.ToolFormatter(tool_format=style)
    for row in ROWS:
        read = convert(written(row, "sharegpt"))
        assert read["_response"], factory.told
        assert tools.apply(content=read["_tools"])
        found = []
        for message in read["_prompt"] + read["_response"]:
            if message["role"] == "function":
                (text,) = calls.apply(
                    content=message["content"],
                    thought_words=("<think>\n", "\n</think>\n\n"),
                    tool_call_words=("<tool_call>", "</tool_call>"),
                )
                said = message["content"].partition("<tool_call>")[0]
                text = text.removeprefix(said) if "<tool_call>" in message["content"] else text
                thought = text.rpartition("\n</think>\n\n")[2]
                found += [(name, json.loads(arguments)) for name, arguments in tools.extract(thought)]
        assert found == calls_of(written(row, "trl"))
    assert factory.told == []


class Strategy:
    """The part of Axolotl's `ChatTemplateStrategy` that reads the messages of a row, from its source."""

    def __init__(self) -> None:
        path = folder_of("axolotl") / "prompt_strategies" / "chat_template.py"
        tree = ast.parse(path.read_text())
        found = next(
            item
            for item in tree.body
            if isinstance(item, ast.ClassDef) and item.name == "ChatTemplateStrategy"
        )
        kept = [
            item
            for item in found.body
            if isinstance(item, ast.FunctionDef)
            and item.name.lstrip("_")
            in (
                "get_conversation_thread",
                "transform_message",
                "get_tools",
                "get_messages",
                "convert_content_parts",
            )
        ]
        for item in kept:
            item.returns = None
            item.decorator_list = [
                one for one in item.decorator_list if getattr(one, "id", "") == "staticmethod"
            ]
            for argument in item.args.args:
                argument.annotation = None
        module = ast.Module([ast.ClassDef("Own", [], [], list(kept), [])], [])
        names: dict[str, Any] = {"json": json, "LOG": logging.getLogger("axolotl")}
        exec(compile(ast.fix_missing_locations(module), str(path), "exec"), names)
        self.own = names["Own"]()
        self.own.split_thinking = False
        roles = ("user", "assistant", "tool", "system")
        variables = {"role", "content", "tool_calls", "name", "tool_call_id", "reasoning_content"}
        self.own.prompter = types.SimpleNamespace(
            message_property_mappings={name: name for name in ("role", "content", "reasoning_content")},
            roles={role: role for role in roles},
            field_messages="messages",
            field_system="system",
            field_tools="tools",
            message_field_training="train",
            message_field_training_detail=None,
            template_thinking_key="reasoning_content",
            drop_system_message=False,
            chat_template_msg_variables=variables,
        )


@pytest.mark.parametrize("row", ROWS)
def test_axolotl_reads_each_row_with_what_is_trained_on(row: Row) -> None:
    own = Strategy().own
    raw = written(row, "axolotl")
    turns = own.get_conversation_thread(json.loads(json.dumps(raw)))
    said = [turn for turn in turns if turn["role"] == "assistant"]
    assert [turn["training"] for turn in said] == [n not in row.untrained for n in range(len(said))]
    assert all(turn.get("training") is None for turn in turns if turn["role"] != "assistant")
    assert calls_of({"messages": turns}) == calls_of(raw)
    assert len(own._get_tools(raw)) == len(row.tools)
