"""Compaction in runs and sessions: when it happens, what it costs, and that it survives its own failure."""

import asyncio
from contextlib import suppress
from itertools import pairwise

import pytest
from msgspec.structs import replace
from tests.context.contexts import TEXT, Counting, answer, is_summary_request, look_up

from treadle import Agent, Policy, ScriptedModel, tool
from treadle.context.compaction_summary import is_summary, read_summary
from treadle.context.step_view import view_step
from treadle.core import events as e
from treadle.core.errors import ConfigError, ContextOverflowError, ServerError
from treadle.core.prompts.transcript import check_transcript
from treadle.core.replay import replay
from treadle.core.state import fold
from treadle.core.types import Role, Usage
from treadle.journal.memory import MemoryJournal
from treadle.models import call

WINDOW = 4000
TURNS = 14


def agent_of(model, **policy):
    given = {"context_tokens": WINDOW, **policy}
    return Agent(
        model, instructions="Be brief.", tools=[look_up], policy=Policy(**given), journal=MemoryJournal()
    )


async def live(agent, turns=TURNS, text="What about rivers, number {}?"):
    """Have a session, and return its runs and events."""
    async with agent.session() as session:
        runs = [await session.send(text.format(turn)) for turn in range(turns)]
        return runs, list(await session.read_events())


def compactions(events):
    return [event.body for event in events if isinstance(event.body, e.ContextCompacted)]


async def test_a_session_longer_than_the_window_goes_on():
    model = Counting(window=WINDOW)
    agent = agent_of(model)
    runs, events = await live(agent, 40)
    assert {run.stop_reason for run in runs} == {"completed"}
    assert model.refused == 0
    found = compactions(events)
    assert 2 <= len(found) <= 20
    assert all(body.tokens_after < body.tokens_before for body in found)
    assert any(body.model == "scripted" for body in found)
    assert not check_transcript(runs[-1].messages)
    assert not check_transcript(list(runs[-1].state.messages))
    assert (await agent.replay(runs[-1].run_id)).is_exact


async def test_a_replay_misses_a_compaction_that_is_not_recorded():
    _, events = await live(agent_of(Counting(window=WINDOW)))
    at = next(index for index, event in enumerate(events) if isinstance(event.body, e.ContextCompacted))
    found = replay([*events[:at], *events[at + 1 :]], lambda *_: None).divergence
    assert "Compact" in str(found)
    assert found.seq == at + 1, "the very next event was taken for the compaction"
    other = replace(events[at], body=e.RunPaused(reason="x"))
    assert replay([*events[:at], other], lambda *_: None).divergence is None, "a pause may come at any time"
    at = next(index for index, event in enumerate(events) if isinstance(event.body, e.InferenceStarted))
    unasked = [*events[:at], replace(events[at], body=compactions(events)[0]), *events[at:]]
    assert replay(unasked, lambda *_: None).divergence is not None


async def test_the_transcript_stays_whole():
    """`Run.messages` says what happened, and not what the model still sees."""
    runs, events = await live(agent_of(Counting(window=WINDOW)))
    said = [message for message in runs[-1].messages if message.role is Role.USER]
    assert [message.content for message in said] == [
        f"What about rivers, number {turn}?" for turn in range(TURNS)
    ]
    assert all(TEXT in message.content for message in runs[-1].messages if message.role is Role.TOOL)
    assert len(runs[-1].state.messages) < len(runs[-1].messages)
    assert fold([event.body for event in events]).transcript == runs[-1].state.transcript


async def test_what_each_step_saw_can_be_read():
    model = Counting(window=WINDOW)
    _, events = await live(agent_of(model))
    asked = [request for request in model.requests if not is_summary_request(request)]
    for step, request in enumerate(asked, 1):
        assert [item.message for item in view_step(events, step).messages] == list(request.messages)
    view = view_step(events, len(asked))
    assert {item.why for item in view.left_out} == {"summarised"}
    assert view.messages[2].is_summary
    numbers = [item.number for item in view.messages if item.number] + [item.number for item in view.left_out]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    with pytest.raises(ConfigError, match=f"its steps are 1 to {len(asked)}"):
        view_step(events, 1000)


