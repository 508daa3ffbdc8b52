"""A run's events and deltas as a response, and as the events of its stream.

Invariants: each item that is added is done before the next one is added, except calls of tools, which may overlap;
`sequence_number` counts up without gaps; the last event is `response.completed`, `response.incomplete` or
`response.failed`. Without the deltas, the response is the same. A call of the client's tools is told once it waits
for the client, so that no client answers a call that was refused here.
"""

from collections.abc import Iterable

from treadle.context.compaction_summary import is_summary, pack_summary
from treadle.core import events as e
from treadle.core.state import Ending
from treadle.core.texts.hiding import hide_servers
from treadle.core.turns import find_handlers
from treadle.core.types import (
    Fault,
    FinishReason,
    Json,
    OutputSpec,
    Role,
    ServerCall,
    StopReason,
    ToolCall,
    ToolErrorKind,
    ToolSpec,
    Usage,
)
from treadle.knowledge.files.file_search import NAME as FILE_SEARCH
from treadle.models.dialects.openai_chat.served import to_logprobs
from treadle.models.dialects.openai_responses.response_writer import (
    ResponseEvent,
    ResponseItem,
    ResponseWriter,
    client_call,
)
from treadle.models.dialects.openai_responses.served import write_usage
from treadle.server.no_answer import NoAnswerError, explain_ending
from treadle.server.responses.item_parts import (
    REPEATED,
    Echo,
    arguments_of_question,
    citations_in,
    error_of,
    lists_of,
    names_of_found,
    queries_in,
    results_of,
)
from treadle.server.responses.response_ids import ResponseId, conversation_id, wire_call_id

SERVER_LABEL = "treadle"
"""The name under which the tools of the server appear, as those of an MCP server."""
ASK = "ask_user"
"""The name of the call as which a question to the user appears."""
_STATUSES = {
    StopReason.COMPLETED: "completed",
    StopReason.CANCELLED: "cancelled",
    StopReason.ERROR: "failed",
    StopReason.CONTEXT_OVERFLOW: "failed",
}
_INCOMPLETE = {
    StopReason.MAX_TOKENS: "max_output_tokens",
    StopReason.REFUSED: "content_filter",
}
_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
"""The codes of the errors of responses, by the status of the failure."""
_NOT_GIVEN: dict[str, Json] = dict.fromkeys(REPEATED)
_OF_CLIENT = ("function_call", "custom_tool_call")
"""The types of the items of calls that the client makes."""
_WAITS = ("result", "question", "approval")
"""The reasons of pauses that end a response: the client has to say something."""


