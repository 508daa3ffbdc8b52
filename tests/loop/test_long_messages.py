"""Messages that are larger than the room for them: no session ends because of one."""

import json
import re

import pytest
from tests.context.contexts import TEXT, Counting, is_summary_request, look_up

from treadle import Agent, Policy, tool
from treadle.context.step_view import view_step
from treadle.core import events as e
from treadle.core.types import Role
from treadle.export import load_row
from treadle.journal.memory import MemoryJournal
from treadle.models import call

WINDOW = 4000
LONG = "".join(f"line {number}: {TEXT}\n" for number in range(800))


def talk(request):
    return "They talked." if is_summary_request(request) else f"Answer {len(request.messages)}"


def agent_of(model, **policy):
    given = {"context_tokens": WINDOW, **policy}
    return Agent(model, tools=[look_up], policy=Policy(**given), journal=MemoryJournal())


def compactions(events):
    return [event.body for event in events if isinstance(event.body, e.ContextCompacted)]


@pytest.mark.parametrize("tells_usage", [True, False])
@pytest.mark.parametrize("place", [0, 1, 6])
async def test_a_session_goes_on_after_a_message_larger_than_the_window(place, tells_usage):
    model = Counting(talk, window=WINDOW, tells_usage=tells_usage)
    agent = agent_of(model)
    async with agent.session("s") as session:
        for turn in range(10):
            run = await session.send(LONG if turn == place else f"Question {turn}")
            assert run.stop_reason == "completed", run.error
        assert await session.compact() is not None
        run = await session.send("And now?")
        events = list(await session.read_events())
    assert run.stop_reason == "completed"
    assert model.refused == 0
    assert [item.content for item in run.messages if item.role is Role.USER][place] == LONG
    seen = [
        item.content for request in model.requests for item in request.messages if "line 0:" in item.content
    ]
    assert seen
    assert all("line 799" in text and "read_message(" in text and len(text) < 9_000 for text in seen)
    asked = [request for request in model.requests if not is_summary_request(request)]
    for step, request in enumerate(asked, 1):
        assert [item.message for item in view_step(events, step).messages] == list(request.messages)
    assert (await agent.replay("s")).is_exact


@pytest.mark.parametrize("believed", [100, 300, 600])
@pytest.mark.parametrize("place", [0, 3])
async def test_a_session_goes_on_if_the_window_is_believed_too_small_for_the_tools(believed, place):
    """What the server refuses is cut, although no plan fits into the window that the policy names."""
    model = Counting(talk, window=WINDOW)
    agent = agent_of(model, context_tokens=believed)
    async with agent.session("s") as session:
        for turn in range(6):
            run = await session.send(LONG if turn == place else f"Question {turn}")
            assert run.stop_reason == "completed", run.error
        await session.compact()
        run = await session.send("And now?")
    assert run.stop_reason == "completed"
    assert (await agent.replay("s")).is_exact


async def test_what_is_cut_only_if_the_server_refuses_is_not_called_uncuttable():
    agent = agent_of(Counting(talk, window=WINDOW), context_tokens=300)
    async with agent.session("s") as session:
        run = await session.send(LONG)
        first, second = compactions(await session.read_events())
    assert run.stop_reason == "completed"
    assert first.is_empty
    assert first.error == "by the estimate it would stay too long whatever is cut, so the server decides"
    assert (second.reason, list(second.excerpts)) == ("overflow", [0])


@pytest.mark.parametrize("chars", [2_000, 8_000])
async def test_a_long_message_is_sent_whole_if_the_window_is_larger_than_believed(chars):
    model = Counting(talk, window=100_000)
    run = await agent_of(model, context_tokens=600).run(LONG[:chars])
    assert run.stop_reason == "completed"
    assert model.requests[-1].messages[-1].content == LONG[:chars]


PICTURE = b"\x89PNG\r\n\x1a\n" + b"0" * 5_000


def attach(tmp_path, *names):
    for name in names:
        (tmp_path / name).write_bytes(PICTURE if name.endswith("png") else LONG.encode())
    return [tmp_path / name for name in names]