async def test_messages_are_counted_as_the_model_saw_them():
    model = Counting(window=WINDOW)
    _, events = await live(agent_of(model))
    started = [event.body for event in events if isinstance(event.body, e.InferenceStarted)]
    asked = [request for request in model.requests if not is_summary_request(request)]
    assert [body.messages for body in started] == [len(request.messages) for request in asked]


async def test_a_window_that_the_model_tells_is_used_and_recorded():
    """persona.md 1.7: the budget was always 4,096 tokens, since no model had the attribute that was read."""
    model = Counting(window=50_000)
    model.context_tokens = 50_000
    runs, events = await live(agent_of(model, context_tokens=None))
    started = events[0].body
    assert (started.window.tokens, started.window.source) == (50_000, "said")
    assert not compactions(events)
    assert runs[-1].stop_reason == "completed"


async def test_without_a_window_nothing_is_compacted_before_the_server_refuses():
    model = Counting(window=WINDOW)
    runs, events = await live(agent_of(model, context_tokens=None))
    assert {run.stop_reason for run in runs} == {"completed"}
    assert compactions(events)[0].reason == "overflow"
    # What the server refused once counts as the window from then on.
    assert model.refused == 1
    assert {body.reason for body in compactions(events)[1:]} == {"budget"}


async def test_a_refused_prompt_is_compacted_a_few_times_in_a_turn():
    def refuse(request):
        if is_summary_request(request):
            return "They talked."
        raise ContextOverflowError("too long, says the server")

    model = ScriptedModel(refuse)
    run = await agent_of(model, context_tokens=None).run("hello")
    assert run.stop_reason == "context_overflow"
    assert len(model.requests) == 1
    assert run.fault == "user"
    assert run.error.endswith("The server said: too long, says the server")

    calls = [[call("look_up", {"topic": "a"})]] * 3
    script = iter(calls)
    refused = []

    def later(request):
        if is_summary_request(request):
            return "They talked."
        found = next(script, None)
        if found is None:
            refused.append(request)
            raise ContextOverflowError("too long, says the server")
        return found

    model = Counting(later)
    run = await agent_of(model, context_tokens=None).run("hello")
    assert run.stop_reason == "context_overflow"
    sizes = [sum(len(message.content) for message in request.messages) for request in refused]
    assert sizes == sorted(sizes, reverse=True)
    assert 2 <= len(sizes) == len(set(sizes)) <= 4
    assert run.fault == "model"


@pytest.mark.parametrize("fault", [ServerError("down"), "", "x" * 100_000, ValueError("a bug")])
async def test_a_failed_summary_is_survived(fault):
    """persona.md 1.7: a failed summary killed the run."""

    def fail(request):
        return fault if is_summary_request(request) else answer(request)

    model = Counting(fail, window=WINDOW)
    runs, events = await live(agent_of(model), 30)
    assert {run.stop_reason for run in runs} == {"completed"}
    assert model.refused == 0
    failed = [body for body in compactions(events) if body.error]
    assert failed
    assert all(body.dropped for body in failed) or isinstance(fault, str)
    assert not check_transcript(list(runs[-1].state.messages))


async def test_a_summary_does_not_grow():
    """persona.md 2.2: summaries were appended to each other, and never condensed."""
    seen = []

    def talk(request):
        if is_summary_request(request):
            seen.append(request.messages[-1].content.count("<summary-"))
            return "A long account of rivers. " * 30
        return answer(request)

    model = Counting(talk, window=WINDOW)
    runs, events = await live(agent_of(model), 60)
    sizes = [len(body.replacement[2].content) for body in compactions(events) if body.messages]
    assert len(sizes) > 4
    assert max(sizes) <= 1.3 * sizes[0]
    assert seen == [0] + [1] * (len(seen) - 1)
    assert sum(is_summary(message) for message in runs[-1].state.messages) == 1