class ResponseFold(ResponseWriter):
    """The fold of one response."""

    status = "in_progress"
    is_over = False
    seq = 0
    """The number of the newest event of the response, where it is folded from the journal."""
    usage = Usage()
    failure: NoAnswerError | None = None
    """The reason why the response has failed; `None` if it has not."""
    incomplete: dict[str, Json] | None = None
    _failed: e.InferenceFailed | None = None
    """The newest attempt to ask the model, if it failed."""
    _external: frozenset[str] = frozenset()
    _texts: frozenset[str] = frozenset()
    """The names of the client's tools that take a text."""
    _answer_tool: str | None = None
    _has_form = False
    """True if an answer may be thrown away because it does not fit the schema."""

    def __init__(self, response_id: ResponseId, echo: Echo, *, is_told: bool = True) -> None:
        """Make an empty response. `is_told` says whether the events of its stream are made."""
        self._id = str(response_id)
        super().__init__(self._id, {"response_id": self._id}, is_told=is_told)
        self.step = response_id.step
        self.response_id = response_id
        self.echo = echo
        self._calls: dict[str, ResponseItem] = {}
        """The items of calls, by the call's id in the run."""
        self._streamed: dict[int, str] = {}
        """The ids of the calls that are being streamed, by position."""
        self.said: dict[str, ToolCall] = {}
        """The calls of the newest answer of the model, by id, as far as they may be shown."""
        self._pieces: dict[str, list[str]] = {}
        """The arguments of the client's calls as they were streamed, by the call's id."""
        self._approved: set[str] = set()
        """The ids of the calls that were approved."""
        self._tools: dict[str, ToolSpec] = {}
        """The tools of the MCP servers that the client named, by the name that they have in the run."""
        self.listed: set[str] = set()
        """The labels of the servers whose tools the conversation has seen in a list."""
        self._found: dict[str, str] = {}
        """The names of the files that were found, by id."""

    # What is read.

    def begin(self) -> list[ResponseEvent]:
        """Return the first events of the stream."""
        self._say_all("created")
        self._say_all("in_progress")
        self._list_tools()
        return self._taken()

    def offer(self, tools: Iterable[ToolSpec], output: OutputSpec | None) -> None:
        """Note the tools that the run has from now on, and the form of its answers."""
        tools = tuple(tools)
        self._external = frozenset([tool.name for tool in tools if tool.is_external])
        self._texts = frozenset([tool.name for tool in tools if tool.takes_text])
        self._tools = {tool.name: tool for tool in tools if tool.origin is not None}
        self._answer_tool = None if output is None else output.tool
        self._has_form = output is not None

    def note_listed(self, tools: Iterable[ToolSpec] | None = None) -> None:
        """Note the tools that a response before this one has listed; by default, those that the run has now."""
        tools = self._tools.values() if tools is None else tools
        self.listed.update(tool.origin.server for tool in tools if tool.origin is not None)

    def _list_tools(self) -> None:
        """Add an item for each server whose tools the conversation has not seen."""
        found = lists_of(self._tools.values(), self.listed)
        for label, tools in found.items():
            item = self._add("mcpl", {"type": "mcp_list_tools", "server_label": label, "tools": []})
            self._say_of(item, "mcp_list_tools.in_progress")
            item.item["tools"] = tools
            self._say_of(item, "mcp_list_tools.completed")
            self._done(item)
        self.listed.update(found)

    def _named(self, name: str) -> dict[str, Json]:
        """Return the name of a tool and the label of its server, as a client knows them."""
        origin = self._tools[name].origin if name in self._tools else None
        if origin is None:
            return {"name": name, "server_label": SERVER_LABEL}
        return {"name": origin.name, "server_label": origin.server}

    def note_calls(self, calls: Iterable[ToolCall]) -> None:
        """Note the calls of an answer of the model, also of one before the response."""
        self.said = {call.call_id: call for call in calls}

    def take(self, item: e.DurableBody | e.Delta) -> list[ResponseEvent]:
        """Return the events that follow from an event or delta of the run."""
        self.read(item)
        return self._taken()

    def read(self, item: e.DurableBody | e.Delta) -> None:
        """Change the response as an event or delta of the run says."""
        read = _READ.get(type(item))
        if read is not None and not self.is_over:
            read(self, item)

    def on_run_started(self, body: e.RunStarted) -> None:
        self.offer(body.tools, body.output)

    def on_run_resumed(self, body: e.RunResumed) -> None:
        if body.agent is not None:
            self.offer(body.tools, body.output)

    def on_inference_started(self, body: e.InferenceStarted) -> None:
        self._drop_open()
        self.step = body.step

    def on_reasoning_delta(self, delta: e.ReasoningDelta) -> None:
        self._add_text(delta.text, is_reasoning=True)

    def on_text_delta(self, delta: e.TextDelta) -> None:
        self._add_text(delta.text, is_reasoning=False)

    def on_tool_call_delta(self, delta: e.ToolCallDelta) -> None:
        self._close_text()
        call_id = self._streamed.get(delta.index)
        if call_id is None:
            if delta.call_id is None or delta.name is None:
                return  # the whole call follows with the answer
            call_id = self._streamed[delta.index] = delta.call_id
            if delta.name in self._external:
                self._pieces[call_id] = []
            elif not self._is_hidden(delta.name):
                self._open_call(ToolCall(delta.call_id, delta.name, ""))
        if call_id in self._pieces and delta.arguments:
            self._pieces[call_id].append(delta.arguments)
        item = self._calls.get(call_id)
        if item is not None and delta.arguments and item.item["type"] != "file_search_call":
            self._add_arguments(item, delta.arguments)

    def is_answered_by_client(self, name: str) -> bool:
        """Return whether the client gives the results of a tool."""
        return name in self._external or name == ASK

    def output_type(self, name: str) -> str:
        """Return the type of the items with the results of a client's tool."""
        return "custom_tool_call_output" if name in self._texts else "function_call_output"

    def _is_hidden(self, name: str) -> bool:
        """Return whether a call of a tool is shown as something else: as the answer, or as a question."""
        return name == self._answer_tool or (name == ASK and name not in self._external)

    def on_inference_completed(self, body: e.InferenceCompleted) -> None:
        self._failed = None
        completion = body.completion
        message = completion.message
        self.usage = self.usage + completion.usage
        if message.reasoning:
            self._settle_text(message.reasoning, is_reasoning=True)
        if self._find_open(is_reasoning=True) is not None:
            self._close_text()
        for served in message.server_calls:
            self._add_served(served)
        if message.content:
            self._settle_text(message.content, is_reasoning=False)
        if self.echo.shows_logprobs:
            self._logprobs = (to_logprobs(completion) or {}).get("content") or []
        is_refused = completion.finish_reason is FinishReason.CONTENT_FILTER
        if is_refused or message.tool_calls or not self._has_form:
            self._close_text(message.content if is_refused else None)
        self.note_calls(message.tool_calls)
        for call in message.tool_calls:
            if call.name not in self._external and not self._is_hidden(call.name):
                self._settle_call(call)
        self._streamed = {}

    def on_tool_started(self, body: e.ToolStarted) -> None:
        call = self.said.get(body.call_id)
        if call is None or call.name not in self._external or call.call_id in self._calls:
            return
        item = self._open_call(call)
        for piece in self._pieces.pop(call.call_id, ()) if call.name not in self._texts else ():
            self._add_arguments(item, piece)
        self._settle_call(call)

    def on_inference_failed(self, body: e.InferenceFailed) -> None:
        self._failed = body
        if body.usage is not None:
            self.usage = self.usage + body.usage
        for item in self._items:
            if not item.is_done and item.step == self.step:
                self._drop(item)
        self._open = None
        self._streamed, self._pieces = {}, {}

    def on_tool_completed(self, body: e.ToolCompleted) -> None:
        item = self._calls.get(body.result.call_id) or self._take_up(body.result.call_id)
        if item is None or item.is_done or item.item["type"] in _OF_CLIENT:
            return
        if body.result.error_kind is ToolErrorKind.NOT_RUN:
            self._drop(item)
            return
        item.item["status"] = "failed" if body.result.is_error else "completed"
        if item.item["type"] == "file_search_call":
            self._found |= names_of_found(body.result.structured)
            if self.echo.shows_results:
                item.item["results"] = results_of(body.result.structured)
            self._say_of(item, "file_search_call.completed")
        else:
            said = body.result.content
            if body.child is not None and body.result.is_error:  # older versions put the whole error there
                said = hide_servers(said)
            item.item |= {"error": error_of(said)} if body.result.is_error else {"output": said}
            self._say_of(item, f"mcp_call.{item.item['status']}")
        self._done(item)

    def _take_up(self, call_id: str) -> ResponseItem | None:
        """Return the item of a call that waited for the client when the response before was over; `None` if it is
        not shown."""
        call = self.said.get(call_id)
        if call is None or call.name in self._external or self._is_hidden(call.name):
            return None
        self._settle_call(call)
        return self._calls[call_id]

    def on_question_asked(self, body: e.QuestionAsked) -> None:
        call_id = wire_call_id(self.response_id.run_id, body.question_id)
        item = self._add("fc", client_call(call_id, ASK, takes_text=False))
        self._end_client_call(item, arguments_of_question(body))

    def on_approval_requested(self, body: e.ApprovalRequested) -> None:
        asked = self.said.get(body.call_id) or ToolCall(body.call_id, "", "")
        shown = {"id": wire_call_id(self.response_id.run_id, body.call_id), "arguments": asked.arguments}
        told = {"type": "mcp_approval_request", **shown, **self._named(asked.name)}
        self._done(self._add("mcpr", told))

    def on_approval_decided(self, body: e.ApprovalDecided) -> None:
        if body.is_approved:
            self._approved.add(body.call_id)
        else:
            self.said.pop(body.call_id, None)  # it is not run, so that there is nothing to show

    def on_run_paused(self, body: e.RunPaused) -> None:
        if is_wait(body):
            self._end("completed")
        elif body.inbox is not None:  # somebody has cancelled it
            self._end("cancelled")

    def on_context_compacted(self, body: e.ContextCompacted) -> None:
        self._drop_open()
        self.usage = self.usage + (body.usage or Usage())
        is_whole = self.response_id.is_compaction
        for message in body.replacement if is_whole or self.echo.shows_compactions else ():
            if is_summary(message):
                shown: dict[str, Json] = {"encrypted_content": pack_summary(message)}
                self._done(self._add("cmp", {"type": "compaction", **shown}))
            elif is_whole and message.role is Role.USER:
                content: list[Json] = [{"type": "input_text", "text": message.content}]
                shown = {"role": "user", "status": "completed", "content": content}
                self._done(self._add("msg", {"type": "message", **shown}))
        if not is_whole:
            return
        if not body.messages:
            said = hide_servers(body.error or "there is nothing to compact")
            self.failure = NoAnswerError(said, 502, "provider_error")
        self._end("completed" if body.messages else "failed")

    def on_turn_completed(self, body: e.TurnCompleted) -> None:
        if self._answer_tool is not None and body.output and self._open is None:
            self._settle_text(body.output, is_reasoning=False)
            self._close_text()
        status = status_after(body)
        if status == "failed":
            ending = Ending(body.stop_reason, error=body.error, fault=body.fault, failure=self._failed)
            self.failure = failure = explain_ending(ending)
            if body.stop_reason is not StopReason.CONTEXT_OVERFLOW:
                failure.code = _CODES.get(failure.status_code, "server_error")
        elif status == "incomplete":
            self.incomplete = {"reason": _INCOMPLETE.get(body.stop_reason, body.stop_reason.value)}
        self._end(status)

    def call_id_of(self, item_id: str) -> str | None:
        """Return the id, in the run, of the call that an item shows; `None` if it shows none."""
        found = [call_id for call_id, item in self._calls.items() if item.item["id"] == item_id]
        return found[0] if found else None

    # What is written.

    @property
    def output(self) -> list[dict[str, Json]]:
        """The items of the response, as far as they hold."""
        return [item.item for item in self._items if not item.is_dropped]

    def response(self) -> dict[str, Json]:
        """Return the response as it is now."""
        echo, usage = self.echo, self.usage
        failure = self.failure
        return {
            **_NOT_GIVEN,
            **echo.rest,
            "id": self._id,
            "object": "response.compaction" if self.response_id.is_compaction else "response",
            "created_at": int(echo.created_at),
            "status": self.status,
            "background": echo.is_background,
            "error": failure and {"code": failure.code, "message": failure.detail},
            "incomplete_details": self.incomplete,
            "instructions": echo.instructions,
            "metadata": echo.metadata,
            "model": echo.model,
            "output": self.output,
            "previous_response_id": echo.previous_response_id,
            "conversation": {"id": echo.conversation or conversation_id(self.response_id.run_id)},
            "tools": echo.tools,
            "usage": write_usage(usage) if self.is_over else None,
        }

    def _say_all(self, kind: str) -> None:
        if self._is_told:
            self._say(kind, response=self.response())

    def _drop(self, item: ResponseItem) -> None:
        item.item["status"] = "incomplete"
        item.is_dropped = True
        self._done(item)

    def _drop_open(self) -> None:
        """Leave out the open text: the answer did not fit the schema."""
        if self._open is not None:
            self._drop(self._open)
            self._open = None

    def _notes_on(self, text: str) -> list[Json]:
        return citations_in(text, self._found)

    def _find_open(self, *, is_reasoning: bool) -> ResponseItem | None:
        """Return the open message or reasoning; `None` if there is none of this kind."""
        item = self._open
        return item if item is not None and (item.item["type"] == "reasoning") is is_reasoning else None

    def _settle_text(self, text: str, *, is_reasoning: bool) -> None:
        """Say the part of a text that was not streamed. A text that differs from what was streamed replaces it."""
        found, kind = self._find_open(is_reasoning=is_reasoning), "reasoning" if is_reasoning else "message"
        own = [item for item in self._items if item.step == self.step] if found is None else []
        if any([item.item["type"] == kind and not item.is_dropped for item in own]):
            return  # it was streamed, and something else after it
        told = "" if found is None else found.text
        if not text.startswith(told):
            assert found is not None
            found.text = text
        elif text != told:
            self._add_text(text[len(told) :], is_reasoning=is_reasoning)

    def _open_call(self, call: ToolCall) -> ResponseItem:
        run_id = self.response_id.run_id
        if call.name in self._external:
            call_id, takes_text = wire_call_id(run_id, call.call_id), call.name in self._texts
            made = client_call(call_id, call.name, takes_text=takes_text)
            item = self._add("ctc" if takes_text else "fc", made)
        elif call.name == FILE_SEARCH:
            asked: dict[str, Json] = {"type": "file_search_call", "queries": [], "status": "in_progress"}
            item = self._add("fs", asked | {"results": None})
            self._say_of(item, "file_search_call.in_progress")
        else:
            shown: dict[str, Json] = {"type": "mcp_call", "arguments": "", **self._named(call.name)}
            shown["status"] = "in_progress"
            if call.call_id in self._approved:
                shown["approval_request_id"] = wire_call_id(run_id, call.call_id)
            item = self._add("mcp", shown)
            self._say_of(item, "mcp_call.in_progress")
        self._calls[call.call_id] = item
        return item

    def _settle_call(self, call: ToolCall) -> None:
        item = self._calls.get(call.call_id) or self._open_call(call)
        if item.item["type"] == "file_search_call":
            item.item["queries"] = queries_in(call.arguments)
            item.item["status"] = "searching"
            self._say_of(item, "file_search_call.searching")
        elif item.item["type"] in _OF_CLIENT:
            self._end_client_call(item, call.arguments)
        else:
            self._end_arguments(item, call.arguments)

    def _add_served(self, call: ServerCall) -> None:
        """Add a call that the model's own server made and answered."""
        is_search = call.name == "web_search"
        kind = "web_search_call" if is_search else "mcp_call"
        shown: dict[str, Json] = {"action": {"type": "search", "query": call.arguments}}
        if not is_search:
            shown = {"name": call.name, "server_label": "model", "arguments": call.arguments}
        item = self._add("ws" if is_search else "mcp", {"type": kind, "status": "in_progress", **shown})
        self._say_of(item, f"{kind}.in_progress")
        if is_search:
            self._say_of(item, f"{kind}.searching")
        else:
            self._say_of(item, "mcp_call_arguments.done", arguments=call.arguments)
            item.item |= {"error": error_of(call.result)} if call.is_error else {"output": call.result}
        item.item["status"] = "failed" if call.is_error else "completed"
        # A search has no event that says that it has failed.
        self._say_of(item, f"{kind}.{'completed' if is_search else item.item['status']}")
        self._done(item)

    def _end(self, status: str) -> None:
        self._close_text()
        for item in self._items:
            if not item.is_done:  # a call that waits for the client is shown by the response in which it ends
                self._drop(item)
        self.status, self.is_over = status, True
        kind = {"cancelled": "incomplete"}.get(status, status)
        if status == "cancelled":
            self.incomplete = {"reason": "cancelled"}
        self._say_all(kind)


_READ = find_handlers(ResponseFold)


def is_wait(body: object) -> bool:
    """Return whether an event says that the run waits for its client, so that a response is over."""
    return isinstance(body, e.RunPaused) and body.reason in _WAITS


def status_after(body: e.TurnCompleted) -> str:
    if body.stop_reason is StopReason.CANCELLED and body.fault is Fault.INFRASTRUCTURE:
        return "failed"
    return _STATUSES.get(body.stop_reason, "incomplete")
