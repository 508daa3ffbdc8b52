"""Each wire format of the gateway before a server of each kind, which refuses what the real one refuses."""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, LengthFinishReasonError
from tests.contract.test_parts import PNG
from tests.environments import LateModule
from tests.loop.test_providers import call, said
from tests.models.server import Received, Reply, serve
from tests.models.strict.providers import PROVIDERS, StrictServer
from tests.server.test_responses import journal, serving

from treadle.core.types import Message
from treadle.http.transport import HttpRequest
from treadle.journal.protocol import Journal

__all__ = ["journal"]
anthropic = LateModule("anthropic")
pytestmark = pytest.mark.xdist_group("vendors")
UPSTREAM = [
    *("vllm", "openai_responses", "anthropic", "gemini", "gemini 2", "ollama", "mistral", "deepseek"),
    *("groq", "openrouter", "completions"),
]
SCHEMA = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
IMAGE = base64.b64encode(PNG).decode()


class Client:
    """A client of one wire format. It keeps the conversation in the form of that format."""

    def __init__(self, url: str, *, is_streamed: bool) -> None:
        self.is_streamed = is_streamed
        self.history: list[Any] = []
        self.url = url

    async def ask(self, **more: Any) -> tuple[str, list[tuple[str, str, Any]], str]:
        """Return the text, the calls (id, name, arguments) and the reason of the next answer."""
        raise NotImplementedError

    def say(self, text: str, image: str | None = None) -> None:
        raise NotImplementedError

    def answer(self, call_id: str, text: str, *, image: str | None = None, is_error: bool = False) -> None:
        raise NotImplementedError


class ChatClient(Client):
    async def ask(self, **more: Any) -> Any:
        tools = [
            {"type": "function", "function": {"name": "look_up", "description": "d", "parameters": SCHEMA}}
        ]
        if (choice := more.pop("choice", None)) is not None:
            named = {"type": "function", "function": {"name": choice}}
            more["tool_choice"] = choice if choice in ("required", "none", "auto") else named
        async with AsyncOpenAI(base_url=f"{self.url}/v1", api_key="any", max_retries=0) as client:
            asked: Any = {"model": "far", "messages": self.history, "tools": tools, "max_tokens": 500, **more}
            if self.is_streamed:
                try:
                    async with client.chat.completions.stream(**asked) as stream:
                        got: Any = await stream.get_final_completion()
                except LengthFinishReasonError as error:
                    got = error.completion
            else:
                got = await client.chat.completions.create(**asked)
        (choice_,) = got.choices
        message = choice_.message
        self.history.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
        for made in self.history[-1].get("tool_calls", ()):
            made["function"].pop("parsed_arguments", None)
        calls = [
            (made.id, made.function.name, json.loads(made.function.arguments))
            for made in message.tool_calls or ()
        ]
        return message.content or "", calls, choice_.finish_reason

    def say(self, text: str, image: str | None = None) -> None:
        url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}
        parts = [{"type": "text", "text": text}, url]
        self.history.append({"role": "user", "content": text if image is None else parts})

    def answer(self, call_id: str, text: str, *, image: str | None = None, is_error: bool = False) -> None:
        self.history.append({"role": "tool", "tool_call_id": call_id, "content": text})


