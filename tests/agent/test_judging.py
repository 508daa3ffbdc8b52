"""Judgements in runs: they are recorded, the model is told, and routers, budgets and resumed runs count on them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.loop.test_loop import Gate

from treadle import Agent, ConfigError, Policy, Run, ScriptedModel, UntrustedError, tool
from treadle.core import events as e
from treadle.core.errors import ServerError
from treadle.core.judgement import Ambiguity, AmbiguityClass, Missing
from treadle.core.policy import Autonomy
from treadle.core.spec import ContextSpec, PartSpec
from treadle.core.types import Completion, FinishReason, Message, Role, ToolSpec, Usage
from treadle.journal.listing import facts_of
from treadle.journal.memory import MemoryJournal
from treadle.models import call
from treadle.models.scripted import Answer
from treadle.models.wrappers.tiered import TieredModel
from treadle.routing.judging import Judgement, MessageFacts, ModelJudge, PatternJudge, write_hint
from treadle.runs.agent_parts import demands_of
from treadle.telemetry.turn_records import read_turn_records
from treadle.telemetry.usage_stats import UsageStats
from treadle.trajectory.turns import TurnCompleted, turns

GRAVE = "Great, now delete everything"
CLEAR = "What is the capital of Norway?"
ASK = ToolSpec("ask_user", "Ask.", {"type": "object"})
FOUND = {
    "language": "en",
    "open": None,
    "missing": None,
    "quote": "",
    "task": None,
    "is_boilerplate": False,
    "is_identity_sensitive": False,
    "difficulty": 0.9,
}


@tool(effect="pure")
async def web_search(query: str) -> str:
    """Search the web."""
    return f"about {query}: 42"


def opened(run: Run) -> list[e.TurnStarted]:
    return [event.body for event in run.events if isinstance(event.body, e.TurnStarted)]


def agent(model: Any, **options: Any) -> "Agent[str]":
    return Agent(model, **{"journal": MemoryJournal(), "judge": "patterns", **options})


async def check_replay(made: "Agent[Any]", run: Run) -> None:
    found = await made.replay(run.run_id)
    assert found.is_exact, found.divergence


async def test_a_judgement_is_recorded_and_the_model_is_told_what_is_open() -> None:
    model = ScriptedModel(["What do you mean?", "Oslo"])
    made = agent(model, tools=["ask"])
    async with made.session("s") as session:
        await session.send(GRAVE)
        run = await session.send(CLEAR)
    first, second = opened(run)
    assert first.judgement is not None
    assert first.judgement.ambiguity is not None
    assert first.judgement.ambiguity.kind is AmbiguityClass.SAFETY_CRITICAL_GAP
    assert first.judgement.judge == "patterns"
    assert (first.message.content, first.hint is not None) == (GRAVE, True)
    assert second.judgement is not None
    assert (second.judgement.ambiguity, second.hint) == (None, None)
    assert model.requests[0].messages[-1].content == f"{GRAVE}\n\n{first.hint}"
    # The beginning of the prompt is the same in every turn.
    assert model.requests[1].messages[-3].content == f"{GRAVE}\n\n{first.hint}"
    assert model.requests[1].messages[-1].content == CLEAR
    await check_replay(made, run)


async def test_nothing_is_judged_by_default() -> None:
    made = agent(ScriptedModel(["ok"]), judge=None, tools=["ask"])
    assert made.spec.context is None
    (body,) = opened(await made.run(GRAVE))
    assert (body.judgement, body.hint) == (None, None)


def judged(kind: AmbiguityClass, missing: Missing = Missing.TIME) -> Judgement:
    return Judgement(ambiguity=Ambiguity(kind, missing, (0, 1)))


@pytest.mark.parametrize(("autonomy", "asks"), [("cautious", "SMVC"), ("balanced", "SM"), ("decisive", "S")])
def test_the_autonomy_decides_about_what_the_user_is_asked(autonomy: str, asks: str) -> None:
    policy = Policy(autonomy=Autonomy(autonomy))
    hinted = [kind for kind in AmbiguityClass if write_hint(judged(kind), policy, (ASK,))]
    assert "".join([kind.name[0] for kind in hinted]) == asks
    assert write_hint(Judgement(), policy, (ASK,)) is None


def test_a_model_that_cannot_ask_gets_no_hint() -> None:
    """Rules out that a model is told to ask the user when it has no way to do so."""
    grave = judged(AmbiguityClass.SAFETY_CRITICAL_GAP)
    assert write_hint(grave, Policy(), ()) is None
    assert write_hint(grave, Policy(text_markers=True), ()) is not None


def test_hints_are_treadles_own_words() -> None:
    """Rules out that a hint, which stands outside of fences, quotes the message."""
    policy = Policy(autonomy=Autonomy.CAUTIOUS)
    for kind in AmbiguityClass:
        hints = [write_hint(judged(kind, missing), policy, (ASK,)) for missing in Missing]
        assert len(set(hints)) == len(Missing), kind
        assert all(hint is not None and hint.startswith("[Note from Treadle:") for hint in hints)


@pytest.mark.parametrize("options", [{"attach": ["{folder}/notes.txt"]}, {}])
async def test_an_attached_file_says_what_is_meant(options: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("notes")
    given = {key: [text.format(folder=tmp_path) for text in texts] for key, texts in options.items()}
    made = agent(ScriptedModel(["ok"]), tools=["ask"])
    (body,) = opened(await made.run("translate the document", **given))
    assert body.judgement is not None
    assert (body.judgement.ambiguity is None) == bool(options)


async def test_a_document_says_what_is_meant(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# A\n\ntext")
    made = agent(ScriptedModel(["ok"]), tools=["ask"], documents=[tmp_path / "a.md"])
    (body,) = opened(await made.run("summarize the document"))
    assert body.judgement is not None
    assert body.judgement.ambiguity is None


async def test_the_persona_says_who_judges_and_its_topics_count() -> None:
    persona = {"name": "Ada", "judge": "patterns", "constraints": ["Never give legal advice."]}
    made = agent(ScriptedModel(["no"]), judge=None, persona=persona)
    assert made.spec.context is not None
    assert made.spec.context.judge == PartSpec(name="patterns")
    (body,) = opened(await made.run("may I sue my landlord?"))
    assert body.judgement is not None
    assert body.judgement.is_identity_sensitive
    assert agent(ScriptedModel(["x"]), judge="none", persona=persona).judge is None


async def test_a_resumed_run_has_the_same_judge() -> None:
    journal = MemoryJournal()
    model = ScriptedModel(["one", "two"])
    async with agent(model, journal=journal, tools=["ask"]).session("s") as session:
        await session.send(CLEAR)
    spec = Run.load("s", journal).spec
    assert spec.context == ContextSpec(judge=PartSpec(name="patterns"))
    again = Agent.from_spec(spec, model=model, journal=journal)
    assert (again.spec, again.known) == (spec, None)
    async with again.session("s") as session:
        run = await session.send("delete the database")
    assert opened(run)[-1].hint is not None


class Odd:
    """A judge of the program that does what the test says."""

    def __init__(self, found: Any) -> None:
        self.found = found

    async def judge(self, message: str, facts: MessageFacts) -> Any:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


BAD: list[Any] = [
    RuntimeError("it broke"),
    "no judgement",
    None,
    Judgement(difficulty="x"),  # type: ignore[arg-type]
    Judgement(difficulty=float("nan")),
]


@pytest.mark.parametrize("found", BAD)
async def test_a_judge_that_fails_does_not_harm_the_turn(found: Any) -> None:
    """Rules out that what a judge of the program returns makes a journal that nobody can read."""
    made = agent(ScriptedModel(["ok"]), judge=Odd(found))
    run = await made.run("delete everything")
    (body,) = opened(run)
    assert (run.output, body.judgement is not None) == ("ok", True)
    assert body.judgement is not None
    assert body.judgement.error
    assert body.judgement.ambiguity is not None
    assert e.decode_body(e.encode_body(body)) == body


async def test_a_judge_of_the_program_judges_and_is_the_patterns_where_it_is_missing() -> None:
    mine = Judgement(judge="mine", difficulty=0.7)
    made = agent(ScriptedModel(["ok"]), judge=Odd(mine))
    run = await made.run(CLEAR)
    assert opened(run)[0].judgement == mine
    assert run.spec.context is not None
    assert run.spec.context.judge is not None
    assert run.spec.context.judge.missing
    assert isinstance(
        Agent.from_spec(run.spec, model=ScriptedModel([]), journal=made.journal).judge, PatternJudge
    )


@pytest.mark.parametrize(
    ("given", "why"), [(7, "judge is 7"), ("pattern", "did you mean 'patterns'"), ("model", "name")]
)
def test_a_misuse_is_told(given: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        agent(ScriptedModel(["x"]), judge=given)


def test_a_judge_from_elsewhere_needs_trust(tmp_path: Path) -> None:
    """Rules out that a journal or a persona sends the user's messages to a server that he has not allowed."""
    made = agent(ScriptedModel(["x"]), judge="patterns")
    assert demands_of(made.spec)[1:] == ()
    file = tmp_path / "eve.yaml"
    file.write_text("name: Eve\njudge: model:openai:gpt-5-mini\n")
    with pytest.raises(UntrustedError, match="openai"):
        agent(ScriptedModel(["x"]), judge=None, persona=file)


