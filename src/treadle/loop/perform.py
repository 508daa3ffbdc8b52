"""How the world is touched: one inference, one tool call. Whatever fails here becomes a value.

The driver in `loop` decides when; nothing here appends an event or knows the state.
"""

import asyncio
import difflib
import hashlib
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.errors import (
    AuthenticationError,
    ContextOverflowError,
    ProviderError,
    RefusedError,
    RequestError,
    SandboxError,
    ToolError,
)
from treadle.core.types import (
    Artifact,
    Completion,
    Fault,
    FinishReason,
    Json,
    Message,
    StopReason,
    TokenRecord,
    ToolCall,
    ToolErrorKind,
    ToolResult,
    ToolSpec,
)
from treadle.tools.context import ToolContext
from treadle.tools.protocol import Attachment, Tool, ToolOutput


def describe_failure(error: Exception, step: int, at: float) -> e.InferenceFailed:
    """The event for an inference that failed for good."""
    stop_reason, fault = StopReason.ERROR, Fault.INFRASTRUCTURE
    if isinstance(error, ContextOverflowError):
        stop_reason, fault = StopReason.CONTEXT_OVERFLOW, Fault.MODEL
    elif isinstance(error, RefusedError):
        stop_reason, fault = StopReason.REFUSED, Fault.MODEL
    elif isinstance(error, AuthenticationError | RequestError):
        fault = Fault.USER
    text = str(error) if isinstance(error, ProviderError) else f"{type(error).__name__}: {error}"
    return e.InferenceFailed(
        at=at,
        step=step,
        error=text,
        error_type=type(error).__name__,
        fault=fault,
        stop_reason=stop_reason,
        model=error.model if isinstance(error, ProviderError) else None,
    )


def make_ids_unique(message: Message, step: int, seen: set[str]) -> Message:
    """`message` with an id for every call that has none, or one that the run has used; adds to `seen`.

    The ids are made from the step and the position, so that a rerun makes the same.
    """
    calls: list[ToolCall] | None = None
    for index, call in enumerate(message.tool_calls):
        if call.call_id and call.call_id not in seen:
            seen.add(call.call_id)
            continue
        calls = calls or list(message.tool_calls)
        stem = f"{call.call_id or 'call'}_{step}_{index}"
        while stem in seen:
            stem += "_"
        seen.add(stem)
        calls[index] = replace(call, call_id=stem)
    return message if calls is None else replace(message, tool_calls=tuple(calls))


def share_prompt(tokens: TokenRecord, previous: tuple[int, ...]) -> TokenRecord:
    """`tokens` without the prompt ids that `previous` already holds, so that journals grow by what is new."""
    prompt = tokens.prompt_token_ids
    if not prompt or not previous:
        return tokens
    shared = 0
    for mine, theirs in zip(prompt, previous, strict=False):
        if mine != theirs:
            break
        shared += 1
    return replace(tokens, prompt_token_ids=prompt[shared:], prompt_shared_tokens=shared)


def whole_prompt(tokens: TokenRecord, previous: tuple[int, ...]) -> tuple[int, ...]:
    """The prompt and output ids, of which `tokens` holds what `previous` does not; `()` if unknown."""
    if tokens.prompt_token_ids is None or tokens.token_ids is None:
        return ()
    return previous[: tokens.prompt_shared_tokens] + tokens.prompt_token_ids + tokens.token_ids


def read_call(
    call: ToolCall, tools: Mapping[str, Tool], finish_reason: FinishReason | None
) -> tuple[Tool, dict[str, Json]] | ToolResult:
    """The tool and its arguments, or the result that tells the model what is wrong with the call."""
    tool = tools.get(call.name)
    if tool is None:
        return failed(call, ToolErrorKind.UNKNOWN_TOOL, _unknown_tool(call.name, tools))
    try:
        arguments = call.parsed
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        if finish_reason is FinishReason.LENGTH:
            text = (
                "The arguments were cut off by the output limit, so the call was not run. Call again with "
                "shorter arguments, in several calls if need be."
            )
            return failed(call, ToolErrorKind.TRUNCATED, text)
        text = f"The arguments are not valid JSON ({error}), so the call was not run. Send one JSON object."
        return failed(call, ToolErrorKind.INVALID_JSON, text)
    try:
        fault = tool.find_fault(arguments)
    except Exception as error:
        return failed(call, ToolErrorKind.FAILED, f"The call was not run: {_describe_exception(error)}")
    if fault is not None:
        return failed(call, ToolErrorKind.INVALID_ARGUMENTS, f"The call was not run: {fault}")
    return tool, arguments


def failed(call: ToolCall, kind: ToolErrorKind, text: str) -> ToolResult:
    """A result that is an error."""
    return ToolResult(call.call_id, call.name, _to_unicode(text), is_error=True, error_kind=kind)


MAX_ARTIFACT_BYTES = 64 * 1024 * 1024
"""What is larger is not kept."""
MAX_STRUCTURED_BYTES = 100_000
"""What is larger is kept as an artifact, and not in the event."""

Blobs: TypeAlias = dict[str, bytes]
"""Contents by SHA-256, hex."""


