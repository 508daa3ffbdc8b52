"""The body of a request of the Responses API, and what its items mean for a run."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Struct, field
from pydantic import BaseModel, ConfigDict, Field, model_validator

from treadle.context.compaction_summary import unpack_summary
from treadle.core.errors import ConfigError
from treadle.core.parts import content_of, make_part
from treadle.core.types import Artifact, Json, Message, Role, ToolCall
from treadle.models.config.described import Described
from treadle.models.wire.served import (
    AUTO,
    NONE,
    REQUIRED,
    arguments_of_text,
    choose_allowed,
    join_answers,
    read_url,
)
from treadle.server.catalog import ClientWish
from treadle.server.responses.item_parts import Echo
from treadle.server.responses.response_ids import run_named_by

Item = dict[str, Any]
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


_SKIPPED = ("mcp_approval_request", "mcp_list_tools", "mcp_call", "web_search_call", "file_search_call")
"""The types of items that say nothing to the model: the answers to them do."""


class TextFormat(BaseModel):
    """The form of the answer."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    type: Literal["text", "json_schema", "json_object"] = "text"
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")


class TextOptions(BaseModel):
    """The options of the answer's text."""

    model_config = ConfigDict(extra="allow")

    format: TextFormat = TextFormat()
    verbosity: str | None = None


class ConversationReference(BaseModel):
    """The conversation that a response belongs to."""

    id: str


