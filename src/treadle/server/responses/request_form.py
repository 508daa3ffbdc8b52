"""What follows from a request for a response whatever its input is.

It is checked and worked out once for all requests that differ in nothing else, as most requests of a client do.
"""

import time
from collections import OrderedDict

import msgspec
from msgspec.structs import replace

from treadle.core.types import Json
from treadle.models.wire.served import ServedRequest, Settings
from treadle.server.admission.given_servers import read_given_servers, write_tool
from treadle.server.catalog import AgentCatalog, ClientWish, client_tools
from treadle.server.responses.item_parts import REPEATED, Echo
from treadle.server.responses.request_items import AskedTurn, CreateResponse, Item

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_SAID = {
    name: msgspec.json.Decoder(kind).decode
    for name, kind in (
        ("input", str | list[Item]),
        ("previous_response_id", str),
        ("conversation", str),
        ("metadata", dict[str, str]),
    )
}
"""The decoders of the fields in which most requests of a client differ."""
_MAX_FORMS = 256
_MAX_FORM_BYTES = 32_768


class RequestReader:
    """The reader of requests. What they have in common is checked once: most requests of a client have the same
    tools and settings."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, CreateResponse] = OrderedDict()
        """The newest requests, without what only one of them says."""

    def read(self, raw: bytes) -> CreateResponse:
        """Return the request with this body. Raises: `ValidationError`."""
        try:
            fields = _decode_fields(raw)
            said = {name: read(fields.pop(name)) for name, read in _SAID.items() if name in fields}
            key = msgspec.json.encode(fields)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return CreateResponse.model_validate_json(raw)  # which says what is wrong, if anything is
        known = self._known.pop(key, None) or CreateResponse.model_validate_json(key)
        if len(key) <= _MAX_FORM_BYTES:
            self._known[key] = known
            if len(self._known) > _MAX_FORMS:
                self._known.popitem(last=False)
        body = CreateResponse.__new__(CreateResponse)
        # To copy the model takes longer, because that copies also what its copies share.
        body.__setstate__(
            {**known.__getstate__(), "__dict__": {**known.__dict__, "form": known.form, **said}}
        )
        return body


def wish_of(catalog: AgentCatalog, body: CreateResponse) -> ClientWish:
    """Return what a request wants of the agent, without instructions. Raises: `ConfigError`."""
    if (known := body.form.wish) is not None:
        return known
    wish = read_wish(catalog, body, body.allowed_tools, body.schema_of_answer, body.max_infer_iters)
    named = [one.compact_threshold for one in body.context_management or () if one.compact_threshold]
    settings = _settings_for(catalog, body, wish)
    return replace(wish, settings=settings, compact_threshold=named[0] if named else None)


def read_wish(
    catalog: AgentCatalog,
    body: AskedTurn,
    tools: list[Item],
    schema: dict[str, Json] | None,
    max_steps: int | None,
) -> ClientWish:
    """Return what a request wants of the agent, without instructions. Raises: `ConfigError`."""
    given = client_tools(tools)
    settings = {name: getattr(body, name) for name in ("temperature", "top_p", "max_output_tokens")}
    return ClientWish(
        tools=given.functions,
        searches=given.searches,
        servers=read_given_servers(given.servers, catalog.config.file.serve) if given.servers else (),
        settings={name: value for name, value in settings.items() if value is not None},
        schema=schema,
        max_tool_calls=body.max_tool_calls,
        max_steps=max_steps,
    )


def _settings_for(catalog: AgentCatalog, body: CreateResponse, wish: ClientWish) -> Settings:
    """Return the settings of the model that a request asks for, in the words of its server.

    Raises: `ConfigError`.
    """
    dialect = catalog.dialect_of(body.model)
    is_native = dialect == "openai_responses"
    extra = body.levels  # what is thought is shown whether a summary is asked for or not
    if is_native:
        text = body.text and body.text.verbosity and {"verbosity": body.text.verbosity}
        extra = {"reasoning": body.reasoning, "text": text}
    extra["top_logprobs"] = body.top_logprobs
    served = ServedRequest(
        model=body.model,
        dialect="openai_responses" if is_native else "openai_chat",
        instructions=None,
        messages=[],
        blobs={},
        tools=(*wish.tools, *wish.searches),
        tool_choice=body.choice,
        is_parallel=False if body.parallel_tool_calls is False else None,
        settings={**wish.settings, "logprobs": True} if body.has_logprobs else wish.settings,
        extra={name: value for name, value in extra.items() if value and dialect is not None},
    )
    return served.settings_for(dialect, is_agent=catalog.is_agent(body.model) or bool(wish.servers))


def echo_of(body: CreateResponse, instructions: str | None) -> Echo:
    """Return the fields of a response that repeat its request."""
    form = body.form
    if form.echo is None:
        form.echo = _read_echo(body)
    return replace(
        form.echo,
        created_at=time.time(),
        instructions=instructions,
        metadata=dict(body.metadata or {}),
        previous_response_id=body.previous_response_id,
    )


def _read_echo(body: CreateResponse) -> Echo:
    given = body.__dict__
    rest = {name: given[name] for name in REPEATED if given[name] is not None}
    rest["text"] = (
        {"format": {"type": "text"}}
        if body.text is None
        else body.text.model_dump(by_alias=True, exclude_none=True)
    )
    rest["tool_choice"] = body.tool_choice or "auto"
    rest["parallel_tool_calls"] = body.parallel_tool_calls is not False
    rest["store"] = True
    include = body.include or ()
    return Echo(
        model=body.model,
        created_at=0,
        tools=[write_tool(tool) for tool in body.tools],
        is_background=body.background,
        shows_logprobs=body.has_logprobs,
        shows_compactions=bool(body.context_management),
        shows_results=not include or "file_search_call.results" in include,
        rest=rest,
    )
