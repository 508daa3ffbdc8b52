"""Every operation of the loop with every provider, whose server refuses what the real one refuses."""

import itertools
import json
import re
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict
from tests.contract.test_parts import BIG_PNG, PNG
from tests.models.strict.providers import PROVIDERS, Provider, StrictServer

from treadle import Agent, Policy, Run, Session, tool
from treadle.core import events as e
from treadle.core.errors import ConfigError
from treadle.core.types import Message, Role, ToolCall, Usage
from treadle.http.transport import HttpResponse
from treadle.journal.memory import MemoryJournal
from treadle.models import CacheModel, Price, RetryModel
from treadle.models.config.presets import provider_names
from treadle.models.protocol import innermost
from treadle.tools.protocol import Attachment, ToolOutput

THOUGHT = "I could look."


def said(
    text: str = "Done.", *calls: ToolCall, reasoning: str | None = THOUGHT, finish: str | None = None
) -> Message:
    """Return an answer; `finish` is the reason why it ends."""
    return Message(Role.ASSISTANT, text, calls, reasoning=reasoning, name=finish)


def call(name: str = "look_up", arguments: str = '{"word": "a"}', call_id: str = "call_1") -> ToolCall:
    return ToolCall(call_id, name, arguments)


@tool(effect="pure")
def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word} is a word"


@tool(effect="pure")
def say_nothing() -> str:
    """Return nothing."""
    return ""


@tool(effect="pure")
def fail() -> str:
    """Fail."""
    raise ValueError("it broke")


@tool(effect="pure")
def read_all() -> str:
    """Return much."""
    return "x" * 100_000


@tool(effect="pure")
def draw() -> ToolOutput:
    """Return pictures."""
    pictures = Attachment("image", PNG, "image/png", name="a.png"), Attachment("image", BIG_PNG, "image/png")
    return ToolOutput("two pictures", attachments=pictures)


TOOLS = [look_up, say_nothing, fail, read_all, draw]


class Open(BaseModel):
    word: str
    count: int = 1


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    word: str
    kind: Literal["a", "b"]


class Talk:
    """An agent with one provider, whose server gives `answers`."""

    def __init__(self, provider: Provider, answers: list[Any], *, is_streamed: bool, **options: Any) -> None:
        self.provider, self.server = provider, StrictServer(provider, answers)
        model_options = options.pop("model_options", {})
        self.model = provider.make(self.server, **model_options)
        self.journal = MemoryJournal()
        self.agent: Agent[Any] = Agent(
            self.model, journal=self.journal, **{"tools": TOOLS, "instructions": "Be brief.", **options}
        )
        self.events: list[Any] = []
        self.listening: dict[str, Any] = {"on_event": self.events.append} if is_streamed else {}

    def check(self, run: Run[Any], output: object = "Done.") -> None:
        assert not self.server.refusals, self.server.refusals
        assert run.stop_reason == "completed", run.error
        assert run.output == output
        assert not list(self.server.answers), "not all answers were asked for"
        self.check_sent(run)
        self.check_pieces()

    def check_sent(self, run: Run[Any]) -> None:
        """Check that the newest request has the texts of all messages before the answer, and the reasoning of the
        newest calls where the provider takes it."""
        if "previous_response_id" in self.server.bodies[-1]:
            return  # the server has them
        sent = json.dumps(self.server.bodies[-1], ensure_ascii=False)
        messages = list(run.state.messages)
        while messages.pop().role is not Role.ASSISTANT:
            pass
        for message in messages:
            assert json.dumps(message.content.strip(), ensure_ascii=False)[1:-1] in sent, message.content[
                :200
            ]
        last = next((item for item in reversed(messages) if item.tool_calls), None)
        if last is not None and last.reasoning and self.provider.thoughts is not None:
            thoughts = self.provider.thoughts or json.dumps(last.reasoning)
            assert thoughts in sent, thoughts

    def check_pieces(self) -> None:
        """Check that the pieces of streamed calls have the ids of the calls."""
        told: dict[int, str | None] = {}
        for body in [event.body for event in self.events]:
            if isinstance(body, e.ToolCallDelta):
                told[body.index] = body.call_id or told.get(body.index)
            elif isinstance(body, e.InferenceCompleted):
                assert not told or list(told.values()) == [
                    item.call_id for item in body.completion.message.tool_calls
                ]
                told = {}

    async def run(self, text: str = "Go.", output: object = "Done.", **options: Any) -> Run[Any]:
        run = await self.agent.run(text, **self.listening, **options)
        self.check(run, output)
        assert (await self.agent.replay(run.run_id)).is_exact
        return run


