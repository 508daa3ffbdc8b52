"""The printing of turns."""

from typing import Any

import pytest
from tests.trajectory.test_turns import BEGIN, agent, end, read, searched

from treadle import ConfigError, EventLogger
from treadle.core import events as e
from treadle.core.errors import ServerError
from treadle.core.types import Fault, ServerCall, StopReason, ToolCall, ToolResult
from treadle.models import call
from treadle.trajectory.turns import turns

MADE = ToolCall("c", "look", '{"at":1}')
EVENTS: list[Any] = [
    *BEGIN,
    searched(text="I look.", made=(MADE,)),
    e.ToolCompleted(step=1, result=ToolResult("c", "look", "x" * 101)),
    e.InferenceStarted(step=2, messages=3),
    searched(ServerCall("s", "web_search", "{}", "hidden"), text="Done."),
    end("Done."),
]


def write(bodies: list[Any], **options: bool) -> str:
    return "".join(EventLogger(**options).log(read("r", bodies)))


def test_a_turn_is_printed_as_the_reference_prints_it() -> None:
    assert write(EVENTS) == (
        "🤔 I look."
        '\n📞 Function call: look({"at":1})'
        "\n🔧 Executing function tools (client-side)...\n"
        f"  → look: {'x' * 100}...\n"
        "🤔 \n"
        "\n🔧 Executing web_search (server-side)...\n"
        "  → web_search: hidden\n"
        "🤔 Done.\n"
    )


def test_emoji_are_left_out_when_asked() -> None:
    plain = write(EVENTS, has_emoji=False)
    assert plain.isascii()
    assert "I look.\nFunction call: look" in plain


def test_a_failure_is_printed_with_its_text() -> None:
    """The text of the error of a failed turn was lost."""
    failure = e.InferenceFailed(step=1, error="down", error_type="ServerError", fault=Fault.INFRASTRUCTURE)
    ended = e.TurnCompleted(turn=1, stop_reason=StopReason.ERROR, error="down")
    assert write([*BEGIN, failure, ended]) == "🤔 \n❌ Turn failed: down\n"


def test_texts_cannot_control_the_terminal() -> None:
    result = e.ToolCompleted(step=1, result=ToolResult("c", "look", "\x1b[2Jgone\x9b1m"))
    said = write([*BEGIN, searched(text="a\x1b[31mb\tc", made=(MADE,)), result, end()])
    assert "\x1b" not in said
    assert "\x9b" not in said
    assert "a[31mb\tc" in said


async def test_a_stream_is_printed_as_it_comes() -> None:
    runner = agent([call("fails")], ServerError("down"))
    said = [text async for text in EventLogger().log(turns(runner.stream("go", run_id="r")))]
    assert "".join(said) == "".join(EventLogger().log(turns(runner.journal.read("r"))))
    assert said[-1] == "\n❌ Turn failed: down\n"


def test_other_things_than_turns_are_refused() -> None:
    for wrong in ("run-1", 3):
        with pytest.raises(ConfigError, match=r"give it the events of a run: agent\.stream"):
            turns(wrong)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match=r"use log\(turns\(events\)\)"):
        list(EventLogger().log([e.Event("r", 1, BEGIN[0])]))  # type: ignore[list-item]
