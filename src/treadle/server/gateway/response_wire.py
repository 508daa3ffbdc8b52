"""Requests of the Responses API before a model that is asked once for each, as the programs of rollouts are.

Their engines speak chat completions, so a request is read as one of these. The conversation before it comes with
it, or is that of the run which `previous_response_id` names.
"""

import asyncio

from pydantic import ValidationError

from treadle.core import events as e
from treadle.core.errors import ConfigError, JournalError
from treadle.core.state import fold
from treadle.core.texts.mistakes import Keys
from treadle.core.types import Json, Message, Role
from treadle.models.wire.served import AUTO, NONE, ServedRequest, join_answers, read_fields
from treadle.server.admission.access import ApiCaller, no_such
from treadle.server.catalog import client_tools
from treadle.server.gateway.gateway_host import GatewayHost
from treadle.server.responses.request_items import CreateResponse, RequestItems, TextOptions, read_items
from treadle.server.responses.response_ids import read_response_id

_SETTINGS = ("temperature", "top_p", "max_output_tokens")
_REPEATED = (
    *(
        "instructions",
        "tools",
        "tool_choice",
        "metadata",
        "temperature",
        "top_p",
        "max_output_tokens",
        "user",
    ),
    *("previous_response_id", "reasoning", "text", "truncation", "service_tier", "top_logprobs", "store"),
)
"""The fields of a request that its answer repeats."""
_NEEDS_RUNS = ("background", "conversation", "context_management")
"""The fields about runs that go on without their client, have names or are compacted; only `treadle serve` has
them."""


def read_request(body: bytes) -> ServedRequest:
    """Read a request with all its fields. Raises: `ConfigError` that names the field which cannot be read."""
    fields = read_fields(body)
    try:
        given = CreateResponse.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(
            str(Keys(CreateResponse.model_json_schema, {}).explain(error.errors(), fields)[0])
        ) from None
    for name in _NEEDS_RUNS:
        if getattr(given, name):
            raise ConfigError(f"{name} needs treadle serve; leave it out, and send the conversation as input")
    items = read_items(given.input)
    tools = client_tools(given.allowed_tools)
    if tools.searches or tools.servers:
        kind = "mcp" if tools.servers else "file_search"
        raise ConfigError(f"a tool of the type {kind!r} needs treadle serve; leave it out")
    told = [text for text in (given.instructions, *items.instructions) if text]
    asked = ServedRequest(
        model=given.model,
        dialect="openai_chat",
        instructions="\n\n".join(told) or None,
        messages=join_answers(_messages_of(items)),
        blobs=items.blobs,
        tool_choice=given.choice,
        is_parallel=given.parallel_tool_calls,
        is_stream=given.stream,
        labels=given.metadata or {},
        previous=given.previous_response_id,
    )
    asked.echo = {"metadata": {}, "tools": []} | {
        name: fields[name] for name in _REPEATED if fields.get(name)
    }
    asked.echo["tool_choice"] = given.tool_choice or AUTO
    asked.echo["parallel_tool_calls"] = given.parallel_tool_calls is not False
    if asked.tool_choice != NONE:
        asked.tools = tools.functions
    asked.settings = {name: value for name in _SETTINGS if (value := getattr(given, name)) is not None}
    asked.extra = _extra_of(given)
    asked.form = asked.extra.get("response_format")
    return asked


def _messages_of(items: RequestItems) -> list[Message]:
    results = [
        Message(Role.TOOL, text, call_id=call_id, is_error=call_id in items.failed)
        for call_id, text in items.results.items()
    ]
    return [*items.history, *results, *([] if items.message is None else [items.message])]


def _extra_of(given: CreateResponse) -> dict[str, Json]:
    """Return the other fields that change an answer, as those of chat completions."""
    extra, text = given.levels, given.text or TextOptions()
    if text.format.type == "json_object":
        extra["response_format"] = {"type": "json_object"}
    elif (schema := given.schema_of_answer) is not None:
        named = {"name": "answer", **(text.format.model_extra or {}), "schema": schema}
        extra["response_format"] = {"type": "json_schema", "json_schema": named}
    return extra


async def recall(host: GatewayHost, caller: ApiCaller, asked: ServedRequest) -> None:
    """Put the conversation up to the answer that a request continues before its messages.

    Raises: `RequestRefused` if there is no such answer.
    """
    missing = no_such("response", asked.previous)
    try:
        place = read_response_id(str(asked.previous))
        if await host.find_info(caller, place.run_id) is None:
            raise missing
        events = await asyncio.to_thread(host.journal.read, place.run_id)
    except JournalError:
        raise missing from None
    steps = [event.body.step if isinstance(event.body, e.InferenceCompleted) else 0 for event in events]
    if place.step + 1 not in steps:
        raise missing
    state = fold([event.body for event in events[: steps.index(place.step + 1) + 1]])
    before = [message for message in state.transcript if message.role is not Role.SYSTEM]
    asked.messages = [*before, *asked.messages]