async def run_tool(
    call: ToolCall,
    tool: Tool,
    arguments: dict[str, Json],
    context: ToolContext,
    spec: ToolSpec | None = None,
) -> tuple[ToolResult, Blobs | None]:
    """The result of a tool that is run now, whatever it does, and the contents of its artifacts.

    `spec` is the tool's own if left out. Only being cancelled raises.
    """
    own = tool.spec
    try:
        if own.timeout_seconds is None:
            outcome = await tool.call(arguments, context)
        else:
            async with asyncio.timeout(own.timeout_seconds) as timer:
                outcome = await tool.call(arguments, context)
    except TimeoutError as error:
        if own.timeout_seconds is not None and timer.expired():
            text = f"{call.name} did not finish within {own.timeout_seconds} s and was stopped."
            return failed(call, ToolErrorKind.TIMEOUT, text), None
        return failed(call, ToolErrorKind.FAILED, _describe_exception(error)), None
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # Nobody cancelled this call: something that the tool waited for was.
        return failed(call, ToolErrorKind.FAILED, _describe_exception(error)), None
    except Exception as error:
        return failed(call, ToolErrorKind.FAILED, _describe_exception(error)), None
    max_chars = (spec or own).max_result_chars
    if type(outcome) is str and len(outcome) <= max_chars:
        return ToolResult(call.call_id, call.name, _to_unicode(outcome)), None
    if not isinstance(outcome, str | ToolOutput):
        text = f"{call.name} returned {type(outcome).__name__}, and not a text."
        return failed(call, ToolErrorKind.FAILED, text), None
    output = ToolOutput(outcome) if isinstance(outcome, str) else outcome
    return to_result(call, output, max_chars)


def to_result(call: ToolCall, output: ToolOutput, max_chars: int) -> tuple[ToolResult, Blobs]:
    """The result that tells `output`, cut in the middle if it is too long, and the contents of its artifacts."""
    blobs: Blobs = {}
    artifacts = []
    text = _to_unicode(output.content)
    kind = ToolErrorKind.FAILED if output.is_error else None
    if len(text) > max_chars:
        whole = Attachment("text", text.encode(), "text/plain")
        is_kept = len(whole.content or b"") <= MAX_ARTIFACT_BYTES
        text = _cut_middle(text, max_chars)
        if is_kept:
            artifacts.append(_to_artifact(whole, blobs))
        else:
            kind = ToolErrorKind.TOO_LONG
    structured = output.structured
    attachments = output.attachments
    if structured is not None and len(data := msgspec.json.encode(structured)) > MAX_STRUCTURED_BYTES:
        structured = None
        attachments = (*attachments, Attachment("structured", data, "application/json"))
    for item in attachments:
        if item.content is not None and len(item.content) > MAX_ARTIFACT_BYTES:
            text += f"\n[{item.kind} of {len(item.content):,} bytes left out: it is too large]"
        else:
            artifacts.append(_to_artifact(item, blobs))
    result = ToolResult(
        call.call_id,
        call.name,
        text,
        is_error=kind is not None,
        error_kind=kind,
        is_simulated=output.is_simulated,
        structured=structured,
        artifacts=tuple(artifacts),
    )
    return result, blobs


def _to_artifact(item: Attachment, blobs: Blobs) -> Artifact:
    if item.content is None:
        return Artifact(item.kind, mime_type=item.mime_type, uri=item.uri, name=item.name)
    digest = hashlib.sha256(item.content).hexdigest()
    blobs[digest] = item.content
    return Artifact(item.kind, digest, len(item.content), item.mime_type, item.uri, item.name)


def call_ids_of(messages: Iterable[Message]) -> set[str]:
    """The ids of all calls in a transcript."""
    return {call.call_id for message in messages for call in message.tool_calls}


def with_ids(completion: Completion, step: int, seen: set[str]) -> Completion:
    """`completion` with a unique id for each of its calls."""
    message = make_ids_unique(completion.message, step, seen)
    return completion if message is completion.message else replace(completion, message=message)


def _unknown_tool(name: str, tools: Mapping[str, Tool]) -> str:
    near = difflib.get_close_matches(name, tools, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(repr(item) for item in near)}?" if near else ""
    known = ", ".join(tools) if tools else "none"
    return f"There is no tool {name!r}.{hint} The tools are: {known}."


def _to_unicode(text: str) -> str:
    """`text` with its lone surrogates (as in names of files that are not UTF-8) written out."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def _describe_exception(error: BaseException) -> str:
    text = str(error)
    if isinstance(error, ToolError | SandboxError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _cut_middle(content: str, limit: int) -> str:
    head, tail = limit * 2 // 3, limit // 3
    left_out = len(content) - head - tail
    note = f"[… {left_out:,} of {len(content):,} characters left out; ask for less at a time …]"
    return f"{content[:head]}\n{note}\n{content[len(content) - tail :]}"


async def run_together(coroutines: Sequence[Coroutine[None, None, None]]) -> None:
    """Run all to the end; the first error, or being cancelled, stops the rest."""
    tasks = [asyncio.ensure_future(item) for item in coroutines]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