async def test_compactions_are_rare():
    """persona.md 1.7 and 2.2: beyond the limit, a summary was made at every step or turn."""
    model = Counting(window=WINDOW)
    _, events = await live(agent_of(model), 40)
    steps = [event.seq for event in events if isinstance(event.body, e.InferenceStarted)]
    at = [event.seq for event in events if isinstance(event.body, e.ContextCompacted)]
    between = [sum(first < seq < second for seq in steps) for first, second in pairwise(at)]
    assert min(between) >= 3


async def test_what_a_summary_costs_counts():
    """persona.md 1.7: the tokens of summaries were counted nowhere."""
    model = Counting(window=WINDOW)
    runs, events = await live(agent_of(model))
    summaries = [body.usage for body in compactions(events) if body.usage is not None]
    answers = [
        event.body.completion.usage for event in events if isinstance(event.body, e.InferenceCompleted)
    ]
    assert summaries
    assert runs[-1].usage == sum([*answers, *summaries], Usage())


@pytest.mark.parametrize("policy", [{"max_tokens": 3400}, {"max_cost_usd": 0.7}])
async def test_budgets_may_leave_no_room_for_a_summary(policy):
    """Old messages are dropped if a summary would exceed a budget."""

    class Priced(Counting):
        has_price = True

        def estimate_cost_usd(self, usage):
            return 0.8

        async def infer(self, request, watch):
            done = await super().infer(request, watch)
            return replace(done, cost_usd=0.1)

    model = Priced(window=WINDOW)
    runs, events = await live(agent_of(model, **policy), 30)
    assert not any(is_summary_request(request) for request in model.requests)
    dropped = [body for body in compactions(events) if body.messages]
    assert dropped
    assert all(body.error and "leaves no room" in body.error for body in dropped)
    assert {run.stop_reason for run in runs} <= {"completed", "max_tokens"}


async def test_another_model_writes_the_summaries(tmp_path, monkeypatch):
    (tmp_path / "treadle.toml").write_text('[models.short]\nmodel = "mock:none"\n')
    monkeypatch.chdir(tmp_path)
    model = Counting(window=WINDOW)
    _, events = await live(agent_of(model, summary_model="short"))
    # There is no provider `mock` here, so the model cannot be made, which the event says.
    errors = [body.error for body in compactions(events) if body.messages]
    assert errors
    assert all("mock" in error for error in errors)


async def test_a_prompt_that_cannot_fit_is_left_to_the_server():
    """Rules out that an estimate alone ends a turn, and an error that does not say what is too large."""
    model = Counting(window=WINDOW)
    agent = Agent(
        model,
        instructions=TEXT * 200,
        tools=[look_up],
        policy=Policy(context_tokens=WINDOW),
        journal=MemoryJournal(),
    )
    run = await agent.run("hello")
    assert run.stop_reason == "context_overflow"
    assert (run.fault, model.refused) == ("user", 1)
    assert "the system message about" in run.error
    assert run.error.index("the system message") < run.error.index("the user's message")


async def test_results_that_fill_the_window_are_cut():
    """persona.md 1.7: results in the kept part were never cut, so a compacted context was still too long."""

    @tool(effect="pure")
    async def read_all() -> str:
        """Read everything."""
        return TEXT * 400

    def read(request):
        if request.messages[-1].role is Role.TOOL:
            return "Read."
        return [call("read_all")]

    model = Counting(read, window=WINDOW)
    agent = Agent(model, tools=[read_all], policy=Policy(context_tokens=WINDOW), journal=MemoryJournal())
    run = await agent.run("Read it.")
    assert (run.stop_reason, run.output) == ("completed", "Read.")
    assert model.refused == 0
    assert "read_result(" in model.requests[-1].messages[-1].content
    assert run.messages[-2].content == TEXT * 400


