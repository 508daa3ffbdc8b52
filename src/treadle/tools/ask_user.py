"""The toolset `ask`: the tool `ask_user`, by which the model asks the user."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, Field

from treadle.core.asking import DECIDE_ALONE, Question, tell_repeated
from treadle.core.errors import NotAskedError
from treadle.core.spec import PartSpec
from treadle.core.types import Option
from treadle.tools.context import ToolContext
from treadle.tools.function.decorator import tool
from treadle.tools.protocol import Tool

MAX_OPTIONS = 3


class Choice(BaseModel):
    """One of the answers that the user can choose."""

    label: Annotated[str, Field(min_length=1, max_length=80)]
    """The answer in a few words."""
    description: str = ""
    """What happens if the user chooses it."""


@tool(effect="pure")
async def ask_user(
    question: Annotated[str, Field(min_length=1)],
    context: ToolContext,
    options: Annotated[list[Choice], Field(max_length=MAX_OPTIONS)] = [],  # noqa: B006
    allow_text: bool = True,
) -> str:
    """Ask the user one question and wait for the answer. Ask only if the answer changes what you do, if you cannot
    find it out with your tools, and if a wrong guess would be hard to undo: a missing detail that nobody could
    guess, wishes that contradict each other, or consent to something that cannot be undone. Otherwise go on, and
    say in your answer what you assumed. Never ask for what was said already, and never ask the same question twice.

    Args:
        question: One question that can be understood without the conversation.
        options: Up to three answers to choose from, if there are obvious ones, the best first. Leave them out for
            questions such as "Which file?".
        allow_text: False if the user must choose one of the options.
    """
    offered = tuple([Option(item.label, item.description) for item in options])
    asked = Question(question, offered, allows_text=allow_text or not offered)
    try:
        answer = await context.ask(asked)
    except NotAskedError as error:
        text = str(error)
        return text if DECIDE_ALONE in text else f"{text} {DECIDE_ALONE}"
    if answer.is_repeated:
        return tell_repeated(answer.text)
    return f"The user declined to answer. {DECIDE_ALONE}" if answer.is_declined else answer.text


class AskToolset:
    """The tool `ask_user`. `Policy.autonomy` says how often the model may ask in one turn."""

    part = PartSpec(name="ask")

    def tools(self) -> Sequence[Tool]:
        return (ask_user,)