@pytest.mark.parametrize("believed", [300, WINDOW, 100 * WINDOW])
@pytest.mark.parametrize(
    "names", [["a.png", "b.png", "c.png", "d.png"], ["a.txt"], ["a.png", "b.txt", "c.png"]]
)
@pytest.mark.parametrize("place", [0, 2])
async def test_a_session_goes_on_after_files_larger_than_the_window(place, names, believed, tmp_path):
    model = Counting(talk, window=WINDOW)
    agent = agent_of(model, context_tokens=believed)
    async with agent.session("s") as session:
        for turn in range(4):
            files = attach(tmp_path, *names) if turn == place else []
            run = await session.send(f"Question {turn}", attach=files)
            assert run.stop_reason == "completed", run.error
        await session.compact()
        run = await session.send("And now?")
        events = list(await session.read_events())
    assert run.stop_reason == "completed"
    said = [item for item in run.messages if item.role is Role.USER]
    assert [part.name for part in said[place].parts] == names
    seen = [item for request in model.requests for item in request.messages if "left out: " in item.content]
    assert any(names[-1] in item.content for item in seen)
    assert all(item.content.startswith(f"Question {place}") for item in seen)
    asked = [request for request in model.requests if not is_summary_request(request)]
    for step, request in enumerate(asked, 1):
        assert [item.message for item in view_step(events, step).messages] == list(request.messages)
    assert (await agent.replay("s")).is_exact


async def test_the_files_of_earlier_turns_go_first(tmp_path):
    model = Counting(talk, window=WINDOW)
    async with agent_of(model).session() as session:
        for name in ("a.png", "b.png", "c.png"):
            run = await session.send(name, attach=attach(tmp_path, name))
            assert run.stop_reason == "completed", run.error
            assert [part.name for part in model.requests[-1].messages[-1].parts] == [name]


async def test_a_text_file_that_was_left_out_is_read(tmp_path):
    def read(request):
        last = request.messages[-1]
        if last.role is Role.USER and "read_message(" in last.content:
            told = last.content.split("read_message(")[1].split(")")[0].replace("start=", "")
            number, start = json.loads(f"[{told}]")
            return [call("read_message", {"number": number, "start": start, "end": start + 90})]
        return "fine" if last.role is Role.USER else last.content

    async with agent_of(Counting(read, window=WINDOW)).session() as session:
        await session.send("Hello")
        run = await session.send("Look", attach=attach(tmp_path, "a.txt"))
    assert run.output.partition("\n")[2].strip() == LONG[:88].strip()


async def test_the_rest_of_a_long_message_is_read():
    def read(request):
        last = request.messages[-1]
        if last.role is Role.USER and "read_message(" in last.content:
            told = last.content.split("read_message(")[1].split(")")[0].replace("start=", "")
            number, start = json.loads(f"[{told}]")
            return [call("read_message", {"number": number, "start": start, "end": start + 90})]
        return "fine" if last.role is Role.USER else last.content

    agent = agent_of(Counting(read, window=WINDOW))
    async with agent.session() as session:
        await session.send("Hello")
        run = await session.send(LONG)
        other = await session.send("Thanks")
    head, _, part = run.output.partition("\n")
    start = int(head.split()[1].replace(",", ""))
    assert part == LONG[start : start + 90]
    assert other.stop_reason == "completed"


@pytest.mark.parametrize("number", [1, 3, 99])
async def test_only_messages_of_the_user_are_read(number):
    script = iter([[call("read_message", {"number": number})], "done"])
    agent = agent_of(Counting(lambda _: next(script)))
    run = await agent.run("Hello")
    result = next(item for item in run.messages if item.role is Role.TOOL)
    assert (result.content == "Hello") if number == 1 else "is not from the user" in result.content


async def test_nothing_else_goes_for_one_long_message():
    model = Counting(talk, window=WINDOW)
    async with agent_of(model).session() as session:
        await session.send("Hello")
        run = await session.send(LONG)
    assert [item.content for item in model.requests[-1].messages][:2] == ["Hello", "Answer 1"]
    assert not any(is_summary_request(request) for request in model.requests)
    assert len(compactions(run.events)) == 1


