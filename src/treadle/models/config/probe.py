"""The examination of a live endpoint: what it supports, and how exact the data of its runs will be."""

import time
from collections.abc import AsyncIterator, Callable

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError, ProviderError, TransportError, TreadleError
from treadle.core.log import Log
from treadle.core.packed import unpack_ids
from treadle.core.types import Completion, Json, Message, Request, Role, TokenGrade, ToolSpec
from treadle.models.protocol import Model, Watch
from treadle.models.wire.endpoint import PAUSE_PATHS, TOKEN_PATHS, HttpEndpoint
from treadle.renderers.protocol import Renderer

MakeModel = Callable[..., Model]
"""A function that makes the model with additional settings, such as `logprobs=True`."""


class EndpointFinding(Struct, frozen=True, omit_defaults=True):
    """The result for one ability."""

    name: str
    is_there: bool | None
    """True if the endpoint has the ability; `None` if that could not be determined."""
    seen: str
    advice: str | None = None


class Probed(Struct, frozen=True):
    """The results for all abilities."""

    findings: tuple[EndpointFinding, ...]
    grade: TokenGrade
    """The exactness with which a run's journal will hold what the model sampled."""
    output_mode: str
    """How the model is best made to give answers that fit a schema."""

    @property
    def is_usable(self) -> bool:
        """True if the endpoint answers."""
        return self.findings[0].is_there is True


_CITY: dict[str, Json] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
_WEATHER = ToolSpec("get_weather", "The present weather of a city.", _CITY)
_ANSWER: dict[str, Json] = {
    "type": "object",
    "properties": {"capital": {"type": "string"}, "letters": {"type": "integer"}},
    "required": ["capital", "letters"],
    "additionalProperties": False,
}


