"""Views of a run while it is driven: for a terminal, for a pipe, and for a program that reads lines of JSON."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from treadle.cli.terminal.format import (
    format_error,
    format_fallback,
    format_result,
    print_outcome,
    split_at_server_calls,
    summarize,
)
from treadle.cli.terminal.output import (
    clean,
    is_live,
    print_json,
    print_json_lines,
    print_line,
    shorten,
    write_seconds,
)
from treadle.cli.terminal.streamed_text import StreamedText, render_markdown
from treadle.cli.terminal.transcripts import EventPrinter
from treadle.core import events as e
from treadle.core.types import Json, StopReason, ToolCall, ToolResult
from treadle.runs.run import Run

if TYPE_CHECKING:
    from rich.status import Status


class View:
    """A view of one run, or of one session. This one shows nothing."""

    def on_event(self, item: e.Event | e.Ephemeral) -> None:
        """Show an event or a delta."""

    def finish(self, run: Run, seconds: float, more: Mapping[str, Json] | None = None) -> None:
        """Show how the run ended; `more` is added to the summary of `--json`."""

    def close(self) -> None:
        """Remove the spinner and end an unfinished line. Also called when the run was interrupted."""

    def hold(self) -> None:
        """Pause the view while a person types, at the beginning of a line."""

    def release(self) -> None:
        """Show what happened since `hold`."""


def make_view(*, is_json: bool, is_quiet: bool, calls: Iterable[ToolCall] = ()) -> View:
    """Return the view for the options and for the kind of standard output.

    `calls` are the calls that the model made before the view begins.
    """
    if is_json:
        return JsonView()
    return QuietView() if is_quiet else TextView(is_live=is_live(), calls=calls)


class JsonView(View):
    """A view that prints each event and delta as a line of JSON, and a summary as the last line."""

    def on_event(self, item: e.Event | e.Ephemeral) -> None:
        print_json_lines([item.to_json()])

    def finish(self, run: Run, seconds: float, more: Mapping[str, Json] | None = None) -> None:
        print_json({**summarize(run, seconds), **(more or {})})


class QuietView(View):
    """A view that prints only the answer."""

    def finish(self, run: Run, seconds: float, more: Mapping[str, Json] | None = None) -> None:
        print_line(run.output)


class TextView(EventPrinter, View):
    """A view of streamed text, calls with their results, and the outcome.

    Without `is_live` it prints only whole lines.
    """

    def __init__(self, *, is_live: bool, shows_input: bool = True, calls: Iterable[ToolCall] = ()) -> None:
        super().__init__()
        self._shows_input = shows_input
        self._is_live = is_live
        self._status: Status | None = None
        self._last_error = ""
        self._answered_by: str | None = None
        """The model that gave the newest answer, if it is not the first one of a fallback."""
        self._waits_for = ""
        """What the spinner said when it was last shown."""
        self._calls.update({call.call_id: call for call in calls})
        self._under_way: dict[str, str] = {}
        """What the spinner shows for each running call, by call id."""
        self._streamed = ""
        """`text` or `reasoning` if one is being written, else empty."""
        self._writer: StreamedText | None = None
        self._has_streamed_text = False
        self._served: list[str] = []
        """The ids of the server's calls that the newest answer made and that were shown."""
        self._refused_tool: str | None = None
        """The tool that the newest answer says cannot be used; `None` if there is none."""
        self._held: list[e.Event | e.Ephemeral] | None = None
        """What happened while the view is paused; `None` if it is not paused."""
        self._wait("starting")

    def on_event(self, item: e.Event | e.Ephemeral) -> None:
        if self._held is not None:
            self._held.append(item)
        else:
            self._show(item)

    def _show(self, item: e.Event | e.Ephemeral) -> None:
        body = item.body
        if isinstance(body, e.TextDelta):
            self._stream("text", body.text, None)
        elif isinstance(body, e.ReasoningDelta):
            self._stream("reasoning", body.text, "dim italic")
        elif isinstance(body, e.ServerCallDelta):
            self._on_server_call(body)
        elif isinstance(body, e.ToolProgress):
            self._on_progress(body)
        elif isinstance(body, e.TurnStarted) and not self._shows_input and body.queued_seq is None:
            return
        else:
            self._before(item.run_id, body)
            self.print_event(body)  # type: ignore[arg-type]
            self._after(body)

    def _before(self, run_id: str, body: e.DurableBody | e.Delta) -> None:
        """Print what only this view shows of an event, which `print_event` shows afterwards."""
        if isinstance(body, e.RunStarted):
            self.say(f"run {clean(run_id)} · {clean(body.spec.model.name)}", "dim")
        elif isinstance(body, e.RunResumed):
            self.say("resumed", "dim")
        elif isinstance(body, e.InferenceStarted):
            self._has_streamed_text, self._served = False, []
        elif isinstance(body, e.InferenceCompleted):
            self._on_inference_completed(body)
        elif isinstance(body, e.InferenceFailed):
            self._on_inference_failed(body)
        elif isinstance(body, e.ToolCompleted):
            self._under_way.pop(body.result.call_id, None)
        elif isinstance(body, e.MessageInjected) and body.limit is not None:
            self.say(f"the limit {body.limit} is reached; the model is asked for its final answer", "yellow")
        elif isinstance(body, e.MessageInjected) and body.is_nudge and self._refused_tool is not None:
            tool = clean(self._refused_tool)
            self.say(
                f"that is not the answer yet: the model has the tool {tool}, and is asked again", "yellow"
            )

    def _after(self, body: e.DurableBody | e.Delta) -> None:
        """Say what the run waits for after an event."""
        if isinstance(body, e.InferenceStarted):
            self._wait("thinking")
        elif isinstance(body, e.InferenceFailed) and body.retry_in_seconds is not None:
            self._wait("waiting for the next attempt")
        elif isinstance(body, e.ToolStarted):
            again = " again" if body.attempt > 1 else ""
            self._under_way[body.call_id] = self._write_call(body.call_id, body.name) + again
            self._wait_for_calls()
        elif isinstance(body, e.ToolCompleted):
            self._wait_for_calls()

    def finish(self, run: Run, seconds: float, more: Mapping[str, Json] | None = None) -> None:
        self.close()
        if run.error:
            self.say(format_error(run.error, run.fault), "red")
        elif run.stop_reason is StopReason.COMPLETED and not (run.output.strip() or run.messages[-1].parts):
            self.say("the model's answer has no text", "yellow")
        self._console.print()
        self._print_outcome(run, seconds)

    def _print_outcome(self, run: Run, seconds: float) -> None:
        print_outcome(run, seconds)

    def close(self) -> None:
        self._stop_spinner()
        self._end_line()
        self._waits_for = ""

    def _on_inference_completed(self, body: e.InferenceCompleted) -> None:
        message = body.completion.message
        self._refused_tool = body.refused_tool
        self._stop_spinner()
        self._end_line()
        if message.reasoning and not self._is_live:
            self.say(clean(message.reasoning.strip()), "dim italic")
        for part in split_at_server_calls(message):
            if not isinstance(part, str):
                if part.call_id in self._served:
                    self._served.remove(part.call_id)
                else:
                    self.print_server_call(part)
            elif self._is_live and not self._has_streamed_text:
                self._console.print(render_markdown(clean(part)))
            elif not self._has_streamed_text:
                self.say(clean(part), "")
        self._calls.update({call.call_id: call for call in message.tool_calls})
        if body.answered_by is not None and body.answered_by != self._answered_by:
            self.say(f"answered by {clean(body.answered_by)}", "dim")
        self._answered_by = body.answered_by

    def _on_server_call(self, body: e.ServerCallDelta) -> None:
        if not self._is_live:
            return
        if body.is_done:
            self._served.append(body.call.call_id)
            self.print_server_call(body.call)
        else:
            self._stop_spinner()
            self._end_line()
            self._wait(f"the server runs {shorten(body.call.name, self._width)}")

    def _on_inference_failed(self, body: e.InferenceFailed) -> None:
        self._served = []
        self._stop_spinner()
        self._end_line()
        if (told := format_fallback(body)) is not None:
            self.say(told, "yellow")
        elif body.retry_in_seconds is not None:
            wait = write_seconds(body.retry_in_seconds)
            is_same = body.attempt > 1 and body.error == self._last_error
            why = "failed in the same way" if is_same else f"failed: {shorten(body.error, 300)}"
            self.say(f"attempt {body.attempt} {why}; the next attempt is in {wait}", "yellow")
            self._last_error = body.error
        elif body.next_tier is not None:
            self._has_streamed_text = False

    def _on_progress(self, body: e.ToolProgress) -> None:
        if body.call_id in self._calls:
            text = f"{self._calls[body.call_id].name}: {body.text}"
            self._under_way[body.call_id] = shorten(text, self._width)
            self._wait_for_calls()

    def _lines_of(self, result: ToolResult, width: int) -> list[str]:
        return [format_result(result, width - 2)]

    def _stream(self, kind: str, text: str, style: str | None) -> None:
        if not self._is_live:
            return
        self._stop_spinner()
        self._waits_for = ""
        if self._streamed != kind:
            self._end_line()
            text = text.lstrip()
            if not text:
                return
            self._writer = StreamedText(style)
        self._streamed = kind
        self._has_streamed_text = self._has_streamed_text or kind == "text"
        assert self._writer is not None
        self._writer.add(text)

    def _end_line(self) -> None:
        if self._writer is not None:
            self._writer.end()
        self._writer, self._streamed = None, ""

    def hold(self) -> None:
        self._held = []
        self._stop_spinner()
        if self._writer is not None:
            self._writer.pause()

    def release(self) -> None:
        held, self._held = self._held or [], None
        if not held and self._waits_for:
            self._wait(self._waits_for)
        for item in held:
            self._show(item)

    def say(self, text: str, style: str = "", end: str = "\n") -> None:
        self._stop_spinner()
        self._end_line()
        super().say(text, style, end)

    def _wait_for_calls(self) -> None:
        if self._under_way:
            self._wait("running " + ", ".join(self._under_way.values()))

    def _wait(self, text: str) -> None:
        if not self._is_live:
            return
        self._waits_for = text
        text = shorten(text, self._width)
        if self._status is None:
            self._end_line()
            from rich.text import Text

            self._status = self._console.status(Text(text, style="dim"), spinner="dots")
            self._status.start()
        else:
            self._status.update(text)

    def _stop_spinner(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
