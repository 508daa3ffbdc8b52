"""Each kind of drift, made on purpose by a run, and told right."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from tests.trajectory.tokens.engine import (
    TemplateModel,
    cut,
    decode,
    encode,
    say,
    think,
    write_sorted,
)

from treadle import Agent, Policy, tool
from treadle.core.log import Log
from treadle.core.types import FinishReason, Message, Role
from treadle.journal.memory import MemoryJournal
from treadle.models import call
from treadle.trajectory.tokens import Drift, DriftReport, Node, TokenGraph, load_tokens, read_tokens
from treadle.trajectory.tokens.drift import explain_messages

LOOK = call("look", {"b": 1, "a": 2})


@tool(effect="pure")
async def look(a: int = 0, b: int = 0) -> str:
    """Look."""
    return f"the {a} and {b}"


def agent(model: Any, **options: Any) -> Agent:
    return Agent(
        model,
        tools=options.pop("tools", [look]),
        journal=options.pop("journal", None) or MemoryJournal(),
        **options,
    )


async def talk(model: TemplateModel, *texts: str, **options: Any) -> TokenGraph:
    """Return the token graph of a session in which the user says `texts`."""
    made = agent(model, **options)
    async with made.session("run") as session:
        for text in texts:
            await session.send(text)
    graph = load_tokens(made.journal, "run", decode=decode)
    check(graph, model)
    return graph


def check(graph: TokenGraph, *models: TemplateModel) -> None:
    """Check that all that the models sampled is delivered once."""
    sampled = sum(len(record.token_ids or ()) // 4 for model in models for record in model.records)
    assert (graph.conservation.faults, graph.conservation.delivered) == ((), sampled)


def drift(graph: TokenGraph) -> DriftReport:
    """Return the only drift of a graph."""
    (found,) = [item.drift for item in graph.trajectories if item.drift is not None]
    return found


async def test_a_template_that_keeps_everything_makes_one_branch() -> None:
    model = TemplateModel([think("Hm.", "", LOOK), think("Well.", "It is."), say("Yes.")])
    graph = await talk(model, "Look.", "Really?")
    (row,) = graph.trajectories
    assert row.drift is None
    assert [row.messages[span.message].content for span in row.spans] == ["", "It is.", "Yes."]


@pytest.mark.parametrize("prefill", ["", "<think>\n"])
@pytest.mark.parametrize("has_decoder", [True, False])
async def test_reasoning_that_the_template_strips(prefill: str, has_decoder: bool) -> None:
    """Also where the template begins the answer with the opening tag, so that the answer holds only the closing
    one. The reference lost all turns but the last one to such templates."""
    answers = [think("Let me see.", "", LOOK), think("Now I know.", "It is the one."), say("Yes.")]
    model = TemplateModel(answers, strips_thinking=True, prefill=prefill)
    made = agent(model)
    async with made.session("run") as session:
        await session.send("Look.")
        await session.send("Really?")
    graph = load_tokens(made.journal, "run", decode=decode if has_decoder else None)
    check(graph, model)
    found = drift(graph)
    assert found.kind is Drift.REASONING_STRIPPED
    if has_decoder:
        assert found.expected_text is not None
        assert found.found_text is not None
        assert "Let me see." in found.expected_text
        assert "Let me see." not in found.found_text
    assert [span.is_trained for span in graph.trajectories[-1].spans] == [True]


async def test_arguments_that_the_template_writes_in_another_order() -> None:
    model = TemplateModel([say("I look.", LOOK), say("Done.")], writes_call=write_sorted)
    found = drift(await talk(model, "Look."))
    assert found.kind is Drift.TOOL_CALL_REWRITTEN
    assert found.expected_text is not None
    assert found.expected_text.startswith('b":1')
    assert found.found_text is not None
    assert found.found_text.startswith('a": 2')


async def test_the_same_text_with_other_ids() -> None:
    model = TemplateModel([say("abc", LOOK), say("Done.")], is_merged=False)
    found = drift(await talk(model, "Look."))
    assert (found.kind, found.expected[:3], found.found[:1]) == (Drift.RETOKENIZED, tuple(b"abc"), (301,))


async def test_white_space_that_the_template_strips() -> None:
    model = TemplateModel([say(" The answer. "), say("Done.")], strips_text=True)
    assert drift(await talk(model, "Look.", "Again.")).kind is Drift.TEMPLATE


async def test_the_wrap_up_without_tools_has_another_beginning() -> None:
    model = TemplateModel([say("", LOOK), say("Done.")])
    graph = await talk(model, "Look.", policy=Policy(max_steps=1))
    found = drift(graph)
    assert found.kind is Drift.TEMPLATE
    assert found.expected_text is not None
    assert found.expected_text.startswith("tools\nlook")


async def test_another_model_in_the_same_run() -> None:
    journal = MemoryJournal()
    first, second = TemplateModel([say("One.")], name="one"), TemplateModel([say("Two.")], name="two")
    async with agent(first, journal=journal).session("run") as session:
        await session.send("Look.")
    async with agent(second, journal=journal).session("run") as session:
        await session.send("Again.")
    graph = load_tokens(journal, "run", decode=decode)
    check(graph, first, second)
    assert drift(graph).kind is Drift.TEMPLATE
    assert [span.model for item in graph.trajectories for span in item.spans] == ["one", "two"]


async def test_a_cut_answer_that_is_encoded_again() -> None:
    model = TemplateModel([cut(say("It is the ab")), say("Done.")], is_merged=False)
    graph = await talk(model, "Look.", "Go on.")
    assert drift(graph).kind is Drift.TRUNCATED
    assert graph.trajectories[0].spans[0].finish_reason is FinishReason.LENGTH


async def test_a_prompt_that_the_server_cut() -> None:
    long = "This is a long text of the user, in which the server finds nothing that it needs. " * 2
    model = TemplateModel([say("One."), say("Two.")], change=lambda ids: ids[-200:])
    graph = await talk(model, long, "Go on.")
    assert drift(graph).kind is Drift.TRUNCATED


async def test_a_compacted_context() -> None:
    model = TemplateModel([say(f"Answer {number}.") for number in range(8)])
    made = agent(model, policy=Policy(context_tokens=100_000, keep_turns=1))
    async with made.session("run") as session:
        for number in range(3):
            await session.send(f"Question {number}? {'Tell all that you know of it. ' * 12}")
        await session.compact()
        await session.send("And now?")
    graph = load_tokens(made.journal, "run", decode=decode)
    assert graph.conservation.faults == ()
    # The summary was sampled too, and is a branch of its own.
    kinds = [item.drift.kind for item in graph.trajectories if item.drift is not None]
    assert kinds == [Drift.COMPACTION, Drift.COMPACTION]
    assert [len(item.spans) for item in graph.trajectories] == [3, 1, 1]
    assert graph.conservation.inferences == 5


async def test_a_message_that_changes_what_stands_before_it() -> None:
    """The template marks the last message of the user, and a message is added during the turn."""
    answers = [say(""), say("Done.")]
    found = drift(await talk(TemplateModel(answers, marks_last=True), "Look."))
    assert (found.kind, found.expected_text and found.expected_text[0]) == (Drift.INJECTED, "!")


async def test_a_sub_agent() -> None:
    inner = TemplateModel([say("Found.")], name="inner")
    outer = TemplateModel([say("", call("helper", {"task": "Look."})), say("Done.")])
    journal = MemoryJournal()
    helper = Agent(inner, journal=journal).as_tool("helper")
    await agent(outer, tools=[helper], journal=journal).run("Go.", run_id="run")
    graph = load_tokens(journal, "run", decode=decode)
    check(graph, inner, outer)
    assert drift(graph).kind is Drift.SUBAGENT
    assert [item.run_id == "run" for item in graph.trajectories] == [False, True]


async def test_a_sub_agent_of_a_call_that_was_interrupted() -> None:
    """What its run has sampled is delivered, although the caller has no result of it."""
    inner = TemplateModel([say("Found.")], name="inner")
    outer = TemplateModel([say("", call("helper", {"task": "Look."})), say("Done.")])
    whole, killed = MemoryJournal(), MemoryJournal()
    helper = Agent(inner, journal=whole).as_tool("helper")
    await agent(outer, tools=[helper], journal=whole).run("Go.", run_id="run")
    for info in whole.runs(limit=9):
        events = whole.read(info.run_id)
        end = next((at for at, event in enumerate(events) if event.type == "tool_completed"), len(events))
        writer = killed.create(info.run_id)
        writer.append_events(events[:end])
        await writer.release()
    graph = load_tokens(killed, "run", decode=decode)
    assert [item.run_id == "run" for item in graph.trajectories] == [False, True]
    assert graph.conservation.faults == ()


async def test_a_fork() -> None:
    model = TemplateModel([say("", LOOK), say("Done.")])
    made = agent(model)
    run = await made.run("Look.", run_id="run")
    at = next(event.seq for event in run.events if event.type == "tool_completed")
    other = TemplateModel([say("Other.")])
    await agent(other, journal=made.journal).fork("run", at, new_run_id="fork")
    graph = load_tokens(made.journal, "run", "fork", decode=decode)
    check(graph, model, other)
    found = drift(graph)
    assert (found.kind, found.expected_text, found.found_text) == (Drift.FORK, "Done.<|end|>", "")
    # Alone, the fork shows that it goes on where the copied events end.
    alone = drift(load_tokens(made.journal, "fork", decode=decode))
    assert (alone.kind, alone.expected) == (Drift.FORK, ())
    assert alone.found_text is not None
    assert alone.found_text.startswith("\n<|start|>tool\nthe 2 and 1")


async def test_a_prompt_that_nothing_explains() -> None:
    """Without a decoder, ids that differ say nothing about the reason, and none is made up."""
    prompts = iter([[1, 2, 3], [1, 4, 5]])
    made = agent(TemplateModel([say("One.", LOOK), say("Two.")], change=lambda _: next(prompts)))
    run = await made.run("Look.")
    found = drift(read_tokens(run.events))
    assert (found.kind, found.position, found.expected[:2], found.found) == (Drift.UNKNOWN, 1, (2, 3), (4, 5))
    assert (found.expected_text, found.found_text) == (None, None)


def node(messages: Sequence[Message], answer: str = "x") -> Node:
    return Node(
        run_id="run",
        seq=1,
        step=1,
        turn=1,
        finish_reason=FinishReason.STOP,
        model="m",
        messages=Log(messages),
        message=say(answer),
    )


def test_messages_that_were_changed_removed_or_added() -> None:
    one, two, three = (Message(Role.USER, text) for text in ("one", "two", "three"))
    system = Message(Role.SYSTEM, "Be brief.")
    old = node([one, two])
    answer = old.message
    assert explain_messages(old, node([one, two, answer, three])) is None
    assert explain_messages(old, node([one, three, answer, three])) is Drift.EDITED_HISTORY
    assert explain_messages(old, node([one, two])) is Drift.EDITED_HISTORY
    assert explain_messages(old, node([two, answer])) is Drift.EDITED_HISTORY
    assert explain_messages(old, node([one, three, two, answer])) is Drift.INJECTED
    assert explain_messages(old, node([system, one, two, answer])) is Drift.TEMPLATE
    assert explain_messages(old, replace(node([three]), compactions=1)) is Drift.COMPACTION


@pytest.mark.parametrize("text", ["abc the cat is", "<think>\nabc</think>\n\nis"])
def test_the_tokenizer_of_these_tests_is_ambiguous(text: str) -> None:
    assert decode(encode(text)) == decode(encode(text, is_merged=False)) == text
    assert encode(text) != encode(text, is_merged=False)
