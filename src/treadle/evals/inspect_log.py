"""Evaluation logs of Inspect, which its viewer and its data frames read.

Source: `EvalLog` of inspect_ai 0.3, version 2 of the format. The keys are in the order of its fields, because
Inspect reads the head of a log without its samples.
"""

import math
import re
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import msgspec

from treadle.core.errors import RunNotFoundError
from treadle.core.events import InferenceCompleted
from treadle.core.types import Json, Message, Role, StopReason, ToolCall
from treadle.evals.evaluation_config import EvaluationSpec
from treadle.evals.evaluation_folder import Sample
from treadle.evals.evaluation_reports import name_scorers
from treadle.evals.evaluation_results import ModelResult, Results
from treadle.journal.protocol import Journal
from treadle.runs.run import Run
from treadle.scoring.expectations import LABEL

_LIMITS = {
    StopReason.MAX_TOKENS: "token",
    StopReason.MAX_COST: "cost",
    StopReason.DEADLINE: "time",
    StopReason.CONTEXT_OVERFLOW: "context",
}
"""The limits of runs for which Inspect has a name. Others are `custom`."""


def name_inspect_log(log: dict[str, Any]) -> str:
    """Return a name as Inspect gives it, with the time at its beginning: its viewer lists only such files."""
    about = log["eval"]
    time, task, model = about["created"][:19], about["task"], about["model"]
    return "_".join([re.sub(r"[^\w.-]+", "-", part) for part in (time, task, model)]) + ".json"


def make_inspect_log(results: Results, model: ModelResult, journal: Journal) -> dict[str, Any]:
    """Return the samples of one model as an evaluation log of Inspect, those without a grade with their error.
    Blocks. Raises: `JournalError`."""
    samples = [sample for sample in results.samples if sample.spec.model == model.model]
    written = [_write_sample(sample, Run.load(sample.run_id, journal)) for sample in samples]
    usage = Counter[str]()
    for item in written:
        usage.update(item["model_usage"][model.model])
    if model.cost_usd is None:
        usage.pop("total_cost", None)
    lost = {name: spec for name, spec in results.failed_specs.items() if spec.model == model.model}
    written += [_write_lost(run_id, spec, results.failed[run_id], journal) for run_id, spec in lost.items()]
    began = min([item["started_at"] for item in written if "started_at" in item], default=_write_time(0))
    ended = max([item["completed_at"] for item in written if "completed_at" in item], default=began)
    specs = [*[sample.spec for sample in samples], *lost.values()]
    tasks = list(dict.fromkeys([spec.task for spec in specs]))
    estimates = {} if model.score is None else {"score": model.score}
    estimates |= dict(zip(name_scorers(model.scorers, ("score",)), model.scorers.values(), strict=True))
    is_whole = len(results.samples) + len(results.failed) >= results.planned
    return {
        "version": 2,
        "status": "success" if is_whole else "cancelled",
        "eval": {
            # Its data frames take two logs with the same id for one.
            "eval_id": f"{results.name}-{model.model}-{began}",
            "created": began,
            "task": results.name,
            "task_id": results.name,
            "dataset": {"name": results.name, "samples": len(tasks), "sample_ids": tasks},
            "model": model.model,
            "config": {"epochs": 1 + max([spec.epoch for spec in specs], default=0)},
        },
        "plan": {"name": "treadle"},
        "results": {
            "total_samples": len(written),
            "completed_samples": len(samples),
            "scores": [
                {
                    "name": name,
                    "scorer": name,
                    "scored_samples": estimate.samples,
                    "unscored_samples": len(samples) - estimate.samples,
                    "metrics": {
                        key: {"name": key, "value": value}
                        for key in ("mean", "low", "high")
                        # An interval of one task can be infinite, for which JSON has no number.
                        if math.isfinite(value := getattr(estimate, key))
                    },
                }
                for name, estimate in estimates.items()
            ],
        },
        "stats": {"started_at": began, "completed_at": ended, "model_usage": {model.model: usage}},
        "samples": written,
    }


def _write_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _write_head(spec: EvaluationSpec, run: Run[Any]) -> dict[str, Any]:
    """Return what a run says of a sample, graded or not."""
    began, ended = run.events[0].at, run.events[-1].at
    asked = [message.content for message in run.messages if message.role is Role.USER]
    # Evaluations of one name have runs of one name, and a data frame can be of several.
    messages = [
        {"id": f"{run.run_id}-{began:.6f}-{number}", **_write_message(message)}
        for number, message in enumerate(run.messages)
    ]
    return {
        "id": spec.task,
        "epoch": spec.epoch + 1,
        "input": asked[0] if asked else "",
        "target": "",
        "messages": messages,
        "events": _write_answers(messages, run, spec.model),
        "events_data": {"messages": messages, "calls": []},
        "metadata": {"run_id": run.run_id},
        "started_at": _write_time(began),
        "completed_at": _write_time(ended),
        "total_time": round(ended - began, 3),
    }


