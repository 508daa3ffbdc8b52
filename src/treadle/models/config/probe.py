"""The examination of a live endpoint: what it supports, and how exact the data of its runs will be."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import ConfigError, ProviderError, RateLimitError, TransportError, TreadleError
from treadle.core.log import Log
from treadle.core.texts.documents import decode_or, read_data
from treadle.core.tokens.packed import count_packed, unpack_ids
from treadle.core.tokens.token_record import TokenGrade
from treadle.core.types import (
    UNREADABLE_CALL,
    Completion,
    FinishReason,
    Json,
    Message,
    Request,
    Role,
    Settings,
    ToolCall,
    ToolSpec,
)
from treadle.models.config.logprobs_probe import MakeModel, find_logprobs_mode
from treadle.models.protocol import Model, Watch, check_vocabulary, innermost
from treadle.models.wire.endpoint import PAUSE_PATHS, TOKEN_PATHS, EngineInfo, HttpEndpoint
from treadle.models.wrappers.format_model import FormatModel
from treadle.renderers.protocol import Renderer


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
    has_policy_logprobs: bool | None = None
    """Whether the logprobs are those of the distribution that answers are sampled from; `None` if not known."""

    @property
    def is_usable(self) -> bool:
        """True if the endpoint answers."""
        return self.findings[0].is_there is True


_DATA = read_data(__package__, "probe")
_ASKED, _ADVICE = _DATA["questions"], _DATA["advice"]
_WEATHER = ToolSpec(_DATA["tool"]["name"], _DATA["tool"]["description"], _DATA["tool"]["parameters"])
_LEAST_STREAMED = 20
"""An answer of fewer characters may come in one piece although the server streams."""
_MOST_TOKENS = 512
"""The longest answer of an engine, whose weak models may go on until their context is full."""
_SHOWN_CHARS = 60


def _result_of(call: ToolCall) -> Message:
    return Message(Role.TOOL, _DATA["tool"]["result"], call_id=call.call_id, name=call.name)


def _make_prompts() -> dict[str, tuple[list[Message], tuple[ToolSpec, ...]]]:
    """Return the prompts in which templates differ, by what they have."""
    call = ToolCall("call_1", _WEATHER.name, '{"city": "Oslo"}')
    asked, said = Message(Role.USER, _ASKED["asked"]), Message(Role.ASSISTANT, "", (call,))
    thought = Message(Role.ASSISTANT, "", (call,), reasoning=_ASKED["thought"])
    turn = [asked, thought, _result_of(call), Message(Role.ASSISTANT, _ASKED["answered"])]
    tools = (_WEATHER,)
    return {
        "one message": ([Message(Role.USER, _ASKED["say"])], ()),
        "tools": ([asked], tools),
        "a call": ([asked, said, _result_of(call)], tools),
        "thinking": ([asked, thought, _result_of(call)], tools),
        "two turns": ([*turn, Message(Role.USER, _ASKED["again"])], tools),
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
        return Probed(tuple(self._findings), grade, mode, found.get("logprobs of"))

    async def _look(self) -> AsyncIterator[EndpointFinding]:
        begin = time.monotonic()
        try:
            await self._prepare()
            first = await _ask(self._model, _ASKED["first"])
        except ProviderError as error:
            yield EndpointFinding("answers", False, str(error))
            return
        except ConfigError as error:
            yield EndpointFinding("same vocabulary", False, str(error))
            return
        took = time.monotonic() - begin
        usage = first.usage
        tokens = (
            f"{usage.input_tokens} + {usage.output_tokens} tokens" if usage.is_reported else "no usage told"
        )
        yield EndpointFinding("answers", True, f"{_show(first)}, {took:.1f} s, {tokens}")
        yield await _find("streaming", self._streaming)
        tools = await _find("tools", self._tools, advice=self._find_advice())
        yield tools
        if tools.is_there:
            yield await _find("parallel calls", self._parallel)
            yield await _find("forced tool", self._forced)
        yield await _find("json schema", self._schema)
        yield await _find("engine", self._engine, failed=None)
        yield await _find("logprobs", self._logprobs)
        yield await _find("token ids", self._token_ids)
        if {"engine", "logprobs", "token ids"} <= {item.name for item in self._findings if item.is_there}:
            yield await _find("logprobs of", self._logprobs_mode, failed=None)
        for finding in await self._endpoints():
            yield finding
        if (renderer := getattr(innermost(self._model), "renderer", None)) is not None:
            yield await _find("same template", lambda: self._template(renderer), failed=None)
        thought = first.message.reasoning
        seen = (
            f"{len(thought):,} characters with the first answer" if thought else "none with the first answer"
        )
        yield EndpointFinding("reasoning", True if thought else None, seen)
        yield await _find("context length", self._context, failed=None)

    async def _prepare(self) -> None:
        """Limit the answers of an engine. Raises: `ConfigError` if the renderer is for another model."""
        with suppress(TransportError):  # the first question says whether the server answers
            has_engine = await _find_engine(self._model) is not None
            if has_engine and settings_of(self._model).max_output_tokens is None:
                self._make = partial(self._make, max_output_tokens=_MOST_TOKENS)
                self._model = self._make()
            await check_vocabulary(self._model)

    async def _streaming(self) -> EndpointFinding:
        name = "streaming"
        for question in _ASKED["streaming"]:
            pieces: list[object] = []
            found = await _ask(self._model, question, watch=Watch(pieces.append))
            if len(pieces) > 1:
                return EndpointFinding(name, True, f"{len(pieces)} pieces")
            if len(found.message.content) >= _LEAST_STREAMED:
                return EndpointFinding(name, False, "the answer came in one piece", _ADVICE["not_streamed"])
        return EndpointFinding(name, None, "the answers are too short to tell")

    async def _tools(self) -> EndpointFinding:
        question = Message(Role.USER, _ASKED["call"])
        answer = await _ask(self._model, question.content, tools=(_WEATHER,))
        message = answer.message
        if not message.tool_calls:
            return await self._explain_no_call(question.content, answer)
        call = message.tool_calls[0]
        given = call.parsed_or(None)
        if call.name == UNREADABLE_CALL or given is None:
            return EndpointFinding("tools", False, f"a call that cannot be read: {_show(answer)}")
        city = given.get("city") if isinstance(given, dict) else None
        if call.name != _WEATHER.name or "oslo" not in str(city).lower():
            return EndpointFinding("tools", False, f"a call that is wrong: {_show(answer)}")
        results = [_result_of(item) for item in message.tool_calls]
        try:
            await self._model.infer(Request(Log([question, message, *results]), (_WEATHER,)), Watch())
        except ProviderError as error:
            return EndpointFinding("tools", False, f"it calls, but does not take the result: {error}")
        return EndpointFinding("tools", True, "it calls, and takes the result")

    async def _explain_no_call(self, question: str, answer: Completion) -> EndpointFinding:
        """Return the finding about an answer without a call: a template without a place for tools drops them."""
        seen, advice = f"no call, but {_show(answer)}", self._find_advice()
        if answer.usage.is_reported:
            plain = (await _ask(self._model, question)).usage
            if plain.is_reported and plain.input_tokens == answer.usage.input_tokens:
                seen = f"the prompt has {plain.input_tokens:,} tokens with the tool and without it; {seen}"
                advice = _ADVICE["hidden_tools"]
        return EndpointFinding("tools", False, seen, advice)

    def _find_advice(self) -> str | None:
        """Return what helps a model whose calls are text; `None` if Treadle writes the tools as text already."""
        model: object = self._model
        while model is not None:
            if isinstance(model, FormatModel) or hasattr(model, "renderer"):
                return None
            model = getattr(model, "inner", None)
        advice: str = _ADVICE["no_tools"]
        return advice

    async def _parallel(self) -> EndpointFinding:
        count = len((await _ask(self._model, _ASKED["calls"], tools=(_WEATHER,))).message.tool_calls)
        return EndpointFinding("parallel calls", count > 1, f"{count} in one step, where two were asked for")

    async def _forced(self) -> EndpointFinding:
        completion = await _ask(self._model, _ASKED["forced"], tools=(_WEATHER,), required_tool=_WEATHER.name)
        is_there = any(call.name == _WEATHER.name for call in completion.message.tool_calls)
        return EndpointFinding(
            "forced tool",
            is_there,
            "it calls what it must" if is_there else f"it answers {_show(completion)}",
        )

    async def _schema(self) -> EndpointFinding:
        answer = await _ask(self._model, _ASKED["schema"], output_schema=_DATA["answer"])
        text = answer.message.content.strip()
        value = decode_or(text)
        found = [value.get("capital"), value.get("letters")] if isinstance(value, dict) else []
        is_there = [type(item) for item in found] == [str, int]
        return EndpointFinding("json schema", is_there, _show(answer))

    async def _engine(self) -> EndpointFinding:
        info = await _find_engine(self._model)
        if info is None:
            return EndpointFinding("engine", False, _ADVICE["no_engine"])
        return EndpointFinding("engine", True, str(info))

    async def _endpoints(self) -> list[EndpointFinding]:
        """Return what the engine has besides chat; empty for a server without one."""
        server = _server_of(self._model)
        try:
            info = await _find_engine(self._model)
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
                None if can_pause or info.name != "vllm" else _ADVICE["no_pause"],
            ),
        ]

    async def _logprobs(self) -> EndpointFinding:
        record = (await _ask(self._make(logprobs=True), _ASKED["say"])).tokens
        if record is None or record.logprobs is None:
            return EndpointFinding("logprobs", False, "the server returned none")
        return EndpointFinding("logprobs", True, f"of {count_packed(record.logprobs):,} tokens")

    async def _token_ids(self) -> EndpointFinding:
        record = (await _ask(self._make(logprobs=True, return_token_ids=True), _ASKED["say"])).tokens
        if record is None or record.token_ids is None:
            return EndpointFinding("token ids", False, "the server returned none")
        if record.prompt_token_ids is None:
            return EndpointFinding("token ids", False, "of the answer alone, and not of the prompt")
        prompt, answer = count_packed(record.prompt_token_ids), count_packed(record.token_ids)
        return EndpointFinding("token ids", True, f"{prompt:,} of the prompt, {answer:,} of the answer")

    async def _logprobs_mode(self) -> EndpointFinding:
        """Find out whether the logprobs are those of the distribution that answers are sampled from."""
        settings = settings_of(self._model)
        mode = await find_logprobs_mode(self._make, settings)
        if mode is None:
            return EndpointFinding("logprobs of", None, "it cannot be told from its answers")
        is_policy = replace(settings, logprobs_mode=mode).has_policy_logprobs
        advice = {True: None, False: _ADVICE["other_logprobs"], None: _ADVICE["left_to_server"]}[is_policy]
        return EndpointFinding("logprobs of", is_policy, _DATA["modes"][mode], advice)

    async def _template(self, renderer: Renderer) -> EndpointFinding:
        """Compare the prompts of the renderer with those that the server makes of the same messages."""
        name, same, left_out = "same template", list[str](), list[str]()
        model = self._make(renderer="", return_token_ids=True, max_output_tokens=1)
        for what, (messages, tools) in _make_prompts().items():
            try:
                record = (await model.infer(Request(Log(messages), tools), Watch())).tokens
                ours = tuple(renderer.render(messages, tools))
            except TreadleError as error:
                left_out.append(f"{what} ({error})")
                continue
            if record is None or record.prompt_token_ids is None:
                return EndpointFinding(name, None, "the server does not return the ids of its prompts")
            theirs = unpack_ids(record.prompt_token_ids)
            if ours != theirs and tools and theirs == await self._prompt_without_tools(model, messages):
                left_out.append(f"{what} ({_ADVICE['no_place']})")
                continue
            if ours != theirs:
                pairs = enumerate(zip(ours, theirs, strict=False))
                at = next((at for at, pair in pairs if pair[0] != pair[1]), min(len(ours), len(theirs)))
                mine, other = renderer.decode(ours[at:]), renderer.decode(theirs[at:])
                seen = f"{what}: from id {at}: {mine!r:.60}, the server {other!r:.60}"
                return EndpointFinding(name, False, seen, _ADVICE["other_prompt"])
            same.append(f"{what} ({len(ours)} ids)")
        seen = f"{renderer.name} and the server agree on {', '.join(same) or 'nothing'}"
        seen += f"; not compared: {'; '.join(left_out)}" if left_out else ""
        return EndpointFinding(name, True if same and not left_out else None, seen)

    async def _prompt_without_tools(self, model: Model, messages: list[Message]) -> tuple[int, ...] | None:
        record = (await model.infer(Request(Log(messages), ()), Watch())).tokens
        return (
            None if record is None or record.prompt_token_ids is None else unpack_ids(record.prompt_token_ids)
        )

    async def _context(self) -> EndpointFinding:
        find = getattr(innermost(self._model), "find_context_tokens", None)
        if find is None:
            return EndpointFinding("context length", None, "this provider does not tell it")
        tokens = await find()
        if tokens is None:
            return EndpointFinding("context length", None, "the server does not tell it")
        return EndpointFinding("context length", True, f"{tokens:,} tokens")


async def _find(
    name: str,
    look: Callable[[], Awaitable[EndpointFinding]],
    *,
    failed: bool | None = False,
    advice: str | None = None,
) -> EndpointFinding:
    """Return what `look` finds, or its error, which counts as `failed` and has the `advice`. If the answer was lost
    on the way, or a limit refused the question, nothing is known."""
    try:
        return await look()
    except (TransportError, RateLimitError) as error:
        return EndpointFinding(name, None, str(error))
    except (TreadleError, OSError) as error:
        return EndpointFinding(name, failed, str(error), advice)


def _show(answer: Completion) -> str:
    """Return the beginning of an answer, as one line; its calls stand for their text."""
    calls = [
        call.arguments if call.name == UNREADABLE_CALL else f"{call.name}({call.arguments})"
        for call in answer.message.tool_calls
    ]
    text = answer.message.content.strip() or ", ".join(calls)
    shown = repr(text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…")
    if answer.finish_reason is FinishReason.LENGTH:
        return f"{shown}, cut off after {answer.usage.output_tokens:,} tokens"
    return shown


async def find_token_settings(model: Model) -> dict[str, bool]:
    """Return the settings with which the server of `model` returns token ids and logprobs: `return_token_ids` and
    `logprobs`; empty if its engine is not known to do so.

    Raises: `TransportError`.
    """
    info = await _find_engine(model)
    return {"logprobs": True, "return_token_ids": True} if info is not None and info.gives_ids else {}


def _server_of(model: Model) -> HttpEndpoint | None:
    """Return the endpoint that a model asks; `None` if it asks none."""
    found = innermost(model)
    found = getattr(found, "engine", found)
    return found if isinstance(found, HttpEndpoint) else None


async def _find_engine(model: Model) -> EngineInfo | None:
    """Return the engine that a model asks; `None` if it is not known. Raises: `TransportError`."""
    server = _server_of(model)
    return None if server is None else await server.find_engine()


def settings_of(model: Model) -> Settings:
    """Return the sampling settings of a model without its wrappers."""
    found = getattr(innermost(model), "settings", None)
    return found if isinstance(found, Settings) else Settings()


async def _ask(
    model: Model,
    text: str,
    *,
    tools: tuple[ToolSpec, ...] = (),
    output_schema: dict[str, Json] | None = None,
    required_tool: str | None = None,
    watch: Watch | None = None,
) -> Completion:
    request = Request(Log([Message(Role.USER, text)]), tools, output_schema, required_tool)
    return await model.infer(request, watch or Watch())
