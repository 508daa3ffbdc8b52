"""The teacher: a model that plays every role in the generation of a dataset, without a language model.

A request with facts is for a writer: of topics, scenarios, users' turns or judgements. Any other request is for the
agent. Every answer depends only on the request.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from treadle.core.types import Completion, Json, Message, Role, ToolCall
from treadle.testbed.built_in import BuiltInModel, BuiltInRequest, digest, make_completion
from treadle.testbed.oracle import check_rate
from treadle.testbed.play import Manner
from treadle.testbed.request_facts import Facts, find_facts, text_of
from treadle.testbed.roles.agent_role import answer_as_agent
from treadle.testbed.roles.scenario_role import write_scenario
from treadle.testbed.roles.speakers import judge, write_user_turn
from treadle.testbed.roles.topic_role import write_topics
from treadle.testbed.textual import read_text_request

TEACHER = "teacher"

_WRITERS: Mapping[str, Callable[[Facts, Sequence[Message], float], Json]] = {
    "subtopics": lambda facts, messages, rate: write_topics(facts, rate),
    "scenario": lambda facts, messages, rate: write_scenario(
        facts, sum([message.role is Role.ASSISTANT for message in messages])
    ),
    "user_turn": lambda facts, messages, rate: write_user_turn(facts, messages),
    "judgement": lambda facts, messages, rate: judge(facts),
    "statement_verdicts": lambda facts, messages, rate: {"verdicts": list[Json]()},  # it does not guess
}
"""The writers by the fact `write`. The last argument is the probability of a mistake."""


class TeacherModel(BuiltInModel):
    """A model for the whole generation of a dataset."""

    def __init__(self, *, mistake_rate: float = 0.0) -> None:
        self._manner = Manner(mistake_rate=check_rate(mistake_rate))
        self.model = TEACHER if mistake_rate == 0 else f"{TEACHER}:{mistake_rate:g}"
        """The name in the completions."""
        super().__init__(f"mock:{self.model}")

    def answer(self, asked: BuiltInRequest) -> Completion:
        messages = asked.messages
        facts = find_facts(messages)
        write = None if facts is None else _WRITERS.get(text_of(facts, "write"))
        if facts is not None and write is not None:
            value = write(facts, messages, self._manner.mistake_rate)
            message = _deliver(_fit(value, asked.schema or asked.required_parameters), asked.required)
        else:
            message = self._work(asked)
        key = f"{len(messages)}/{messages[-1].content if messages else ''}"
        return make_completion(message, messages, self.model, f"teacher-{digest(key)}")

    def _work(self, asked: BuiltInRequest) -> Message:
        """Return the agent's message. If the tools are text, so are its calls."""
        text = None if asked.tools else read_text_request(asked.messages)
        if text is None:
            return answer_as_agent(asked, self._manner)
        for manner in (self._manner, Manner()):
            # Some mistakes, such as arguments that are no JSON, cannot be expressed in every format.
            asked = replace(asked, messages=text.messages, tools=text.tools, required=None)
            written = text.write(answer_as_agent(asked, manner))
            if written is not None:
                return written
        return Message(Role.ASSISTANT, f"I can't make this call in the format {text.format}.")


def _fit(value: Json, schema: Mapping[str, Json] | None) -> Json:
    """Return an object without the fields that `schema` does not have."""
    known = schema.get("properties") if schema is not None else None
    if not isinstance(value, dict) or not isinstance(known, dict):
        return value
    return {name: item for name, item in value.items() if name in known}


def _deliver(value: Json, required: str | None) -> Message:
    """Return the message that gives `value` as its text, or as the arguments of the tool `required`."""
    text = msgspec.json.encode(value).decode()
    if required is None:
        return Message(Role.ASSISTANT, text)
    return Message(Role.ASSISTANT, tool_calls=(ToolCall(f"call_{digest(text)}", required, text),))