# A model as the judge


def paid(found: Any, *, cost_usd: float | None = 0.5) -> ScriptedModel:
    answer = Message(Role.ASSISTANT, found if isinstance(found, str) else json.dumps(found))
    return ScriptedModel(
        lambda _: Completion(answer, FinishReason.STOP, Usage(100, 10), cost_usd=cost_usd), name="judge"
    )


async def test_what_a_judge_costs_counts_everywhere() -> None:
    """Rules out that an inference which is not the agent's own is in no sum."""
    made = agent(ScriptedModel(["ok", "ok"]), judge=ModelJudge(paid(FOUND)))
    async with made.session("s") as session:
        await session.send("a")
        run = await session.send("b")
    judgement = opened(run)[0].judgement
    assert judgement is not None
    assert (judgement.model, judgement.usage, judgement.cost_usd) == ("judge", Usage(100, 10), 0.5)
    own = [body.body.completion.usage for body in run.events if isinstance(body.body, e.InferenceCompleted)]
    tokens = sum([item.total_tokens for item in own if item is not None]) + 2 * 110
    assert (run.usage.total_tokens, run.cost_usd) == (tokens, 1.0)
    bodies = [event.body for event in run.events]
    facts = facts_of(bodies)
    assert (facts.input_tokens + facts.output_tokens, facts.cost_usd) == (tokens, 1.0)
    records = list(read_turn_records(run.events))
    assert [record.cost_usd for record in records] == [0.5, 0.5]
    assert records[0].judgement == judgement
    stats = UsageStats()
    stats.add_run(run.events)
    assert stats.models["judge"].tally.usage.total_tokens == 220
    assert stats.all.tally.cost_usd == 1.0
    shown = [item for item in turns(run.events) if isinstance(item, TurnCompleted)]
    assert [item.cost_usd for item in shown] == [0.5, 0.5]