Operation = Callable[..., Awaitable[None]]


async def one_answer(provider: Provider, **how: Any) -> None:
    await Talk(provider, [said()], **how).run()


async def no_tools(provider: Provider, **how: Any) -> None:
    await Talk(provider, [said()], tools=[], **how).run()


async def no_instructions(provider: Provider, **how: Any) -> None:
    await Talk(provider, [said()], tools=[], instructions=None, **how).run()


async def one_call(provider: Provider, **how: Any) -> None:
    await Talk(provider, [said("", call()), said()], **how).run()


async def text_before_a_call(provider: Provider, **how: Any) -> None:
    await Talk(provider, [said("I look.", call()), said()], **how).run()


async def calls_without_reasoning(provider: Provider, **how: Any) -> None:
    await Talk(provider, [said("", call(), reasoning=None), said(reasoning=None)], **how).run()


async def two_calls(provider: Provider, **how: Any) -> None:
    calls = call(), call(arguments='{"word": "b"}', call_id="call_2")
    await Talk(provider, [said("", *calls), said()], **how).run()


async def several_steps(provider: Provider, **how: Any) -> None:
    steps = [said("", call(call_id=f"call_{number}"), reasoning=f"Step {number}.") for number in range(3)]
    await Talk(provider, [*steps, said()], **how).run()


async def odd_results(provider: Provider, **how: Any) -> None:
    names = ["say_nothing", "fail", "read_all"]
    calls = [call(name, "{}", f"call_{number}") for number, name in enumerate(names)]
    await Talk(provider, [said("", *calls), said()], **how).run()


async def images_in_results(provider: Provider, **how: Any) -> None:
    calls = call("draw", "{}"), call(call_id="call_2")
    await Talk(provider, [said("", *calls), said("", call(call_id="call_3")), said()], **how).run()


async def bad_calls(provider: Provider, **how: Any) -> None:
    calls = [
        call("multi_tool.use ü", "{}"),
        call(arguments='{"word": 7}', call_id="call_2"),
        call(arguments="{}", call_id="call_3"),
    ]
    await Talk(provider, [said("", *calls), said()], **how).run()


async def odd_ids(provider: Provider, **how: Any) -> None:
    calls = [call(call_id="functions.look_up:0/ü"), call(call_id="x" * 90)]
    await Talk(provider, [said("", *calls), said()], **how).run()


async def ids_again(provider: Provider, **how: Any) -> None:
    await Talk(provider, [said("", call()), said("", call()), said()], **how).run()


async def no_ids(provider: Provider, **how: Any) -> None:
    await Talk(provider, [said("", call(call_id=""), call(call_id="")), said()], **how).run()


async def a_schema(provider: Provider, **how: Any) -> None:
    for kind in (Open, Closed):
        value = kind.model_validate({"word": "w", "kind": "a"} if kind is Closed else {"word": "w"})
        for tools in ([], [look_up]):
            # Without the tools that read again what was compacted, the call of the answer is forced.
            policy = Policy(compact_at=None)
            talk = Talk(provider, [], tools=tools, schema=kind, policy=policy, **how)
            text = value.model_dump_json()

            def answer(talk: Talk = talk, text: str = text) -> Message:
                offered = provider.wire.tools(talk.server.bodies[-1])
                takers = [name for name, _, kind in offered if "word" in kind["properties"]]
                takers = [name for name in takers if name != "look_up"]
                return said("", call(takers[0], text)) if takers else said(text)

            talk.server.answers = iter([answer])
            run = await talk.agent.run("Go.", **talk.listening)
            talk.check(run, run.output)
            assert run.value == value


