"""A studio with scripted models, which tell the roles apart by their facts."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from treadle import ScriptedModel
from treadle.core.types import Json, Message, Request, Role
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.conversations.studio import OnStep, Studio
from treadle.datagen.scenarios.environment import open_environments
from treadle.datagen.scenarios.scenario import Difficulty, Kind, SampleSpec, UserPersona
from treadle.journal.memory import MemoryJournal
from treadle.journal.protocol import Journal
from treadle.models.protocol import Model
from treadle.models.scripted import Answer, call
from treadle.testbed.request_facts import read_facts

PERSONA = UserPersona(name="Ana Lima", role="baker", style="brief", expertise="novice")
SCENARIO: dict[str, Json] = {
    "message": "What is in notes.txt?",
    "goal": "know the notes",
    "withheld": "",
    "success": ["the notes are told"],
}
NOTES: dict[str, Json] = {"tools": {"use": ["files"], "files": {"notes.txt": "milk"}}}


def spec(turns: int = 1, kind: Kind | None = Kind.SINGLE, number: int = 1, seed: int = 7) -> SampleSpec:
    return SampleSpec(
        number=number,
        topic_id="t",
        topic=("Files", "Notes"),
        kind=kind,
        difficulty=Difficulty.EASY,
        persona=PERSONA,
        turns=turns,
        seed=seed,
    )


def facts_of(request: Request) -> dict[str, Json] | None:
    """Return the facts of a request; `None` if it is for the agent."""
    found = [
        read_facts(message.content) for message in request.messages if message.role is not Role.ASSISTANT
    ]
    return next((facts for facts in found if facts is not None), None)


def answers(request: Request) -> int:
    """Return how many assistant messages a request has."""
    return sum(message.role is Role.ASSISTANT for message in request.messages)


def read_notes(request: Request) -> Answer:
    """Answer as an agent that reads the notes and repeats them."""
    if request.messages[-1].role is Role.TOOL:
        return f"It says: {request.messages[-1].content}"
    return think("I read the file.", call("read_file", {"file_path": "notes.txt"}))


def think(text: str, *calls: Any) -> Message:
    return Message(Role.ASSISTANT, text, tuple(calls))


class Cast:
    """A model that plays all roles: a writer and a user from lists of answers, and an agent by a function."""

    def __init__(
        self,
        agent: Callable[[Request], Answer] = read_notes,
        scenarios: Sequence[Json] = (SCENARIO,),
        users: Sequence[Json] = (),
    ) -> None:
        self._agent = agent
        self._scripts: Mapping[str, Sequence[Json]] = {"scenario": scenarios, "user_turn": users}
        self.asked: dict[str, list[Request]] = {"scenario": [], "user_turn": [], "agent": []}
        """The requests by role."""
        self.model = ScriptedModel(self)

    def __call__(self, request: Request) -> Answer:
        facts = facts_of(request)
        role = "agent" if facts is None else facts["write"]
        self.asked[role].append(request)
        if role == "agent":
            return self._agent(request)
        script = self._scripts[role]
        answer = script[min(answers(request), len(script) - 1)]
        return answer if isinstance(answer, BaseException) else json.dumps(answer)


def make_studio(
    config: Mapping[str, Json],
    cast: Cast | None = None,
    journal: Journal | None = None,
    models: Mapping[str, Model] | None = None,
    on_step: OnStep | None = None,
) -> Studio:
    """Return a studio in which `cast` plays the roles that `models` does not have."""
    made = GenerationConfig.model_validate({"topics": {"prompt": "Files"}, **config})
    cast = cast or Cast()
    given = {"default": cast.model, **(models or {})}
    environments = open_environments(made.tools, made.seed)
    return Studio(made, given, journal or MemoryJournal(), environments, on_step)


def texts(messages: Sequence[Message]) -> list[str]:
    """Return the contents of all messages but the system message."""
    return [message.content for message in messages if message.role is not Role.SYSTEM]
