"""The studio: what all samples share. Agents are built once; samples differ in messages and instructions."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import takewhile
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from treadle.agent.agent import Agent
from treadle.core.errors import ConfigError
from treadle.core.log import Log
from treadle.core.policy import Policy
from treadle.core.types import Completion, Json, Message, Request, Role, ToolSpec, Usage
from treadle.datagen.config.generation_config import Conversation, GenerationConfig
from treadle.datagen.quality.languages import pattern, read_patterns
from treadle.datagen.quality.registry import read_settings
from treadle.datagen.scenarios.environment import Environments
from treadle.datagen.scenarios.scenario import SampleSpec, Scenario, write_facts
from treadle.datagen.scenarios.scenario_writer import PROMPTS
from treadle.export.rows import hash_tools
from treadle.journal.protocol import Journal
from treadle.models.protocol import Model, Watch, estimate_cost_usd
from treadle.models.wrappers.wrapper import Wrapper
from treadle.tools.protocol import Tool
from treadle.tools.user_code import FirstFailures
from treadle.workers.protocol import Workers
from treadle.workers.registry import HereWorkers

OnStep: TypeAlias = Callable[[str, str], None]
"""A function that is called with the id of a sample and one line about its newest message, call or result."""

sample_id: ContextVar[str] = ContextVar("sample_id", default="")
"""The sample that the current task makes."""

_MAX_CHARS = 240


class ReportingModel(Wrapper):
    """An agent's model that reports each request's new messages and each answer. It is not a listener of the run,
    because a listener waits until every event is durable, and makes the model stream."""

    CHANGES_ANSWERS = False

    def __init__(self, inner: Model, on_step: OnStep) -> None:
        super().__init__(inner)
        self._on_step = on_step

    async def infer(self, request: Request, watch: Watch) -> Completion:
        self._report(_newest(request.messages))
        completion = await self.inner.infer(request, watch)
        self._report([completion.message])
        return completion

    def _report(self, messages: Sequence[Message]) -> None:
        for message in messages:
            for line in _lines(message):
                self._on_step(sample_id.get(), line)


def _newest(messages: Log[Message]) -> list[Message]:
    """Return the messages after the last answer, without the system message."""
    backwards = (messages[index] for index in range(len(messages) - 1, -1, -1))
    return [*takewhile(lambda item: item.role not in (Role.ASSISTANT, Role.SYSTEM), backwards)][::-1]


def _lines(message: Message) -> Iterator[str]:
    # Only the beginning is shown, and white space within it becomes shorter.
    text = " ".join(message.content[: 4 * _MAX_CHARS].split())
    if message.role is Role.TOOL:
        yield _cut(f"{message.name}: {'error: ' if message.is_error else ''}{text}")
    elif text:
        yield _cut(f"{message.role}: {text}")
    for call in message.tool_calls:
        yield _cut(f"{message.role}: {call.name}({call.arguments})")


def _cut(line: str) -> str:
    return line if len(line) <= _MAX_CHARS else f"{line[: _MAX_CHARS - 1]}…"


@dataclass
class UserTurn:
    """What the simulated user says next."""

    message: str
    is_done: bool = False


def user_instructions(spec: SampleSpec, scenario: Scenario) -> str:
    """Return the system message of the simulated user of one sample."""
    facts: dict[str, Json] = {
        "write": "user_turn",
        "persona": asdict(spec.persona),
        "first_message": scenario.message,
        "goal": scenario.goal,
        "withheld": scenario.withheld,
        "success": list(scenario.success),
        "turns_left": spec.turns - 1,
        "seed": spec.seed,
    }
    return f"{PROMPTS['writers']['user']}\n\n{write_facts(facts)}"


_THANKS = pattern("farewells", "thanks")
_MAX_OTHER_WORDS = 1


def is_farewell(text: str) -> bool:
    """Return whether a message only thanks or says goodbye in English. For others, `is_done` decides."""
    words = re.findall(r"[\w'\u2019]+", text.casefold().replace("\u2019", "'"))
    others = [word for word in words if word not in read_patterns()["farewells"]["words"].split()]
    return "?" not in text and _THANKS.search(text) is not None and len(others) <= _MAX_OTHER_WORDS


ROLES = ("scenarios", "agent", "user")
"""The roles of the models that make a sample."""

_MAX_VARIANTS = 64


_TEXT: dict[str, Json] = {"type": "string", "minLength": 1}


class Spoken(Struct, frozen=True):
    """One answer as a row shows it."""

    text: str
    reasoning: str | None = None
    """The reasoning that was asked for; `None` if none was."""


def answer_schema(conversation: Conversation) -> dict[str, Json] | None:
    """Return the JSON Schema of the answers; `None` if they are plain text.

    With a chain of thought, an answer is an object with the reasoning and the answer, so that neither can be left
    out.
    """
    if conversation.type != "cot":
        return conversation.output_schema
    is_list = conversation.reasoning == "agent"
    reasoning: Json = {"type": "array", "items": _TEXT, "minItems": 1} if is_list else _TEXT
    return {
        "type": "object",
        "properties": {
            "reasoning": {
                **reasoning,
                "description": "The thoughts that lead to the answer, one for each step."
                if is_list
                else "The reasoning that leads to the answer, as continuous text.",
            },
            "answer": conversation.output_schema or _TEXT,
        },
        "required": ["reasoning", "answer"],
        "additionalProperties": False,
    }


def read_answer(output: str, conversation: Conversation) -> Spoken:
    """Return an answer that fits the schema of `conversation`."""
    if conversation.type != "cot":
        return Spoken(output)
    value: Mapping[str, Json] = msgspec.json.decode(output)
    reasoning, answer = value["reasoning"], value["answer"]
    text = answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()
    return Spoken(text, reasoning if isinstance(reasoning, str) else "\n".join(reasoning))


class Studio:
    """The agents, models, tools and journal by which samples are made."""

    def __init__(
        self,
        config: GenerationConfig,
        models: Mapping[str, Model],
        journal: Journal,
        environments: Environments,
        on_step: OnStep | None = None,
        workers: Workers | None = None,
    ) -> None:
        """Build the agents. `models` has a model for each role, or one for `default`. `workers` drives the runs; by
        default, they are driven in this process.

        Raises: `ConfigError` if a role has no model, or a tool cannot be loaded.
        """
        self.config = config
        self.models = {role: _model_for(role, models) for role in ROLES}
        self.journal = journal
        self.workers: Workers = workers or HereWorkers()
        self.environments = environments
        conversation = config.generation.conversation
        self.has_tools = conversation.type == "agent"
        self.writer = Agent(
            self.models["scenarios"],
            instructions=PROMPTS["writers"]["scenario"],
            schema=Scenario,
            journal=journal,
        )
        self._user = Agent(self.models["user"], schema=UserTurn, journal=journal)
        tools = config.tools
        model = self.models["agent"]
        self._agent: Agent[Any] = Agent(
            model if on_step is None else ReportingModel(model, on_step),
            tools=environments.tools if self.has_tools else (),
            policy=Policy(
                max_steps=tools.max_steps if self.has_tools else None,
                max_tool_calls=tools.max_calls if self.has_tools else None,
                # A row must be what the model saw.
                compact_at=None,
            ),
            schema=answer_schema(conversation),
            journal=journal,
        )
        self._agent.failures = FirstFailures()
        self.agent = lru_cache(_MAX_VARIANTS)(partial(_vary, self._agent))
        """Return the agent with this system message. It shares its tools with all others."""
        self.tools: tuple[ToolSpec, ...] = self._agent.kit.own.specs
        """The agent's tools, as the writer of scenarios sees them."""
        self.shared_tools: tuple[Tool, ...] = tuple(self._agent.kit.own.tools.values())
        """The agent's tools themselves, which others can call too, over the same connections."""
        self.tool_hashes = {tool.name: hash_tools([tool]) for tool in self.tools}
        length = read_settings(config).get("length")
        self.least_words: int = getattr(length, "min_user_words", 1)
        """The smallest number of words in the user's first message."""
        self.limits: dict[str, Json] = {"max_calls": tools.max_calls, "max_steps": tools.max_steps}

    def instructions(self, of_task: str | None) -> str:
        """Return the system message that rows show: the configured text, else that of the task."""
        base = self.config.generation.instructions or of_task
        base = base or PROMPTS["agent"]["tools" if self.has_tools else "plain"]
        return base.strip()

    def advise(self, feedback: Sequence[str]) -> str:
        """Return what rows do not show: how to reason, the limits, and why earlier attempts were rejected."""
        parts = []
        if self.has_tools:
            if self.config.generation.conversation.reasoning is not None:
                parts.append(PROMPTS["agent"]["reasoning"])
            parts.append(_tell_limits(self.config.tools.max_calls, self.config.tools.max_steps))
        if feedback:
            parts.append("\n".join([PROMPTS["agent"]["feedback"], *[f"- {reason}" for reason in feedback]]))
        return "\n\n".join(parts)

    def user(self, instructions: str) -> Agent[UserTurn]:
        """Return the simulated user with this system message."""
        return _vary(self._user, instructions)

    @cached_property
    def prices(self) -> dict[str, str]:
        """Return the known prices by role, in words. The first use may block."""
        found = {role: _describe_price(model) for role, model in self.models.items()}
        return {role: text for role, text in found.items() if text is not None}

    async def close(self) -> None:
        """Close the tools of the agent, such as connections to servers."""
        await self._agent.close()


def _vary(agent: Agent[Any], instructions: str) -> Agent[Any]:
    """Return an agent with the same parts and other instructions."""
    other = copy(agent)
    other.instructions = instructions
    return other


def _model_for(role: str, models: Mapping[str, Model]) -> Model:
    model = models.get(role) or models.get("default")
    if model is None:
        raise ConfigError(
            f"no model is given for the role {role!r}; give `models.{role}` or `models.default`"
        )
    return model


def _tell_limits(max_calls: int | None, max_steps: int) -> str:
    steps = f"you can respond at most {max_steps} times, including your final answer"
    if max_calls is None:
        return f"For each message of the user, {steps}."
    return f"For each message of the user, you can make at most {max_calls} tool calls, and {steps}."


def _describe_price(model: Model) -> str | None:
    """Return the price of a model in words; `None` if it is not known."""
    million = 1_000_000
    asked = estimate_cost_usd(model, Usage(input_tokens=million))
    written = estimate_cost_usd(model, Usage(output_tokens=million))
    if asked is None or written is None:
        return None
    return f"{asked:g} USD per million input tokens, {written:g} USD per million output tokens"