async def test_recalled_memories_and_an_excerpt_keep_their_places():
    """The number in the line still names the message after the conversation was compacted."""
    model = Counting(talk, window=WINDOW)
    agent = agent_of(model)
    async with agent.session("s") as session:
        for turn in range(8):
            await session.send(f"Question {turn}")
        run = await session.send(LONG)
        for turn in range(30):
            await session.send(f"More {turn} {TEXT * 3}")
        text = next(item.content for item in model.requests[-30].messages if "read_message(" in item.content)
    number = int(text.split("read_message(")[1].split(",")[0])
    assert run.messages[number - 1].content == LONG


async def test_a_prompt_that_only_the_estimate_says_is_too_long_is_sent():
    """A window that is nearly filled by the tools: the server counts less than the estimate."""
    model = Counting(talk, rate=0.4)
    run = await agent_of(model, context_tokens=700).run("Hello")
    assert run.stop_reason == "completed", run.error
    found = compactions(run.events)
    assert all(body.is_empty and body.tokens_after == body.tokens_before for body in found)
    assert [item.content for item in model.requests[0].messages] == ["Hello"]


async def test_a_turn_that_did_not_fit_is_tried_again_with_a_larger_window():
    """Rules out that the message which did not fit ends the session for good."""
    model = Counting(talk, window=60)
    agent = agent_of(model, context_tokens=100)
    async with agent.session("s") as session:
        run = await session.send("Hello " * 100)
        assert (run.stop_reason, run.fault) == ("context_overflow", "user")
    model.window = 10 * WINDOW
    again = Agent(model, tools=[look_up], policy=Policy(context_tokens=10 * WINDOW), journal=agent.journal)
    async with again.session("s") as session:
        run = await session.finish_turn()
        assert (run.stop_reason, run.output) == ("completed", "Answer 1")
        assert (await session.send("Thanks")).stop_reason == "completed"
    assert (await again.replay("s")).is_exact


async def test_a_fork_and_another_turn_work_after_a_turn_that_did_not_fit():
    model = Counting(talk, window=60)
    agent = agent_of(model, context_tokens=100)
    async with agent.session("s") as session:
        await session.send("Hello " * 100)
        model.window = None
        assert (await session.retry_turn()).stop_reason == "completed"
        assert (await session.send("Never mind")).stop_reason == "completed"
        await session.compact()
    run = await agent.fork("s", text="Again")
    assert run.stop_reason == "completed"


def read_on(request):
    """Read what the line in the newest message of the user says, and answer with what was read."""
    last = request.messages[-1]
    if last.role is Role.TOOL:
        return last.content.partition("\n")[2]
    if "read_message(" not in last.content:
        return "fine"
    told = last.content.split("read_message(")[1].split(")")[0].replace("start=", "")
    number, start = json.loads(f"[{told}]")
    return [call("read_message", {"number": number, "start": start + 5_000, "end": start + 5_090})]


def names(request):
    return [tool.name for tool in request.tools]


async def test_a_session_without_tools_reads_the_rest_of_a_long_message():
    model = Counting(read_on, window=WINDOW)
    agent = Agent(model, policy=Policy(context_tokens=WINDOW), journal=MemoryJournal())
    async with agent.session("s") as session:
        await session.send("Hello")
        run = await session.send(LONG)
        assert len(run.output) == 90
        assert run.output in LONG
        assert (await session.send("Thanks")).output == "fine"
        events = list(await session.read_events())
    assert names(model.requests[0]) == []
    assert all(names(request) == ["read_message"] for request in model.requests[1:])
    for step, request in enumerate(model.requests, 1):
        assert [item.message for item in view_step(events, step).messages] == list(request.messages)
    assert (await agent.replay("s")).is_exact
    assert [tool.name for tool in load_row(agent.journal, "s").tools] == ["read_message"]
    async with agent.session("s") as session:
        assert (await session.send(LONG)).output in LONG


