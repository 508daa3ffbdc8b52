"""Estimates of tokens count everything that a request holds."""

from treadle.core.prompts.estimates import weigh, weigh_message, weigh_tools
from treadle.core.types import Artifact, Message, Role, ToolCall, ToolSpec

WORDS = "some words of a long text " * 20


def test_everything_that_is_sent_counts() -> None:
    """Rules out estimates of the reference, which leave out the arguments of calls, the schemas of tools, thoughts
    and images, so that a prompt is over its budget unnoticed."""
    bare = weigh_message(Message(Role.ASSISTANT, ""))
    call = Message(Role.ASSISTANT, "", (ToolCall("c", "write_file", f'{{"content": "{WORDS}"}}'),))
    thought = Message(Role.ASSISTANT, "", reasoning=WORDS)
    image = Message(
        Role.USER, "", parts=(Artifact(kind="image", mime_type="image/png", digest="d", size_bytes=9),)
    )
    for message in (call, thought, image):
        assert weigh_message(message) > bare + 0.9 * weigh(WORDS)
    schema = {"type": "object", "properties": {"a": {"type": "string", "description": WORDS}}}
    assert weigh_tools((ToolSpec("t", "", schema),)) > weigh_tools((ToolSpec("t", "", {}),)) + weigh(WORDS)


def test_each_message_counts_something() -> None:
    """Rules out estimates without what a chat template adds to each message."""
    assert sum(weigh_message(Message(Role.USER, "")) for _ in range(100)) >= 300
