"""The workbench: the one way to make a tool call, inner calls included.

The loop, `verify`, the tool servers and the command line all make calls here. They differ in who reads the events
(the outbox) and who decides about inner calls (`decide_inner`). Every outcome of a tool becomes a result,
exceptions included; only a cancellation raises.
"""

import asyncio
import difflib
import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.decide import refuse_unapproved, unknown_outcome
from treadle.core.errors import RetryWithMessage, SandboxError, ToolError
from treadle.core.inner import Run
from treadle.core.types import UNREADABLE_CALL, Artifact, Json, ToolCall, ToolErrorKind, ToolResult
from treadle.loop.innercalls import DecideInner, InnerCalls, run_all
from treadle.loop.outbox import Outbox
from treadle.sandbox.protocol import Sandbox
from treadle.tools.context import NO_CONTEXT, NO_DEPS, Scope, ToolContext
from treadle.tools.protocol import ApprovalRequest, Approver, Attachment, Decision, Tool, ToolOutput
from treadle.tools.toolbox import Toolbox

MAX_ARTIFACT_BYTES = 64 * 1024 * 1024
"""The largest attachment of a result; a larger one is left out."""
MAX_STRUCTURED_BYTES = 100_000
"""The largest structured result that an event holds; a larger one is kept as an artifact."""

_decode = msgspec.json.Decoder().decode

Blobs: TypeAlias = dict[str, bytes]
"""Contents for the store, by their SHA-256 in hex."""
MAX_INNER_CHARS = 4_000_000
"""The longest result of an inner call in characters; a longer one is cut in the middle."""


class Clock(Protocol):
    """The clock of a run, such as the module `time`."""

    def time(self) -> float:
        """Return the time in seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Return a time in seconds that never goes backwards, for measuring durations."""
        ...


class Order(Struct, frozen=True, gc=False):
    """A call to make, with its context."""

    call: ToolCall
    step: int = 1
    """The number of the step."""
    attempt: int = 1
    """The number of the attempt, from 1."""
    parent_call_id: str | None = None
    """The id of the outer call, if this is an inner call; `None` for a call of the model."""
    is_cut_off: bool = False
    """True if the model's output limit cut off the answer that contains the call."""
    edited: str | None = None
    """Arguments from the approver that replace the model's; the result tells the model about them. `None`: no
    change."""
    last_once: int = 0
    """The number of the last `once` call that an interrupted attempt at this call started; 0 if none did."""


