"""The agent with the interface of llama-stack's `Agent`: the events that its users rely on, in their order."""

import base64
from pathlib import Path
from typing import Any

import pytest

from treadle import Agent, ConfigError, Run, ScriptedModel, open_journal, tool
from treadle.knowledge.files.file_search import FileSearch
from treadle.knowledge.files.file_store import FileStore
from treadle.knowledge.files.vector_stores import VectorStores
from treadle.models import call
from treadle.server.stack_agent import StackAgent


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def said(text: str) -> list[Any]:
    return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}]


def shape(chunks: list[Any]) -> list[str]:
    found = []
    for chunk in chunks:
        event = chunk.event
        inner = getattr(getattr(event, "delta", None), "delta_type", getattr(event, "step_type", ""))
        found.append(f"{event.event_type} {inner}".strip())
    return [
        one for one, before in zip(found, ["", *found], strict=False) if "text" not in one or one != before
    ]


def test_turns_tell_their_steps(tmp_path: Path) -> None:
    with open_journal(tmp_path / "runs.db") as journal:
        model = ScriptedModel(
            [[call("add", {"a": 1, "b": 2}), call("add", {"a": 3, "b": 4})], "It is 3 and 7.", "Again."]
        )
        agent = StackAgent(Agent(model, tools=[add], journal=journal))
        one, two = agent.create_session("one"), agent.create_session("two")
        assert agent.sessions == [one, two]
        chunks = list(agent.create_turn(said("add"), one, stream=True))
        assert shape(chunks) == [
            "turn_started",
            "step_started inference",
            "step_progress tool_call_issued",
            "step_progress tool_call_issued",
            "step_completed inference",
            "step_started tool_execution",
            "step_progress tool_call_completed",
            "step_progress tool_call_completed",
            "step_completed tool_execution",
            "step_started inference",
            "step_progress text",
            "step_completed inference",
            "turn_completed",
        ]
        events = [chunk.event for chunk in chunks]
        assert events[5].metadata == {"server_side": False}
        assert events[4].result.stop_reason == "tool_calls"
        assert [item["content"] for item in events[8].result.tool_responses] == ["3", "7"]
        assert [event.step_id[-1] for event in events[1:-1]] == list("000011112222")
        assert (events[-1].final_text, events[-1].num_steps) == ("It is 3 and 7.", 3)
        assert [chunk.response is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
        first = chunks[-1].response
        assert first.output_text == "It is 3 and 7."
        assert agent._last_response_id == agent._session_last_response_id[one] == first.id
        second = agent.create_turn(said("and?"), one, stream=False)
        assert (second.previous_response_id, second.output_text) == (first.id, "Again.")
        assert agent._session_last_response_id == {one: second.id}
        assert len(journal.runs()) == 2


def test_a_turn_that_fails_says_why(tmp_path: Path) -> None:
    def fail(request: Any) -> Any:
        raise RuntimeError("the model is broken")

    with open_journal(tmp_path / "runs.db") as journal:
        agent = StackAgent(Agent(ScriptedModel(fail), journal=journal))
        session = agent.create_session("x")
        last = list(agent.create_turn(said("hi"), session))[-1]
        assert last.event.event_type == "turn_failed"
        assert "broken" in last.event.error_message
        with pytest.raises(ConfigError, match="did not complete"):
            agent.create_turn(said("hi"), session, stream=False)


async def test_a_turn_searches_files(tmp_path: Path) -> None:
    with open_journal(tmp_path / "runs.db") as journal:
        stores = journal.resources.once(VectorStores, lambda: VectorStores(journal.resources))
        store = stores.create("x", {}, None)
        file = FileStore(journal.resources).add("a.txt", b"The codename is BLUE_FALCON.", "x")
        await stores.read_in(stores.attach(store, [(file, None)], None)[1])
        model = ScriptedModel([[call("file_search", {"queries": ["codename"]})], "BLUE_FALCON"])
        agent = StackAgent(Agent(model, tools=[FileSearch([store.resource_id])], journal=journal))
        session = await agent.create_session_async("x")
        chunks = [chunk async for chunk in agent.create_turn_async(said("name?"), session)]
        events = [chunk.event for chunk in chunks]
        step = next(event for event in events if getattr(event, "step_type", "") == "tool_execution")
        assert step.metadata == {"server_side": True, "tool_type": "file_search", "tool_name": "file_search"}
        search = chunks[-1].response.output[0]
        assert search.type == "file_search_call"
        assert "BLUE_FALCON" in search.results[0].text


def test_a_turn_takes_a_large_picture_and_tells_what_stops_it(tmp_path: Path) -> None:
    picture = bytes(range(256)) * 40
    url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    message: Any = [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]
    with open_journal(tmp_path / "runs.db") as journal:
        agent = StackAgent(Agent(ScriptedModel(["A picture."]), tools=["ask"], journal=journal))
        session = agent.create_session("x")
        assert agent.create_turn(message, session, stream=False).output_text == "A picture."
        asked = Run.load(journal.runs()[0].run_id, journal).messages[0]
        assert journal.read_blob(asked.parts[0].digest or "") == picture
        model = ScriptedModel([[call("ask_user", {"question": "Which?"})]])
        agent = StackAgent(Agent(model, tools=["ask"], journal=journal))
        session = agent.create_session("x")
        last = list(agent.create_turn(said("go"), session))[-1].event
        assert (last.event_type, last.error_message) == ("turn_failed", "it waits for: question")
        last = list(agent.create_turn(said("go on"), session))[-1].event
        assert last.event_type == "turn_failed"
        with pytest.raises(ConfigError, match="one message of the user"):
            agent.create_turn([], session, stream=False)