async def several_turns(provider: Provider, **how: Any) -> None:
    answers = [said("", call()), said("One."), said("Two."), said("", call()), said()]
    talk = Talk(provider, answers, **how)
    async with talk.agent.session("s") as session:
        for number in range(3):
            run = await session.send(f"Question {number}", **talk.listening)
    talk.check(run)


async def steered(provider: Provider, **how: Any) -> None:
    talk = Talk(provider, [said("", call("wait", "{}")), said()], **how)
    session: Session[Any]

    @tool(effect="pure")
    def wait() -> str:
        """Wait."""
        session.post("Quick!", "steer")
        return "waited"

    talk.agent = Agent(talk.model, tools=[*TOOLS, wait], journal=talk.journal)
    async with talk.agent.session("s") as session:
        run = await session.send("Go.", **talk.listening)
    talk.check(run)
    assert "Quick!" in str(talk.server.bodies[-1])


async def interrupted(provider: Provider, **how: Any) -> None:
    talk = Talk(provider, [said("", call("wait", "{}")), said()], **how)
    session: Session[Any]

    @tool(effect="pure")
    async def wait() -> str:
        """Wait."""
        import asyncio

        session.post("Stop!", "interrupt")
        await asyncio.sleep(5)
        return "waited"

    talk.agent = Agent(talk.model, tools=[*TOOLS, wait], journal=talk.journal)
    async with talk.agent.session("s") as session:
        await session.send("Go.", **talk.listening)
        run = await session.finish_turn()
    talk.check(run)


async def two_user_messages(provider: Provider, **how: Any) -> None:
    talk = Talk(provider, [HttpResponse(provider.wire.error(400, "no"), 400), said()], **how)
    async with talk.agent.session("s") as session:
        assert (await session.send("One.", **talk.listening)).stop_reason == "error"
        run = await session.send("Two.", **talk.listening)
    talk.check(run)


async def last_step(provider: Provider, **how: Any) -> None:
    talk = Talk(provider, [said("", call()), said()], policy=Policy(max_steps=1), **how)
    run = await talk.agent.run("Go.", **talk.listening)
    assert not talk.server.refusals, talk.server.refusals
    assert (run.stop_reason, run.output) == ("max_steps", "Done."), run.error


async def too_many_calls(provider: Provider, **how: Any) -> None:
    calls = [call(call_id=f"call_{number}") for number in range(3)]
    talk = Talk(provider, [said("", *calls), said()], policy=Policy(max_tool_calls=1), **how)
    run = await talk.agent.run("Go.", **talk.listening)
    assert not talk.server.refusals, talk.server.refusals
    assert (run.stop_reason, run.output) == ("max_tool_calls", "Done."), run.error


async def an_empty_answer(provider: Provider, **how: Any) -> None:
    for text in ("", " \n"):
        await Talk(provider, [said("", call()), said(text), said()], **how).run()


async def a_cut_answer(provider: Provider, **how: Any) -> None:
    talk = Talk(provider, [said("Done", finish="length"), said()], **how)
    async with talk.agent.session("s") as session:
        run = await session.send("One.", **talk.listening)
        assert run.stop_reason == "max_tokens", run.error
        run = await session.send("Go on.", **talk.listening)
    talk.check(run)


async def a_cut_call(provider: Provider, **how: Any) -> None:
    talk = Talk(provider, [said("", call(), finish="length"), said()], **how)
    await talk.run()


async def a_refusal(provider: Provider, **how: Any) -> None:
    if provider.wire_name in ("ollama", "completions"):
        return
    talk = Talk(provider, [said("I can't.", finish="content_filter"), said()], **how)
    async with talk.agent.session("s") as session:
        run = await session.send("One.", **talk.listening)
        assert run.stop_reason == "refused", (run.stop_reason, run.error)
        run = await session.send("Two.", **talk.listening)
    talk.check(run)


