"""The transcript of a run, and its events, as `treadle show` prints them."""

import time

from treadle.cli.terminal.format import (
    format_artifact,
    format_call,
    format_compaction,
    format_error,
    format_fallback,
    format_replacement,
    format_route,
    format_server_call,
    print_outcome,
    split_at_server_calls,
)
from treadle.cli.terminal.output import (
    clean,
    find_one,
    print_bytes,
    print_parts,
    shorten,
    stdout,
    write_cost,
    write_seconds,
)
from treadle.core import events as e
from treadle.core.errors import ConfigError
from treadle.core.state import fold
from treadle.core.types import Delivery, Message, Role, ServerCall, StopReason, ToolCall, ToolResult
from treadle.journal.protocol import Journal
from treadle.journal.run_info import RunFilter
from treadle.runs.run import Run

_RESULT_LINES = 12
"""How many lines of a result are shown by default."""
_FROM_OUTSIDE = (e.QuestionAnswered, e.ApprovalDecided, e.MessageInjected, e.Rewarded, e.Noted)
"""What may happen to a run that nobody drives, without ending its pause."""


class EventPrinter:
    """A printer of messages, calls, results and the events that every view of a run shows."""

    def __init__(self, *, is_full: bool = False) -> None:
        """Make a printer. With `is_full`, nothing is shortened."""
        self._console = stdout()
        self._is_full = is_full
        self._calls: dict[str, ToolCall] = {}

    @property
    def _width(self) -> int:
        return 1_000_000 if self._is_full else max(40, min(self._console.width, 160) - 4)

    def say(self, text: str, style: str = "", end: str = "\n") -> None:
        """Print a piece of text."""
        self._console.print(text, style=style, end=end)

    def print_instructions(self, text: str) -> None:
        """Print the system message."""
        shown = clean(text) if self._is_full else shorten(text, self._width - 14)
        self.say(f"instructions: {shown}", "dim")

    def print_message(self, message: Message, *, is_simulated: bool = False) -> None:
        if message.role is Role.SYSTEM:
            self.print_instructions(message.content)
        elif message.role is Role.USER:
            self.print_said(message)
        elif message.role is Role.TOOL:
            call_id, name, is_error = message.call_id or "", message.name or "", message.is_error
            self.print_result(
                ToolResult(call_id, name, message.content, is_error=is_error, is_simulated=is_simulated)
            )
        else:
            self.say("")
            self.print_answer(message)

    def print_said(self, message: Message, did: str = "") -> None:
        """Print a message of the user, or one of Treadle; `did` says in words what Treadle did with it."""
        mark = f"! Treadle{did and ' '}{did}: " if message.is_own else "› "
        style = "yellow" if message.is_own else "cyan"
        self.say(mark + clean(message.content.rstrip("\n")).replace("\n", "\n  "), style)
        for part in message.parts:
            self.say(f"  {format_artifact(part)}", "dim italic")

    def print_answer(self, message: Message) -> None:
        """Print the reasoning and the text of an answer, and remember its calls."""
        self._calls.update({call.call_id: call for call in message.tool_calls})
        if message.reasoning:
            self.say(clean(message.reasoning.strip()), "dim italic")
        for part in split_at_server_calls(message):
            if isinstance(part, str):
                self.say(clean(part))
            else:
                self.print_server_call(part)

    def print_server_call(self, call: ServerCall) -> None:
        """Print a call that the model's server made."""
        self.say(f"◇ {format_server_call(call, self._width - 2)}", "red" if call.is_error else "dim")

    def print_result(self, result: ToolResult, seconds: float = 0.0, indent: str = "") -> None:
        """Print a result below its call."""
        self.say(f"{indent}● ", "red" if result.is_error else "green", end="")
        self.say(self._write_call(result.call_id, result.name), "bold", end="")
        self.say("  simulated" if result.is_simulated else "", "magenta", end="")
        self.say(f"  {write_seconds(seconds)}" if seconds >= 0.01 else "", "dim")
        for line in self._lines_of(result, self._width - len(indent)):
            self.say(f"{' ' * len(indent)}  {line}", "red" if result.is_error else "dim")

    def _lines_of(self, result: ToolResult, width: int) -> list[str]:
        lines = clean(result.content).rstrip("\n").split("\n")
        # One more line needs no more space than the remark that it is left out.
        is_whole = self._is_full or len(lines) <= _RESULT_LINES + 1
        shown = lines if is_whole else lines[:_RESULT_LINES]
        more = [f"… {len(lines) - len(shown):,} more lines"] if len(shown) < len(lines) else []
        return [line if len(line) <= width else line[: width - 1] + "…" for line in shown] + more

    def _write_call(self, call_id: str, name: str) -> str:
        call = self._calls.get(call_id)
        return format_call(call, self._width - 10) if call is not None else clean(name)

    def print_event(self, body: e.DurableBody) -> None:
        """Print an event, if this view shows its type."""
        if isinstance(body, e.TurnStarted):
            self.print_said(body.message, "asked again")
        elif isinstance(body, e.InferenceStarted) and body.route is not None:
            self.say(format_route(body.route), "dim")
        elif isinstance(body, e.InferenceFailed) and body.next_tier is not None:
            self.say(format_replacement(body), "yellow")
        elif isinstance(body, e.ToolStarted) and body.parent_call_id is not None:
            self._calls[body.call_id] = ToolCall(body.call_id, body.name, body.arguments or "")
        elif isinstance(body, e.ToolCompleted):
            # A call made by another call is printed before it, because it ended first.
            indent = "  ↳ " if body.parent_call_id is not None else ""
            self.print_result(body.result, body.duration_seconds, indent)
        elif isinstance(body, e.ContextCompacted):
            self.say(f"-- {format_compaction(body)}", "magenta")


