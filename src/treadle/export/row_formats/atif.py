"""The row format `atif`: one trajectory of the Agent Trajectory Interchange Format (ATIF) 1.8 in each row.

A step is a message; the results of an agent's calls are in its `observation`. A step has the token ids and log
probabilities of its inference in `metrics`, if the engine returned them; log probabilities are written only if
all of them are known. The exact text of a call's arguments is in the call's `extra`, and the row's lineage is
in the `extra` of the trajectory. Images and audio are refused when a row is read.

Source: Harbor 0.25, `models/trajectories/` (the models of ATIF-v1.8, which its validator uses).
"""

import math
from collections.abc import Iterator
from itertools import count
from typing import Any

import msgspec

from treadle.core.tokens.packed import pack_ids, pack_logprobs, unpack_ids, unpack_logprobs
from treadle.core.types import UNREPORTED, Json, Message, Role, ToolCall, Usage
from treadle.export.exporter import COMMON_LOSSES, ColumnType, Loss, RowFormat
from treadle.export.row_formats.chat_rows import read_content, write_compact
from treadle.export.rows import AnswerTokens, Row, make_row, read_tools, write_object, write_tools

VERSION = "ATIF-v1.8"
_OWN = "treadle"
_SOURCES = {Role.SYSTEM: "system", Role.USER: "user", Role.ASSISTANT: "agent"}


class AtifRows(RowFormat):
    """The row format `atif`: one trajectory of the Agent Trajectory Interchange Format (ATIF) 1.8 in each row."""

    has_tokens = True
    marks_untrained = True
    losses = (*COMMON_LOSSES, Loss.UNTRAINED)
    columns = {  # noqa: RUF012
        "schema_version": ColumnType.TEXT,
        "session_id": ColumnType.TEXT,
        "trajectory_id": ColumnType.TEXT,
        "agent": ColumnType.JSON,
        "steps": ColumnType.LIST,
        "final_metrics": ColumnType.JSON,
        "extra": ColumnType.JSON,
    }

    def write(self, row: Row, *, with_reasoning: bool) -> dict[str, Json]:
        steps = list(_write_steps(row, with_reasoning))
        own = {"lineage": row.lineage, **({"weight": row.weight} if row.weight != 1 else {})}
        agent = {
            "name": _OWN,
            "version": row.lineage.treadle_version or "unknown",
            "model_name": row.lineage.model,
            "tool_definitions": write_tools(row.tools),
        }
        return {
            "schema_version": VERSION,
            "session_id": row.lineage.run_id,
            "trajectory_id": row.lineage.run_id,
            "agent": _without_none(agent),
            "steps": steps,
            "final_metrics": _sum_metrics(row, len(steps)),
            "extra": {_OWN: own},
        }

    def read(self, raw: dict[str, Json]) -> Row:
        """Return a row from this format, of any version."""
        messages = [message for step in raw["steps"] for message in _read_step(step)]
        said = [step for step in raw["steps"] if step["source"] == "agent"]
        tokens = tuple([_read_metrics(step.get("metrics") or {}) for step in said])
        untrained = [n for n, step in enumerate(said) if (step.get("extra") or {}).get("train") is False]
        tools = read_tools(raw["agent"].get("tool_definitions"))
        own = (raw.get("extra") or {}).get(_OWN) or {}
        row = make_row(messages, tools, own.get("lineage"), tuple(untrained), own.get("weight"))
        return msgspec.structs.replace(row, tokens=tokens if any(tokens) else ())

    def fits(self, raw: dict[str, Json]) -> bool:
        return str(raw.get("schema_version", "")).startswith("ATIF-")


FORMAT = AtifRows()


def _write_steps(row: Row, with_reasoning: bool) -> Iterator[dict[str, Json]]:
    answers = iter(row.tokens or ())
    numbers = count()
    steps: list[dict[str, Json]] = []
    for message in row.messages:
        if message.role is Role.TOOL:
            result: dict[str, Json] = {"source_call_id": message.call_id, "content": message.content}
            if message.is_error:
                result["extra"] = {"is_error": True}
            steps[-1].setdefault("observation", {"results": []})["results"].append(result)
            continue
        step: dict[str, Json] = {
            "step_id": len(steps) + 1,
            "source": _SOURCES[message.role],
            "message": message.content,
        }
        if message.role is Role.ASSISTANT:
            step["llm_call_count"] = 1
            if next(numbers) in row.untrained:
                step["extra"] = {"train": False}
            if message.reasoning and with_reasoning:
                step["reasoning_content"] = message.reasoning
            if message.tool_calls:
                step["tool_calls"] = [_write_call(call) for call in message.tool_calls]
            if (answer := next(answers, None)) is not None:
                step["metrics"] = _write_metrics(answer)
        steps.append(step)
    return iter(steps)