class Prober:
    """An examination of one endpoint by a few short questions, one after another."""

    def __init__(self, make: MakeModel) -> None:
        self._make = make
        self._model = make()
        self._findings: list[EndpointFinding] = []

    async def findings(self) -> AsyncIterator[EndpointFinding]:
        """Yield each finding when it is made; only the first one if the endpoint does not answer."""
        async for finding in self._look():
            self._findings.append(finding)
            yield finding

    def result(self) -> Probed:
        """Return the conclusion from all findings."""
        found = {item.name: item.is_there for item in self._findings}
        grade = TokenGrade.TEXT
        if found.get("engine") and found.get("token ids"):
            grade = TokenGrade.TOKEN_EXACT if found.get("logprobs") else TokenGrade.TOKEN_IDS
        mode = "text"
        if found.get("json schema"):
            mode = "native"
        elif found.get("forced tool"):
            mode = "tool"
        return Probed(tuple(self._findings), grade, mode)

    async def _look(self) -> AsyncIterator[EndpointFinding]:
        begin = time.monotonic()
        first = await _ask(self._model, "Answer with the one word: ready")
        if isinstance(first, TreadleError):
            yield EndpointFinding("answers", False, str(first))
            return
        took = time.monotonic() - begin
        usage = first.usage
        tokens = (
            f"{usage.input_tokens} + {usage.output_tokens} tokens" if usage is not None else "no usage told"
        )
        yield EndpointFinding(
            "answers", True, f"{first.message.content.strip()!r:.60}, {took:.1f} s, {tokens}"
        )
        yield await self._streaming()
        tools = await self._tools()
        yield tools
        if tools.is_there:
            yield await self._parallel()
            yield await self._forced()
        yield await self._schema()
        yield await self._engine()
        yield await self._logprobs()
        yield await self._token_ids()
        for finding in await self._endpoints():
            yield finding
        if (renderer := getattr(_innermost(self._model), "renderer", None)) is not None:
            yield await self._template(renderer)
        thought = first.message.reasoning
        seen = (
            f"{len(thought):,} characters with the first answer" if thought else "none with the first answer"
        )
        yield EndpointFinding("reasoning", True if thought else None, seen)
        yield await self._context()

    async def _streaming(self) -> EndpointFinding:
        pieces: list[object] = []
        completion = await _ask(self._model, "Count from 1 to 20, in digits.", watch=Watch(pieces.append))
        if isinstance(completion, TreadleError):
            return EndpointFinding("streaming", False, str(completion))
        if len(pieces) > 1:
            return EndpointFinding("streaming", True, f"{len(pieces)} pieces")
        return EndpointFinding(
            "streaming", False, "the answer came in one piece", "a user sees nothing until it is whole"
        )

    async def _tools(self) -> EndpointFinding:
        question = "What is the weather in Oslo? Look it up with the tool."
        completion = await _ask(self._model, question, tools=(_WEATHER,))
        if isinstance(completion, TreadleError):
            return EndpointFinding("tools", False, str(completion), _NO_TOOLS)
        message = completion.message
        if not message.tool_calls:
            seen = f"no call, but {message.content.strip()!r:.80}"
            return EndpointFinding("tools", False, seen, _NO_TOOLS)
        call = message.tool_calls[0]
        if call.name != _WEATHER.name or not _is_city(call.arguments):
            return EndpointFinding("tools", False, f"a call that is wrong: {call.name}({call.arguments:.80})")
        results = [
            Message(Role.TOOL, "4 degrees, rain", call_id=item.call_id, name=item.name)
            for item in message.tool_calls
        ]
        after = await _infer(
            self._model, Request(Log([Message(Role.USER, question), message, *results]), (_WEATHER,))
        )
        if isinstance(after, TreadleError):
            return EndpointFinding("tools", False, f"it calls, but does not take the result: {after}")
        return EndpointFinding("tools", True, "it calls, and takes the result")

    async def _parallel(self) -> EndpointFinding:
        question = "Look up the weather of Oslo and of Rome, with two calls at the same time."
        completion = await _ask(self._model, question, tools=(_WEATHER,))
        if isinstance(completion, TreadleError):
            return EndpointFinding("parallel calls", False, str(completion))
        count = len(completion.message.tool_calls)
        return EndpointFinding("parallel calls", count > 1, f"{count} in one step, where two were asked for")

    async def _forced(self) -> EndpointFinding:
        completion = await _ask(self._model, "Hello!", tools=(_WEATHER,), required_tool=_WEATHER.name)
        if isinstance(completion, TreadleError):
            return EndpointFinding("forced tool", False, str(completion))
        is_there = any(call.name == _WEATHER.name for call in completion.message.tool_calls)
        return EndpointFinding(
            "forced tool", is_there, "it calls what it must" if is_there else "it does as it likes"
        )

    async def _schema(self) -> EndpointFinding:
        question = "Name the capital of Norway, and how many letters its name has."
        completion = await _ask(self._model, question, output_schema=_ANSWER)
        if isinstance(completion, TreadleError):
            return EndpointFinding("json schema", False, str(completion))
        text = completion.message.content.strip()
        try:
            value = msgspec.json.decode(text)
            is_there = isinstance(value["capital"], str) and isinstance(value["letters"], int)
        except (msgspec.DecodeError, TypeError, LookupError, RecursionError):
            is_there = False
        return EndpointFinding("json schema", is_there, f"{text!r:.80}")

    async def _engine(self) -> EndpointFinding:
        server = _server_of(self._model)
        try:
            info = await server.find_engine() if server is not None else None
        except TransportError as error:
            return EndpointFinding("engine", None, str(error))
        if info is None:
            return EndpointFinding(
                "engine", False, "neither vLLM nor SGLang, whose token ids are known to be exact"
            )
        return EndpointFinding("engine", True, str(info))

    async def _endpoints(self) -> list[EndpointFinding]:
        """Return what the engine has besides chat; empty for a server without one."""
        server = _server_of(self._model)
        try:
            info = await server.find_engine() if server is not None else None
            if server is None or info is None:
                return []
            paths = await server.find_paths((*TOKEN_PATHS[info.name].values(), PAUSE_PATHS[info.name]))
        except TransportError as error:
            return [EndpointFinding("tokens in", None, str(error))]
        takes = [path for path in TOKEN_PATHS[info.name].values() if path in paths]
        can_pause = PAUSE_PATHS[info.name] in paths
        return [
            EndpointFinding("tokens in", bool(takes), " and ".join(takes) or "no endpoint takes token ids"),
            EndpointFinding(
                "weight updates",
                can_pause,
                f"{PAUSE_PATHS[info.name]} pauses it" if can_pause else "it cannot be paused",
                None if can_pause or info.name != "vllm" else "vLLM needs VLLM_SERVER_DEV_MODE=1 for it",
            ),
        ]

    async def _logprobs(self) -> EndpointFinding:
        completion = await self._ask_for("Say: one two three", logprobs=True)
        if isinstance(completion, TreadleError):
            return EndpointFinding("logprobs", False, str(completion))
        record = completion.tokens
        if record is None or record.logprobs is None:
            return EndpointFinding("logprobs", False, "the server returned none")
        return EndpointFinding("logprobs", True, f"of {len(record.logprobs)} tokens")

    async def _token_ids(self) -> EndpointFinding:
        completion = await self._ask_for("Say: one two three", logprobs=True, return_token_ids=True)
        if isinstance(completion, TreadleError):
            return EndpointFinding("token ids", False, str(completion))
        record = completion.tokens
        if record is None or record.token_ids is None:
            return EndpointFinding("token ids", False, "the server returned none")
        if record.prompt_token_ids is None:
            return EndpointFinding("token ids", False, "of the answer alone, and not of the prompt")
        seen = f"{len(record.prompt_token_ids)} of the prompt, {len(record.token_ids)} of the answer"
        return EndpointFinding("token ids", True, seen)

    async def _template(self, renderer: Renderer) -> EndpointFinding:
        """Compare the prompt of the renderer with the one that the server makes of the same messages."""
        name, text = "same template", "Say: one two three"
        completion = await self._ask_for(text, renderer="", return_token_ids=True, max_output_tokens=1)
        if isinstance(completion, TreadleError):
            return EndpointFinding(name, None, str(completion))
        record = completion.tokens
        if record is None or record.prompt_token_ids is None:
            return EndpointFinding(name, None, "the server does not return the ids of its prompts")
        theirs = unpack_ids(record.prompt_token_ids)
        ours = tuple(renderer.render([Message(Role.USER, text)], ()))
        if ours == theirs:
            return EndpointFinding(
                name, True, f"{renderer.name} and the server make the same {len(ours)} ids"
            )
        at = next((at for at, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), -1)
        at = min(len(ours), len(theirs)) if at == -1 else at
        seen = f"from id {at}: {renderer.decode(ours[at:])!r:.60}, the server {renderer.decode(theirs[at:])!r:.60}"
        return EndpointFinding(name, False, seen, "the model sees another prompt than it was trained on")

    async def _ask_for(self, text: str, **settings: bool | int | str) -> Completion | TreadleError:
        try:
            model = self._make(**settings)
        except ConfigError as error:
            return error
        return await _ask(model, text)

    async def _context(self) -> EndpointFinding:
        find = getattr(_innermost(self._model), "find_context_tokens", None)
        if find is None:
            return EndpointFinding("context length", None, "this provider does not tell it")
        try:
            tokens = await find()
        except (TreadleError, OSError) as error:
            return EndpointFinding("context length", None, str(error))
        if tokens is None:
            return EndpointFinding("context length", None, "the server does not tell it")
        return EndpointFinding("context length", True, f"{tokens:,} tokens")