async def test_a_session_without_tools_goes_on_to_read_after_a_fork():
    model = Counting(read_on, window=WINDOW)
    agent = Agent(model, policy=Policy(context_tokens=WINDOW), journal=MemoryJournal())
    async with agent.session("s") as session:
        await session.send(LONG)
        await session.send("Thanks")
    run = await agent.fork("s", text="Again")
    assert run.output == "fine"
    assert names(model.requests[-1]) == ["read_message"]
    assert (await agent.replay(run.run_id)).is_exact


async def test_tools_are_not_promised_to_a_model_that_cannot_call_them():
    model = Counting(talk, window=WINDOW)
    model.can_call_tools = False
    agent = Agent(model, policy=Policy(context_tokens=WINDOW), journal=MemoryJournal())
    async with agent.session() as session:
        run = await session.send(LONG)
        assert run.stop_reason == "completed", run.error
    (text,) = [item.content for item in model.requests[-1].messages]
    assert names(model.requests[-1]) == []
    assert "read_message" not in text
    assert "characters left out; they cannot be read here, but the user can send a part of them" in text


async def test_a_conversation_that_is_only_summarised_gets_no_tools():
    model = Counting(talk, window=WINDOW)
    agent = Agent(model, policy=Policy(context_tokens=WINDOW), journal=MemoryJournal())
    async with agent.session() as session:
        for turn in range(40):
            run = await session.send(f"Question {turn} {TEXT * 12}")
    assert compactions(run.events)
    assert not any(map(names, model.requests))


async def test_tools_to_read_again_are_offered_once_an_unknown_window_was_exceeded():
    model = Counting(read_on, window=WINDOW)
    agent = Agent(model, tools=[look_up], journal=MemoryJournal())
    async with agent.session() as session:
        run = await session.send(LONG)
    assert run.output in LONG
    assert [tool.name for tool in run.events[0].body.tools] == ["look_up"]
    assert len(compactions(run.events)) > 1
    assert set(names(model.requests[-1])) == {"look_up", "read_result", "read_message"}


@tool(effect="idempotent")
async def save(text: str) -> str:
    """Save a text."""
    return f"saved {len(text)} characters"


@pytest.mark.parametrize("is_json", [True, False])
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("place", [0, 2])
async def test_a_session_goes_on_after_arguments_larger_than_the_window(place, is_known, is_json):
    """A model cannot write so much, but another one may take its session over. The turn ends; the next one sees a
    summary, and what the call did can still be read."""
    asked = []

    def answer(request):
        if is_summary_request(request):
            return "They talked."
        last = request.messages[-1]
        if last.content == "Save it." and not asked:
            asked.append(last)
            return [call("save", json.dumps({"text": LONG}) if is_json else LONG, call_id="c1")]
        if last.content == "What was the result?":
            return [call("read_result", {"call_id": "c1"})]
        return f"Answer {len(request.messages)}"

    policy = Policy(context_tokens=WINDOW if is_known else None)
    agent = Agent(Counting(answer, window=WINDOW), tools=[save], policy=policy, journal=MemoryJournal())
    async with agent.session("s") as session:
        for number in range(place):
            await session.send(f"Question {number}")
        failed = await session.send("Save it.")
        assert (failed.stop_reason, failed.fault) == ("context_overflow", "model")
        sizes = [int(item.replace(",", "")) for item in re.findall(r"about ([0-9,]+)", failed.error or "")]
        assert sizes[0] >= max(sizes[1:])
        for text in ("And now?", "What was the result?"):
            run = await session.send(text)
            assert run.stop_reason == "completed", run.error
        assert run.results[-1].content.startswith("saved" if is_json else "The arguments are not valid JSON")
        await session.compact()
    async with agent.session("s") as session:
        assert (await session.send("Go on.")).stop_reason == "completed"
    assert (await agent.fork("s", text="Go on.")).stop_reason == "completed"
    assert (await agent.replay("s")).is_exact
