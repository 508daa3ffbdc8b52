"""Texts for calls, results and outcomes, shared by the live view and by transcripts."""

import time
from collections.abc import Iterator, Mapping

import msgspec
from msgspec.structs import replace

from treadle.cli.exit import ExitCode
from treadle.cli.terminal.output import (
    clean,
    shorten,
    stdout,
    write_cost,
    write_count,
    write_seconds,
    write_usage,
)
from treadle.core import events as e
from treadle.core.tally import count_lost
from treadle.core.types import Artifact, Json, Message, Route, ServerCall, StopReason, ToolCall, ToolResult
from treadle.runs.run import Run

LIMITS: frozenset[str] = frozenset(
    (
        StopReason.MAX_STEPS,
        StopReason.MAX_TOKENS,
        StopReason.MAX_COST,
        StopReason.MAX_TOOL_CALLS,
        StopReason.DEADLINE,
    )
)
"""The stop reasons of a run that reached a limit."""

_STYLES: Mapping[str, str] = {StopReason.COMPLETED: "green", StopReason.CANCELLED: "yellow"}


def exit_code(run: Run) -> ExitCode:
    """Return the exit code of a command that drove `run`."""
    if run.stop_reason is StopReason.COMPLETED:
        return ExitCode.DONE
    if run.stop_reason is None and (run.questions or run.approvals):
        return ExitCode.WAITING
    return ExitCode.LIMIT if run.stop_reason in LIMITS else ExitCode.FAILED


def format_route(route: Route) -> str:
    """Return the choice of a tier in one line."""
    why = [*route.reasons, *[f"not {tier}: {reason}" for tier, reason in route.rejected.items()]]
    return f"tier {clean(route.tier)}: {clean(route.model)} · {shorten('; '.join(why), 300)}"


def format_error(error: str, fault: str | None) -> str:
    """Return an error and whose fault it was."""
    return clean(error) + (f"; fault: {fault}" if fault else "")


def format_fallback(body: e.InferenceFailed) -> str | None:
    """Return why another model of a fallback is asked, in one line; `None` if none is asked."""
    if body.model is None or body.retry_in_seconds is None or body.next_tier is not None:
        return None
    return f"{clean(body.model)} failed: {shorten(body.error, 300)}; another model is asked"


def format_replacement(body: e.InferenceFailed) -> str:
    """Return why another tier is asked, in one line."""
    who = clean(body.model or "the model")
    what = f"the answer of {who} is not used" if body.usage is not None else f"{who} failed"
    why = shorten(body.error.partition("\n")[0], 300)
    return f"{what}: {why}; the tier {clean(str(body.next_tier))} is asked"


_COMPACTED_FOR = {
    "overflow": "the server refused the prompt as too long",
    "budget": "the context was nearly full",
}


def format_compaction(body: e.ContextCompacted) -> str:
    """Return what a compaction did and why, in one line."""
    fact = _COMPACTED_FOR.get(body.reason)
    if body.is_empty:
        known = f", and {fact}" if fact else ""
        said = shorten(body.error or "nothing in it can be cut", 300)
        return f"the prompt has about {body.tokens_before:,} tokens{known}; {said}"
    why = f", because {fact}" if fact else ""
    cost = f" · {write_cost(body.cost_usd)}" if body.cost_usd else ""
    done = [
        f"context compacted from about {body.tokens_before:,} to {body.tokens_after:,} tokens{why}{cost}",
        f"{write_count(len(body.shortened), 'result')} cut" if body.shortened else "",
        f"{write_count(len(body.excerpts), 'message')} shown in part" if body.excerpts else "",
    ]
    # Without a summary, all old messages are dropped: those that neither stay nor are a summary themselves.
    has_summary = body.dropped == 0 or body.dropped < body.messages - len(body.replacement)
    if has_summary and body.messages and body.model is not None:
        done.append(f"old messages summarised by {clean(body.model)}")
    done.append(f"{write_count(body.dropped, 'message')} dropped" if body.dropped else "")
    done.append(f"{'no new summary, because ' * (not has_summary)}{shorten(body.error or '', 300)}")
    return "; ".join(filter(None, done))


def style_of(stop_reason: str | None) -> str:
    """Return the colour of an outcome."""
    if stop_reason is None or stop_reason in LIMITS:
        return "yellow"
    return _STYLES.get(stop_reason, "red")


def format_call(call: ToolCall, chars: int) -> str:
    """Return `name(key="value", ...)`, in about `chars` characters at most.

    Arguments that are not a JSON object are written as the model wrote them.
    """
    room = max(16, chars - len(call.name) - 2)
    arguments = call.parsed_or(None)
    if not isinstance(arguments, dict):
        return f"{clean(call.name)}({shorten(call.arguments, room)})"
    # The remaining room is shared by the remaining values.
    parts = []
    for left, (name, value) in zip(range(len(arguments), 0, -1), arguments.items(), strict=True):
        written = msgspec.json.encode(value).decode()
        part = f"{name}={shorten(written, max(12, room // left - len(name) - 3))}"
        parts.append(part)
        room -= len(part) + 2
    return f"{clean(call.name)}({', '.join(parts)})"