async def compacted(provider: Provider, **how: Any) -> None:
    answers = [item for _ in range(4) for item in (said("I look.", call()), said("It is a word. " * 40))]
    talk = Talk(provider, [*answers, said("They talked about words."), said("", call()), said()], **how)
    async with talk.agent.session("s") as session:
        for number in range(4):
            await session.send(f"Question {number} " * 40, **talk.listening)
        event = await session.compact()
        assert event is not None
        assert event.error is None
        run = await session.send("And now?", **talk.listening)
    talk.check(run)
    assert "They talked about words." in str(talk.server.bodies[-2])


async def compacted_within_a_turn(provider: Provider, **how: Any) -> None:
    steps = [said("", call("read_all", "{}", f"call_{number}")) for number in range(6)]
    talk = Talk(
        provider,
        [*steps, *[said("They read much.")] * 6],
        policy=Policy(context_tokens=60_000, max_result_chars=40_000),
        **how,
    )
    run = await talk.agent.run("Read.", **talk.listening)
    assert not talk.server.refusals, talk.server.refusals
    assert run.stop_reason == "completed", run.error


async def resumed_and_forked(provider: Provider, **how: Any) -> None:
    broken = HttpResponse(provider.wire.error(500, "down"), 500)
    answers = [said("", call()), broken, said("", call(call_id="call_2")), said(), said("Forked.")]
    talk = Talk(provider, answers, **how)
    run = await talk.agent.run("Go.", run_id="r", **talk.listening)
    assert (run.stop_reason, run.fault) == ("error", "infrastructure"), run.error
    run = await talk.agent.resume("r", **talk.listening)
    assert run.output == "Done.", (run.error, talk.server.refusals)
    run = await talk.agent.fork("r", text="And now?", **talk.listening)
    talk.check(run, "Forked.")


async def attached(provider: Provider, **how: Any) -> None:
    talk = Talk(provider, [said("Seen.")], **how)
    picture = Attachment("image", PNG, "image/png")
    async with talk.agent.session("s") as session:
        if provider.wire_name == "completions":
            with pytest.raises(ConfigError, match="cannot send image"):
                await session.send("Look.", attach=[picture], **talk.listening)
        else:
            talk.check(await session.send("Look.", attach=[picture], **talk.listening), "Seen.")


async def an_empty_message(provider: Provider, **how: Any) -> None:
    await Talk(provider, [said()], **how).run("")


async def all_settings(provider: Provider, **how: Any) -> None:
    for name, value in {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 500,
        "seed": 7,
        "stop": ["END"],
        "logprobs": True,
    }.items():
        refusal = ""
        try:
            talk = Talk(provider, [said()], model_options={name: value}, **how)
        except ConfigError as error:
            refusal = str(error)
        if not refusal:
            await talk.run()
        assert not refusal or name in refusal


async def steps_with_a_seed(provider: Provider, **how: Any) -> None:
    """With the same random numbers, a server would repeat its choices from step to step. The same run has the same
    seeds again, whether it is streamed or not, and whatever ids the server gives its calls."""
    if "seed" not in type(innermost(Talk(provider, [], **how).model)).SETTINGS:
        return
    sent = []
    for how["is_streamed"], name in ((True, "call_1"), (False, "call_9")):
        answers = [said("", call(call_id=name)), said("", call("say_nothing", "{}", name)), said()]
        talk = Talk(provider, answers, model_options={"seed": 7}, **how)
        talk.check(await talk.run())
        sent.append([int(re.findall(r'seed": (\d+)', json.dumps(body))[0]) for body in talk.server.bodies])
    assert sent[0] == sent[1]
    assert (sent[0][0], len(set(sent[0]))) == (7, 3)


async def cached(provider: Provider, **how: Any) -> None:
    answers = [said("", call()), said("One."), said("", call(call_id="call_2")), said()]
    with tempfile.TemporaryDirectory() as folder:
        first = Talk(provider, answers[:2], **how)
        first.agent = Agent(CacheModel(first.model, folder), tools=TOOLS, journal=first.journal)
        first.check(await first.agent.run("Go.", **first.listening), "One.")
        talk = Talk(provider, answers[2:], **how)
        talk.agent = Agent(CacheModel(talk.model, folder), tools=TOOLS, journal=talk.journal)
        async with talk.agent.session("s") as session:
            run = await session.send("Go.", **talk.listening)
            assert (run.output, talk.server.bodies, run.cost_usd) == ("One.", [], 0.0), run.error
            run = await session.send("And now?", **talk.listening)
    talk.check(run)


