"""What a talk is: a request that the agent answers without a tool call."""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from treadle.tasks.draws import Draw, Wording


class Reply(Struct, frozen=True):
    """An answer, and the thoughts that led to it."""

    text: str
    reasoning: str = ""


class Talk(Struct, frozen=True, kw_only=True):
    """One sort of request that needs no tool call."""

    name: str
    prompts: tuple[Wording, ...]
    """The wordings. All have the same fields."""
    draw: Callable[[str, Draw], dict[str, str]]
    """A function of the things that the topic is about, in the plural, that returns values for the fields."""
    reply: Callable[[Mapping[str, str], Sequence[str]], Reply]
    """A function of the values and the names of the tools that returns the answer."""
    banned: tuple[str, ...] = ()
    """Parts of the names of tools that could fulfil the request. The request is not made if a tool has such
    a name."""