class Workbench:
    """The place where one run calls the tools of its toolbox."""

    def __init__(
        self,
        toolbox: Toolbox,
        *,
        run_id: str,
        sandbox: Sandbox | None = None,
        approver: Approver | None = None,
        decide_inner: DecideInner | None = None,
        clock: Clock = time,
    ) -> None:
        """Make a workbench. `decide_inner` decides about each inner call; without it, all inner calls run."""
        self.toolbox = toolbox
        self.run_id = run_id
        self.sandbox = sandbox
        self.scope = Scope()
        """The resources that tools hold for the run until it is closed."""
        self.approver = approver
        self.decide_inner = decide_inner or run_all
        self.report: Callable[[str, str], None] | None = None
        """The function that gets progress reports: the id of the call and a text. `None`: nobody listens."""
        self.deps: object = NO_DEPS
        """The object that tools get as `ToolContext.deps`."""
        self._clock = clock

    async def make(self, order: Order, outbox: Outbox) -> ToolResult:
        """Make a call for the model, and return its result. The result also goes to the outbox, with changed
        files."""
        call = order.call if order.edited is None else replace(order.call, arguments=order.edited)
        ready = read_call(call, self.toolbox.tools, is_cut_off=order.is_cut_off)
        if isinstance(ready, ToolResult):
            return self._complete(order, ready, outbox)
        inner = (
            None
            if call.name in self.toolbox.contextless
            else InnerCalls(self.decide_inner, self.make_inner, call.call_id, order.step, outbox)
        )
        max_chars = self.toolbox.by_name[call.name].max_result_chars
        try:
            result, blobs, seconds = await self._run(order, call, *ready, outbox, inner, max_chars)
        finally:
            if inner is not None:
                inner.end()
        if inner is not None and inner.leaves_doubt(order.last_once):
            result = unknown_outcome(call)
        return self._complete(order, result, outbox, seconds, blobs, has_files=True)

    async def make_inner(self, decided: Run, parent_id: str, step: int, outbox: Outbox) -> ToolResult:
        """Make an inner call of the running call `parent_id`, after asking for approval if it is needed."""
        call = decided.call
        order = Order(call, step, decided.attempt, parent_id)
        ready = read_call(call, self.toolbox.tools)
        if isinstance(ready, ToolResult):
            return self._complete(order, ready, outbox)
        refused = await self._ask(call, outbox) if decided.needs_approval else None
        if refused is not None:
            return self._complete(order, refused, outbox)
        result, blobs, seconds = await self._run(order, call, *ready, outbox, None, MAX_INNER_CHARS)
        return self._complete(order, result, outbox, seconds, blobs)

    async def consult(self, call: ToolCall) -> Decision | None:
        """Ask the approver whether to run a call. Return `None` if there is no approver or it does not decide
        now."""
        spec = self.toolbox.by_name.get(call.name)
        if self.approver is None or spec is None:
            return None
        said = self.approver(ApprovalRequest(self.run_id, call, spec))
        if not isinstance(said, Decision | bool | None):
            said = await said
        return Decision(said) if isinstance(said, bool) else said

    def take_snapshot(self) -> tuple[tuple[e.SnapshotTaken, ...], Blobs | None]:
        """Return an event for the sandbox's changes since the last snapshot, and the changed contents by hash.

        Without changes, return an empty tuple and `None`.
        """
        sandbox = self.sandbox
        if sandbox is None or not sandbox.has_changes or (changes := sandbox.take_delta()) is None:
            return (), None
        delta, blobs = changes
        return (e.SnapshotTaken(snapshot_id=sandbox.snapshot_id, delta=delta),), dict(blobs)

    async def _run(
        self,
        order: Order,
        call: ToolCall,
        tool: Tool,
        arguments: dict[str, Json],
        outbox: Outbox,
        inner: "InnerCalls | None",
        max_chars: int,
    ) -> tuple[ToolResult, Blobs | None, float]:
        """Put `tool_started` in the outbox and run the tool.

        Return its result, the contents of its artifacts, and the time that it took in seconds.
        """
        spec, parent = tool.spec, order.parent_call_id
        outbox.put(
            e.ToolStarted(
                step=order.step,
                call_id=call.call_id,
                name=call.name,
                effect=spec.effect,
                attempt=order.attempt,
                parent_call_id=parent,
                arguments=None if parent is None else call.arguments,
            )
        )
        # Whatever the effect: a tool may block the event loop, and the answer that called it must be kept by then.
        await outbox.kept()
        context: ToolContext[Any] = NO_CONTEXT
        if call.name not in self.toolbox.contextless:
            context = ToolContext(
                self.run_id,
                call.call_id,
                order.step,
                self.sandbox,
                self.report,
                scope=self.scope,
                tools=self.toolbox.specs,
                make_caller=None if inner is None else inner.caller,
                deps=self.deps,
            )
        begin = self._clock.monotonic()
        timeout_seconds = spec.timeout_seconds
        timer: asyncio.Timeout | None = None
        try:
            if timeout_seconds is None:
                outcome = await tool.call(arguments, context)
            else:
                async with asyncio.timeout(timeout_seconds) as timer:
                    outcome = await tool.call(arguments, context)
            result, blobs = _to_result(call, outcome, max_chars)
        except TimeoutError as error:
            kind, text = ToolErrorKind.FAILED, _describe_exception(error)
            if timer is not None and timer.expired():
                kind = ToolErrorKind.TIMEOUT
                text = f"{call.name} did not finish within {timeout_seconds} s and was stopped."
            result, blobs = failed(call, kind, text), None
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            # This call was not cancelled; something that the tool waited for was.
            result, blobs = failed(call, ToolErrorKind.FAILED, _describe_exception(error)), None
        except RetryWithMessage as error:
            text = f"{error}\nCall {call.name} again." if str(error) else f"Call {call.name} again."
            result, blobs = failed(call, ToolErrorKind.RETRY, text), None
        except Exception as error:
            result, blobs = failed(call, ToolErrorKind.FAILED, _describe_exception(error)), None
        return result, blobs, self._clock.monotonic() - begin

    def _complete(
        self,
        order: Order,
        result: ToolResult,
        outbox: Outbox,
        seconds: float = 0.0,
        blobs: Blobs | None = None,
        *,
        has_files: bool = False,
    ) -> ToolResult:
        """Put the result in the outbox, with the files that the call changed, and return it."""
        if order.edited is not None:
            told = f"The user changed the arguments to {order.edited}\n{result.content}"
            result = replace(result, content=told)
        done = e.ToolCompleted(
            step=order.step, result=result, duration_seconds=seconds, parent_call_id=order.parent_call_id
        )
        snapshot, files = self.take_snapshot() if has_files else ((), None)
        if files:
            blobs = {**blobs, **files} if blobs else files
        outbox.put(*snapshot, done, blobs=blobs)
        return result

    async def _ask(self, call: ToolCall, outbox: Outbox) -> ToolResult | None:
        """Ask for the approval of an inner call. Return its result if it is refused, `None` if it may run."""
        decision = None
        if self.approver is not None:
            outbox.put(e.ApprovalRequested(call_id=call.call_id))
            await outbox.kept()
            decision = await self.consult(call)
        if decision is None or decision.arguments is not None:
            text = "Not run: somebody must approve it first, which they can only if you call it directly."
            return failed(call, ToolErrorKind.REFUSED, text)
        decided = to_decided(call.call_id, decision)
        outbox.put(decided)
        return None if decision.is_approved else refuse_unapproved(call, decided)


