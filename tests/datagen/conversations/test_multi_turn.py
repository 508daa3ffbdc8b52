"""Conversations of several turns with a simulated user."""

import pytest
from tests.datagen.conversations.cast import (
    NOTES,
    SCENARIO,
    Cast,
    answers,
    facts_of,
    make_studio,
    read_notes,
    spec,
    texts,
    think,
)

from treadle.core.errors import ServerError
from treadle.core.state import fold
from treadle.core.types import Fault, Request, Role
from treadle.datagen.conversations.make import make_sample
from treadle.datagen.conversations.studio import is_farewell
from treadle.datagen.scenarios.scenario import Kind
from treadle.models.scripted import call

ASKING = {**SCENARIO, "message": "Read my file.", "withheld": "It is notes.txt."}


def careful(request: Request):
    """Answer as an agent that asks for the file first, and reads it when it is told."""
    last = request.messages[-1]
    if last.role is Role.TOOL:
        return f"It says: {last.content}"
    if "notes.txt" in last.content:
        return think("Now I know.", call("read_file", {"file_path": "notes.txt"}))
    return "Which file do you mean?"


async def test_the_user_answers_questions_and_ends_when_the_goal_is_reached():
    cast = Cast(
        careful,
        [ASKING],
        [{"message": "It is notes.txt.", "is_done": False}, {"message": "", "is_done": True}],
    )
    made = await make_sample(make_studio(NOTES, cast), spec(turns=5, kind=Kind.MISSING_PARAMETER))
    assert made.row is not None
    assert texts(made.row.messages) == [
        "Read my file.",
        "Which file do you mean?",
        "It is notes.txt.",
        "Now I know.",
        "milk",
        "It says: milk",
    ]
    info = made.row.lineage.sample
    assert info is not None
    assert info.turns == 2
    assert "missing_parameter" in info.kinds
    assert info.models == {"agent": "scripted", "scenarios": "scripted", "user": "scripted"}


async def test_the_user_sees_only_what_the_agent_says():
    """Rules out that the simulated user knows the results of tools, or the thoughts between calls."""
    users = [{"message": "And again, please: notes.txt.", "is_done": False}, {"message": "", "is_done": True}]
    cast = Cast(careful, [{**SCENARIO, "message": "Read notes.txt."}], users)
    await make_sample(make_studio(NOTES, cast), spec(turns=3))
    for request in cast.asked["user_turn"]:
        assert {message.role for message in request.messages} <= {Role.SYSTEM, Role.USER, Role.ASSISTANT}
        heard = [message.content for message in request.messages if message.role is Role.USER]
        assert set(heard) == {"It says: milk"}
        facts = facts_of(request)
        assert facts is not None
        assert facts["goal"] == SCENARIO["goal"]
        assert facts["turns_left"] == 2


async def test_the_agent_sees_the_results_of_earlier_turns():
    """Rules out that the results of earlier turns are hidden from the agent."""
    users = [{"message": "What did you read?", "is_done": False}]

    def agent(request: Request):
        results = [message.content for message in request.messages if message.role is Role.TOOL]
        return f"I read {results}." if results else read_notes(request)

    def reading(request: Request):
        return "Read." if request.messages[-1].role is Role.TOOL else agent(request)

    cast = Cast(reading, users=users)
    made = await make_sample(make_studio(NOTES, cast), spec(turns=2))
    assert made.row is not None
    assert texts(made.row.messages)[-1] == "I read ['milk']."
    assert made.row.lineage.sample is not None
    assert made.row.lineage.sample.turns == 2


async def test_a_conversation_ends_after_its_turns():
    cast = Cast(lambda request: f"answer {answers(request)}", users=[{"message": "more?", "is_done": False}])
    made = await make_sample(make_studio(NOTES, cast), spec(turns=3))
    assert made.row is not None
    assert texts(made.row.messages) == [
        SCENARIO["message"],
        "answer 0",
        "more?",
        "answer 1",
        "more?",
        "answer 2",
    ]
    assert len(cast.asked["user_turn"]) == 2