async def test_cut_results_are_read_again():
    @tool(effect="pure")
    async def read_all() -> str:
        """Read everything."""
        return "".join(f"line {number}\n" for number in range(4000))

    def read(request):
        last = request.messages[-1]
        if last.role is Role.TOOL and last.name == "read_all":
            call_id = last.content.split('"')[1]
            return [call("read_result", {"call_id": call_id, "start": 20_000, "end": 20_030})]
        if last.role is Role.TOOL:
            return f"It says {last.content.splitlines()[1]}"
        return [call("read_all")]

    model = Counting(read, window=WINDOW)
    agent = Agent(model, tools=[read_all], policy=Policy(context_tokens=WINDOW), journal=MemoryJournal())
    run = await agent.run("Read it.")
    whole = "".join(f"line {number}\n" for number in range(4000))
    assert run.output == f"It says {whole[20_000:20_030].splitlines()[0]}"


async def test_tools_are_offered_from_the_start_only_if_contexts_are_compacted():
    async def offered(**options):
        model = Counting(["done"])
        agent = Agent(model, journal=MemoryJournal(), **options)
        run = await agent.run("hello")
        return [spec.name for spec in run.state.tools]

    window = Policy(context_tokens=WINDOW)
    assert await offered(tools=[look_up], policy=window) == ["read_result", "read_message", "look_up"]
    assert await offered(tools=[look_up]) == ["look_up"]
    assert await offered(policy=window) == []
    never = Policy(context_tokens=WINDOW, compact_at=None)
    assert await offered(tools=[look_up], policy=never) == ["look_up"]


async def test_a_policy_may_forbid_compacting():
    model = Counting(window=WINDOW)
    runs, events = await live(agent_of(model, compact_at=None), 16)
    assert not compactions(events)
    assert runs[-1].stop_reason == "context_overflow"


@pytest.mark.parametrize("tells_usage", [True, False])
@pytest.mark.parametrize("window", [None, 100 * WINDOW])
async def test_a_threshold_counts_whatever_the_window_is(window: int | None, tells_usage: bool) -> None:
    model = Counting(window=100 * WINDOW, tells_usage=tells_usage)
    runs, events = await live(agent_of(model, context_tokens=window, compact_threshold=WINDOW), 30)
    assert {run.stop_reason for run in runs} == {"completed"}
    found = compactions(events)
    assert 2 <= len(found) <= 20
    assert all([body.tokens_after < WINDOW < body.tokens_before for body in found])


@pytest.mark.parametrize("window", [None, 100 * WINDOW])
async def test_instructions_above_the_threshold_do_not_compact_the_context_at_each_step(
    window: int | None,
) -> None:
    agent = Agent(
        Counting(window=100 * WINDOW),
        instructions="Be brief. " * WINDOW,
        tools=[look_up],
        policy=Policy(context_tokens=window, compact_threshold=1000),
        journal=MemoryJournal(),
    )
    runs, events = await live(agent, 30)
    assert {run.stop_reason for run in runs} == {"completed"}
    assert 1 <= len(compactions(events)) <= 4
    assert (await agent.replay(runs[-1].run_id)).is_exact


async def test_tools_count_for_a_threshold_without_a_window() -> None:
    model = Counting(window=100 * WINDOW)
    _, events = await live(agent_of(model, context_tokens=None, compact_threshold=WINDOW), 1)
    assert fold([event.body for event in events]).size.tools_tokens > 0


async def test_a_threshold_above_the_share_of_the_window_changes_nothing() -> None:
    plain = compactions((await live(agent_of(Counting(window=WINDOW)), 30))[1])
    named = compactions((await live(agent_of(Counting(window=WINDOW), compact_threshold=WINDOW), 30))[1])
    assert [body.tokens_before for body in named] == [body.tokens_before for body in plain] != []


async def test_servers_that_count_nothing():
    """Without the server's counts, the whole context is estimated, never too low."""
    model = Counting(window=WINDOW, tells_usage=False)
    runs, events = await live(agent_of(model), 30)
    assert {run.stop_reason for run in runs} == {"completed"}
    assert model.refused == 0
    assert compactions(events)


