"""A run as a Markdown document, for people to read and pass on."""

import time
from collections.abc import Iterable, Iterator

from treadle.core import events as e
from treadle.core.parts import describe
from treadle.core.types import Message, ToolCall, ToolResult
from treadle.journal.protocol import make_title

RESULT_CHARS = 2000
"""How many characters of a result the document has by default."""


def write_markdown(
    run_id: str, bodies: Iterable[e.DurableBody], result_chars: int | None = RESULT_CHARS
) -> Iterator[str]:
    """Yield the document in pieces: the messages, and the calls folded, with results of at most `result_chars`.

    Attachments are named. `None` as `result_chars` cuts nothing. Events are read once, in order.
    """
    calls: dict[str, ToolCall] = {}
    is_titled = False
    for body in bodies:
        if isinstance(body, e.RunStarted):
            given = str((body.metadata or {}).get("title", ""))
            if given:
                yield f"# {given}\n"
                is_titled = True
            head = f"Run `{run_id}` · {body.spec.model.name} · {_write_time(body.at)}"
            if body.caller is not None:
                head += f" · called by run `{body.caller.run_id}`"
        elif isinstance(body, e.TurnStarted):
            if not is_titled:
                yield f"# {make_title(body.message.content) or run_id}\n"
                is_titled = True
            if body.turn == 1:
                yield f"\n{head}\n"
            yield f"\n## Turn {body.turn}\n"
            yield from _write_message("User", body.message)
        elif isinstance(body, e.MessageInjected):
            if body.delivery in (None, "steer"):
                yield from _write_message("Treadle" if body.delivery is None else "User", body.message)
        elif isinstance(body, e.InferenceCompleted):
            message = body.completion.message
            calls = {call.call_id: call for call in message.tool_calls}
            if message.content.strip() or message.parts:
                yield from _write_message("Assistant", message)
        elif isinstance(body, e.ToolCompleted) and body.parent_call_id is None:
            yield from _write_call(calls.get(body.call_id), body, result_chars)
        elif isinstance(body, e.QuestionAsked):
            yield f"\n**Question:** {body.text}\n"
            for option in body.options:
                yield f"\n- {option.label}{f': {option.description}' if option.description else ''}"
            yield "\n" if body.options else ""
        elif isinstance(body, e.QuestionAnswered):
            yield f"\n**Answer:** {body.text or '(none)'}\n"
        elif isinstance(body, e.TurnCompleted) and (body.error or body.stop_reason != "completed"):
            yield f"\n*The turn ended: {body.stop_reason}{f' ({body.error})' if body.error else ''}.*\n"


def _write_time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _write_message(who: str, message: Message) -> Iterator[str]:
    yield f"\n**{who}:**\n\n{message.content.strip()}\n"
    for part in message.parts:
        yield f"\n- attached: {describe(part)}\n"


def _write_call(call: ToolCall | None, body: e.ToolCompleted, result_chars: int | None) -> Iterator[str]:
    result = body.result
    mark = " (failed)" if result.is_error else ""
    yield f"\n<details><summary>Called <code>{_escape(result.name)}</code>{mark}</summary>\n"
    if call is not None:
        yield f"\n{_fence(call.arguments, 'json')}\n"
    yield f"\n{_fence(_cut(result, result_chars))}\n"
    for artifact in result.artifacts:
        yield f"\n- {describe(artifact)}\n"
    if body.child is not None:
        yield f"\nIt is run `{body.child.run_id}`.\n"
    yield "\n</details>\n"


def _cut(result: ToolResult, limit: int | None) -> str:
    text = result.content
    if limit is None or len(text) <= limit:
        return text
    return f"{text[:limit]}\n… {len(text) - limit:,} more characters"


def _fence(text: str, language: str = "") -> str:
    """Return `text` in a code block whose fence is longer than every run of backticks in it."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