def _write_answers(messages: list[dict[str, Any]], run: Run[Any], model: str) -> list[dict[str, Any]]:
    """Return an event for each answer, with what was said before it as a part of `events_data`.

    Inspect's data frame of messages reads these, and no messages of a sample.
    """
    began = run.events[0].at
    times = [event.at for event in run.events if isinstance(event.body, InferenceCompleted)]
    places = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    # Answers from before the run have no time of their own.
    times = ([began] * len(places) + times)[-len(places) :] if places else []
    return [
        {
            "event": "model",
            "uuid": f"{messages[place]['id']}-event",
            "timestamp": _write_time(at),
            "working_start": round(at - began, 3),
            "model": model,
            "input": [],
            "input_refs": [[0, place]],
            "tools": [],
            "tool_choice": "auto",
            "config": {},
            "output": {
                "model": model,
                "choices": [{"message": messages[place], "stop_reason": _find_reason(messages[place])}],
            },
        }
        for place, at in zip(places, times, strict=True)
    ]


def _find_reason(message: dict[str, Any]) -> str:
    return "tool_calls" if message.get("tool_calls") else "stop"


def _write_lost(run_id: str, spec: EvaluationSpec, reason: str, journal: Journal) -> dict[str, Any]:
    """Return a sample without a grade. Its run may never have begun."""
    error = {"message": reason, "traceback": "", "traceback_ansi": ""}
    try:
        return {**_write_head(spec, Run.load(run_id, journal)), "error": error}
    except RunNotFoundError:
        return {"id": spec.task, "epoch": spec.epoch + 1, "input": "", "target": "", "error": error}


def _write_sample(sample: Sample, run: Run[Any]) -> dict[str, Any]:
    details, head = sample.details, _write_head(sample.spec, run)
    answers = [item for item in head["messages"] if item["role"] == "assistant"]
    usage = _write_usage(run, sample.cost_usd)
    is_completed = details.stop_reason is StopReason.COMPLETED
    choices = [{"message": answers[-1], "stop_reason": "stop" if is_completed else "unknown"}]
    limit = None
    if not is_completed:
        limit = {"type": _LIMITS.get(details.stop_reason, "custom"), "limit": 0}
    scores: dict[str, tuple[float, str | None]] = {}
    if details.score is not None:
        scores["score"] = details.score, None
    for name, shown in zip(details.scores, name_scorers(details.scores, ("score",)), strict=True):
        scores[shown] = details.scores[name], details.reasons.get(name)
    expected: Json = run.metadata.get(LABEL)
    answer: Json = expected.get("answer") if isinstance(expected, dict) else None
    head["metadata"] |= {"stop_reason": details.stop_reason.value, **({LABEL: expected} if expected else {})}
    return {
        **head,
        "target": [*map(_write_text, answer)] if isinstance(answer, list) else _write_text(answer),
        "output": {"model": sample.spec.model, "choices": choices if answers else [], "usage": usage},
        "scores": {
            name: {"value": value, "answer": run.output, "explanation": reason}
            for name, (value, reason) in scores.items()
        },
        "model_usage": {sample.spec.model: usage},
        "working_time": details.seconds,
        "limit": limit,
    }


def _write_text(value: Json) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return msgspec.json.encode(value).decode()


def _write_usage(run: Run[Any], cost_usd: float | None) -> dict[str, float]:
    """Return what a run has used. Inspect counts the tokens of a cache beside the input, and not in it."""
    usage = run.usage
    cached, stored = usage.cached_input_tokens, usage.cache_write_tokens
    return {
        "input_tokens": usage.input_tokens - cached - stored,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "input_tokens_cache_read": cached,
        "input_tokens_cache_write": stored,
        "reasoning_tokens": usage.reasoning_tokens,
        **({} if cost_usd is None else {"total_cost": cost_usd}),
    }


def _write_message(message: Message) -> dict[str, Any]:
    written: dict[str, Any] = {"role": message.role.value, "content": message.content}
    if message.reasoning:
        parts = [{"type": "reasoning", "reasoning": message.reasoning}]
        parts += [{"type": "text", "text": message.content}] if message.content else []
        written["content"] = parts
    if message.role is Role.TOOL:
        written |= {"tool_call_id": message.call_id, "function": message.name}
        if message.is_error:
            written["error"] = {"type": "unknown", "message": message.content}
    if message.is_own:
        written["metadata"] = {"is_from_treadle": True}
    if message.tool_calls:
        written["tool_calls"] = [_write_call(call) for call in message.tool_calls]
    return written


def _write_call(call: ToolCall) -> dict[str, Any]:
    fault, arguments = None, None
    try:
        arguments = call.parsed
    except ValueError as error:
        fault = str(error)
    is_object = isinstance(arguments, dict)
    if not is_object and fault is None:
        fault = "the arguments are not an object"
    return {
        "id": call.call_id,
        "function": call.name,
        "arguments": arguments if is_object else {},
        "parse_error": fault,
    }