async def priced(provider: Provider, **how: Any) -> None:
    """The last chunks of streams have the token counts, by which costs and budgets are counted."""
    price = Price(1.0, 2.0, 0.1, 1.25)
    usage = Usage(1_000_000, 500_000, 200_000 * (provider.wire_name not in ("ollama", "completions")))
    server_answers: list[Any] = [said("", call()), said()]
    talk = Talk(provider, server_answers, model_options={"price": price}, **how)
    talk.server.usage = usage
    run = await talk.run()
    assert run.usage == usage + usage
    if provider.model.startswith("openrouter"):
        assert run.cost_usd == pytest.approx(0.002)  # its answers say what they cost
    else:
        assert run.cost_usd == pytest.approx(2 * price.cost_usd(usage))
    talk = Talk(
        provider,
        [said("", call()), said()],
        policy=Policy(max_cost_usd=1.0),
        model_options={"price": price},
        **how,
    )
    talk.server.usage = usage
    run = await talk.agent.run("Go.", **talk.listening)
    assert run.stop_reason == "max_cost" or provider.model.startswith("openrouter"), run.error


async def an_error_in_the_stream(provider: Provider, **how: Any) -> None:
    wire = provider.wire
    begin = wire.events(wire.answer(Message(Role.ASSISTANT, "A longer text.")))[:2]
    told = {
        "anthropic": b'data: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n',
        "openai_responses": b'data: {"type":"error","code":"server_error","message":"Overloaded","param":null}\n\n',
        "gemini": b'data: {"error":{"code":503,"message":"Overloaded","status":"UNAVAILABLE"}}\n\n',
        "ollama": b'{"error":"Overloaded"}\n',
    }.get(
        provider.wire_name, b'data: {"error":{"message":"Overloaded","type":"server_error","code":503}}\n\n'
    )
    broken = HttpResponse([*begin, told], headers={"content-type": wire.CONTENT_TYPE})
    talk = Talk(provider, [broken, said()], **how)
    talk.agent = Agent(RetryModel(talk.model, min_delay_seconds=0.001), tools=TOOLS, journal=talk.journal)
    run = await talk.agent.run("Go.", **talk.listening)
    talk.check(run)
    (failed,) = [event.body for event in run.events if isinstance(event.body, e.InferenceFailed)]
    assert "Overloaded" in failed.error


OPERATIONS: dict[str, Operation] = {
    item.__name__: item
    for item in (
        one_answer, no_tools, no_instructions, one_call, text_before_a_call, calls_without_reasoning, two_calls,
        several_steps, odd_results, images_in_results, bad_calls, odd_ids, ids_again, no_ids, a_schema,
        several_turns, steered, interrupted, two_user_messages, last_step, too_many_calls, an_empty_answer,
        a_cut_answer, a_cut_call, a_refusal, compacted, compacted_within_a_turn, resumed_and_forked, attached,
        an_empty_message, all_settings, steps_with_a_seed, cached, priced, an_error_in_the_stream,
    )
}  # fmt: skip


pytestmark = pytest.mark.xdist_group("vendors")
STREAMED = ("an_error_in_the_stream", "no_ids")
"""The operations that are about streams."""


def test_every_provider_is_here() -> None:
    assert {name.partition(" ")[0] for name in PROVIDERS} == set(provider_names())


PAIRS = list(itertools.product(PROVIDERS, OPERATIONS))


@pytest.mark.sets(160)
@pytest.mark.parametrize(("name", "operation"), PAIRS)
async def test_every_operation_with_every_provider(name: str, operation: str) -> None:
    """Whole and streamed answers take turns, so that every provider and every operation has both."""
    place = list(PROVIDERS).index(name) + list(OPERATIONS).index(operation)
    await OPERATIONS[operation](PROVIDERS[name], is_streamed=operation in STREAMED or bool(place % 2))
