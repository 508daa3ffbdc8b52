"""The kinds of tool use: their plan, and what a transcript shows."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.core.types import Message, Role, ToolCall
from treadle.datagen.scenarios.kinds import (
    WEIGHTS,
    is_question,
    is_refusal,
    kinds_of,
    plan_difficulty,
    plan_kind,
    possible_kinds,
)
from treadle.datagen.scenarios.scenario import Difficulty, Kind


@given(st.integers(0, 10**6), st.integers(1, 400))
def test_every_prefix_of_the_plan_is_near_the_mix(seed, count):
    """Rules out unseeded randomness, and a plan whose mix is only right at its end."""
    planned = Counter(plan_kind(number, WEIGHTS, seed=seed) for number in range(1, count + 1))
    for kind, weight in WEIGHTS.items():
        assert abs(planned[kind] - weight * count) <= 3.5


def test_the_plan_depends_only_on_the_seed_and_the_number():
    def plan(seed: int) -> list[Kind | None]:
        return [plan_kind(number, WEIGHTS, seed=seed) for number in range(1, 50)]

    assert plan(3) == plan(3)
    assert plan(3) != plan(4)


def test_kinds_and_difficulties_do_not_depend_on_each_other():
    pairs = Counter(
        (plan_kind(number, WEIGHTS, seed=1), plan_difficulty(number, {}, seed=1)) for number in range(3000)
    )
    for kind, weight in WEIGHTS.items():
        for difficulty in Difficulty:
            assert abs(pairs[kind, difficulty] - weight * 1000) <= 60


def test_a_top_up_takes_the_kind_that_is_missing():
    kept = {Kind.SINGLE: 22, Kind.CHAINED: 28, Kind.PARALLEL: 15, Kind.RECOVERY: 0, Kind.NO_TOOL: 8}
    kept |= {Kind.MISSING_PARAMETER: 10, Kind.REFUSAL: 7}
    assert {plan_kind(number, WEIGHTS, kept=kept) for number in range(5)} == {Kind.RECOVERY}
    got: Counter[Kind] = Counter()
    for number in range(200):
        kind = plan_kind(number, WEIGHTS, kept=got)
        assert kind is not None
        got[kind] += 1
    assert all(abs(got[kind] - weight * 200) <= 3 for kind, weight in WEIGHTS.items())


def test_top_ups_that_are_made_at_the_same_time_share_out_what_is_missing():
    kept = {Kind.SINGLE: 30, Kind.CHAINED: 40, Kind.PARALLEL: 10}
    weights = {Kind.SINGLE: 0.3, Kind.CHAINED: 0.3, Kind.PARALLEL: 0.2, Kind.RECOVERY: 0.2}
    planned = Counter(plan_kind(number, weights, kept=kept) for number in range(80, 104))
    assert set(planned) == {Kind.PARALLEL, Kind.RECOVERY}
    assert planned[Kind.RECOVERY] > planned[Kind.PARALLEL] > 3


def test_impossible_kinds_are_left_out():
    assert possible_kinds({}, has_tools=False) == {}
    assert plan_kind(1, {}) is None
    assert Kind.PARALLEL not in possible_kinds({}, has_tools=True, max_calls=1)
    assert set(possible_kinds({}, has_tools=True, max_steps=2)) == set(Kind) - {Kind.CHAINED, Kind.RECOVERY}
    assert possible_kinds({Kind.SINGLE: 1, Kind.CHAINED: 0}, has_tools=True) == {Kind.SINGLE: 1}


def user(text: str = "go") -> Message:
    return Message(Role.USER, text)


def said(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


def step(*calls: tuple[str, str, str]) -> list[Message]:
    """Return the messages of a step; each call has a name, an argument and a result; `!` marks an error."""
    step.count += 1  # type: ignore[attr-defined]
    made = [
        ToolCall(f"c{step.count}_{index}", name, f'{{"x": "{text}"}}')  # type: ignore[attr-defined]
        for index, (name, text, _) in enumerate(calls)
    ]
    results = [
        Message(Role.TOOL, result, call_id=item.call_id, name=item.name, is_error=result.startswith("!"))
        for item, (_, _, result) in zip(made, calls, strict=True)
    ]
    return [Message(Role.ASSISTANT, "", tuple(made)), *results]


step.count = 0  # type: ignore[attr-defined]
READ, LIST = ("read", "a.txt", "milk"), ("list", "docs", "a.txt")

CASES = {
    "a single call": ([user(), *step(READ), said("milk")], {Kind.SINGLE}),
    "a call after a result": ([user(), *step(LIST), *step(READ), said("milk")], {Kind.CHAINED}),
    "two calls in a step": ([user(), *step(READ, LIST), said("ok")], {Kind.PARALLEL}),
    "a value of another turn": (
        [
            user(),
            *step(("find", "name", "order 4711")),
            said("ok"),
            user(),
            *step(("get", "4711", "x")),
            said("x"),
        ],
        {Kind.CHAINED},
    ),
    "unrelated calls in two turns": (
        [user(), *step(("find", "name", "order 4711")), said("ok"), user(), *step(READ), said("x")],
        set(),
    ),
    "an error and the same tool": (
        [user(), *step(("read", "b.txt", "!no file")), *step(READ), said("milk")],
        {Kind.RECOVERY},
    ),
    "an error and another tool with the same value": (
        [user(), *step(("read", "a.pdf", "!cannot")), *step(("convert", "a.pdf", "text")), said("ok")],
        {Kind.RECOVERY},
    ),
    "an error and an answer found in another way": (
        [
            user(),
            *step(("read", "hints", "!no file")),
            *step(("search", "milk", "a.txt:1")),
            said("It is a.txt."),
        ],
        {Kind.RECOVERY},
    ),
    "an error, another call and a question": (
        [user(), *step(("read", "hints", "!no file")), *step(LIST), said("There is a.txt. Which one is it?")],
        {Kind.MISSING_PARAMETER},
    ),
    "an error in a parallel step": (
        [user(), *step(READ, ("read", "b.txt", "!no file")), *step(("read", "c.txt", "tea")), said("ok")],
        {Kind.CHAINED, Kind.PARALLEL, Kind.RECOVERY},
    ),
    "an error that stays": (
        [user(), *step(("read", "b.txt", "!no file")), said("It is not there.")],
        {Kind.SINGLE},
    ),
    "no call": ([user(), said("Paris.")], {Kind.NO_TOOL}),
    "no call, with an offer": ([user(), said("Paris. Is there anything else?")], {Kind.NO_TOOL}),
    "a question at the end": ([user(), said("Which file do you mean?")], {Kind.MISSING_PARAMETER}),
    "a question, then calls": (
        [user(), said("Which file?"), user("a.txt"), *step(READ), said("milk")],
        {Kind.MISSING_PARAMETER, Kind.SINGLE},
    ),
    "a question after a look": (
        [user(), *step(LIST), said("There are two. Which one do you mean?")],
        {Kind.SINGLE, Kind.MISSING_PARAMETER},
    ),
    "a question within an answer after calls": (
        [user(), *step(READ), said("Is it milk? Yes, it is.")],
        {Kind.SINGLE},
    ),
    "a refusal": ([user(), said("I'm sorry, but I can't send mail.")], {Kind.REFUSAL}),
    "a refusal after a failed call": (
        [user(), *step(("mail", "x", "!no server")), said("I am unable to send it.")],
        {Kind.SINGLE, Kind.REFUSAL},
    ),
    "an answer that mentions a limit": (
        [user(), *step(READ), said("It says milk. I cannot read more.")],
        {Kind.SINGLE},
    ),
    "a call whose arguments are not JSON": (
        [
            user(),
            Message(Role.ASSISTANT, "", (ToolCall("x", "read", "{"),)),
            Message(Role.TOOL, "bad", call_id="x", name="read", is_error=True),
            *step(READ),
            said("milk"),
        ],
        {Kind.RECOVERY},
    ),
    "a system message and nothing else": ([Message(Role.SYSTEM, "be nice"), user()], {Kind.NO_TOOL}),
    "nothing": ([], set()),
}


@pytest.mark.parametrize("case", CASES)
def test_kinds_of_a_transcript(case):
    messages, expected = CASES[case]
    assert set(kinds_of(messages)) == expected


def test_a_message_of_treadle_within_a_turn_begins_no_turn():
    messages = [user(), *step(LIST), user("You have reached the limit."), said("Which one do you mean?")]
    assert Kind.MISSING_PARAMETER in kinds_of(messages)


@pytest.mark.parametrize("text", ["Which one?", "¿Cuál?", "どれですか？", "I can help. What is its name?\n"])
def test_questions(text):
    assert is_question(text)


@pytest.mark.parametrize("text", ["Done.", "Done. Would you like more?", "Let me know: shall I go on?", ""])
def test_no_questions(text):
    assert not is_question(text)


@pytest.mark.parametrize(
    "text",
    [
        "I cannot do that.",
        "I can\u2019t help with this.",
        "I'm not able to send mail.",
        "I don't have a tool for that.",
        "None of my tools can book a flight.",
        "I must decline.",
    ],
)
def test_refusals(text):
    assert is_refusal(text)


@pytest.mark.parametrize("text", ["I can do that.", "You cannot park there.", "The server can't be reached."])
def test_no_refusals(text):
    assert not is_refusal(text)