class MessagesClient(Client):
    async def ask(self, **more: Any) -> Any:
        tools = [{"name": "look_up", "description": "d", "input_schema": SCHEMA}]
        if (choice := more.pop("choice", None)) is not None:
            kinds = {"required": {"type": "any"}, "none": {"type": "none"}, "auto": {"type": "auto"}}
            more["tool_choice"] = kinds.get(choice, {"type": "tool", "name": choice})
        if "stop" in more:
            more["stop_sequences"] = more.pop("stop")
        # The package no longer has these fields, which older models take.
        more["extra_body"] = {key: more.pop(key) for key in ("temperature", "top_p") if key in more}
        asked = {"model": "far", "messages": self.history, "tools": tools, "max_tokens": 500, **more}
        async with anthropic.AsyncAnthropic(base_url=self.url, api_key="any", max_retries=0) as client:
            if self.is_streamed:
                async with client.messages.stream(**asked) as stream:
                    got = await stream.get_final_message()
            else:
                got = await client.messages.create(**asked)
        blocks = [block.model_dump(exclude_none=True) for block in got.content]
        self.history.append({"role": "assistant", "content": blocks})
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        calls = [(b["id"], b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"]
        return text, calls, got.stop_reason

    def say(self, text: str, image: str | None = None) -> None:
        source = {"type": "base64", "media_type": "image/png", "data": image}
        blocks = [{"type": "image", "source": source}] * bool(image)
        self.history.append({"role": "user", "content": [{"type": "text", "text": text}, *blocks]})

    def answer(self, call_id: str, text: str, *, image: str | None = None, is_error: bool = False) -> None:
        source = {"type": "base64", "media_type": "image/png", "data": image}
        content = [{"type": "text", "text": text}, *[{"type": "image", "source": source}] * bool(image)]
        block = {"type": "tool_result", "tool_use_id": call_id, "content": content, "is_error": is_error}
        if self.history[-1]["role"] == "user":
            self.history[-1]["content"].append(block)
        else:
            self.history.append({"role": "user", "content": [block]})


class ResponsesClient(Client):
    async def ask(self, **more: Any) -> Any:
        tools = [
            {"type": "function", "name": "look_up", "description": "d", "parameters": SCHEMA, "strict": False}
        ]
        if (choice := more.pop("choice", None)) is not None:
            named = {"type": "function", "name": choice}
            more["tool_choice"] = choice if choice in ("required", "none", "auto") else named
        more.pop("stop", None)
        asked: Any = {"model": "far", "input": self.history, "tools": tools, "store": False, **more}
        async with AsyncOpenAI(base_url=f"{self.url}/v1", api_key="any", max_retries=0) as client:
            if self.is_streamed:
                events = [event async for event in await client.responses.create(**asked, stream=True)]
                got: Any = events[-1].response
            else:
                got = await client.responses.create(**asked)
        assert got.error is None, got.error
        for item in got.output:
            kept = item.model_dump(exclude_none=True)
            kept.pop("parsed_arguments", None)
            for part in kept.get("content", ()):
                part.pop("parsed", None)
            self.history.append(kept)
        calls = [
            (item.call_id, item.name, json.loads(item.arguments))
            for item in got.output
            if item.type == "function_call"
        ]
        reason = got.incomplete_details.reason if got.incomplete_details else got.status
        return got.output_text, calls, reason

    def say(self, text: str, image: str | None = None) -> None:
        url = f"data:image/png;base64,{image}"
        parts = [{"type": "input_image", "image_url": url, "detail": "auto"}] * bool(image)
        self.history.append({"role": "user", "content": [{"type": "input_text", "text": text}, *parts]})

    def answer(self, call_id: str, text: str, *, image: str | None = None, is_error: bool = False) -> None:
        self.history.append({"type": "function_call_output", "call_id": call_id, "output": text})


CLIENTS: dict[str, type[Client]] = {
    "chat": ChatClient,
    "messages": MessagesClient,
    "responses": ResponsesClient,
}
CUT = {"chat": "length", "messages": "max_tokens", "responses": "max_output_tokens"}


@asynccontextmanager
async def relaying(
    name: str, answers: list[Message], path: Path, journal: Journal
) -> AsyncIterator[tuple[str, StrictServer]]:
    """Serve the model `far` of a provider's server, and yield the address and the server."""
    provider = PROVIDERS[name]
    strict = StrictServer(provider, answers)

    def handle(received: Received) -> Reply:
        got = strict(HttpRequest(received.path, received.headers, received.body))
        if isinstance(got.body, list):
            return Reply(headers=got.headers, pieces=got.body, status=got.status)
        return Reply(got.body, got.status, got.headers)

    async with serve(handle) as server:
        base = server.origin if name == "ollama" else server.base_url
        more = "".join(f"{key} = {json.dumps(value)}\n" for key, value in provider.options.items())
        config = path / "treadle.toml"
        config.write_text(
            f'[models.far]\nmodel = "{provider.model}"\nbase_url = "{base}"\napi_key_env = ""\n'
            f"max_attempts = 1\n{more}"
        )
        async with serving(config, journal) as url:
            yield url, strict


@pytest.mark.sets(6)
@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("name", UPSTREAM)
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_client_of_each_format_uses_each_provider(
    kind: str, name: str, is_streamed: bool, tmp_path: Path, journal: Journal
) -> None:
    calls = call(), call(arguments='{"word": "b"}', call_id="call_2")
    answers = [
        said("Hello."),
        said("I look.", *calls),
        said("", call(call_id="call_3")),
        said("Found."),
        said("Cut", finish="length"),
        said("Again."),
    ]
    async with relaying(name, answers, tmp_path, journal) as (url, strict):
        client = CLIENTS[kind](url, is_streamed=is_streamed)
        client.say("Hi.", None if name == "completions" else IMAGE)
        assert (await client.ask())[:2] == ("Hello.", []), strict.refusals
        client.say("Look up.")
        text, made, _ = await client.ask()
        assert (text, [(n, a) for _, n, a in made]) == (
            "I look.",
            [("look_up", {"word": "a"}), ("look_up", {"word": "b"})],
        )
        client.answer(made[0][0], "the first", image=None if name == "completions" else IMAGE)
        client.answer(made[1][0], "it broke", is_error=True)
        _, made, _ = await client.ask()
        client.answer(made[0][0], "the third")
        client.say("Be quick.")
        assert (await client.ask())[0] == "Found.", strict.refusals
        client.say("And now?")
        text, _, reason = await client.ask()
        assert (text, reason) == ("Cut", CUT[kind])
        client.say("One.")
        client.say("Two.")
        assert (await client.ask())[0] == "Again."
        told = json.dumps(strict.bodies[-1])
    assert not strict.refusals
    for words in (
        "Hi.",
        "Hello.",
        "Look up.",
        "I look.",
        "the first",
        "it broke",
        "the third",
        "Be quick.",
        "Two.",
    ):
        assert words in told, words


FORCED: list[dict[str, Any]] = [{"choice": "required"}, {"choice": "look_up"}]
SETTINGS: list[dict[str, Any]] = [
    {"choice": "auto"},
    {"choice": "none"},
    *FORCED,
    {"temperature": 0.5},
    {"top_p": 0.5},
    {"stop": ["END"]},
]


@pytest.mark.sets(4)
@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("name", UPSTREAM)
async def test_what_a_client_asks_for_reaches_the_provider_or_is_refused_by_name(
    kind: str, name: str, tmp_path: Path, journal: Journal
) -> None:
    def answer() -> Message:
        wants = strict.bodies[-1].get("tool_choice", strict.bodies[-1].get("toolConfig", {}))
        is_forced = any(word in str(wants) for word in ("required", "'any'", "ANY", "look_up"))
        return said("", call()) if is_forced else said("Hello.")

    async with relaying(name, [answer] * 20, tmp_path, journal) as (url, strict):
        for asked in SETTINGS:
            client = CLIENTS[kind](url, is_streamed=False)
            client.say("Hi.")
            (field,) = asked
            if (field == "stop" and kind == "responses") or (name == "deepseek" and asked in FORCED):
                continue  # the format has no field for it; the provider's models refuse it while they think
            word = {"choice": "tool_choice"}.get(field, field)
            count = len(strict.bodies)
            refused = ""
            try:
                await client.ask(**asked)
            except (BadRequestError, anthropic.BadRequestError) as error:
                refused = str(error)
            assert not strict.refusals
            if len(strict.bodies) == count:
                assert word in refused
                continue
            assert not refused
            sent = json.dumps(strict.bodies[-1])
            if asked == {"choice": "none"}:
                assert not provider_tools(name, strict.bodies[-1]) or "none" in sent or "NONE" in sent
            elif field == "choice" and asked["choice"] != "auto":
                assert any(word in sent for word in ('"required"', '"any"', '"ANY"', '"tool_choice": {')), (
                    sent
                )
            elif field == "stop":
                assert "END" in sent
            elif field != "choice":
                assert "0.5" in sent


def provider_tools(name: str, body: Any) -> Any:
    return PROVIDERS[name].wire.tools(body)


@pytest.mark.sets(3)
@pytest.mark.parametrize("name", UPSTREAM)
@pytest.mark.parametrize("role", ["system", "developer"])
async def test_instructions_in_the_middle_reach_each_provider(
    name: str, role: str, tmp_path: Path, journal: Journal
) -> None:
    async with relaying(name, [said("Hello."), said("Brief.")], tmp_path, journal) as (url, strict):
        client = ChatClient(url, is_streamed=False)
        client.history.append({"role": role, "content": "Be kind."})
        client.say("Hi.")
        assert (await client.ask())[0] == "Hello."
        client.history.append({"role": role, "content": "Be brief."})
        client.say("And?")
        assert (await client.ask())[0] == "Brief.", strict.refusals
        sent = json.dumps(strict.bodies[-1])
    assert not strict.refusals
    assert "Be kind." in sent
    assert "Be brief." in sent


FORM = {**SCHEMA, "additionalProperties": False}
FORMS: dict[str, dict[str, Any]] = {
    "chat": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "word", "schema": FORM, "strict": True},
        }
    },
    "messages": {"output_config": {"format": {"type": "json_schema", "schema": FORM}}},
}
SENT: dict[str, Any] = {
    "anthropic": lambda body: body["output_config"]["format"]["schema"],
    "gemini": lambda body: body["generationConfig"]["responseJsonSchema"],
    "ollama": lambda body: body["format"],
    "openai_responses": lambda body: body["text"]["format"]["schema"],
}


