"""The writer of topics: one durable run for each request, whose answer is a list of subtopics."""

import re
from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Struct
from pydantic import BaseModel, Field, create_model

from treadle.agent.agent import Agent
from treadle.core.errors import ConfigError, LeaseHeldError, ProviderError
from treadle.core.types import Fault, Json
from treadle.datagen.config.generation_config import Topics
from treadle.datagen.scenarios.scenario import write_facts
from treadle.datagen.scenarios.scenario_writer import PROMPTS
from treadle.datagen.topics.topic_graph import Topic, clean_topic
from treadle.journal.protocol import Journal
from treadle.models.protocol import Model
from treadle.runs.ensure import ensure_run
from treadle.runs.options import Given, StreamOptions
from treadle.runs.retries import RetryPolicy
from treadle.runs.run import Run

RUN_PREFIX = "topic-"
"""The beginning of the ids of all runs for topics."""
MAX_CHARS = 300
"""The longest text that is a topic."""
_MAX_SURPLUS = 10
"""How many subtopics more than the degree an answer may have. Those that were not asked for are left out."""
_BULLET = re.compile(r"^(?:[-*•]|\(?\d{1,3}[.)])\s+")


class _Subtopic(BaseModel):
    topic: str


class _LinkedSubtopic(_Subtopic):
    connections: list[str] = Field(default_factory=list)


def _answer_type(config: Topics) -> type[BaseModel]:
    """Return the type of answers: subtopics, in a graph with the ids of other topics to which they belong.

    A weak model that decodes within the schema repeats subtopics until its limit, unless the list has a bound.
    """
    kind: Any = _LinkedSubtopic if config.mode == "graph" else _Subtopic
    items: Any = Annotated[list[kind], Field(max_length=config.degree + _MAX_SURPLUS)]
    return create_model("Subtopics", subtopics=(items, ...))


class TopicRequest(Struct, frozen=True, kw_only=True):
    topic: Topic
    attempt: int
    count: int
    siblings: Sequence[Topic]
    existing: Sequence[Topic]


class TopicAnswer(Struct, frozen=True, kw_only=True):
    """The answer of a model to a request for topics."""

    subtopics: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """The subtopics: each text, which may be empty or too long, with the ids of its other parents."""
    error: str | None = None
    """Why there is no answer; `None` if there is one."""
    is_down: bool = False
    """True if the server or the network failed, and not the model."""


class TopicWriter:
    """A model that writes subtopics."""

    def __init__(self, config: Topics, model: Model, journal: Journal, seed: int, dataset: str) -> None:
        self.model = model
        self._config = config
        self._seed = seed
        self._dataset = dataset
        told = PROMPTS["writers"]
        self._agent: Agent[Any] = Agent(
            model,
            instructions="\n".join([told["topics"], *([told["links"]] if config.mode == "graph" else ())]),
            schema=_answer_type(config),
            journal=journal,
        )
        # The model has waited between its own attempts.
        retries = RetryPolicy(attempts=config.max_attempts, delay_seconds=0.0)
        self._given = Given(self._agent.answer, self._agent.deps, retries=retries)
        self._settings: dict[str, Json] = {
            "mode": config.mode,
            "degree": config.degree,
            "seed": seed,
            "instructions": config.instructions,
        }

    async def ask(self, request: TopicRequest) -> TopicAnswer:
        """Return the model's answer to `request`; the recorded one if the journal has it.

        If the server fails, the run is attempted up to `max_attempts` times in all.

        Raises: `ConfigError` if the journal has the run with other settings; `ProviderError` if no request of this
        model can succeed, such as with a wrong API key.
        """
        run_id = f"{RUN_PREFIX}{request.topic.topic_id}-{request.attempt}"
        run = await self._run(run_id, request)
        if run.fault is Fault.USER:
            raise ProviderError(f"the model {self.model.name!r} refuses requests for topics: {run.error}")
        if run.fault is Fault.INFRASTRUCTURE:
            return TopicAnswer(error=run.error, is_down=True)
        try:
            found = run.value.subtopics
        except ValueError as error:
            return TopicAnswer(error=run.error or str(error))
        return TopicAnswer(
            subtopics=tuple(
                [
                    (_BULLET.sub("", clean_topic(item.topic)), tuple(getattr(item, "connections", ())))
                    for item in found
                ]
            )
        )

    async def _run(self, run_id: str, request: TopicRequest) -> Run[Any]:
        options: StreamOptions = {
            "metadata": {"dataset": self._dataset, "part": "topic", "settings": self._settings}
        }
        try:
            run = await ensure_run(self._agent, run_id, self._write(request), self._given, options)
        except LeaseHeldError as error:
            raise LeaseHeldError(
                f"another process builds the same topics in this journal ({error})"
            ) from error
        self._check_settings(run, request)
        return run

    def _check_settings(self, run: Run[Any], request: TopicRequest) -> None:
        """Check that a run was made with these settings. Raises: `ConfigError`."""
        recorded: Json = run.metadata.get("settings") or {}
        changes = [
            f"{name} was {recorded.get(name)!r:.80} and is {value!r:.80}"
            for name, value in self._settings.items()
            if recorded.get(name) != value
        ]
        if changes:
            raise ConfigError(
                f"the journal has the topics of {request.topic.path[0]!r:.80} with other settings: "
                f"{'; '.join(changes)}. Use those settings, or another journal"
            )

    def _write(self, request: TopicRequest) -> str:
        config, topic = self._config, request.topic
        facts: dict[str, Json] = {
            "write": "subtopics",
            "path": topic.path,
            "count": request.count,
            "mode": config.mode,
            "siblings": [item.text for item in request.siblings],
            "existing": [{"id": item.topic_id, "topic": item.text} for item in request.existing],
            "instructions": config.instructions,
            "seed": self._seed,
            "attempt": request.attempt,
        }
        noun = "subtopic" if request.count == 1 else "subtopics"
        return f"Write {request.count} {noun} of {topic.text!r}.\n\n{write_facts(facts)}"