async def test_a_window_that_becomes_known_later_counts_all_that_was_said_before():
    """Rules out a session that is continued with `context_tokens` and sends a prompt over it, because its server
    counted the first inference alone."""
    model = Counting(window=10 * WINDOW)
    agent = agent_of(model, context_tokens=None)
    async with agent.session("s") as session:
        await session.send("What about rivers?")
        model.tells_usage = False
        for turn in range(TURNS):
            await session.send(f"What about rivers, number {turn}?")
    model.window = WINDOW
    again = Agent(
        model,
        instructions="Be brief.",
        tools=[look_up],
        policy=Policy(context_tokens=WINDOW),
        journal=agent.journal,
    )
    async with again.session("s") as session:
        run = await session.send("And now?")
        events = await session.read_events()
    assert run.stop_reason == "completed"
    assert model.refused == 0
    assert compactions(events)


async def test_estimates_learn_from_what_the_server_counts():
    """A tokenizer that needs twice the tokens is not a surprise twice."""
    model = Counting(window=WINDOW, rate=1.8)
    runs, _ = await live(agent_of(model), 20)
    assert {run.stop_reason for run in runs} == {"completed"}
    assert model.refused == 0
    assert runs[-1].state.size.rate > 1.5


async def test_a_model_with_a_tokenizer_is_asked_before_a_prompt_is_sent():
    @tool(effect="pure")
    async def look_up(topic: str) -> str:
        """Look a topic up."""
        return TEXT * 4

    class Exact(Counting):
        def count_tokens(self, request):
            return sum(len(message.content) for message in request.messages)

    model = Exact(tells_usage=False)
    agent = Agent(model, tools=[look_up], policy=Policy(context_tokens=WINDOW), journal=MemoryJournal())
    runs, events = await live(agent, 20)
    assert {run.stop_reason for run in runs} == {"completed"}
    assert "overflow" in {body.reason for body in compactions(events)}
    room = events[0].body.window.tokens - events[0].body.window.output_tokens
    asked = [request for request in model.requests if not is_summary_request(request)]
    assert all(model.count_tokens(request) <= room for request in asked)


