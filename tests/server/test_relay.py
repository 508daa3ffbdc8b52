"""The gateway before a model of another server: what the client sends reaches it, and its answer the client."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from tests.environments import LateModule
from tests.models.answers import answer, chunk, usage_chunk
from tests.models.server import End, Handler, Received, Reply, Server, serve, sse, stream
from tests.server.test_gateway import ADD_FUNCTION, ADD_TOOL
from tests.server.test_responses import journal, serving

from treadle import Agent, Run
from treadle.core.events import InferenceCompleted, InferenceFailed
from treadle.journal.protocol import Journal

__all__ = ["journal"]
anthropic = LateModule("anthropic")
HELLO: Any = [{"role": "user", "content": "hi"}]


@asynccontextmanager
async def relaying(
    handler: Handler | Iterable[Reply], path: Path, journal: Journal, more: str = "", attempts: int = 1
) -> AsyncIterator[tuple[AsyncOpenAI, Server]]:
    """Serve the model `far` of a scripted engine, and yield a client and the engine."""
    async with serve(handler) as engine:
        config = path / "treadle.toml"
        config.write_text(
            f'[models.far]\nmodel = "openai:far-1"\nbase_url = "{engine.base_url}"\napi_key_env = ""\n'
            f"max_attempts = {attempts}\n{more}"
        )
        async with (
            serving(config, journal) as url,
            AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client,
        ):
            yield client, engine


def calls(*made: tuple[str, str, str]) -> dict[str, Any]:
    """Return an answer with calls: their ids, names and arguments."""
    told = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in made
    ]
    return answer(None, finish="tool_calls", tool_calls=told)


async def assert_replays(journal: Journal) -> None:
    for info in journal.runs():
        replayed = await Agent("mock:echo", journal=journal).replay(info.run_id)
        assert replayed.is_exact, replayed


async def test_what_the_client_sends_reaches_the_engine(tmp_path: Path, journal: Journal) -> None:
    parts = [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
        {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "mp3"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,aGk=", "filename": "a.pdf"}},
    ]
    messages: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]
    form: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    sent = {
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 3,
        "stop": ["END"],
        "logprobs": True,
        "top_logprobs": 2,
        "response_format": form,
        "parallel_tool_calls": False,
        "frequency_penalty": 0.1,
    }
    async with relaying([Reply(answer())], tmp_path, journal) as (client, engine):
        for choice in ("required", {"type": "function", "function": {"name": "add"}}):
            await client.chat.completions.create(  # type: ignore[call-overload]
                model="far",
                messages=messages,
                tools=[ADD_FUNCTION],
                tool_choice=choice,
                max_tokens=77,
                extra_body={"min_p": 0.1},
                **sent,
            )
            got = engine.requests[-1].json()
            assert {name: got.get(name) for name in sent} == sent
            assert got["tool_choice"] == choice
            assert (got["model"], got["max_tokens"], got["min_p"]) == ("far-1", 77, 0.1)
            assert got["messages"] == messages
            assert got["tools"] == [ADD_FUNCTION]
        await client.chat.completions.create(
            model="far", messages=HELLO, tools=[ADD_FUNCTION], tool_choice="none"
        )
        assert not engine.requests[-1].json().keys() & {"tools", "tool_choice"}


async def test_names_of_those_who_speak_reach_the_engine(tmp_path: Path, journal: Journal) -> None:
    messages: Any = [
        {"role": "user", "name": "kim", "content": "hi"},
        {"role": "assistant", "name": "clerk", "content": "yes?"},
        {"role": "user", "name": "ola", "content": "and me"},
    ]
    async with relaying(lambda _: Reply(answer()), tmp_path, journal) as (client, engine):
        await client.chat.completions.create(model="far", messages=messages)
        assert engine.requests[-1].json()["messages"] == messages
        messages += [{"role": "assistant", "content": "Sunny."}, {**messages[0], "content": "more"}]
        await client.chat.completions.create(model="far", messages=messages)
        assert engine.requests[-1].json()["messages"] == messages
    assert [info.turns for info in journal.runs()] == [2]
    await assert_replays(journal)


async def test_tools_that_are_all_strict_are_so_for_the_engine(tmp_path: Path, journal: Journal) -> None:
    strict: Any = {"type": "function", "function": {**ADD_FUNCTION["function"], "strict": True}}
    other: Any = {"type": "function", "function": {"name": "other", "parameters": {"type": "object"}}}
    async with relaying(lambda _: Reply(answer()), tmp_path, journal) as (client, engine):
        for tools, wanted in (([strict], [True]), ([strict, other], [None, None])):
            await client.chat.completions.create(model="far", messages=HELLO, tools=tools)
            sent = engine.requests[-1].json()["tools"]
            assert [tool["function"].get("strict") for tool in sent] == wanted


async def test_calls_reach_the_client_as_they_were_written(tmp_path: Path, journal: Journal) -> None:
    written = [("c1", "add", '{"a": 1'), ("c1", "nothing_like_it", "{}"), ("c1", "add", '{"a": 1, "b": 2}')]
    replies = [*[Reply(calls(item)) for item in written], Reply(answer("done"))]
    async with relaying(replies, tmp_path, journal) as (client, engine):
        messages = list(HELLO)
        for item in written:
            got = await client.chat.completions.create(model="far", messages=messages, tools=[ADD_FUNCTION])
            (call,) = got.choices[0].message.tool_calls or ()
            assert (call.function.name, call.function.arguments) == item[1:]  # type: ignore[union-attr]
            messages.append(got.choices[0].message.model_dump(exclude_none=True))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": f"result of {item[1]}"})
        got = await client.chat.completions.create(model="far", messages=messages, tools=[ADD_FUNCTION])
        assert got.choices[0].message.content == "done"
        assert len(engine.requests) == 4
        assert [
            item["content"] for item in engine.requests[-1].json()["messages"] if item["role"] == "tool"
        ] == [
            "result of add",
            "result of nothing_like_it",
            "result of add",
        ]
    (info,) = journal.runs()
    assert (info.turns, info.steps, info.is_turn_open) == (1, 4, False)
    await assert_replays(journal)


@pytest.mark.parametrize("finish", ["length", "stop", "content_filter"])
async def test_answers_are_passed_on_and_not_asked_for_again(
    finish: str, tmp_path: Path, journal: Journal
) -> None:
    replies = [Reply(answer("", finish=finish)), Reply(answer("now"))]
    async with relaying(replies, tmp_path, journal) as (client, engine):
        got = await client.chat.completions.create(model="far", messages=HELLO)
        said = got.choices[0].message
        assert (got.choices[0].finish_reason, said.content) == (finish, "")
        assert len(engine.requests) == 1
        # It can be sent back as it is.
        more: Any = [*HELLO, said.model_dump(exclude_none=True), *HELLO]
        assert (await client.chat.completions.create(model="far", messages=more)).choices[
            0
        ].message.content == "now"


def logprobs(*texts: str) -> dict[str, Any]:
    top = [{"token": "other", "logprob": -2.0, "bytes": None}]
    return {
        "content": [
            {"token": text, "logprob": -0.5, "bytes": list(text.encode()), "top_logprobs": top}
            for text in texts
        ]
    }


async def test_log_probabilities_are_returned(tmp_path: Path, journal: Journal) -> None:
    whole = answer("Sunny.")
    whole["choices"][0]["logprobs"] = logprobs("Sun", "ny.")
    events = [chunk(content="Sun"), chunk(content="ny."), chunk("stop"), usage_chunk()]
    for event, text in zip(events, ("Sun", "ny."), strict=False):
        event["choices"][0]["logprobs"] = logprobs(text)

    def reply(request: Received) -> Reply:
        return stream(sse(*events)) if request.json().get("stream") else Reply(whole)

    asked: Any = {"model": "far", "messages": HELLO, "logprobs": True}
    async with relaying(reply, tmp_path, journal) as (client, _):
        for top in (None, 1):
            more: Any = {} if top is None else {"top_logprobs": top}
            got = await client.chat.completions.create(**asked, **more)
            told = got.choices[0].logprobs.content
            assert [(item.token, item.logprob) for item in told] == [("Sun", -0.5), ("ny.", -0.5)]
            assert [len(item.top_logprobs) for item in told] == [top or 0] * 2
            found = []
            async for piece in await client.chat.completions.create(**asked, **more, stream=True):
                for choice in piece.choices:
                    found += (choice.logprobs and choice.logprobs.content) or ()
            assert [(item.token, item.logprob) for item in found] == [("Sun", -0.5), ("ny.", -0.5)]
    for info in journal.runs():
        (done,) = [e.body for e in journal.read(info.run_id) if isinstance(e.body, InferenceCompleted)]
        assert done.completion.tokens is not None


async def test_a_refused_request_can_be_sent_again(tmp_path: Path, journal: Journal) -> None:
    busy = Reply({"error": {"message": "slow down"}}, 429, {"retry-after": "0"})
    async with relaying([busy, busy, Reply(answer("now"))], tmp_path, journal) as (client, _):
        for _number in range(2):
            with pytest.raises(openai.RateLimitError, match="slow down"):
                await client.chat.completions.create(model="far", messages=HELLO)
        got = await client.chat.completions.create(model="far", messages=HELLO)
        assert got.choices[0].message.content == "now"
    (info,) = journal.runs()
    assert (info.turns, info.steps) == (1, 1)
    await assert_replays(journal)


@pytest.mark.parametrize("attempts", [1, 2])
async def test_a_client_does_not_multiply_the_attempts(
    tmp_path: Path, journal: Journal, attempts: int
) -> None:
    failed = Reply({"error": {"message": "see https://docs.example/errors"}}, 503)
    async with relaying(lambda _: failed, tmp_path, journal, attempts=attempts) as (client, engine):
        with pytest.raises(openai.InternalServerError) as refused:
            await client.with_options(max_retries=1).chat.completions.create(model="far", messages=HELLO)
        assert len(engine.requests) == 2
    message = refused.value.body["message"]  # type: ignore[call-overload,index]
    assert message.startswith("the server answered 503 for model 'far-1': see https://docs.example/errors")
    info, *again = journal.runs()
    assert len(again) == 0
    failed_ones = [
        event.body for event in journal.read(info.run_id) if isinstance(event.body, InferenceFailed)
    ]
    assert [body.attempt for body in failed_ones] == ([1, 1] if attempts == 1 else [1, 2])
    assert engine.base_url.removesuffix("/v1") in failed_ones[-1].error


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "context_length_exceeded", "invalid_request_error"),
        (429, "provider_error", "invalid_request_error"),
        (503, "provider_error", "server_error"),
    ],
)
async def test_an_error_has_the_type_of_its_status(
    tmp_path: Path, journal: Journal, status: int, code: str, kind: str, is_streamed: bool
) -> None:
    """As vLLM 0.32 says that a prompt is too long; clients tell their own mistakes from those of the server."""
    text = "This model's maximum context length is 8 tokens. However, your prompt contains 9 input tokens."
    failed = Reply({"error": {"message": text if status == 400 else "no", "code": status}}, status)
    async with relaying(lambda _: failed, tmp_path, journal) as (client, _):
        with pytest.raises(openai.APIStatusError) as refused:
            await client.chat.completions.create(model="far", messages=HELLO, stream=is_streamed)
    assert (refused.value.status_code, refused.value.code, refused.value.type) == (status, code, kind)


async def test_a_client_is_not_advised_to_change_the_key_of_the_server(
    tmp_path: Path, journal: Journal
) -> None:
    refusal = Reply({"error": {"message": "Incorrect API key provided"}}, 401)
    async with relaying([refusal], tmp_path, journal) as (client, _):
        with pytest.raises(openai.InternalServerError, match="refused the key of this server") as refused:
            await client.chat.completions.create(model="far", messages=HELLO)
    assert (refused.value.status_code, "check the key" in str(refused.value)) == (502, False)
    assert "check the key" in (journal.runs()[0].error or "")


async def test_a_conversation_goes_on_after_a_restart(tmp_path: Path, journal: Journal) -> None:
    said = list(HELLO)
    for number, text in enumerate(("one", "two")):
        async with relaying([Reply(answer(text))], tmp_path, journal) as (client, engine):
            got = await client.chat.completions.create(model="far", messages=said)
            assert len(engine.requests[0].json()["messages"]) == 2 * number + 1
        said += [{"role": "assistant", "content": got.choices[0].message.content}, *HELLO]
    assert [info.turns for info in journal.runs()] == [2]
    await assert_replays(journal)


async def test_equal_conversations_at_once_are_runs_of_their_own(tmp_path: Path, journal: Journal) -> None:
    def reply(request: Received) -> Reply:
        is_done = b"tool_call_id" in request.body
        return Reply(answer("done") if is_done else calls(("c", "add", '{"a": 1, "b": 2}')))

    async def converse(client: AsyncOpenAI) -> None:
        messages = list(HELLO)
        got = await client.chat.completions.create(model="far", messages=messages, tools=[ADD_FUNCTION])
        messages += [
            got.choices[0].message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": "c", "content": "3"},
        ]
        await client.chat.completions.create(model="far", messages=messages, tools=[ADD_FUNCTION])

    async with relaying(reply, tmp_path, journal) as (client, _):
        await asyncio.gather(*[converse(client) for _ in range(8)])
    assert [(info.turns, info.steps) for info in journal.runs()] == [(1, 2)] * 8


async def test_headers_name_the_run_and_its_labels(tmp_path: Path, journal: Journal) -> None:
    async with relaying([Reply(answer())], tmp_path, journal) as (client, _):
        ask: Callable[..., Any] = client.chat.completions.with_raw_response.create
        headers = {"x-treadle-run": "mine-1", "x-treadle-labels": "team=a, kind = b"}
        got = await ask(model="far", messages=HELLO, extra_headers=headers)
        assert got.headers["x-treadle-run"] == "mine-1"
        more = [*HELLO, {"role": "assistant", "content": "Sunny."}, *HELLO]
        await ask(model="far", messages=more, extra_headers=headers)
        with pytest.raises(openai.ConflictError, match="another conversation"):
            await ask(model="far", messages=HELLO, extra_headers=headers)
        for wrong in (
            {"x-treadle-run": "../x"},
            {"x-treadle-labels": "treadle.owner=kim"},
            {"x-treadle-labels": "team"},
        ):
            with pytest.raises(openai.BadRequestError):
                await ask(model="far", messages=HELLO, extra_headers=wrong)
    (info,) = journal.runs()
    assert (info.run_id, info.turns) == ("mine-1", 2)
    assert (info.labels["team"], info.labels["kind"]) == ("a", "b")


@pytest.mark.xdist_group("vendors")
async def test_results_and_words_may_come_together(tmp_path: Path, journal: Journal) -> None:
    replies = [Reply(calls(("c", "add", '{"a": 1, "b": 2}'))), Reply(answer("done"))]
    async with relaying(replies, tmp_path, journal) as (client, engine):
        url = str(client.base_url).removesuffix("/v1/")
        async with anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0) as claude:
            asked: Any = {
                "model": "far",
                "max_tokens": 9,
                "tools": [ADD_TOOL],
                "tool_choice": {"type": "any"},
            }
            first = await claude.messages.create(messages=HELLO, **asked)
            assert engine.requests[0].json()["tool_choice"] == "required"
            (use,) = first.content
            result = {"type": "tool_result", "tool_use_id": use.id, "content": "3"}  # type: ignore[union-attr]
            said: Any = [*HELLO, {"role": "assistant", "content": [use.model_dump(exclude_none=True)]}]
            said.append({"role": "user", "content": [result, {"type": "text", "text": "and more"}]})
            second = await claude.messages.create(messages=said, **asked)
            assert second.content[0].text == "done"  # type: ignore[union-attr]
            got = engine.requests[1].json()["messages"][-2:]
            assert [(item["role"], item["content"]) for item in got] == [("tool", "3"), ("user", "and more")]
    (info,) = journal.runs()
    assert (info.turns, info.steps) == (1, 2)
    await assert_replays(journal)


async def test_a_conversation_of_elsewhere_may_end_with_results(tmp_path: Path, journal: Journal) -> None:
    messages: Any = [
        {"role": "user", "content": "before"},
        {"role": "assistant", "content": "yes"},
        *HELLO,
        calls(("c", "add", '{"a": 1, "b": 2}'))["choices"][0]["message"],
        {"role": "tool", "tool_call_id": "c", "content": "3"},
    ]
    async with relaying([Reply(answer("done"))], tmp_path, journal) as (client, engine):
        await client.chat.completions.create(model="far", messages=messages, tools=[ADD_FUNCTION])
        assert [item["role"] for item in engine.requests[0].json()["messages"]] == [
            item["role"] for item in messages
        ]
        messages += [{"role": "assistant", "content": "done"}, *HELLO]
        await client.chat.completions.create(model="far", messages=messages)
    (info,) = journal.runs()
    assert (info.turns, info.steps) == (2, 2)
    await assert_replays(journal)


async def test_a_stream_is_passed_on_at_once_and_stops_with_its_client(
    tmp_path: Path, journal: Journal
) -> None:
    pieces = [sse(chunk(content="one "), is_done=False), sse(chunk(content="two"), is_done=False)]
    going_on = asyncio.Event()
    held = Reply(
        headers={"content-type": "text/event-stream"}, pieces=pieces, between=going_on, end=End.STALL
    )
    async with relaying([held], tmp_path, journal) as (client, engine):
        coming = await client.chat.completions.create(model="far", messages=HELLO, stream=True)
        texts = []
        async for piece in coming:
            texts.append(piece.choices[0].delta.content)
            if texts[-1] == "one ":
                break
        going_on.set()
        await coming.close()
        await asyncio.wait_for(engine.gone.wait(), 20)
    (info,) = journal.runs()
    assert info.steps == 0


async def test_a_model_of_another_dialect_is_not_sent_what_it_does_not_know(
    tmp_path: Path, journal: Journal
) -> None:
    more = '[models.claude]\nmodel = "anthropic:c"\nbase_url = "http://127.0.0.1:9/v1"\napi_key_env = ""\n'
    async with relaying([Reply(answer())], tmp_path, journal, more) as (client, _):
        for field in ({"min_p": 0.1}, {"response_format": {"type": "json_object"}}):
            with pytest.raises(openai.BadRequestError, match=r"speaks anthropic"):
                await client.chat.completions.create(model="claude", messages=HELLO, extra_body=field)


async def test_rows_have_what_was_said(tmp_path: Path, journal: Journal) -> None:
    replies = [Reply(calls(("c", "add", '{"a": 1, "b": 2}'))), Reply(answer("done"))]
    async with relaying(replies, tmp_path, journal) as (client, _):
        messages = list(HELLO)
        got = await client.chat.completions.create(model="far", messages=messages, tools=[ADD_FUNCTION])
        messages.append(got.choices[0].message.model_dump(exclude_none=True))
        messages.append({"role": "tool", "tool_call_id": "c", "content": "3"})
        await client.chat.completions.create(model="far", messages=messages, tools=[ADD_FUNCTION])
    (info,) = journal.runs()
    assert json.loads(json.dumps([str(item.role) for item in Run.load(info.run_id, journal).messages])) == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]


async def test_a_streamed_call_is_named_once(tmp_path: Path, journal: Journal) -> None:
    """Clients join the ids and names of all pieces, as they join the arguments."""

    def piece(index: int, text: str, **head: Any) -> dict[str, Any]:
        function = {"arguments": text, **({"name": head.pop("name")} if "name" in head else {})}
        return chunk(tool_calls=[{"index": index, "function": function, **head}])

    made = [
        piece(0, "", id="c1", type="function", name="ad"),
        piece(0, "", name="d"),
        piece(0, '{"a": 1, '),
        piece(1, "", id="c2", type="function", name="add"),
        piece(0, '"b": 2}'),
        piece(1, "{}"),
    ]
    replies = [stream(sse(*made, chunk("tool_calls")))]
    async with (
        relaying(replies, tmp_path, journal) as (client, _),
        client.chat.completions.stream(model="far", messages=HELLO, tools=[ADD_FUNCTION]) as got,
    ):
        said = (await got.get_final_completion()).choices[0].message
    told = [(call.id, call.function.name, call.function.arguments) for call in said.tool_calls or ()]
    assert told == [("c1", "add", '{"a": 1, "b": 2}'), ("c2", "add", "{}")]


async def test_each_answer_has_an_id_of_its_own(tmp_path: Path, journal: Journal) -> None:
    """Clients keep messages by the ids of answers, and engines may give all of theirs the same."""
    async with relaying(lambda _: Reply(answer()), tmp_path, journal) as (client, _):
        told, messages = [], list(HELLO)
        for _ in range(2):
            got = await client.chat.completions.create(model="far", messages=messages)
            told.append(got.id)
            messages += [got.choices[0].message.model_dump(exclude_none=True), *HELLO]
            chunks = await client.chat.completions.create(model="far", messages=messages, stream=True)
            said = [item async for item in chunks]
            told += {item.id for item in said}
            text = "".join([item.choices[0].delta.content or "" for item in said])
            messages += [{"role": "assistant", "content": text}, *HELLO]
    (info,) = journal.runs()
    assert info.turns == 4
    assert told == [f"chatcmpl-{info.run_id}_{turn}_{turn - 1}" for turn in (1, 2, 3, 4)]


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
AGENT = '[agents.clerk]\nmodel = "far"\n'


def echo(received: Received) -> Reply:
    return Reply(answer(received.json()["messages"][-1]["content"]))


async def test_the_form_of_an_answer_may_change_within_a_conversation(
    tmp_path: Path, journal: Journal
) -> None:
    """It was ignored in a conversation that had begun without it."""
    async with relaying(echo, tmp_path, journal, AGENT) as (client, engine):
        first = await client.responses.create(model="clerk", input="hi")
        form: Any = {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}
        asked: Any = {"model": "clerk", "text": form}
        good = await client.responses.create(input='{"n": 1}', previous_response_id=first.id, **asked)
        assert (good.status, json.loads(good.output_text)) == ("completed", {"n": 1})
        assert "response_format" in engine.requests[-1].json()
        free = await client.responses.create(input="hi", previous_response_id=good.id, model="clerk")
        assert (free.status, free.output_text) == ("completed", "hi")
        assert "response_format" not in engine.requests[-1].json()
        bad = await client.responses.create(input="no", previous_response_id=free.id, **asked)
        assert bad.status == "failed"
    assert len(journal.runs()) == 1
    await assert_replays(journal)


async def test_a_request_with_another_form_does_not_repeat_one_that_failed(
    tmp_path: Path, journal: Journal
) -> None:
    messages: Any = [{"role": "user", "content": "no"}]
    form: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    async with relaying(echo, tmp_path, journal, AGENT) as (client, _):
        for _again in range(2):
            with pytest.raises(openai.APIStatusError, match="no answer that fits the schema"):
                await client.chat.completions.create(model="clerk", messages=messages, response_format=form)
        assert len(journal.runs()) == 1
        got = await client.chat.completions.create(model="clerk", messages=messages)
        assert got.choices[0].message.content == "no"
        messages += [{"role": "assistant", "content": "no"}, {"role": "user", "content": '{"n": 2}'}]
        told = await client.chat.completions.create(model="clerk", messages=messages, response_format=form)
        assert json.loads(told.choices[0].message.content or "") == {"n": 2}
    assert sorted([info.turns for info in journal.runs()]) == [1, 2]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_response_that_failed_can_be_continued(
    is_stream: bool, tmp_path: Path, journal: Journal
) -> None:
    """What failed is not tried again, because the client knows that it failed."""

    def reply(received: Received) -> Reply:
        said = [item["content"] for item in received.json()["messages"]]
        if said == ["hi"]:
            return Reply({"error": {"message": "bad"}}, status=400)
        return (
            stream(sse(chunk(content="+".join(said)), chunk("stop")))
            if is_stream
            else Reply(answer("+".join(said)))
        )

    async with relaying(reply, tmp_path, journal) as (client, engine):
        with pytest.raises(openai.BadRequestError) as failed:
            await client.responses.create(model="far", input="hi")
        first_id = failed.value.response.headers["x-treadle-response"]
        asked: Any = {"model": "far", "input": "again", "previous_response_id": first_id}
        if is_stream:
            events: list[Any] = [item async for item in await client.responses.create(**asked, stream=True)]
            second = events[-1].response
        else:
            second = await client.responses.create(**asked)
        assert (second.status, second.output_text) == ("completed", "hi+again")
        assert (await client.responses.retrieve(first_id)).status == "failed"
        assert (await client.responses.retrieve(second.id)).output_text == "hi+again"
        assert len(engine.requests) == 2
        run = {"agent": None, "model": "far", "input": "hi", "wait": True}
        made: Any = await client.post("/runs", body=run, cast_to=object)
        next_turn = {"input": "more", "wait": True}
        told: Any = await client.post(f"/runs/{made['id']}/turns", body=next_turn, cast_to=object)
        assert told["output"] == "hi+more"
    await assert_replays(journal)


async def test_a_wait_for_the_limit_is_no_attempt(tmp_path: Path, journal: Journal) -> None:
    """The client may try again what was sent once, however long it has waited before."""
    busy = Reply({"error": {"message": "slow down"}}, 429, {"retry-after": "3"})
    async with relaying([busy, Reply(b"", 503)], tmp_path, journal) as (client, engine):
        for _ in range(2):  # the same conversation, which is not sent again as long as the server is busy
            with pytest.raises(openai.RateLimitError) as refused:
                await client.chat.completions.create(model="far", messages=HELLO)
            assert int(refused.value.response.headers["retry-after"]) <= 3
        assert len(engine.requests) == 1
        other: Any = [{"role": "user", "content": "hello"}]
        with pytest.raises(openai.InternalServerError) as failed:
            await client.chat.completions.create(model="far", messages=other)
        assert "x-should-retry" not in failed.value.response.headers
        assert len(engine.requests) == 2
    told = [
        event.body.attempt
        for info in journal.runs()
        for event in journal.read(info.run_id)
        if isinstance(event.body, InferenceFailed)
    ]
    assert set(told) == {1}