def to_decided(call_id: str, decision: Decision) -> e.ApprovalDecided:
    """Return the event for a decision about a call."""
    return e.ApprovalDecided(
        call_id=call_id,
        is_approved=decision.is_approved,
        reason=decision.reason,
        arguments=decision.arguments,
    )


def read_call(
    call: ToolCall, tools: Mapping[str, Tool], *, is_cut_off: bool = False
) -> tuple[Tool, dict[str, Json]] | ToolResult:
    """Return the tool and its arguments, or an error result that tells the model what is wrong with the call.

    `is_cut_off` is true if the model's output limit cut off the answer that contains the call.
    """
    tool = tools.get(call.name)
    if tool is None and call.name == UNREADABLE_CALL:
        said = (call.opaque or {}).get(UNREADABLE_CALL)
        why = f" ({said})" if said else ""
        text = f"The call could not be read{why}, so it was not run. Name a tool, and give one JSON object."
        return failed(call, ToolErrorKind.INVALID_JSON, text)
    if tool is None:
        return failed(call, ToolErrorKind.UNKNOWN_TOOL, _unknown_tool(call.name, tools))
    try:
        text = call.arguments
        arguments = _decode(text) if text.startswith("{") else call.parsed
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        if is_cut_off:
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
    """Return a result that is an error."""
    return ToolResult(call.call_id, call.name, _to_unicode(text), is_error=True, error_kind=kind)


def _to_result(call: ToolCall, outcome: object, max_chars: int) -> tuple[ToolResult, Blobs | None]:
    """Return the tool result for a tool's return value, and the contents of its artifacts.

    A text longer than `max_chars` is cut in the middle, and its full text becomes the first artifact.
    """
    if type(outcome) is str and len(outcome) <= max_chars:
        return ToolResult(call.call_id, call.name, _to_unicode(outcome)), None
    if not isinstance(outcome, str | ToolOutput):
        text = f"{call.name} returned {type(outcome).__name__}, and not a text."
        return failed(call, ToolErrorKind.FAILED, text), None
    output = ToolOutput(outcome) if isinstance(outcome, str) else outcome
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
    structured, attachments = output.structured, output.attachments
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


def _is_cancelled() -> bool:
    """Whether somebody cancelled the present task, which no frame of an error may refer to."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _describe_exception(error: BaseException) -> str:
    """Return the text that tells the model about an exception of a tool."""
    text = str(error)
    if isinstance(error, ToolError | SandboxError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _to_unicode(text: str) -> str:
    """Return `text` with lone surrogates, as in file names that are not UTF-8, replaced by escape sequences."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def _to_artifact(item: Attachment, blobs: Blobs) -> Artifact:
    if item.content is None:
        return Artifact(item.kind, mime_type=item.mime_type, uri=item.uri, name=item.name)
    digest = hashlib.sha256(item.content).hexdigest()
    blobs[digest] = item.content
    return Artifact(item.kind, digest, len(item.content), item.mime_type, item.uri, item.name)


def _unknown_tool(name: str, tools: Mapping[str, Tool]) -> str:
    near = difflib.get_close_matches(name, tools, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(repr(item) for item in near)}?" if near else ""
    known = ", ".join(tools) if tools else "none"
    return f"There is no tool {name!r}.{hint} The tools are: {known}."


def _cut_middle(content: str, limit: int) -> str:
    head, tail = limit * 2 // 3, limit // 3
    left_out = len(content) - head - tail
    note = f"[… {left_out:,} of {len(content):,} characters left out; ask for less at a time …]"
    return f"{content[:head]}\n{note}\n{content[len(content) - tail :]}"