def _write_call(call: ToolCall) -> dict[str, Json]:
    write_object(call)
    raw: dict[str, Json] = {
        "tool_call_id": call.call_id,
        "function_name": call.name,
        "arguments": call.parsed,
    }
    if call.arguments != write_compact(call.parsed):
        raw["extra"] = {"arguments": call.arguments}
    return raw


def _write_metrics(answer: AnswerTokens) -> dict[str, Json]:
    usage = answer.usage
    logprobs = None if answer.logprobs is None else unpack_logprobs(answer.logprobs)
    is_known = logprobs is not None and not any(math.isnan(value) for value in logprobs)
    return _without_none(
        {
            "prompt_tokens": usage.input_tokens if usage.is_reported else None,
            "completion_tokens": usage.output_tokens if usage.is_reported else None,
            "cached_tokens": usage.cached_input_tokens if usage.is_reported else None,
            "cost_usd": answer.cost_usd,
            "prompt_token_ids": _ids_of(answer.prompt_token_ids),
            "completion_token_ids": _ids_of(answer.token_ids),
            "logprobs": logprobs if is_known else None,
        }
    )


def _sum_metrics(row: Row, steps: int) -> dict[str, Json]:
    usages = [answer.usage for answer in row.tokens or () if answer is not None]
    total = sum(usages, Usage())
    if not usages or not total.is_reported:
        return {"total_steps": steps}
    return {
        "total_prompt_tokens": total.input_tokens,
        "total_completion_tokens": total.output_tokens,
        "total_cached_tokens": total.cached_input_tokens,
        "total_steps": steps,
    }


def _read_step(step: dict[str, Json]) -> Iterator[Message]:
    calls = [_read_call(call) for call in step.get("tool_calls") or ()]
    role = {source: role for role, source in _SOURCES.items()}[step["source"]]
    yield Message(role, read_content(step["message"]), tuple(calls), reasoning=step.get("reasoning_content"))
    for result in (step.get("observation") or {}).get("results") or ():
        content = read_content(result.get("content"))
        call_id = result.get("source_call_id")
        if call_id is None:
            # What the environment said without being called is to the model what a user says.
            yield Message(Role.USER, content)
            continue
        is_error = bool((result.get("extra") or {}).get("is_error"))
        yield Message(Role.TOOL, content, (), call_id, is_error=is_error)


def _read_call(raw: dict[str, Json]) -> ToolCall:
    exact = (raw.get("extra") or {}).get("arguments")
    text = exact if isinstance(exact, str) else write_compact(raw["arguments"])
    return ToolCall(raw["tool_call_id"], raw["function_name"], text)


def _read_metrics(raw: dict[str, Any]) -> AnswerTokens | None:
    prompt, ids, logprobs = (raw.get(key) for key in ("prompt_token_ids", "completion_token_ids", "logprobs"))
    usage = UNREPORTED
    if raw.get("prompt_tokens") is not None or raw.get("completion_tokens") is not None:
        usage = Usage(
            raw.get("prompt_tokens") or 0,
            raw.get("completion_tokens") or 0,
            raw.get("cached_tokens") or 0,
        )
    answer = AnswerTokens(
        None if prompt is None else pack_ids(prompt),
        None if ids is None else pack_ids(ids),
        None if logprobs is None else pack_logprobs(logprobs),
        usage,
        raw.get("cost_usd"),
    )
    return None if answer == AnswerTokens() else answer


def _ids_of(packed: bytes | None) -> tuple[int, ...] | None:
    return None if packed is None else unpack_ids(packed)


def _without_none(raw: dict[str, Json]) -> dict[str, Json]:
    return {key: value for key, value in raw.items() if value is not None}