def write_artifact(journal: Journal, run_id: str, text: str) -> None:
    """Write the artifact whose hash begins with `text` to standard output.

    Raises: `ConfigError` if no artifact or more than one has such a hash.
    """
    run = Run.load(run_id, journal)
    known = {item.digest for result in run.results for item in result.artifacts if item.digest is not None}
    if not known:
        raise ConfigError(f"run {run_id!r} has no artifacts")
    print_bytes(run.read_artifact(find_one(sorted(known), text, "artifact", "artifacts")))


def print_transcript(journal: Journal, run_id: str, *, is_full: bool = False) -> None:
    """Print the messages with calls, results and times, and the outcome."""
    events = journal.read(run_id)
    run = Run(run_id, fold([event.body for event in events]), journal)
    printer = _RunPrinter(is_full=is_full)
    printer.print_head(run)
    for event in events:
        printer.print_event(event.body)
    same = journal.runs(RunFilter(id_prefix=run_id)) if run.stop_reason is None else ()
    printer.print_foot(run, is_driven=any(info.is_driven for info in same if info.run_id == run_id))


class _RunPrinter(EventPrinter):
    """A printer of the recorded events of a run, in their order."""

    def __init__(self, *, is_full: bool) -> None:
        super().__init__(is_full=is_full)
        self._asking: set[str] = set()
        """The ids of the calls that have asked the user, and begin again with the answer."""
        self._asked = ""
        """The name of the model that was asked last."""
        self._shown = ""
        """The name of the model that the first line shows."""
        self._is_session = False
        self._told: str | None = None
        """The error of the newest turn that failed in a session, which its line shows."""
        self._failure, self._failures = "", 0
        """The error of the newest attempt that failed, and how many such attempts were not printed yet."""
        self._is_paused = False
        """True if the run was paused or finished by the last event that was printed."""

    def print_head(self, run: Run) -> None:
        """Print what the run was started with."""
        started = run.state.started
        if started is None:
            return
        self._shown, self._is_session = started.spec.model.name, started.is_session
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(started.at))
        parts = [f"run {clean(run.run_id)}", clean(started.spec.model.name or "no model"), at]
        if started.task is not None:
            parts.insert(1, f"task {started.task.task_set}:{started.task.task_id}")
        if started.parent is not None:
            parts.append(f"forked from {clean(started.parent.run_id)} at {started.parent.seq}")
        self.say(" · ".join(parts), "bold")
        if started.caller is not None:
            caller = started.caller
            self.say(f"called by run {clean(caller.run_id)}, call {clean(caller.call_id)}", "dim")
        if run.spec.is_foreign:
            self.say("from elsewhere, and not trusted", "yellow")
        if started.tools:
            self.say("tools: " + ", ".join(clean(spec.name) for spec in started.tools), "dim")
        if started.system_message:
            self.print_instructions(started.system_message)
        for message in started.history:
            self.print_message(message)

    def print_event(self, body: e.DurableBody) -> None:
        ends = isinstance(body, e.TurnCompleted | e.RunFinished) and body.error == self._failure
        if not isinstance(body, e.InferenceFailed) and not ends:
            self._print_failures()
        self._print_event(body)
        super().print_event(body)
        if isinstance(body, e.TurnStarted):
            recalled = body.recalled.text if body.recalled is not None else ""
            if not self._is_full:
                recalled = recalled.partition("\n")[2]  # without the remark that what follows is data
            for did, text in {"recalled": recalled, "added a hint": body.hint}.items():
                if text:
                    shown = clean(text) if self._is_full else shorten(text, self._width - 24)
                    self.say(f"! Treadle {did}: {shown}", "yellow")
        elif isinstance(body, e.ToolCompleted):
            self._print_attached(body)
        if not isinstance(body, _FROM_OUTSIDE):
            self._is_paused = isinstance(body, e.RunPaused | e.RunFinished)

    def _print_event(self, body: e.DurableBody) -> None:
        if isinstance(body, e.TurnStarted):
            self.say("")
        elif isinstance(body, e.InferenceStarted):
            self._asked = body.model or self._asked
        elif isinstance(body, e.InferenceCompleted):
            self._print_inference(body)
        elif isinstance(body, e.InferenceFailed) and body.next_tier is None:
            if (told := format_fallback(body)) is not None:
                self.say(told, "yellow")
            else:
                # The last attempt's error also says that there was none after it.
                if not body.error.startswith(self._failure):
                    self._print_failures()
                self._failure, self._failures = body.error, self._failures + 1
        elif isinstance(body, e.ToolStarted) and body.attempt > 1 and body.parent_call_id is None:
            name, has_asked = clean(body.name), body.call_id in self._asking
            why = f"the outcome of {name} was lost; its effect is {body.effect}, so it runs again"
            self.say(f"-- {name} begins again, with the answer" if has_asked else f"-- {why}", "magenta")
        elif isinstance(body, e.MessageInjected):
            # Other messages of the user are shown when their turns begin.
            if body.delivery in (None, Delivery.STEER):
                self.print_message(body.message)
        elif isinstance(body, e.QuestionAsked):
            if body.call_id is not None:
                self._asking.add(body.call_id)
            self.say(f"? {clean(body.text)}", "yellow")
            for number, option in enumerate(body.options, 1):
                self.say(f"  {number}. {clean(option.label)}", "yellow")
        elif isinstance(body, e.QuestionAnswered):
            said = "(withdrawn)" if body.is_withdrawn else clean(body.text) or "(declined)"
            self.say(f"› {said}", "cyan")
        elif isinstance(body, e.ApprovalRequested):
            call = self._calls.get(body.call_id)
            self.say(
                "? waits for approval: " + (format_call(call, self._width) if call else clean(body.call_id)),
                "yellow",
            )
        elif isinstance(body, e.ApprovalDecided):
            said = "yes" if body.is_approved else f"no{': ' + clean(body.reason) if body.reason else ''}"
            edited = f", with {clean(body.arguments)}" if body.arguments is not None else ""
            self.say(f"› {said}{edited}", "cyan")
        elif isinstance(body, e.TurnCompleted):
            if self._is_session and body.stop_reason is not StopReason.COMPLETED:
                self._told = body.error
                told = self._count(body.error) + format_error(body.error or "", body.fault)
                self.say(
                    f"-- the turn ended: {body.stop_reason}{(body.error and f' ({told})') or ''}", "magenta"
                )
        elif isinstance(body, e.Noted):
            if body.remark:
                self.say(f"-- remark: {clean(body.remark)}", "magenta")
        elif isinstance(body, e.RunPaused):
            remark = f" ({clean(body.remark)})" if body.remark else ""
            self.say(f"-- paused: {body.cause}{remark}", "magenta")
        elif isinstance(body, e.RunResumed):
            self.say("-- resumed" if self._is_paused else "-- interrupted here, and resumed", "magenta")
        elif isinstance(body, e.Rewarded):
            detail = f" · {clean(body.detail)}" if body.detail else ""
            self.say(f"\nreward {body.reward:g} ({clean(body.name)}){detail}", "bold")

    def _print_failures(self) -> None:
        """Print the attempts that failed in the same way and were not printed yet, in one line."""
        if self._failures:
            count = self._count(self._failure) or "attempt failed: "
            self.say(f"{count}{shorten(self._failure, 400)}", "yellow")

    def _count(self, error: str | None) -> str:
        """Return how many attempts failed with `error`, if more than one was not printed yet, as the beginning of a
        line about it."""
        if not self._failures or error != self._failure:
            return ""
        count, self._failures = self._failures, 0
        return f"{count} attempts failed: " if count > 1 else ""

    def print_foot(self, run: Run, *, is_driven: bool) -> None:
        if run.error != self._failure:
            self._print_failures()
        waiting = run.approvals
        for item in run.state.turn.calls.values():
            if item.attempt and item.result is None and item.call.call_id not in waiting:
                self.say("○ ", "yellow", end="")
                self.say(format_call(item.call, self._width - 18), "bold", end="")
                self.say("  no result yet", "dim")
        self.say("")
        if run.error and run.error != self._told:
            self.say(self._count(run.error) + format_error(run.error, run.fault), "red")
        print_outcome(run, is_driven=is_driven)

    def _print_inference(self, body: e.InferenceCompleted) -> None:
        completion = body.completion
        message, usage = completion.message, completion.usage
        tokens = "tokens unknown"
        if usage.is_reported:
            tokens = f"{usage.input_tokens:,} + {usage.output_tokens:,} tokens"
        facts = [f"step {body.step}", tokens, write_seconds(body.duration_seconds)]
        answered_by = body.answered_by or self._asked
        if answered_by not in ("", self._shown):
            facts.insert(1, clean(answered_by))
        if completion.cost_usd:
            facts.append(write_cost(completion.cost_usd))
        self.say("\n" + " · ".join(facts), "dim")
        self.print_answer(message)

    def _print_attached(self, body: e.ToolCompleted) -> None:
        """Print what came with a result: contents, and the run of an agent."""
        for item in body.result.artifacts:
            self.say(f"  {format_artifact(item)}", "dim italic")
        if (child := body.child) is not None:
            cost = f", {write_cost(child.cost_usd)}" if child.cost_usd else ""
            self.say(f"  run {clean(child.run_id)} · {child.usage.total_tokens:,} tokens{cost}", "dim italic")


