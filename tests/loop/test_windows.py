"""What can be larger than the window, times what can be done then. The servers refuse it in their own words."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from tests.context.contexts import SUMMARY, TEXT
from tests.knowledge.skills.test_catalog import write
from tests.knowledge.skills.test_use_skill import trust_all
from tests.loop.window_server import KINDS, Prompt, Said, WindowServer, model_of
from tests.models.server import serve

from treadle import Agent, Policy, Session, tool
from treadle.core import events as e
from treadle.journal.memory import MemoryJournal
from treadle.knowledge.memory import Draft, Store, open_memory

WINDOW = 4_000
LONG = "".join(f"line {number}: {TEXT}\n" for number in range(700))
WRITTEN = LONG[:8_000]
"""As much as a model with this window can write."""
ANSWERS = {
    "result": Said(calls=[("look_up", {"topic": "long"})]),
    "results": Said(calls=[("look_up", {"topic": "long"})] * 6),
    "skill": Said(calls=[("use_skill", {"name": "rivers"})]),
    "arguments": Said(calls=[("save", {"text": WRITTEN})]),
    "answer": Said(WRITTEN),
    "reasoning": Said("I see.", reasoning=WRITTEN),
    "reasoning with a call": Said(calls=[("look_up", {"topic": "short"})], reasoning=WRITTEN),
}
"""What the model answers once, by what is too large."""
OTHERS = (
    "message",
    "messages",
    "queued messages",
    "document",
    "memories",
    "summary",
    "instructions",
    "tools",
)
UNFIT = ("instructions", "tools")
"""What cannot be cut."""
READ = ("message", "messages", "queued messages", "document", "result", "results")
"""What is read again with `read_message` and `read_result`."""
ACTIONS = ("go on", "compact", "retry", "fork", "read", "a smaller window")
PAIRS = list(itertools.product((*ANSWERS, *OTHERS), ACTIONS, (True, False)))


@tool(effect="pure")
async def look_up(topic: str) -> str:
    """Look a topic up."""
    return LONG if topic == "long" else TEXT


@tool(effect="idempotent")
async def save(text: str) -> str:
    """Save a text."""
    return "saved"


def make_tools() -> list[Any]:
    async def work(topic: str) -> str:
        return topic

    work.__doc__ = f"Do the work. {TEXT * 5}"
    return [tool(effect="pure", name=f"work_{number}")(work) for number in range(60)]


class Talk:
    """The model: it answers once with what is too large, and can read what was cut."""

    def __init__(self, large: str, *, reads: bool) -> None:
        self._large, self._reads = large, reads
        self._answers = [ANSWERS[large]] if large in ANSWERS else []
        self.read = 0

    def __call__(self, prompt: Prompt) -> Said:
        if prompt.texts[0][1].startswith(SUMMARY):
            return Said(LONG if self._large == "summary" else "They talked about rivers.")
        role, last = prompt.texts[-1]
        if role == "user" and "NOW" in last and self._answers:
            return self._answers.pop()
        if role == "user" and self._reads and self.read < 2:
            for _, text in reversed(prompt.texts):
                for name, key in (("read_message", "number"), ("read_result", "call_id")):
                    if f"{name}(" in text and name in prompt.tools:
                        self.read += 1
                        told = text.partition(f"{name}(")[2].partition(")")[0].partition(",")[0].strip('"')
                        given = int(told) if key == "number" else told
                        return Said(calls=[(name, {key: given, "end": 20_000})])
        return Said(f"Answer {len(prompt.texts)}")


def agent_of(
    large: str, model: Any, journal: MemoryJournal, tmp_path: Path, window: int | None
) -> Agent[str]:
    options: dict[str, Any] = {"instructions": LONG} if large == "instructions" else {}
    if large == "skill":
        folder = tmp_path / "skills"
        if not folder.exists():
            write(folder, "rivers", body=LONG)
        trust_all(folder)
        options["skills"] = [folder]
    if large == "memories":
        memory = open_memory(journal, "ada")
        for number in range(8):
            memory.store.write(Draft(store=Store.SELF_FACTS, text=f"Fact {number}: {TEXT * 40}"), 1.0)
        options["memory"] = "ada"
    tools = [look_up, save, *(make_tools() if large == "tools" else ())]
    return Agent(model, tools=tools, journal=journal, policy=Policy(context_tokens=window), **options)


class Steps:
    """The turns of a session, each of which has to end as it should."""

    def __init__(self, session: Session[str], large: str) -> None:
        self.session, self._is_unfit = session, large in UNFIT

    async def say(self, text: str, **options: Any) -> None:
        self.check(await self.session.send(text, **options))

    def check(self, run: Any) -> None:
        if self._is_unfit:
            assert (run.stop_reason, run.fault) == ("context_overflow", "user")
        else:
            assert run.stop_reason == "completed", run.error

    async def enlarge(self, large: str, tmp_path: Path) -> None:
        """Have the turns before, and the one with what is too large."""
        await self.say("Question 1")
        for number in range({"messages": 4, "summary": 12}.get(large, 0)):
            await self.say(f"{number} {TEXT * 14}" if large == "summary" else LONG)
        if large == "queued messages":
            for _ in range(4):
                self.session.post(LONG)
            self.check(await self.session.finish_turn())
        document = tmp_path / "rivers.txt"
        document.write_text(LONG, encoding="utf-8")
        await self.say(
            f"NOW {LONG if large == 'message' else ''}", attach=[document] if large == "document" else []
        )

    async def go_on(self) -> None:
        for number in range(2):
            await self.say(f"And then, {number}?")
        for event in await self.session.read_events():
            if isinstance(body := event.body, e.ContextCompacted) and not body.is_empty:
                assert body.tokens_after < body.tokens_before


@pytest.mark.sets(6)
@pytest.mark.parametrize(("large", "action", "is_known"), PAIRS)
async def test_no_session_ends_because_something_is_larger_than_the_window(
    large: str, action: str, is_known: bool, tmp_path: Path
) -> None:
    kind = KINDS[PAIRS.index((large, action, is_known)) // 2 % len(KINDS)]
    window = WINDOW * 2 // 3 if large == "memories" else WINDOW
    talk = Talk(large, reads=action == "read")
    wide, narrow = WindowServer(kind, window, talk), WindowServer(kind, WINDOW // 3, talk)
    journal = MemoryJournal()
    async with serve(wide) as server, serve(narrow) as other:
        agent = agent_of(large, model_of(kind, server), journal, tmp_path, window if is_known else None)
        async with agent.session("s") as session:
            steps = Steps(session, large)
            await steps.enlarge(large, tmp_path)
            if action == "compact":
                await session.compact()
            if action == "retry":
                wide.window = 30
                failed = await session.send("Hello")
                assert (failed.stop_reason, failed.fault) == ("context_overflow", "user")
                wide.window = 100 * WINDOW if large in UNFIT else window
                assert (await session.retry_turn()).stop_reason == "completed"
                wide.window = window
            await steps.go_on()
        if action == "read":
            assert talk.read or large not in READ
        if action == "fork":
            steps.check(await agent.fork("s", text="And then?"))
        if action == "a smaller window" and large != "memories":
            smaller = model_of(kind, other)
            agent = agent_of(large, smaller, journal, tmp_path, narrow.window if is_known else None)
            async with agent.session("s") as session:
                steps = Steps(session, large)
                await steps.go_on()
                await session.compact()
                await steps.go_on()
        assert (await agent.replay("s")).is_exact