async def find_token_settings(model: Model) -> dict[str, bool]:
    """Return the settings with which the server of `model` returns token ids and logprobs: `return_token_ids` and
    `logprobs`; empty if its engine is not known to do so.

    Raises: `TransportError`.
    """
    server = _server_of(model)
    info = await server.find_engine() if server is not None else None
    return {"logprobs": True, "return_token_ids": True} if info is not None and info.gives_ids else {}


async def check_vocabulary(model: Model) -> None:
    """Check that the ids of the renderer of `model` have the same text for its server, if the server says it.

    Raises: `ConfigError` if a text differs; `TransportError`.
    """
    renderer: Renderer | None = getattr(_innermost(model), "renderer", None)
    server = _server_of(model)
    if renderer is None or server is None:
        return
    for ids in (renderer.encode(_SAMPLE), renderer.stop_token_ids[:1]):
        ours, theirs = renderer.decode(ids), await server.find_text(ids)
        # A server may leave special tokens out, and blanks at the ends.
        if theirs is not None and theirs.strip() not in ("", ours.strip()):
            raise ConfigError(
                f"the renderer {renderer.name!r} is for another model than the one at {server.server.origin}: "
                f"the ids of {ours!r:.60} are {theirs!r:.60} there. Give the renderer of the model's own tokenizer"
            )


_SAMPLE = "Read 3 files in src/main and write 42 lines of Python"
"""A text without anything that decoders may clean up, such as blanks before punctuation."""
_NO_TOOLS = "for a model whose tool calls are text: a model of completions:..., with its format as an option"


def _is_city(arguments: str) -> bool:
    try:
        return "oslo" in str(msgspec.json.decode(arguments)["city"]).lower()
    except (msgspec.DecodeError, TypeError, LookupError, RecursionError):
        return False


def _server_of(model: Model) -> HttpEndpoint | None:
    """Return the endpoint that a model asks; `None` if it asks none."""
    found = _innermost(model)
    found = getattr(found, "engine", found)
    return found if isinstance(found, HttpEndpoint) else None


def _innermost(model: Model) -> object:
    found: object = model
    while (inner := getattr(found, "inner", None)) is not None:
        found = inner
    return found


async def _ask(
    model: Model,
    text: str,
    *,
    tools: tuple[ToolSpec, ...] = (),
    output_schema: dict[str, Json] | None = None,
    required_tool: str | None = None,
    watch: Watch | None = None,
) -> Completion | TreadleError:
    request = Request(Log([Message(Role.USER, text)]), tools, output_schema, required_tool)
    return await _infer(model, request, watch)


async def _infer(model: Model, request: Request, watch: Watch | None = None) -> Completion | TreadleError:
    try:
        return await model.infer(request, watch or Watch())
    except ProviderError as error:
        return error
