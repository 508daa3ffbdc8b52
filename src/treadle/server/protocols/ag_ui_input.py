"""Requests of the AG-UI protocol as what they mean for a run. Source: AG-UI 1.0."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from treadle.core.errors import ConfigError
from treadle.core.inbox import InboxMessage
from treadle.core.types import Json, Role
from treadle.runs.run import Run
from treadle.server.catalog import ClientWish, client_tools
from treadle.server.responses.request_items import Item, RequestItems, read_items
from treadle.server.routes.route_context import ClientBody
from treadle.server.turn_order import Reply, write_mail


class _Part(ClientBody):
    """The base of what AG-UI sends. Fields that are not known are ignored, as the protocol says."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")


class AgUiFunction(_Part):
    name: str
    arguments: str


class AgUiCall(_Part):
    id: str
    function: AgUiFunction


class AgUiMessage(_Part):
    id: str = ""
    role: Literal["developer", "system", "assistant", "user", "tool", "activity", "reasoning"]
    content: str | list[dict[str, Any]] | dict[str, Any] | None = None
    tool_calls: list[AgUiCall] | None = None
    tool_call_id: str | None = None
    error: str | None = None


class AgUiTool(_Part):
    name: str
    description: str = ""
    parameters: Any = None


class AgUiContext(_Part):
    description: str
    value: str


class AgUiResume(_Part):
    """The answer to an interrupt of the run before."""

    interrupt_id: str
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class RunAgentInput(_Part):
    """The body of `POST /v1/ag-ui/AGENT`."""

    thread_id: Annotated[str, Field(min_length=1)]
    """The conversation. One that this server does not know begins with these messages."""
    run_id: str
    messages: list[AgUiMessage]
    tools: list[AgUiTool] | None = None
    """The tools that the client runs."""
    context: list[AgUiContext] | None = None
    state: Any = None
    """Ignored: Treadle's agents have no state besides the conversation and their files."""
    forwarded_props: Any = None
    resume: list[AgUiResume] | None = None

    def wish(self, asked: RequestItems) -> ClientWish:
        """Return what the client wants of the agent. Raises: `ConfigError`."""
        texts = [f"{item.description}: {item.value}" for item in self.context or ()]
        tools = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters or {"type": "object", "properties": {}},
            }
            for tool in self.tools or ()
        ]
        return ClientWish(
            instructions="\n\n".join([*asked.instructions, *texts]) or None,
            tools=client_tools(tools).functions,
        )

    def read(self) -> RequestItems:
        """Return what the messages mean. Raises: `ConfigError`."""
        return read_items([item for message in self.messages for item in _items_of(message)])


def _items_of(message: AgUiMessage) -> Iterator[Item]:
    content = message.content
    if message.role == "tool":
        if message.tool_call_id is None:
            raise ConfigError("a message of a tool has no toolCallId")
        text = _text_of(content)
        if message.error is not None:
            text = f"{text}\n{message.error}".strip()
        yield {
            "type": "function_call_output",
            "call_id": message.tool_call_id,
            "output": text,
            "is_error": message.error is not None,
        }
    elif message.role == "reasoning":
        yield {"type": "reasoning", "content": [{"type": "reasoning_text", "text": _text_of(content)}]}
    elif message.role == "user" and isinstance(content, list):
        yield {"role": "user", "content": [_part_of(part) for part in content]}
    elif message.role != "activity":
        if content or not message.tool_calls:
            yield {"role": message.role, "content": _text_of(content)}
        for call in message.tool_calls or ():
            named = {"name": call.function.name, "arguments": call.function.arguments}
            yield {"type": "function_call", "call_id": call.id, **named}


def _text_of(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join([str(part.get("text", "")) for part in content])
    return (
        content
        if isinstance(content, str)
        else ""
        if content is None
        else msgspec.json.encode(content).decode()
    )


def _part_of(part: dict[str, Any]) -> Item:
    kind, source = part.get("type"), part.get("source")
    if kind == "text":
        return {"type": "input_text", "text": str(part.get("text", ""))}
    if not isinstance(source, dict) or source.get("type") != "data":
        raise ConfigError(f"a part of the type {kind!r:.50} must have its data inline")
    url = f"data:{source.get('mimeType')};base64,{source.get('value')}"
    if kind == "image":
        return {"type": "input_image", "image_url": url}
    return {"type": "input_file", "file_data": url}


def read_answers(run: Run[Any], asked: RequestItems, resume: list[AgUiResume] | None) -> list[InboxMessage]:
    """Return the messages for the inbox that answer what a run waits for.

    Results of the agent's own calls, which clients send along with the history, are left out. Raises: `ConfigError`
    for an interrupt that is not open, an answer that cannot be read, and a call or interrupt without an answer.
    """
    # Results before a message of the user are part of the history.
    said = {item.call_id or "": item.content for item in asked.history if item.role is Role.TOOL}
    replies = {
        call_id: Reply(text, is_error=call_id in asked.failed)
        for call_id, text in (said | asked.results).items()
        if call_id in run.external_calls
    }
    for entry in resume or ():
        name, is_cancelled = entry.interrupt_id, entry.status == "cancelled"
        if name not in run.approvals and name not in run.open_questions:
            raise ConfigError(f"no interrupt {name!r:.100} is open")
        if is_cancelled:
            replies[name] = Reply(is_approved=False if name in run.approvals else None, is_declined=True)
        elif name in run.approvals:
            replies[name] = _read_decision(name, entry.payload)
        else:
            replies[name] = Reply(
                entry.payload
                if isinstance(entry.payload, str)
                else msgspec.json.encode(entry.payload).decode()
            )
    return write_mail(run.state, replies)


def has_news(run: Run[Any], asked: RequestItems) -> bool:
    """Return whether the newest message of the user is one that the run does not have yet.

    Clients send the whole conversation, or as much of it as they like, along with answers.
    """
    if asked.message is None:
        return False
    known = [item.content for item in run.messages if item.role is Role.USER]
    told = [item.content for item in (*asked.history, asked.message) if item.role is Role.USER]
    return len(told) > len(known) or told[-1] != known[-1]


def _read_decision(call_id: str, payload: Json) -> Reply:
    if not isinstance(payload, dict) or not isinstance(payload.get("approved"), bool):
        raise ConfigError(f'the answer about {call_id!r:.100} is not {{"approved": true}} or false')
    edited, reason = payload.get("editedArgs"), payload.get("reason")
    return Reply(
        "" if reason is None else str(reason),
        payload["approved"],
        None if edited is None else msgspec.json.encode(edited).decode(),
    )
