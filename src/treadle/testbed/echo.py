"""A model for trials without a key. It answers any text, and calls the tools that the text names.

The lines of the newest user message are its script:

    call NAME {json}    call a tool; calls on adjacent lines are made in the same step
    then                begin the next step
    say TEXT            give this final answer

Without `say`, the final answer has the results of the calls, or repeats the message. Like the oracle, the model
keeps no state: it computes the next step from the transcript.
"""

import json
import re
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.registry import did_you_mean
from treadle.core.types import Completion, Json, Message, Role, ToolCall, ToolSpec
from treadle.models.config.bare import ModelConfig
from treadle.models.protocol import Model
from treadle.testbed.built_in import BuiltInModel, BuiltInRequest, digest, find_requests, make_completion
from treadle.testbed.instance import make_instance, only_required

_MAX_RESULT_CHARS = 2_000
_LINE = re.compile(r"^[ \t]*(?:(call)[ \t]+([^\s{]+)[ \t]*|(then)[ \t]*$|(say)[ \t]+)", re.MULTILINE)
_END_OF_LINE = re.compile(r"[^\n]*")


class _Script(Struct, frozen=True):
    """The script in a user message."""

    steps: list[list[tuple[str, str]]]
    """The calls of each step, as names and arguments."""
    answer: str | None
    """The final answer; `None` if the message does not say one."""


class EchoModel(BuiltInModel):
    """A model that makes the tool calls of a script, and repeats a message without a script."""

    def __init__(self, name: str = "mock:echo") -> None:
        super().__init__(name)

    def answer(self, asked: BuiltInRequest) -> Completion:
        messages, tools = asked.messages, asked.tools
        start = (find_requests(messages) or [-1])[-1]
        text = messages[start].content if start >= 0 else ""
        since = messages[start + 1 :]
        script = _read(text, {tool.name for tool in tools})
        calls = _next_calls(script, sum(len(item.tool_calls) for item in since)) if tools else []
        if not calls and asked.required is not None:
            calls = [(asked.required, _encode(make_instance(asked.required_parameters or {}, text)))]
        key = f"{len(messages)}/{text}"
        message = Message(
            Role.ASSISTANT,
            "" if calls else _answer(text, script, since, tools, asked.schema),
            tuple(
                ToolCall(f"call_{digest(f'{key}/{index}')}", name, arguments)
                for index, (name, arguments) in enumerate(calls[: asked.max_calls])
            ),
        )
        return make_completion(message, messages, self.name, f"mock-{digest(key)}")


def make_model(config: ModelConfig) -> Model:
    """Return the model `echo`, `teacher`, `teacher:RATE`, `oracle`, `oracle:RATE` or `mediocre:OPTIONS`.

    Raises: `ConfigError` for another name, and for an oracle without a task.
    """
    from treadle.testbed.oracle import make_oracle, read_rate

    name, stem = config.name, config.name.partition(":")[0]
    if name == "echo":
        return EchoModel()
    if stem == "oracle":
        return make_oracle(config)
    if stem == "mediocre":
        from treadle.testbed.mediocre.mediocre_model import make_mediocre

        return make_mediocre(name)
    if stem == "teacher":
        from treadle.testbed.teacher import TeacherModel

        return TeacherModel(mistake_rate=read_rate(name))
    hint = did_you_mean(f"mock:{stem}", ("mock:echo", "mock:teacher", "mock:mediocre")) or ";"
    raise ConfigError(
        f"there is no model 'mock:{name}'{hint} there are 'mock:echo', 'mock:mediocre', 'mock:teacher', and "
        "'mock:teacher:RATE' with a rate of mistakes from 0 to 1"
    )


def _read(text: str, known: set[str]) -> _Script:
    """Read the script in `text`. A call names a known tool, has arguments, or ends after the name."""
    steps: list[list[tuple[str, str]]] = [[]]
    answer: str | None = None
    position = 0
    while (found := _LINE.search(text, position)) is not None:
        position = found.end()
        rest = _END_OF_LINE.match(text, position)
        assert rest is not None
        if found[3]:
            steps.append([])
        elif found[4]:
            answer, position = text[position:].strip(), len(text)
        elif rest[0].startswith("{"):
            arguments, position = _read_arguments(text, position, rest.end())
            steps[-1].append((found[2], arguments))
        elif found[2] in known or not rest[0].strip():
            steps[-1].append((found[2], rest[0].strip() or "{}"))
    return _Script([step for step in steps if step], answer)


def _read_arguments(text: str, start: int, line_end: int) -> tuple[str, int]:
    """Return the JSON at `start`, unchanged, and where it ends; or the rest of the line if it is not JSON."""
    try:
        _, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        end = line_end
    return text[start:end], end


def _next_calls(script: _Script, made: int) -> list[tuple[str, str]]:
    """Return the remaining calls of the step that follows `made` calls."""
    for step in script.steps:
        if made < len(step):
            return step[made:]
        made -= len(step)
    return []


def _answer(
    text: str,
    script: _Script,
    since: Sequence[Message],
    tools: Sequence[ToolSpec],
    schema: dict[str, Json] | None,
) -> str:
    """Return the final answer to the user message `text` after the messages `since`."""
    if script.answer is not None:
        return script.answer
    if schema is not None:
        return _encode(make_instance(schema, text))
    results = list(_results(since))
    if results:
        return "\n".join(results)
    said = f"You said: {text.strip()}" if text.strip() else "You said nothing."
    if not tools or script.steps:
        return said
    names = ", ".join(tool.name for tool in tools)
    example = f"call {tools[0].name} {_encode(make_instance(only_required(tools[0].parameters)))}"
    return f"{said}\nA line such as `{example}` makes me call a tool. I have: {names}."


def _results(messages: Sequence[Message]) -> Iterator[str]:
    """Yield a line for each tool result in `messages`."""
    names = {call.call_id: call.name for item in messages for call in item.tool_calls}
    for item in messages:
        if item.role is Role.TOOL:
            content = item.content
            if len(content) > _MAX_RESULT_CHARS:
                content = f"{content[:_MAX_RESULT_CHARS]}… ({len(content)} characters)"
            yield f"{names.get(item.call_id or '', 'tool')}: {content}"


def _encode(value: Json) -> str:
    return msgspec.json.encode(value).decode()
