"""ATIF 1.8: rows are valid, tokens come back, and trajectories of others are read."""

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import assume, given, settings
from tests.export.test_formats import rows

from treadle import Agent, ExportError, open_journal
from treadle.core.tokens.token_record import TokenRecord
from treadle.core.types import Completion, FinishReason, Message, Role, Usage
from treadle.export import FORMATS, Row, encode_row, export_rows, load_row, read_row
from treadle.models.scripted import ScriptedModel

ATIF = FORMATS.load("atif")
TEXT = {"type": "string"}
COUNT = {"type": "integer", "minimum": 0}
EXTRA = {"type": "object"}
CONTENT = {"anyOf": [TEXT, {"type": "array"}, {"type": "null"}]}


def closed(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


METRICS = closed(
    [],
    prompt_tokens=COUNT,
    completion_tokens=COUNT,
    cached_tokens=COUNT,
    cost_usd={"type": "number"},
    prompt_token_ids={"type": "array", "items": COUNT},
    completion_token_ids={"type": "array", "items": COUNT},
    logprobs={"type": "array", "items": {"type": "number"}},
    extra=EXTRA,
)
CALL = closed(
    ["tool_call_id", "function_name", "arguments"],
    tool_call_id=TEXT,
    function_name=TEXT,
    arguments={"type": "object"},
    extra=EXTRA,
)
RESULT = closed(
    [], source_call_id=TEXT, content=CONTENT, subagent_trajectory_ref={"type": "array"}, extra=EXTRA
)
STEP = closed(
    ["step_id", "source", "message"],
    step_id={"type": "integer", "minimum": 1},
    timestamp=TEXT,
    source={"enum": ["system", "user", "agent"]},
    model_name=TEXT,
    reasoning_effort={"type": ["string", "number"]},
    message={"anyOf": [TEXT, {"type": "array"}]},
    reasoning_content=TEXT,
    tool_calls={"type": "array", "items": CALL},
    observation=closed(["results"], results={"type": "array", "items": RESULT}),
    metrics=METRICS,
    is_copied_context={"type": "boolean"},
    llm_call_count=COUNT,
    extra=EXTRA,
)
AGENT = closed(
    ["name", "version"],
    name=TEXT,
    version=TEXT,
    model_name=TEXT,
    tool_definitions={"type": "array"},
    extra=EXTRA,
)
FINAL = closed(
    [],
    total_prompt_tokens=COUNT,
    total_completion_tokens=COUNT,
    total_cached_tokens=COUNT,
    total_cost_usd={"type": "number"},
    total_steps=COUNT,
    extra=EXTRA,
)
SCHEMA = closed(
    ["schema_version", "agent", "steps"],
    schema_version={"const": "ATIF-v1.8"},
    session_id=TEXT,
    trajectory_id=TEXT,
    agent=AGENT,
    steps={"type": "array", "items": STEP, "minItems": 1},
    notes=TEXT,
    final_metrics=FINAL,
    continued_trajectory_ref=TEXT,
    extra=EXTRA,
    subagent_trajectories={"type": "array"},
)
"""The fields of ATIF 1.8. Harbor's validator, which has the whole rules, is used too if it is installed."""


def check(raw: dict[str, Any]) -> None:
    jsonschema_rs.validate(SCHEMA, raw)
    for number, step in enumerate(raw["steps"], 1):
        assert step["step_id"] == number
        own = {call["tool_call_id"] for call in step.get("tool_calls", ())}
        assert own >= {item["source_call_id"] for item in step.get("observation", {}).get("results", ())}
        if step["source"] != "agent":
            assert not step.keys() & {"model_name", "reasoning_content", "tool_calls", "metrics"}
    try:
        from harbor.utils.trajectory_validator import TrajectoryValidator
    except ImportError:
        return
    validator = TrajectoryValidator()
    assert validator.validate(raw), validator.get_errors()


def write(row: Row) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(encode_row(row, ATIF))
    return raw


@settings(max_examples=50)
@given(row=rows())
def test_every_row_is_a_valid_trajectory(row: Row) -> None:
    try:
        raw = write(row)
    except ExportError:
        assume(False)
    check(raw)
    assert read_row(raw, ATIF).messages == tuple(
        [msgspec.structs.replace(item, opaque=None) for item in row.messages]
    )


def answer(text: str, **tokens: Any) -> Completion:
    usage = Usage(input_tokens=len(tokens.get("prompt", ())), output_tokens=len(tokens.get("output", ())))
    record = TokenRecord.of(**tokens) if tokens else None
    return Completion(Message(Role.ASSISTANT, text), FinishReason.STOP, usage, tokens=record)


async def test_tokens_come_back(tmp_path: Path) -> None:
    """A prompt is stored without the ids that it shares with the inference before it, and exported whole."""
    model = ScriptedModel(
        [
            answer("One.", prompt=[1, 2, 3], output=[4, 5], logprobs=[-0.5, -0.25]),
            answer("Two.", prompt=[1, 2, 3, 4, 5, 6], output=[7, 8], logprobs=[-0.125, float("nan")]),
            answer("Three."),
        ]
    )
    with open_journal(tmp_path / "runs.db") as journal:
        async with Agent(model, journal=journal).session() as session:
            for text in "abc":
                await session.send(text)
            run_id = session.run_id
        row = load_row(journal, run_id, with_tokens=True)
        assert load_row(journal, run_id) == msgspec.structs.replace(row, tokens=())
        (line,) = export_rows(journal, [run_id], "atif")
    raw = json.loads(line)
    check(raw)
    metrics = [step["metrics"] for step in raw["steps"] if step["source"] == "agent"]
    assert [item.get("prompt_token_ids") for item in metrics] == [[1, 2, 3], [1, 2, 3, 4, 5, 6], None]
    assert [item.get("completion_token_ids") for item in metrics] == [[4, 5], [7, 8], None]
    # One of two is not known, and the format has no place for that.
    assert [item.get("logprobs") for item in metrics] == [[-0.5, -0.25], None, None]
    assert raw["final_metrics"]["total_completion_tokens"] == 4
    again = read_row(raw, ATIF)
    assert [item and item.token_ids for item in again.tokens] == [
        item and item.token_ids for item in row.tokens
    ]
    assert write(again) == raw


def test_a_trajectory_of_another_program_is_read() -> None:
    call = {"tool_call_id": "c1", "function_name": "read", "arguments": {"path": "a"}}
    parts = [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}]
    steps: list[Any] = [
        {"step_id": 1, "source": "user", "message": "Read a.", "timestamp": "2026-01-01T00:00:00Z"},
        {
            "step_id": 2,
            "source": "agent",
            "message": "",
            "tool_calls": [call],
            "observation": {"results": [{"source_call_id": "c1", "content": parts}]},
            "metrics": {"prompt_tokens": 5},
        },
        {"step_id": 3, "source": "agent", "message": "12", "reasoning_content": "So."},
    ]
    raw = {"schema_version": "ATIF-v1.5", "agent": {"name": "x", "version": "1"}, "steps": steps}
    row = read_row(raw, ATIF)
    assert [item.role.value for item in row.messages] == ["user", "assistant", "tool", "assistant"]
    assert row.messages[2].content == "12"
    assert row.messages[1].tool_calls[0].arguments == '{"path":"a"}'
    assert [item and item.usage for item in row.tokens] == [Usage(input_tokens=5), None]
    steps[0]["message"] = [{"type": "image", "source": {"path": "a.png", "media_type": "image/png"}}]
    with pytest.raises(ExportError, match="the type 'image', and rows hold only texts"):
        read_row(raw, ATIF)