async def test_a_cancelled_compaction_leaves_a_session_that_goes_on():
    waits = asyncio.Event()

    class Slow(Counting):
        async def infer(self, request, watch):
            if is_summary_request(request) and not waits.is_set():
                waits.set()
                await asyncio.sleep(60)
            return await super().infer(request, watch)

    model = Slow(window=WINDOW)
    agent = agent_of(model)
    async with agent.session() as session:
        turn = 0
        while not waits.is_set():
            sending = asyncio.ensure_future(session.send(f"What about rivers, number {turn}?"))
            stopped = asyncio.ensure_future(waits.wait())
            await asyncio.wait([sending, stopped], return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            turn += 1
        sending.cancel()
        with suppress(asyncio.CancelledError):
            await sending
        before = compactions(await session.read_events())
        run = await session.send("And now?")
        assert run.stop_reason == "completed"
        assert len(compactions(await session.read_events())) > len(before)
    assert (await agent.replay(run.run_id)).is_exact


async def test_the_deadline_stops_a_summary():
    class Slow(Counting):
        async def infer(self, request, watch):
            if is_summary_request(request):
                await asyncio.sleep(60)
            return await super().infer(request, watch)

    model = Slow(window=WINDOW)
    agent = agent_of(model, deadline_seconds=0.3)
    runs, _ = await live(agent, 3 * TURNS // 2)
    assert "deadline" in {run.stop_reason for run in runs}
    assert (await agent.replay(runs[-1].run_id)).is_exact


async def test_a_session_is_compacted_when_somebody_asks():
    model = Counting()
    agent = agent_of(model, context_tokens=100_000)
    async with agent.session() as session:
        assert await session.compact() is None
        for turn in range(6):
            await session.send(f"What about rivers, number {turn}?")
        done = await session.compact()
        assert done is not None
        assert (done.reason, done.error) == ("asked", None)
        assert done.tokens_after < done.tokens_before
        assert read_summary(done.replacement[2]).text.startswith("They talked about rivers")
        run = await session.send("And now?")
        assert run.stop_reason == "completed"
        assert len([item for item in run.state.messages if item.role is Role.USER]) == 5
        assert (await agent.replay(run.run_id)).is_exact


@pytest.mark.parametrize("fault", ["empty", "error"])
async def test_what_somebody_asks_for_drops_nothing_without_a_summary(fault):
    """The event says why, and what the attempt took; the next one may succeed."""
    fails = True

    def reply(request):
        if not is_summary_request(request) or not fails:
            return answer(request)
        return "" if fault == "empty" else ServerError("no summaries today", status=500)

    agent = agent_of(Counting(reply), context_tokens=100_000)
    async with agent.session() as session:
        for turn in range(6):
            run = await session.send(f"What about rivers, number {turn}?")
        before = list(run.state.messages)
        done = await session.compact()
        assert done is not None
        assert done.is_empty
        assert done.error is not None
        assert "nothing was compacted, because " in done.error
        assert (done.model, done.usage is None) == ("scripted", fault == "error")
        assert list(session.run.state.messages) == before
        fails = False
        done = await session.compact()
        assert done is not None
        assert not done.is_empty
        run = await session.send("And now?")
    assert run.stop_reason == "completed"
    assert (await agent.replay(run.run_id)).is_exact


@pytest.mark.parametrize("window", [None, 100_000])
async def test_no_compaction_makes_the_prompt_longer(window):
    """Little was said before the newest turns, or the summary is longer than that."""

    def reply(request):
        return "They talked. " * 1000 if is_summary_request(request) else "Fine. " * 40

    model = Counting(reply)
    agent = agent_of(model, context_tokens=window, keep_turns=1)
    async with agent.session() as session:
        for text in ("a", "b " * 5000):
            await session.send(text)
        assert await session.compact() is None
        assert not any(is_summary_request(request) for request in model.requests)
        for text in ("c", "d", "e"):
            before = (await session.send(text)).state.messages
        done = await session.compact()
        assert done is not None
        assert done.tokens_after <= done.tokens_before
        assert done.is_empty == (session.run.state.messages == before)
        # Nothing is cut of the messages that stay: the window has room for them.
        assert not done.excerpts
        run = await session.send("f")
    assert (await agent.replay(run.run_id)).is_exact


async def test_a_fork_before_a_compaction_sees_the_old_messages():
    model = Counting(window=WINDOW)
    agent = agent_of(model)
    runs, events = await live(agent)
    ended = [event.seq for event in events if isinstance(event.body, e.TurnCompleted)]
    first = next(event.seq for event in events if isinstance(event.body, e.ContextCompacted))
    before = max(seq for seq in ended if seq < first)
    fork = await agent.fork(runs[-1].run_id, before, text="Another question")
    assert fork.stop_reason == "completed"
    later = await agent.fork(runs[-1].run_id, max(ended), text="Another question")
    assert len(later.messages) == len(runs[-1].messages) + 4
    assert not check_transcript(later.messages)


async def test_a_resumed_run_has_no_call_id_twice():
    """Ids that only compacted messages have are still used."""
    ids = iter(["a"] * 100)

    def repeat(request):
        if is_summary_request(request):
            return "They talked."
        if request.messages[-1].role is Role.TOOL:
            return "Done."
        return [call("look_up", {"topic": "rivers"}, call_id=next(ids))]

    agent = agent_of(Counting(repeat, window=WINDOW))
    async with agent.session() as session:
        for turn in range(10):
            await session.send(f"number {turn}")
        run_id = session.run_id
    async with agent.session(run_id) as session:
        run = await session.send("And now?")
    assert run.state.shown.compactions
    assert not check_transcript(run.messages)


async def test_no_summary_of_nothing_is_asked_for():
    """By the counts of the server, the request has no room for any of the old messages."""
    model = Counting(rate=0.01)
    agent = agent_of(model, context_tokens=None)
    async with agent.session() as session:
        for turn in range(6):
            await session.send(f"What about rivers, number {turn}?")
        done = await session.compact()
    assert done is not None
    assert (
        done.error
        == "nothing was compacted, because none of the old messages fits into the request for a summary"
    )
    assert not any(is_summary_request(request) for request in model.requests)