async def test_a_judge_counts_for_the_budget_of_its_turn() -> None:
    dear = agent(ScriptedModel(["ok"]), judge=ModelJudge(paid(FOUND)), policy=Policy(max_cost_usd=0.4))
    assert (await dear.run("a")).stop_reason == "max_cost"
    tight = agent(ScriptedModel(["ok"]), judge=ModelJudge(paid(FOUND)), policy=Policy(max_tokens=110))
    assert (await tight.run("a")).stop_reason == "max_tokens"
    unknown = paid(FOUND, cost_usd=None)
    run = await agent(ScriptedModel(["ok"]), judge=ModelJudge(unknown), policy=Policy(max_cost_usd=1)).run(
        "a"
    )
    assert (run.stop_reason, run.fault) == ("error", "user")
    unknown.has_price = False  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="'judge'"):
        await agent(ScriptedModel([]), judge=ModelJudge(unknown), policy=Policy(max_cost_usd=1)).run("a")


async def test_a_judge_that_falls_back_is_recorded_with_its_cost() -> None:
    made = agent(ScriptedModel(["ok"]), judge=ModelJudge(paid("no JSON")))
    run = await made.run(GRAVE)
    judgement = opened(run)[0].judgement
    assert judgement is not None
    assert (judgement.judge, judgement.model, judgement.cost_usd) == ("patterns", "judge", 0.5)
    assert judgement.error is not None
    assert judgement.error.startswith("judge: ")
    assert run.cost_usd == 0.5


async def test_routers_use_the_recorded_judgement() -> None:
    tiers = {"small": ScriptedModel(["ok"], name="s"), "frontier": ScriptedModel(["ok"], name="f")}
    made = agent(TieredModel(tiers, router="rules"), judge=ModelJudge(paid(FOUND)))
    run = await made.run("thanks!")
    assert run.state.turn.route is not None
    assert run.state.turn.route.tier == "frontier", run.state.turn.route
    plain = agent(TieredModel(dict(tiers, small=ScriptedModel(["ok"], name="s")), router="rules"), judge=None)
    route = (await plain.run("thanks!")).state.turn.route
    assert route is not None
    assert route.tier == "small", route


class Slow:
    """A judge that waits until the test lets it go on."""

    def __init__(self) -> None:
        self.gate = Gate()

    async def judge(self, message: str, facts: MessageFacts) -> Judgement:
        if message == "a":
            await self.gate.pass_through()
        return Judgement(judge="slow")


async def test_a_message_is_kept_while_a_slow_judge_works() -> None:
    """Rules out that a message is lost if the process ends while a model judges it."""
    journal, slow = MemoryJournal(), Slow()
    made = agent(ScriptedModel(["to a"]), journal=journal, judge=slow)
    async with made.session("s") as session:
        task = asyncio.ensure_future(session.send("a"))
        await slow.gate.reached.wait()
        assert [type(event.body).__name__ for event in journal.read("s")][-1] == "MessageInjected"
        slow.gate.opened.set()
        run = await task
    (body,) = opened(run)
    assert (run.output, body.judgement) == ("to a", Judgement(judge="slow"))
    assert body.queued_seq is not None
    await check_replay(made, run)


