"""The simulated user, a model in a session of its own. It sees the agent's answers and never a tool's result."""

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


_THANKS = re.compile(
    r"\b(?:thank(?:s| you)|thx|cheers|bye|goodbye|have a (?:nice|good|great))\b", re.IGNORECASE
)
_MAX_THANKS_WORDS = 12


def is_farewell(text: str) -> bool:
    """Return whether a message only thanks or says goodbye."""
    is_short = len(text.split()) <= _MAX_THANKS_WORDS
    return is_short and "?" not in text and _THANKS.search(text) is not None