@pytest.mark.sets(4)
@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("name", [it for it in UPSTREAM if it not in ("gemini 2", "deepseek")])
async def test_the_form_of_an_answer_reaches_each_provider_or_is_refused_by_name(
    kind: str, name: str, tmp_path: Path, journal: Journal
) -> None:
    """The models that are left out take no schema, or none beside tools, and say so themselves."""
    async with relaying(name, [said('{"word": "a"}')] * 2, tmp_path, journal) as (url, strict):
        client = CLIENTS[kind](url, is_streamed=False)
        client.say("Which word?")
        if name == "completions":
            (field,) = FORMS[kind]
            with pytest.raises((BadRequestError, anthropic.BadRequestError), match=field):
                await client.ask(**FORMS[kind])
            return
        text, _, _ = await client.ask(**FORMS[kind])
        assert text == '{"word": "a"}', strict.refusals
        chat = lambda body: body["response_format"]["json_schema"]["schema"]  # noqa: E731
        assert SENT.get(name, chat)(strict.bodies[-1]) == FORM
    assert not strict.refusals


EFFORT: dict[str, Any] = {
    "anthropic": lambda body: body["output_config"]["effort"],
    "openai_responses": lambda body: body["reasoning"]["effort"],
}


@pytest.mark.sets(3)
@pytest.mark.parametrize("has_form", [True, False])
@pytest.mark.parametrize("name", ["anthropic", "openai_responses", "vllm", "ollama"])
async def test_the_effort_reaches_each_provider_beside_the_form(
    name: str, has_form: bool, tmp_path: Path, journal: Journal
) -> None:
    asked = {"output_config": {**(FORMS["messages"]["output_config"] if has_form else {}), "effort": "low"}}
    async with relaying(name, [said('{"word": "a"}')], tmp_path, journal) as (url, strict):
        client = CLIENTS["messages"](url, is_streamed=False)
        client.say("Which word?")
        if name == "ollama":
            with pytest.raises(anthropic.BadRequestError, match="the effort 'low' cannot be sent"):
                await client.ask(**asked)
            return
        assert (await client.ask(**asked))[0] == '{"word": "a"}', strict.refusals
        (body,) = strict.bodies
        assert EFFORT.get(name, lambda body: body["reasoning_effort"])(body) == "low"
        if has_form:
            chat = lambda body: body["response_format"]["json_schema"]["schema"]  # noqa: E731
            assert SENT.get(name, chat)(body) == FORM
    assert not strict.refusals


