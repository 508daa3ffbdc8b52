"""The studio: everything that all samples share. Agents are built once, and samples differ only in their messages
and instructions."""

from collections.abc import Mapping
from copy import copy
from typing import Any

from treadle.agent.agent import Agent
from treadle.core.errors import ConfigError
from treadle.core.policy import Policy
from treadle.core.types import Json, ToolSpec, Usage
from treadle.datagen.config.model import Config
from treadle.datagen.conversations.answers import answer_schema
from treadle.datagen.conversations.user import UserTurn
from treadle.datagen.conversations.watch import OnStep, ReportingModel
from treadle.datagen.scenarios.environment import Environments
from treadle.datagen.scenarios.writer import WRITER, WrittenScenario
from treadle.export.rows import hash_tools
from treadle.journal.protocol import Journal
from treadle.models.protocol import Model, estimate_cost_usd
from treadle.tools.protocol import Tool
from treadle.workers.protocol import Workers
from treadle.workers.registry import HereWorkers

ROLES = ("scenarios", "agent", "user")
"""The roles of the models that make a sample."""

DEFAULT_INSTRUCTIONS = "You are a helpful assistant."
TOOL_INSTRUCTIONS = (
    "You are a helpful assistant with tools. Use them where they are needed, and never invent a result. If a fact "
    "is missing that only the user knows, ask for it. If the tools cannot do what is asked, say so."
)
REASONING_INSTRUCTIONS = "Before each tool call, write in one or two sentences what you will do and why."
_MAX_VARIANTS = 64


class Studio:
    """The agents, models, tools and journal by which samples are made."""

    def __init__(
        self,
        config: Config,
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
            self.models["scenarios"], instructions=WRITER, schema=WrittenScenario, journal=journal
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
        self._variants: dict[str, Agent[Any]] = {}
        self.tools: tuple[ToolSpec, ...] = self._agent.kit.own.specs
        """The agent's tools, as the writer of scenarios sees them."""
        self.shared_tools: tuple[Tool, ...] = tuple(self._agent.kit.own.tools.values())
        """The agent's tools themselves, which others can call too, over the same connections."""
        self.tool_hashes = {tool.name: hash_tools([tool]) for tool in self.tools}
        self.limits: dict[str, Json] = {"max_calls": tools.max_calls, "max_steps": tools.max_steps}
        self._prices: dict[str, str] | None = None

    def instructions(self, of_task: str | None) -> str:
        """Return the agent's system message: the configured text, else that of the task, with the limits."""
        base = self.config.generation.instructions or of_task
        base = base or (TOOL_INSTRUCTIONS if self.has_tools else DEFAULT_INSTRUCTIONS)
        parts = [base.strip()]
        if self.has_tools:
            if self.config.generation.conversation.reasoning is not None:
                parts.append(REASONING_INSTRUCTIONS)
            parts.append(_tell_limits(self.config.tools.max_calls, self.config.tools.max_steps))
        return "\n\n".join(parts)

    def agent(self, instructions: str) -> Agent[Any]:
        """Return the agent with this system message. It shares its tools with all others."""
        found = self._variants.get(instructions)
        if found is None:
            if len(self._variants) >= _MAX_VARIANTS:
                del self._variants[next(iter(self._variants))]
            found = self._variants[instructions] = _vary(self._agent, instructions)
        return found

    def user(self, instructions: str) -> Agent[UserTurn]:
        """Return the simulated user with this system message."""
        return _vary(self._user, instructions)

    def prices(self) -> dict[str, str]:
        """Return the known prices by role, in words. The first call may block."""
        if self._prices is None:
            found = {role: _describe_price(model) for role, model in self.models.items()}
            self._prices = {role: text for role, text in found.items() if text is not None}
        return self._prices

    async def close(self) -> None:
        """Stop the workers, and close the tools of the agent, such as connections to servers."""
        await self.workers.close()
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