@pytest.mark.parametrize("last", ["", "Thanks, that is all!", "  "])
async def test_a_conversation_does_not_go_on_with_thanks(last):
    cast = Cast(users=[{"message": last, "is_done": False}])
    made = await make_sample(make_studio(NOTES, cast), spec(turns=5))
    assert made.row is not None
    assert texts(made.row.messages)[-1] == "It says: milk"


@pytest.mark.parametrize(
    "text",
    [
        "Thank you, goodbye!",
        "Thanks, that is all I needed.",
        "Perfect, thank you.",
        "Great, that settles it. Thanks.",
        "Cheers mate!",
    ],
)
def test_thanks_alone_are_a_farewell(text):
    assert is_farewell(text)


@pytest.mark.parametrize(
    "text",
    [
        "Thanks! And what is in b.txt?",
        "Thanks, now delete old.txt.",
        "Thank you. It is notes.txt.",
        "Read b.txt too.",
        "Thanks. Now please move every entry that is older than a week to the archive folder.",
    ],
)
def test_thanks_with_a_request_are_no_farewell(text):
    assert not is_farewell(text)


async def test_a_satisfied_user_goes_on_until_the_least_number_of_turns():
    users = [{"message": "One more thing.", "is_done": True}, {"message": "And this.", "is_done": True}]
    config = {**NOTES, "generation": {"conversation": {"min_turns": 2, "max_turns": 4}}}
    made = await make_sample(make_studio(config, Cast(lambda request: "yes", users=users)), spec(turns=4))
    assert made.row is not None
    assert texts(made.row.messages) == [SCENARIO["message"], "yes", "One more thing.", "yes"]


async def test_a_limit_ends_the_conversation():
    reading = think("again", call("read_file", {"file_path": "notes.txt"}))

    def agent(request: Request):
        return reading if request.tools else "I could not finish."

    config = {"tools": {**NOTES["tools"], "max_steps": 2}}
    cast = Cast(agent, users=[{"message": "go on", "is_done": False}])
    made = await make_sample(make_studio(config, cast), spec(turns=5))
    assert made.row is not None
    assert made.row.lineage.stop_reason == "max_steps"
    assert not cast.asked["user_turn"]


async def test_a_task_is_graded_after_the_last_turn():
    config = {"tools": {"use": ["files"], "files": "tasks:files"}}
    users = [{"message": "Are you sure?", "is_done": False}]
    cast = Cast(lambda request: "Answer: 1", [{**SCENARIO, "message": "Do the task."}], users)
    studio = make_studio(config, cast)
    made = await make_sample(studio, spec(turns=2, kind=Kind.CHAINED))
    assert made.row is not None
    assert made.row.lineage.reward == 0.0
    bodies = [event.body for event in studio.journal.read(made.run_id)]
    assert [body.name for body in bodies if type(body).__name__ == "Rewarded"] == ["check"]


async def test_a_failing_user_is_no_fault_of_the_sample_and_is_asked_again():
    users = [ServerError("down"), {"message": "", "is_done": True}]
    cast = Cast(users=users)
    cast_again = Cast(users=[{"message": "", "is_done": True}])
    studio = make_studio(NOTES, cast)
    made = await make_sample(studio, spec(turns=2))
    assert (made.row, made.fault) == (None, Fault.INFRASTRUCTURE)
    studio = make_studio(NOTES, cast_again, studio.journal)
    made = await make_sample(studio, spec(turns=2))
    assert made.row is not None
    assert [len(cast_again.asked[role]) for role in ("scenario", "agent", "user_turn")] == [0, 0, 1]


async def test_a_finished_sample_is_read_from_its_journals():
    """Calling it again asks no model, and gives the same row."""
    users = [{"message": "It is notes.txt.", "is_done": False}, {"message": "", "is_done": True}]
    cast = Cast(careful, [ASKING], users)
    studio = make_studio(NOTES, cast)
    made = await make_sample(studio, spec(turns=5))
    silent = Cast(lambda request: AssertionError("asked again"), [], [])
    again = await make_sample(make_studio(NOTES, silent, studio.journal), spec(turns=5))
    assert again.row == made.row
    assert (again.usage, again.cost_usd) == (made.usage, made.cost_usd)
    assert not any(silent.asked.values())
    said = fold([event.body for event in studio.journal.read("s000001-1-user")])
    assert said.turn.number == 2