@pytest.mark.parametrize("pauses", [False, True])
async def test_a_turn_can_be_cancelled_while_it_is_judged(*, pauses: bool) -> None:
    """Rules out that a message which was stopped comes back with the next one."""
    slow = Slow()
    made = agent(ScriptedModel(["to b"]), judge=slow)
    async with made.session("s", pauses_when_cancelled=pauses) as session:
        task = asyncio.ensure_future(session.send("a"))
        await slow.gate.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert session.queued == []
        assert session.is_turn_open is pauses
        if not pauses:
            assert (await session.send("b")).output == "to b"
            await check_replay(made, session.run)


async def test_an_interrupting_message_stops_a_turn_that_is_being_judged() -> None:
    slow = Slow()
    made = agent(ScriptedModel(["to b"]), judge=slow)
    async with made.session("s") as session:
        first = asyncio.ensure_future(session.send("a"))
        await slow.gate.reached.wait()
        second = await session.send("b", delivery="interrupt")
        assert (await first).stop_reason == "cancelled"
        assert second.output == "to b"
        await check_replay(made, second)


# Refusals of tools

REFUSAL = "I'm sorry, but I can't browse the web."


async def test_a_model_that_refuses_a_tool_which_it_has_is_asked_again_and_its_calls_run() -> None:
    """Rules out that the calls of the second answer are thrown away, and that both answers are shown as one."""
    ran: list[str] = []

    @tool(effect="once")
    async def search(query: str) -> str:
        """Search the web."""
        ran.append(query)
        return "42"

    model = ScriptedModel([REFUSAL, [call("search", {"query": "fjord"})], "It is 42."])
    made = agent(model, tools=[search])
    run = await made.run("How deep is the fjord? Search for it.")
    assert (run.output, ran) == ("It is 42.", ["fjord"])
    nudges = [event.body for event in run.events if isinstance(event.body, e.MessageInjected)]
    assert [body.is_nudge for body in nudges] == [True]
    assert "the tool search" in nudges[0].message.content
    told = [message.content for message in model.requests[1].messages]
    assert told[-2:] == [REFUSAL, nudges[0].message.content]
    (completed,) = [item for item in turns(run.events) if isinstance(item, TurnCompleted)]
    assert completed.final_text == "It is 42."
    (record,) = read_turn_records(run.events)
    assert record.refusals == ["search"]
    await check_replay(made, run)


async def test_a_refusal_is_answered_once_in_a_turn() -> None:
    model = ScriptedModel([REFUSAL] * 3)
    made = agent(model, tools=[web_search])
    async with made.session("s") as session:
        assert (await session.send("look it up")).output == REFUSAL
        assert len(model.requests) == 2
        run = session.run
    assert run.stop_reason == "completed"
    await check_replay(made, run)


@pytest.mark.parametrize(
    ("answers", "options"),
    [
        ([REFUSAL], {"judge": None}),
        ([REFUSAL], {"tools": []}),
        ([REFUSAL], {"policy": Policy(approve={"web_search": "never"})}),  # type: ignore[dict-item]
        ([[call("web_search", {"query": "x"})], REFUSAL], {}),
        (["I searched the web, but found nothing."], {}),
    ],
    ids=["no judge", "no tool", "not allowed", "tried", "no refusal"],
)
async def test_what_is_no_refusal_of_a_usable_tool_ends_the_turn(
    answers: list[Answer], options: dict[str, Any]
) -> None:
    model = ScriptedModel(answers)
    run = await agent(model, **{"tools": [web_search], **options}).run("look it up")
    assert (run.output, len(model.requests)) == (answers[-1], len(answers))


async def test_a_refusal_in_an_answer_by_schema_is_left_alone() -> None:
    model = ScriptedModel([json.dumps({"text": REFUSAL})])
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    run = await agent(model, tools=[web_search], schema=schema).run("look it up")
    assert (run.stop_reason, len(model.requests)) == ("completed", 1)


async def test_a_stopped_run_goes_on_from_its_refusal() -> None:
    """The refusal is read from the journal, so a resumed run asks again in the same words."""
    journal = MemoryJournal()
    model = ScriptedModel([REFUSAL, ServerError("down"), "It is 42."])
    made = agent(model, tools=[web_search], journal=journal)
    run = await made.run("look it up", run_id="r")
    assert run.stop_reason == "error"
    run = await made.resume("r")
    assert (run.output, len(model.requests)) == ("It is 42.", 3)
    assert model.requests[1].messages[-1] == model.requests[2].messages[-1]
    await check_replay(made, run)
