"""A run as a Markdown document, for people to read and pass on.

Invariant: a text of the run cannot pass for another part of the document. Messages are quotations, in which HTML,
images and definitions of links are shown as text; names are in one line.
"""

import re
import time
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING

from treadle.core import events as e
from treadle.core.parts import describe
from treadle.core.types import Message, ToolCall, ToolResult
from treadle.journal.run_info import make_title

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

RESULT_CHARS = 2000
"""How many characters of a result the document has by default."""
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Characters that control a terminal, end a line for some programs, or change the direction of the text."""
_SIGNS = re.compile(r"[\\`*_{}\[\]<>#|!&~]")
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_DEFINITION = re.compile(r"^[ \t>]*\[[^\]\n]+\]:", re.MULTILINE)


def write_markdown(
    run_id: str, bodies: Iterable[e.DurableBody], result_chars: int | None = RESULT_CHARS
) -> Iterator[str]:
    """Yield the document in pieces: the messages, and the calls folded, with results of at most `result_chars`.

    Attachments are named. `None` as `result_chars` cuts nothing. Events are read once, in order.
    """
    calls: dict[str, ToolCall] = {}
    is_titled, turns = False, 0
    for body in bodies:
        if isinstance(body, e.RunStarted):
            given = str((body.metadata or {}).get("title", ""))
            if given:
                yield f"# {_name(given)}\n"
                is_titled = True
            began = time.strftime("%Y-%m-%d %H:%M", time.localtime(body.at))
            head = f"Run {_code(run_id)} · {_name(body.spec.model.name)} · {began}"
            if body.caller is not None:
                head += f" · called by run {_code(body.caller.run_id)}"
        elif isinstance(body, e.TurnStarted):
            if not is_titled:
                yield f"# {_name(make_title(body.message.content) or run_id)}\n"
                is_titled = True
            if body.turn == 1:
                yield f"\n{head}\n"
            if body.message.is_own:
                yield from _write_message("Treadle asked again", body.message)
            else:
                turns += 1
                yield f"\n## Turn {turns}\n"
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
            yield f"\n**Question:**\n\n{_quote(body.text)}\n"
            for option in body.options:
                about = f": {_name(option.description)}" if option.description else ""
                yield f"\n- {_name(option.label)}{about}"
            yield "\n" if body.options else ""
        elif isinstance(body, e.QuestionAnswered):
            yield f"\n**Answer:**\n\n{_quote(body.text or '(none)')}\n"
        elif isinstance(body, e.TurnCompleted) and (body.error or body.stop_reason != "completed"):
            error = f" ({_name(body.error)})" if body.error else ""
            yield f"\n*The turn ended: {_name(body.stop_reason)}{error}.*\n"


def _write_message(who: str, message: Message) -> Iterator[str]:
    yield f"\n**{who}:**\n\n{_quote(message.content.strip())}\n"
    for part in message.parts:
        yield f"\n- attached: {_name(describe(part))}\n"


def _write_call(call: ToolCall | None, body: e.ToolCompleted, result_chars: int | None) -> Iterator[str]:
    result = body.result
    mark = " (failed)" if result.is_error else ""
    yield f"\n<details><summary>Called <code>{_escape(result.name)}</code>{mark}</summary>\n"
    if call is not None:
        yield f"\n{_fence(call.arguments, 'json')}\n"
    yield f"\n{_fence(_cut(result, result_chars))}\n"
    for artifact in result.artifacts:
        yield f"\n- {_name(describe(artifact))}\n"
    if body.child is not None:
        yield f"\nIt is run {_code(body.child.run_id)}.\n"
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
    return f"{fence}{language}\n{_clean(text).rstrip()}\n{fence}"


def _clean(text: str) -> str:
    """Return `text` with newlines as the only ends of lines, and without characters that control a terminal."""
    return _CONTROL.sub("\ufffd", text.replace("\r\n", "\n").replace("\r", "\n"))


def _name(text: str) -> str:
    """Return `text` in one line, in which nothing is Markdown."""
    return _SIGNS.sub(r"\\\g<0>", " ".join(_clean(text).split()))


def _code(text: str) -> str:
    return f"`{' '.join(_clean(text).split()).replace('`', chr(39))}`"


def _quote(text: str) -> str:
    """Return `text` as a quotation. Its Markdown stays, except what could have an effect outside of it."""
    quoted = "\n".join([f"> {line}" if line.strip() else ">" for line in _clean(text).split("\n")])
    before = ""
    # Text that was in a tag may be an image once the tag is text.
    while before != quoted:
        before = quoted
        found = _find_kinds(quoted) if "<" in quoted or "![" in quoted else ()
        if "html_block" in found or "html_inline" in found:
            quoted = _TAG.sub("&lt;", quoted)
        if "image" in found:
            quoted = quoted.replace("![", "!\\[")
        if _DEFINITION.search(quoted):
            quoted = quoted.replace("]:", "]\\:")
    return quoted


def _find_kinds(text: str) -> set[str]:
    """Return the kinds of tokens in a Markdown text; all that are dangerous if the parser fails."""
    try:
        tokens = _parser().parse(f"{text}\n")
    except (IndexError, ValueError, RecursionError):
        return {"html_block", "image"}
    return {item.type for token in tokens for item in (token, *(token.children or ()))}


@cache
def _parser() -> "MarkdownIt":
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark")


def _escape(text: str) -> str:
    return " ".join(_clean(text).split()).replace("&", "&amp;").replace("<", "&lt;")
