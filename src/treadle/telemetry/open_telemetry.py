"""The hook that makes spans and metrics of OpenTelemetry from events.

A turn is a span `invoke_agent`; in it each attempt at an inference is a span `chat`, and each call a span
`execute_tool`. All times are those of the events, and all spans have the ids by which the journal finds the events.
Source: OpenTelemetry semantic conventions for generative AI, 1.41.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from treadle.core import events as e
from treadle.core.errors import ConfigError
from treadle.core.spec import PartSpec
from treadle.core.state import State, advance
from treadle.core.tally import Charge, Tally, charge_of
from treadle.core.turns import StepFold, find_handlers
from treadle.core.types import Message, Role, StopReason, Usage
from treadle.telemetry.conventions import (
    OTHER,
    SECONDS,
    TOKENS,
    Attributes,
    agent_name,
    bare_name,
    completion_attributes,
    provider_of,
    server_of,
    usage_attributes,
    write_messages,
)

_TRACE_PARENT = re.compile("00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_WAITS = ("question", "approval")
"""The reasons of pauses in which a run waits for a person."""
_FINISHED = {
    StopReason.COMPLETED: "stop",
    StopReason.MAX_TOKENS: "length",
    StopReason.REFUSED: "content_filter",
}
"""The finish reasons of turns in the conventions; that of all other turns is `error`."""
_FAILED = frozenset((StopReason.ERROR, StopReason.REFUSED, StopReason.CONTEXT_OVERFLOW, StopReason.CANCELLED))


class OpenTelemetry:
    """A hook that reports runs to OpenTelemetry.

    Without providers it uses those that the program has set for the process. Contents of messages, arguments and
    results are left out unless `records_content` is true.
    """

    def __init__(
        self, tracer_provider: Any = None, meter_provider: Any = None, *, records_content: bool = False
    ) -> None:
        """Make the hook. Raises: `ConfigError` if the package `opentelemetry-api` is missing."""
        try:
            from opentelemetry import metrics, trace
        except ImportError as error:
            raise ConfigError("OpenTelemetry needs a package: pip install 'treadle[otel]'") from error
        from treadle import __version__

        self.records_content = records_content
        self.tracer = trace.get_tracer("treadle", __version__, tracer_provider)
        meter = metrics.get_meter("treadle", __version__, meter_provider)

        def measure(name: str, about: str, unit: str = "s", bounds: Sequence[float] = SECONDS) -> Any:
            return meter.create_histogram(name, unit, about, explicit_bucket_boundaries_advisory=bounds)

        self.duration = measure("gen_ai.client.operation.duration", "GenAI operation duration.")
        self.first_chunk = measure(
            "gen_ai.client.operation.time_to_first_chunk", "Time to receive the first chunk of a stream."
        )
        self.tool_duration = measure("gen_ai.execute_tool.duration", "Duration of tool calls.")
        self.tokens = measure(
            "gen_ai.client.token.usage", "Number of input and output tokens used.", "{token}", TOKENS
        )
        self.cost = meter.create_counter("treadle.cost", "USD", "Cost of inferences, where it is known.")
        self.turns = meter.create_counter(
            "treadle.turns", "{turn}", "Turns, and whether a fallback answered."
        )
        self._runs: dict[str, _RunSpans] = {}

    def __call__(self, event: e.Event) -> None:
        self.take(event.run_id, event.seq, (event.body,))

    def take(self, run_id: str, first_seq: int, bodies: Sequence[e.DurableBody]) -> None:
        """Take the next events of a run."""
        run = self._spans_of(run_id)
        for seq, body in enumerate(bodies, first_seq):
            run.take(seq, body)

    def trace_parent(
        self, run_id: str, started: e.RunStarted | None, body: e.TurnStarted | e.RunResumed
    ) -> str | None:
        """Begin the span of a turn whose event is stored next, and return its context for the journal."""
        return self._spans_of(run_id).open_turn(started, body)

    def _spans_of(self, run_id: str) -> "_RunSpans":
        run = self._runs.get(run_id)
        if run is None:
            run = self._runs[run_id] = _RunSpans(self, run_id)
        return run

    def catch_up(self, run_id: str, events: Iterable[e.Event]) -> None:
        """Read the events so far of a run that goes on. They get no spans."""
        run = self._runs[run_id] = _RunSpans(self, run_id)
        for event in events:
            run.note(event.body)

    def leave(self, run_id: str) -> None:
        """End the spans of a run that this process no longer drives."""
        run = self._runs.pop(run_id, None)
        if run is not None:
            run.end_turn(run.fold.at, "left")

    def context_of(self, run_id: str, call_id: str) -> Any:
        """Return the context for the children of a call; `None` if this process does not know its run."""
        from opentelemetry.trace import set_span_in_context

        run = self._runs.get(run_id)
        span = None if run is None else run.calls.get(call_id) or run.turn_span
        return None if span is None else set_span_in_context(span)


class _RunSpans:
    def __init__(self, hook: OpenTelemetry, run_id: str) -> None:
        self.turn_span: Any = None
        self.calls: dict[str, Any] = {}
        """The spans of the running calls, by id."""
        self.fold = StepFold()
        self._hook = hook
        self._run_id = run_id
        self._state = State() if hook.records_content else None
        """The state of the run, for the messages of requests; `None` if contents are left out."""
        self._chat: Any = None
        self._chat_at = 0.0
        self._chat_model = ""
        self._server: Attributes = {}
        """The host and port of the server that was asked last."""
        self._step = 0
        self._call_at: dict[str, float] = {}
        self._usage = Usage()
        self._spent = Tally()
        """The charges of the turn so far, those of failed attempts and of compactions included."""
        self._model_part: PartSpec | None = None
        self._earlier: str | None = None
        """The context of the span of the newest turn, or part of one, that was noted."""
        self._before: str | None = None
        """`_earlier` before the newest event."""
        self._copied_turns = 0
        self._error_type: str | None = None
        """The class of the error with which the newest inference failed; `None` if it did not."""
        self._fell_back = False

    def note(self, body: e.DurableBody) -> None:
        """Take an event that gets no span."""
        self.fold.take(body)
        if isinstance(body, e.RunStarted):
            self._model_part = body.spec.model
        elif isinstance(body, e.RunResumed) and body.agent is not None:
            self._model_part = body.agent.model
        if isinstance(body, e.TurnStarted | e.RunResumed):
            self._earlier = body.trace_parent or self._earlier
        if self._state is not None:
            advance(self._state, body)

    def take(self, seq: int, body: e.DurableBody) -> None:
        self._before = self._earlier
        self.note(body)
        if seq > self.fold.copied_until:
            make = _MAKE.get(type(body))
            if make is not None:
                make(self, seq, body)
        else:
            self._copied_turns = self.fold.turns

    # Turns

    def open_turn(self, started: e.RunStarted | None, body: e.TurnStarted | e.RunResumed) -> str | None:
        """Begin the span of a turn, or of a part of one, unless it is open, and return its context."""
        from opentelemetry.trace import format_span_id, format_trace_id

        if self.turn_span is None:
            name, context = None, None
            attributes = self._attributes(None, "invoke_agent")
            attributes["treadle.turn.is_resumed"] = isinstance(body, e.RunResumed)
            if started is not None:
                name = agent_name(started)
                if started.caller is not None:
                    context = self._hook.context_of(started.caller.run_id, started.caller.call_id)
                    attributes["treadle.caller.run.id"] = started.caller.run_id
                    attributes["treadle.caller.call.id"] = started.caller.call_id
            if name is not None:
                attributes["gen_ai.agent.name"] = name
            self._error_type, self._fell_back = None, False
            self.turn_span = self._hook.tracer.start_span(
                "invoke_agent" if name is None else f"invoke_agent {name}",
                context,
                attributes=attributes,
                start_time=_ns(body.at),
            )
        own = self.turn_span.get_span_context()
        if not own.is_valid:
            return None
        return f"00-{format_trace_id(own.trace_id)}-{format_span_id(own.span_id)}-{own.trace_flags:02x}"

    def on_turn_started(self, seq: int, body: e.TurnStarted | e.RunResumed) -> None:
        """Say in the span of a turn what its event says. Nothing is said of a resumed run between two turns."""
        if not self.fold.is_turn_open:
            return
        started = self.fold.started
        self.open_turn(started, body)
        attributes = self._attributes(seq, "invoke_agent")
        if started is not None and started.parent is not None:
            attributes["treadle.parent.run.id"] = started.parent.run_id
            attributes["treadle.parent.seq"] = started.parent.seq
        if self._hook.records_content and isinstance(body, e.TurnStarted):
            attributes["gen_ai.input.messages"] = write_messages([body.message])
            if started is not None and started.system_message:
                system = [{"type": "text", "content": started.system_message}]
                attributes["gen_ai.system_instructions"] = msgspec.json.encode(system).decode()
        self.turn_span.set_attributes(attributes)
        is_first_of_fork = self._copied_turns > 0 and self.fold.turns == self._copied_turns + 1
        if self._before is not None and (isinstance(body, e.RunResumed) or is_first_of_fork):
            self._link(self._before)

    on_run_resumed = on_turn_started

    def _link(self, earlier: str) -> None:
        """Link the span of the turn to the one before it, which may be of another process."""
        from opentelemetry.trace import SpanContext, TraceFlags

        found = _TRACE_PARENT.fullmatch(earlier)
        if found is None:  # the journal may come from elsewhere
            return
        trace_id, span_id, flags = [int(part, 16) for part in found.groups()]
        context = SpanContext(trace_id, span_id, True, TraceFlags(flags))
        if context.span_id != self.turn_span.get_span_context().span_id:
            self.turn_span.add_link(context, {"treadle.run.id": self._run_id})

    def end_turn(self, at: float, why: str, *, error: str | None = None, code: str | None = None) -> None:
        """End the open spans of the run."""
        self._end_chat(at, {}, error="the outcome is not known", code=why)
        for call_id in list(self.calls):
            # A call that waits for a person has not failed.
            self._end_call(call_id, at, {}, code=None if why in _WAITS else why)
        span, self.turn_span = self.turn_span, None
        if span is not None:
            span.set_attributes({"treadle.stop_reason": why, **usage_attributes(self._usage)})
            if (cost_usd := self._spent.cost_usd) is not None:
                span.set_attribute("treadle.cost_usd", cost_usd)
            self._end(span, at, error, code)
            # What is used between two turns, such as by a compaction, belongs to the next one.
            self._usage, self._spent = Usage(), Tally()

    def on_turn_completed(self, seq: int, body: e.TurnCompleted) -> None:
        is_failed = body.error is not None or body.stop_reason in _FAILED
        if self._hook.records_content and self.turn_span is not None:
            said = write_messages(
                [Message(Role.ASSISTANT, body.output)], _FINISHED.get(body.stop_reason, "error")
            )
            self.turn_span.set_attribute("gen_ai.output.messages", said)
        reason = body.stop_reason.value
        code = (self._error_type if body.error is not None else None) or reason
        self._hook.turns.add(1, {"treadle.stop_reason": reason, "treadle.fell_back": self._fell_back})
        self.end_turn(
            body.at,
            reason,
            error=body.error or reason if is_failed else None,
            code=code if is_failed else None,
        )

    def on_run_paused(self, seq: int, body: e.RunPaused) -> None:
        self.end_turn(body.at, body.reason)

    # Inferences

    def on_inference_started(self, seq: int, body: e.InferenceStarted) -> None:
        self._end_chat(body.at, {}, error="the outcome is not known", code="lost")
        self._step = body.step
        self._open_chat(seq, body.at, body)

    def _open_chat(self, seq: int, at: float, body: e.InferenceStarted | None = None) -> None:
        attributes = self._attributes(seq, "chat")
        attributes["treadle.step"] = self._step
        if body is not None and self._state is not None:
            asked = list(self._state.messages)[: body.messages]
            attributes["gen_ai.input.messages"] = write_messages(asked)
        if body is not None and body.route is not None:
            attributes["treadle.route.tier"] = body.route.tier
            attributes["treadle.route.reasons"] = list(body.route.reasons)
        self._chat_at, self._chat_model = at, self.fold.model
        self._server = server_of(self.fold.model, self._model_part)
        attributes |= self._server
        self._chat = self._start(f"chat {bare_name(self.fold.model)}", at, attributes, is_client=True)

    def on_inference_failed(self, seq: int, body: e.InferenceFailed) -> None:
        attributes = usage_attributes(body.usage) if body.usage is not None else {}
        self._step, self._error_type = body.step, body.error_type
        self._fell_back |= body.model is not None and body.retry_in_seconds is None
        self._add_cost(charge_of(body))
        self._end_chat(body.at, attributes, error=body.error, code=body.error_type, usage=body.usage)
        if body.retry_in_seconds is not None:
            self._open_chat(seq, body.at + body.retry_in_seconds)

    def on_inference_completed(self, seq: int, body: e.InferenceCompleted) -> None:
        completion = body.completion
        attributes = completion_attributes(completion)
        if body.answered_by is not None:
            attributes["treadle.answered_by"] = body.answered_by
        if self._hook.records_content:
            attributes["gen_ai.output.messages"] = write_messages(
                [completion.message], completion.finish_reason.value
            )
        self._error_type = None
        if (seconds := body.first_token_seconds) is not None:
            attributes |= {"gen_ai.request.stream": True, "gen_ai.response.time_to_first_chunk": seconds}
            self._hook.first_chunk.record(seconds, self._measured())
        self._add_cost(charge_of(body))
        self._end_chat(body.at, attributes, model=completion.model, usage=completion.usage)

    def _add_cost(self, charge: Charge | None) -> None:
        """Count what an event says was used, if it does."""
        if charge is not None:
            self._spent.add(charge)
            if charge.cost_usd:
                self._hook.cost.add(charge.cost_usd, self._measured())

    def _measured(self) -> Attributes:
        """Return the attributes of measurements of the newest inference."""
        model = self._chat_model or self.fold.model
        return {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider_of(model),
            "gen_ai.request.model": bare_name(model),
            **self._server,
        }

    def _end_chat(
        self,
        at: float,
        attributes: Attributes,
        *,
        error: str | None = None,
        code: str | None = None,
        model: str | None = None,
        usage: Usage | None = None,
    ) -> None:
        span, self._chat = self._chat, None
        if span is None:
            return
        measured = self._measured()
        if model is not None:
            measured["gen_ai.response.model"] = model
        if usage is not None and usage.is_reported:
            self._usage += usage
            counts = {"input": usage.input_tokens, "output": usage.output_tokens}
            for kind, count in counts.items():
                self._hook.tokens.record(count, {**measured, "gen_ai.token.type": kind})
        if code is not None:
            measured["error.type"] = code
        self._hook.duration.record(max(0.0, at - self._chat_at), measured)
        span.set_attributes(attributes)
        self._end(span, max(at, self._chat_at), error, code)

    # Calls

    def on_tool_started(self, seq: int, body: e.ToolStarted) -> None:
        if body.call_id in self.calls:
            self._end_call(body.call_id, body.at, {}, code="lost")
        attributes = self._attributes(seq, "execute_tool")
        attributes |= {
            "gen_ai.tool.name": body.name,
            "gen_ai.tool.call.id": body.call_id,
            "gen_ai.tool.type": "function",
            "treadle.step": body.step,
            "treadle.call.id": body.call_id,
            "treadle.call.attempt": body.attempt,
            "treadle.call.effect": body.effect.value,
        }
        if self._hook.records_content and (arguments := self._arguments_of(body)) is not None:
            attributes["gen_ai.tool.call.arguments"] = arguments
        parent = self.calls.get(body.parent_call_id) if body.parent_call_id is not None else None
        self.calls[body.call_id] = self._start(f"execute_tool {body.name}", body.at, attributes, parent)
        self._call_at[body.call_id] = body.at

    def _arguments_of(self, body: e.ToolStarted) -> str | None:
        if body.arguments is not None or self._state is None:
            return body.arguments
        item = self._state.turn.calls.get(body.call_id)
        return None if item is None else item.call.arguments

    def on_tool_completed(self, seq: int, body: e.ToolCompleted) -> None:
        result = body.result
        if result.call_id not in self.calls:
            # The call was not run.
            return
        attributes: Attributes = {}
        if body.child is not None:
            attributes["treadle.child.run.id"] = body.child.run_id
        if self._hook.records_content:
            attributes["gen_ai.tool.call.result"] = result.content
        code = (result.error_kind.value if result.error_kind else OTHER) if result.is_error else None
        measured = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": result.name}
        if code is not None:
            measured["error.type"] = code
        self._hook.tool_duration.record(body.duration_seconds, measured)
        self._end_call(result.call_id, body.at, attributes, code=code)

    def _end_call(self, call_id: str, at: float, attributes: Attributes, *, code: str | None) -> None:
        span, began = self.calls.pop(call_id), self._call_at.pop(call_id)
        span.set_attributes(attributes)
        self._end(span, max(at, began), code, code)

    def on_context_compacted(self, seq: int, body: e.ContextCompacted) -> None:
        if self.turn_span is not None and not body.is_empty:
            counts = {"treadle.tokens_before": body.tokens_before, "treadle.tokens_after": body.tokens_after}
            said = {"treadle.reason": body.reason, "treadle.seq": seq}
            self.turn_span.add_event("treadle.context_compacted", {**counts, **said}, _ns(body.at))
        if body.usage is not None:
            self._usage += body.usage
        self._add_cost(charge_of(body))

    def on_question_asked(self, seq: int, body: e.QuestionAsked | e.ApprovalRequested) -> None:
        if self.turn_span is not None:
            name = f"treadle.{body.__struct_config__.tag}"
            self.turn_span.add_event(name, {"treadle.seq": seq}, _ns(body.at))

    on_approval_requested = on_question_asked

    # Shared

    def _end(self, span: Any, at: float, error: str | None, code: str | None) -> None:
        """End a span. What a provider or a tool says of an error is content."""
        from opentelemetry.trace import Status, StatusCode

        if code is not None:
            span.set_attribute("error.type", code)
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, error if self._hook.records_content else code))
        span.end(_ns(at))

    def _start(
        self, name: str, at: float, attributes: Attributes, parent: Any = None, *, is_client: bool = False
    ) -> Any:
        from opentelemetry.trace import SpanKind, set_span_in_context

        if self.turn_span is None and self.fold.is_turn_open:
            self.on_turn_started(attributes["treadle.seq"], e.RunResumed(at=at))
        span = parent or self.turn_span
        return self._hook.tracer.start_span(
            name,
            None if span is None else set_span_in_context(span),
            SpanKind.CLIENT if is_client else SpanKind.INTERNAL,
            attributes,
            start_time=_ns(at),
        )

    def _attributes(self, seq: int | None, operation: str) -> Attributes:
        found: Attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.conversation.id": self._run_id,
            "treadle.run.id": self._run_id,
            "treadle.turn": self.fold.turns,
        }
        if seq is not None:
            found["treadle.seq"] = seq
        if operation != "execute_tool":
            found["gen_ai.provider.name"] = provider_of(self.fold.model)
            found["gen_ai.request.model"] = bare_name(self.fold.model)
        return found


_MAKE = find_handlers(_RunSpans)


def _ns(at: float) -> int:
    return int(at * 1e9)