LEVELS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "effort": ({"reasoning_effort": "low"}, {"reasoning": {"effort": "low", "summary": "auto"}}, EFFORT),
    "verbosity": (
        {"verbosity": "low"},
        {"text": {"verbosity": "low"}},
        {"openai_responses": lambda body: body["text"]["verbosity"]},
    ),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["anthropic", "openai_responses", "vllm", "gemini"])
@pytest.mark.parametrize("kind", ["chat", "responses"])
async def test_a_level_reaches_a_provider_from_each_api_or_is_refused_by_name(
    level: str, name: str, kind: str, tmp_path: Path, journal: Journal
) -> None:
    chat, response, places = LEVELS[level]
    field, asked = {"effort": "reasoning_effort"}.get(level, level), chat if kind == "chat" else response
    async with relaying(name, [said("Hello.")], tmp_path, journal) as (url, strict):
        client = CLIENTS[kind](url, is_streamed=False)
        client.say("Hi.")
        if name == "gemini" or (name == "anthropic" and level == "verbosity"):
            with pytest.raises(BadRequestError, match=f"the {level} 'low' cannot be sent"):
                await client.ask(**asked)
            return
        assert (await client.ask(**asked))[0] == "Hello.", strict.refusals
        assert places.get(name, lambda body: body[field])(strict.bodies[-1]) == "low"
    assert not strict.refusals


async def test_any_object_is_demanded_where_that_is_possible(tmp_path: Path, journal: Journal) -> None:
    for name, place in (("ollama", "format"), ("openai_responses", "text"), ("vllm", "response_format")):
        async with relaying(name, [said("{}")], tmp_path, journal) as (url, strict):
            client = ChatClient(url, is_streamed=False)
            client.say("An object in JSON, please.")
            assert (await client.ask(response_format={"type": "json_object"}))[0] == "{}", strict.refusals
            assert "json" in json.dumps(strict.bodies[-1][place])
    async with relaying("anthropic", [said("{}")], tmp_path, journal) as (url, strict):
        client = ChatClient(url, is_streamed=False)
        client.say("An object in JSON, please.")
        with pytest.raises(BadRequestError, match=r"response_format .* speaks anthropic"):
            await client.ask(response_format={"type": "json_object"})