def format_server_call(call: ServerCall, chars: int) -> str:
    """Return a call that the model's server made by itself, in one line, with the beginning of its result."""
    made = format_call(ToolCall(call.call_id, call.name, call.arguments or "{}"), chars // 2)
    return f"{made}  by the server: {shorten(call.result, chars // 2) or '(no result)'}"


def split_at_server_calls(message: Message) -> Iterator[str | ServerCall]:
    """Yield the text of an answer and the calls of its server, in the order in which they came."""
    told = 0
    for call in message.server_calls:
        at = max(told, call.offset or 0)
        if text := message.content[told:at].strip():
            yield text
        yield call
        told = at
    if text := message.content[told:].strip():
        yield text


def format_result(result: ToolResult, chars: int) -> str:
    """Return a result in one line: its beginning, and its number of lines if it has more than one."""
    lines = result.content.rstrip("\n").count("\n") + 1
    if result.is_simulated:
        return "(simulated) " + format_result(replace(result, is_simulated=False), chars - 12)
    if not result.content.strip():
        return "(empty)"
    if result.is_error:
        return shorten(result.content, chars)
    size = f"  ({write_count(lines, 'line')})" if lines > 1 else ""
    return shorten(result.content, chars - len(size)) + size


def format_artifact(item: Artifact) -> str:
    """Return the kind, the size, the name and the beginning of the hash of an artifact."""
    size = "" if item.size_bytes is None else f" of {write_count(item.size_bytes, 'byte')}"
    what = " ".join(part for part in (item.name or item.uri, (item.digest or "")[:12]) if part)
    return f"[{clean(item.kind)}{size}: {clean(what)}]"


def format_outcome(run: Run, seconds: float | None = None) -> str:
    """Return the steps, tokens, cost, reward, time and id of a run in one line."""
    parts = [write_count(run.steps, "step"), write_usage(run.usage), write_run_cost(run)]
    if run.reward is not None:
        parts.append(f"reward {run.reward:g}")
    if seconds is not None:
        parts.append(write_seconds(seconds))
    return " · ".join([*parts, f"run {clean(run.run_id)}"])


def write_run_cost(run: Run) -> str:
    """Return the cost of a run, with the lost answers that may have been paid for."""
    return write_cost(run.cost_usd, _count_lost(run))


def _count_lost(run: Run) -> int:
    # A session without a turn is not in the journal yet.
    return count_lost(event.body for event in (run.events if run.state.turn.number else ()))


def summarize(run: Run, seconds: float | None = None) -> Mapping[str, Json]:
    """Return the summary of a run, the last line of `--json`. Its cost is null if an answer was lost that may have
    been paid for."""
    started = run.state.started
    return {
        "type": "summary",
        "run_id": run.run_id,
        "status": run.status,
        "stop_reason": run.stop_reason,
        "output": run.output,
        "error": run.error,
        "fault": run.fault,
        "model": run.spec.model.name if started else None,
        "task": f"{started.task.task_set}:{started.task.task_id}" if started and started.task else None,
        "steps": run.steps,
        "usage": {
            "input_tokens": run.usage.input_tokens,
            "output_tokens": run.usage.output_tokens,
            "cached_input_tokens": run.usage.cached_input_tokens,
            "reasoning_tokens": run.usage.reasoning_tokens,
        },
        "cost_usd": None if _count_lost(run) else run.cost_usd,
        "reward": run.reward,
        "questions": run.questions,
        "approvals": {call_id: [call.name, call.arguments] for call_id, call in run.approvals.items()},
        "seconds": None if seconds is None else round(seconds, 3),
    }


def format_age(at: float) -> str:
    """Return how long ago the time `at` was."""
    seconds = max(0.0, time.time() - at)
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago"
    return f"{int(seconds)} s ago"


def print_outcome(
    run: Run, seconds: float | None = None, *, is_driven: bool = False, details: str | None = None
) -> None:
    """Print one line: how the run ended or what it waits for, and `details`, by default its steps, tokens and cost.

    `is_driven` says that a live process drives the run.
    """
    from rich.text import Text

    reason = run.stop_reason
    if is_driven:
        outcome = "running"
    elif reason:
        outcome = str(reason)
    elif run.approvals:
        outcome = "waits for approval"
    else:
        outcome = "waits for an answer" if run.questions else "unfinished"
    line = Text(outcome, style=f"bold {style_of(reason)}")
    details = details or format_outcome(run, seconds)
    stdout().print(line.append(f" · {details}", style="not bold dim default"))
