"""LLaMA-Factory reads the rows of `sharegpt` with the settings of docs/rows.md, and trains on what the model wrote.

`pip install --no-deps llamafactory peft` in an environment with torch makes it run.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.export.test_files import save
from tests.export.test_training import make_tokenizer, rows

from treadle.core.types import Role
from treadle.export.rows import Row

pytestmark = [pytest.mark.xdist_group("training"), pytest.mark.full]
__all__ = ["rows"]


def test_what_the_model_wrote_is_trained_on_and_nothing_else(rows: list[Row], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("llamafactory")
    from llamafactory.data.converter import get_dataset_converter
    from llamafactory.data.parser import DatasetAttr
    from llamafactory.data.template import TEMPLATES

    settings = {"formatting": "sharegpt", "columns": {"messages": "conversations", "tools": "tools"}}
    about = DatasetAttr("file", "rows.jsonl")
    about.join(settings)
    convert = get_dataset_converter("sharegpt", about, SimpleNamespace(media_dir=None))
    tokenizer: Any = make_tokenizer("qwen2_5")
    written = save(tmp_path / "rows.jsonl", "sharegpt", *rows).read_text().splitlines()
    for row, line in zip(rows, written, strict=True):
        found = convert(json.loads(line))
        assert found["_response"], "the row is skipped"
        turns = [*found["_prompt"], *found["_response"]]
        said = TEMPLATES["qwen"].encode_multiturn(tokenizer, turns, found["_system"], found["_tools"])
        asked, answered = (tokenizer.decode([token for pair in said for token in pair[at]]) for at in (0, 1))
        calls = [call for message in row.messages for call in message.tool_calls]
        assert answered.count("<tool_call>") == len(calls)
        assert "<tool_response>" not in answered
        assert asked.count("<tool_response>") >= 1 if calls else True
        finals = [
            item.content for item in row.messages if item.role is Role.ASSISTANT and not item.tool_calls
        ]
        assert all(text in answered for text in finals)
        assert all(call.name in answered for call in calls)