class ContextManagement(BaseModel):
    """What is done if the context of the model becomes long."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["compaction"]
    compact_threshold: Annotated[int, Field(ge=1000, le=1_000_000_000)] | None = None
    """The size of the prompt in tokens above which it is compacted, unless the agent has a lower one."""


class AskedTurn(Described, BaseModel):
    """What a request may say about a turn, in any API."""

    model_config = ConfigDict(extra="forbid")

    input: str | list[Item] = []
    """The user's message, or a list of items: messages, and the results of the client's tools."""
    instructions: str | None = None
    """The system message. An agent with instructions of its own gets these after them."""
    tools: list[Item] = []
    """The tools of the client (`function`). The agent's own tools need not be named."""
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    max_tool_calls: Annotated[int, Field(ge=0)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None


class RequestForm(Struct):
    """What follows from a request whatever its input is. Requests that differ in nothing else share it."""

    wish: ClientWish | None = None
    """What the client wants of the agent, without instructions; `None` until an agent was made for it."""
    key: bytes | None = None
    """The key of that agent in the catalog; `None` if it depends on the client."""
    echo: Echo | None = None
    """What the response repeats; `None`: nobody has asked for it."""


class CreateResponse(AskedTurn):
    """The body of `POST /v1/responses`."""

    model: str
    """The name of an agent or a model of this server."""
    previous_response_id: str | None = None
    """The response that this one continues."""
    conversation: str | ConversationReference | None = None
    """The conversation that this response belongs to."""
    stream: bool = False
    background: bool = False
    """True to answer at once, and to go on working; poll the response, or stream it."""
    store: bool = True
    """Ignored: every run is kept."""
    metadata: dict[str, str] | None = None
    max_infer_iters: Annotated[int, Field(ge=1)] | None = None
    text: TextOptions | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning: dict[str, Any] | None = None
    include: list[str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    stream_options: dict[str, Any] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    context_management: Annotated[list[ContextManagement], Field(max_length=1)] | None = None
    """If it is given, the output has an item for each compaction of the context."""
    guardrails: list[Any] | None = None
    """Refused unless it is empty: the server has no safety checks."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, value: Any) -> Any:
        return {key: it for key, it in value.items() if it is not None} if isinstance(value, dict) else value

    @cached_property
    def form(self) -> RequestForm:
        """What is known to follow from the request. Requests that differ in their input alone share it."""
        return RequestForm()

    @property
    def has_logprobs(self) -> bool:
        """True if the answer has the log probabilities of its tokens."""
        return bool(self.top_logprobs) or "message.output_text.logprobs" in (self.include or ())

    @property
    def levels(self) -> dict[str, Json]:
        """How much the model is to think and to write, as fields of chat completions."""
        effort = (self.reasoning or {}).get("effort")
        levels = {"reasoning_effort": effort, "verbosity": None if self.text is None else self.text.verbosity}
        return {name: level for name, level in levels.items() if level}

    @property
    def choice(self) -> str:
        """Which calls the answer must have: `auto`, `none`, `required` or the name of a tool.

        Raises: `ConfigError`.
        """
        choice = self.tool_choice
        if choice in (None, AUTO, NONE, REQUIRED):
            return choice or AUTO
        fields = choice if isinstance(choice, dict) else {}
        if fields.get("type") in ("function", "custom") and isinstance(fields.get("name"), str):
            return str(fields["name"])
        if not self.allows_all:
            return self._choose_allowed()[0]
        raise ConfigError(
            f"tool_choice is {choice!r:.100}; give 'auto', 'none', 'required', the name of a function as "
            "{'type': 'function', 'name': NAME}, or {'type': 'allowed_tools', 'mode': MODE, 'tools': TOOLS}"
        )

    def _choose_allowed(self) -> tuple[str, list[Item]]:
        found, mode = self.tool_choice.get("tools"), self.tool_choice.get("mode")
        allowed = [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []
        return choose_allowed(self.tools, allowed, mode, "tool_choice")

    @property
    def allows_all(self) -> bool:
        """False if `tool_choice` allows some tools only."""
        return not isinstance(self.tool_choice, dict) or self.tool_choice.get("type") != "allowed_tools"

    @property
    def allowed_tools(self) -> list[Item]:
        """The tools that the model is given. Raises: `ConfigError` if `tool_choice` allows another one."""
        return self.tools if self.allows_all else self._choose_allowed()[1]

    @property
    def schema_of_answer(self) -> dict[str, Any] | None:
        """The JSON Schema of the answer; `None`: any text. Raises: `ConfigError`."""
        form = None if self.text is None else self.text.format
        if form is None or form.type == "text":
            return None
        if form.type == "json_object":
            return {"type": "object"}
        if not isinstance(form.json_schema, dict):
            raise ConfigError(
                "text.format has the type 'json_schema' and no schema; give it as text.format.schema"
            )
        return form.json_schema


class CompactResponse(Described, BaseModel):
    """The body of `POST /v1/responses/compact`."""

    model_config = ConfigDict(extra="ignore")

    model: str
    """The name of an agent or a model of this server, which writes the summary."""
    input: str | list[Item] | None = None
    """The conversation, as for a response, or what follows after the previous response."""
    instructions: str | None = None
    """The system message of the responses that continue this one, unless they have others."""
    previous_response_id: str | None = None
    """The response whose conversation is compacted."""


class RequestItems(Struct):
    """The items of a request, as what they mean for a run."""

    instructions: list[str] = field(default_factory=list)
    """The texts of system and developer messages."""
    history: list[Message] = field(default_factory=list)
    """The conversation before the newest message of the user."""
    message: Message | None = None
    """The newest message of the user; `None` if the request only has results."""
    blobs: dict[str, bytes] = field(default_factory=dict)
    """The contents of the parts of messages, by hash, as far as they are not inline."""
    run_id: str | None = None
    """The run that the newest id in the items names; `None` if none names one."""
    results: dict[str, str] = field(default_factory=dict)
    """The results of the client's tools and the answers to questions, by the id of the call."""
    result_parts: dict[str, tuple[Artifact, ...]] = field(default_factory=dict)
    """The images and files of the results, by the id of the call."""
    failed: set[str] = field(default_factory=set)
    """The ids of the calls whose results are errors."""
    approvals: dict[str, tuple[bool, str | None]] = field(default_factory=dict)
    """The decisions about calls, by the id of the request: whether the call may run, and why not."""


class GivenFile(Struct, frozen=True):
    """An uploaded file that a request names."""

    content: bytes
    mime_type: str
    name: str


def file_ids_in(given: list[Item]) -> list[str]:
    """Return the ids of the uploaded files that the messages and outputs of a request name."""
    parts = [part for item in given if isinstance(item, dict) for part in _parts_of(item)]
    return [
        part["file_id"] for part in parts if isinstance(part, dict) and isinstance(part.get("file_id"), str)
    ]


def _parts_of(item: Item) -> list[Any]:
    lists = [value for name in ("content", "output") if isinstance(value := item.get(name), list)]
    return [part for found in lists for part in found]


def read_items(
    given: str | list[Item],
    files: Mapping[str, GivenFile] = {},
    compacted: Mapping[str, Sequence[Message]] = {},
) -> RequestItems:
    """Return what the items of a request mean. `files` are the uploaded files that it names, and `compacted` is
    what the model saw after compactions, by `encrypted_content`.

    Raises: `ConfigError` that names the item.
    """
    if isinstance(given, str):
        return RequestItems(message=Message(Role.USER, given))
    reader = _Reader(files, compacted)
    for number, item in enumerate(given):
        try:
            reader.read(item)
        except (ConfigError, KeyError, TypeError, AttributeError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else error
            raise ConfigError(f"input[{number}]: {what}") from None
    return reader.finish()


def items_in(given: str | list[Item]) -> list[Item]:
    """Return the input of a request as items."""
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


class _Reader:
    def __init__(self, files: Mapping[str, GivenFile], compacted: Mapping[str, Sequence[Message]]) -> None:
        self.asked = RequestItems()
        self._files = files
        self._compacted = compacted
        self._known: dict[str, str] = {}
        """The names of the calls in the history, by id."""
        self._decided = 0
        """How many messages of the history come before the newest decision."""

    def read(self, item: Item) -> None:
        kind = item.get("type", "message" if "role" in item else None)
        named = item.get("call_id") or item.get("id")
        self.asked.run_id = run_named_by(str(named)) or self.asked.run_id
        if kind == "message":
            self._read_message(item)
        elif kind in ("function_call", "custom_tool_call"):
            given = str(item.get("arguments") or "")
            if kind == "custom_tool_call":
                given = arguments_of_text(_word(item, "input"))
            call = ToolCall(_word(item, "call_id"), _word(item, "name"), given)
            self._known[call.call_id] = call.name
            self._say(Message(Role.ASSISTANT, "", (call,)))
        elif kind in ("function_call_output", "custom_tool_call_output"):
            self._read_output(_word(item, "call_id"), item["output"], is_error=item.get("is_error") is True)
        elif kind == "mcp_approval_response":
            is_approved = item["approve"] is True
            reason = None if item.get("reason") is None else str(item["reason"])
            self.asked.approvals[_word(item, "approval_request_id")] = (is_approved, reason)
            self._decided = len(self.asked.history)
        elif kind == "reasoning":
            texts = [*(item.get("content") or ()), *(item.get("summary") or ())]
            self._say(Message(Role.ASSISTANT, "", reasoning=_text_of(texts) or None))
        elif kind == "mcp_call" and (item.get("output"), item.get("error")) != (None, None):
            call = ToolCall(_word(item, "id"), _word(item, "name"), str(item.get("arguments") or ""))
            self._say(Message(Role.ASSISTANT, "", (call,)))
            text, fault = item.get("output"), item.get("error")
            if isinstance(fault, dict):
                fault = fault.get("message") or _text_of(fault.get("content") or "")
            said = str(text if fault is None else fault)
            self.asked.history.append(
                Message(Role.TOOL, said, call_id=call.call_id, name=call.name, is_error=fault is not None)
            )
        elif kind == "compaction":
            self._read_compaction(_word(item, "encrypted_content"))
        elif kind not in _SKIPPED:
            raise ConfigError(f"items of the type {kind!r} are not supported")

    def _read_compaction(self, packed: str) -> None:
        """Take what the model saw after a compaction in place of all that was said before; if only its summary is
        known, take that besides."""
        if packed not in self._compacted:
            self.asked.history.append(unpack_summary(packed))
            return
        self.asked.history = [*self._compacted[packed]]
        self._decided = 0

    def _read_message(self, item: Item) -> None:
        role, content = item["role"], item.get("content") or ""
        if role in ("system", "developer"):
            self.asked.instructions.append(_text_of(content))
        elif role == "assistant":
            self._say(Message(Role.ASSISTANT, _text_of(content)))
        elif role == "user":
            parts = [] if isinstance(content, str) else [self._read_part(part) for part in content]
            kept = tuple(part for part in parts if part is not None)
            self.asked.history.append(Message(Role.USER, _text_of(content), parts=kept))
        else:
            raise ConfigError(f"{role!r} is not a role; the roles are system, developer, user and assistant")

    def _read_part(self, part: Mapping[str, Json]) -> Artifact | None:
        kind = part.get("type")
        if kind in _TEXTS:
            return None
        if kind in ("input_image", "input_file") and part.get("file_id"):
            file = self._files[str(part["file_id"])]
            kept, blobs = make_part(file.content, file.mime_type, name=file.name)
            self.asked.blobs |= blobs
            return kept
        if kind == "input_image":
            return read_url(part.get("image_url"), self.asked.blobs)
        if kind == "input_file" and (url := part.get("file_data") or part.get("file_url")):
            return read_url(url, self.asked.blobs, part.get("filename"), "document")
        raise ConfigError(
            f"parts of the type {kind!r} are not supported; give images and files as data URLs, by their "
            "addresses, or by file_id"
        )

    def _read_output(self, call_id: str, output: Json, *, is_error: bool) -> None:
        texts, parts = [], []
        for item in output if isinstance(output, list) else []:
            part = self._read_part(item)
            if part is not None and part.kind != "text":
                parts.append(part)
            else:
                given = None if part is None else content_of(part, self.asked.blobs)
                texts.append(_text_of([item]) if given is None else given.decode(errors="replace"))
        text = "\n".join(texts) if isinstance(output, list) else _text_of(output)
        if parts:
            self.asked.result_parts[call_id] = tuple(parts)
        if is_error:
            self.asked.failed.add(call_id)
        if call_id in self._known:
            name, kept = self._known[call_id], self.asked.result_parts.get(call_id, ())
            self.asked.history.append(Message(Role.TOOL, text, call_id=call_id, name=name, parts=kept))
        else:
            self.asked.results[call_id] = text

    def _say(self, message: Message) -> None:
        """Add a message of the model. Items that follow each other are one message."""
        history = self.asked.history
        history[-1:] = join_answers([*history[-1:], message])

    def finish(self) -> RequestItems:
        """Return the request. Its newest message of the user, or the results at its end, are no history."""
        asked = self.asked
        if any([message.role is not Role.USER for message in asked.history[self._decided :]]):
            asked.approvals = {}  # the conversation has gone on after them
        while asked.history and asked.history[-1].role is Role.TOOL:
            result = asked.history.pop()
            if result.call_id in self._known:  # else the server has made the call
                asked.results = {result.call_id: result.content, **asked.results}
        last = asked.history[-1] if asked.history else None
        if last is not None and last.role is Role.USER and len(asked.history) > self._decided:
            asked.message = asked.history.pop()
        return asked


def _word(item: Item, name: str) -> str:
    """Return a field that is a text. Raises: `ConfigError` if it is not, `KeyError` if it is missing."""
    value = item[name]
    if not isinstance(value, str):
        raise ConfigError(f"{name} is {value!r:.100}; give a text")
    return value


def _text_of(content: Json) -> str:
    """Return the text of a content: a text, or parts with texts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return msgspec.json.encode(content).decode()
    texts = [
        part.get("refusal") if part.get("type") == "refusal" else part["text"]
        for part in content
        if part.get("type") in (*_TEXTS, "refusal")
    ]
    return "\n".join([str(text) for text in texts])