def print_events(journal: Journal, run_id: str, *, is_full: bool) -> None:
    """Print each event with its seq, its time since the earliest event, and its content."""
    events = journal.read(run_id)
    # A fork's first event is newer than the copied events.
    begin = min(event.at for event in events)
    for event in events:
        width = 1_000_000 if is_full else max(40, min(stdout().width, 200) - 41)
        said = (f"{event.type:<20} ", "bold"), (shorten(_describe(event), width), "dim")
        print_parts((f"{event.seq:>5} ", ""), (f"{event.at - begin:>9.3f} s  ", "dim"), *said)


def _describe(event: e.Event) -> str:
    """Return a short description of an event's content."""
    body = event.body
    if isinstance(body, e.RunStarted):
        return body.spec.model.name
    if isinstance(body, e.RunResumed):
        return body.agent.model.name if body.agent is not None else ""
    if isinstance(body, e.TurnStarted | e.MessageInjected):
        return body.message.content
    if isinstance(body, e.InferenceCompleted):
        message = body.completion.message
        calls = ", ".join(format_call(call, 200) for call in message.tool_calls)
        return f"step {body.step}: {calls or message.content}"
    if isinstance(body, e.ToolCompleted):
        mark = f"{body.result.error_kind}: " if body.result.error_kind else ""
        return f"{body.result.call_id}: {mark}{body.result.content}"
    if isinstance(body, e.ContextCompacted):
        return format_compaction(body)
    if isinstance(body, e.SnapshotTaken):
        changed = ", ".join(body.delta.changed)
        deleted = "".join(f", -{path}" for path in body.delta.deleted)
        return f"{changed}{deleted}"
    skipped = ("at", "raw")
    fields = {name: getattr(body, name) for name in body.__struct_fields__ if name not in skipped}
    return ", ".join(f"{name}={value}" for name, value in fields.items() if value not in (None, ""))
