"""The simulated user, a model in its own session. It sees the agent's answers and never a tool's result."""

import re
from dataclasses import dataclass

from treadle.core.types import Json
from treadle.datagen.prompts import write_facts
from treadle.datagen.scenarios.types import SampleSpec, Scenario

_USER = """\
You play the user in a conversation with an assistant. The facts say who you are and what you want. Each message
that you get is what the assistant said last; reply with the user's next message.

- Stay in the persona and its style. You are not the assistant: do not solve the task yourself.
- Pursue the goal. If the assistant asks something, answer it from the facts, or with a plausible concrete value.
- Tell what is under `withheld` only if the assistant asks for it.
- If something in `success` is not true yet, ask for it. Do not ask for more than the goal.
- When the goal is reached, or the assistant has made clear that it cannot be reached, set `is_done` to true and
  leave the message empty. Do not go on only to thank or to say goodbye."""


@dataclass
class UserTurn:
    """What the simulated user says next."""

    message: str
    is_done: bool = False


def user_instructions(spec: SampleSpec, scenario: Scenario) -> str:
    """Return the system message of the simulated user of one sample."""
    persona = spec.persona
    facts: dict[str, Json] = {
        "write": "user_turn",
        "persona": {
            "name": persona.name,
            "role": persona.role,
            "style": persona.style,
            "expertise": persona.expertise,
        },
        "first_message": scenario.message,
        "goal": scenario.goal,
        "withheld": scenario.withheld,
        "success": list(scenario.success),
        "turns_left": spec.turns - 1,
        "seed": spec.seed,
    }
    return f"{_USER}\n\n{write_facts(facts)}"


_THANKS = re.compile(r"\b(?:thank(?:s| you)|thx|cheers|bye|goodbye)\b", re.IGNORECASE)
_COURTESY = """
a again all and any appreciate bye cheers clear day everything exactly fine for good goodbye great have help
helpful
helps i is it just lot many me much my need needed nice no now of ok okay one perfect please really settles so
sorted
that that's the then this thank thanks thx to today very was what will wonderful works you your
"""
_MAX_OTHER_WORDS = 1


def is_farewell(text: str) -> bool:
    """Return whether a message only thanks or says goodbye. Only English texts are recognised; for others,
    `is_done` decides."""
    words = re.findall(r"[\w'\u2019]+", text.casefold().replace("\u2019", "'"))
    others = [word for word in words if word not in _COURTESY.split()]
    return "?" not in text and _THANKS.search(text) is not None and len(others) <= _MAX_OTHER_WORDS
