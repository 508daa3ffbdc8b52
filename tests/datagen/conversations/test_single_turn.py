"""Single-turn agents: a scenario, a session of the agent, and a row."""

import json

from treadle import ScriptedModel
from treadle.core.types import Json, Message, Request, Role
from treadle.datagen.config.model import Config
from treadle.datagen.conversations.make import make_sample
from treadle.datagen.conversations.studio import Studio
from treadle.datagen.prompts import read_facts
from treadle.datagen.scenarios.environment import open_environments
from treadle.datagen.scenarios.types import Difficulty, Kind, Persona, SampleSpec
from treadle.journal.memory import MemoryJournal
from treadle.models.scripted import call

SPEC = SampleSpec(
    number=1,
    topic_id="t",
    topic=("Files", "Notes"),
    kind=Kind.SINGLE,
    difficulty=Difficulty.EASY,
    persona=Persona(name="Ana Lima", role="baker", style="brief", expertise="novice"),
    turns=1,
    seed=7,
)


def script(request: Request):
    facts = read_facts("\n".join(message.content for message in request.messages))
    if facts is not None and facts["write"] == "scenario":
        return json.dumps(
            {"message": "What is in notes.txt?", "goal": "to know", "withheld": "", "success": []}
        )
    if request.messages[-1].role is Role.TOOL:
        return f"It says: {request.messages[-1].content}"
    return Message(Role.ASSISTANT, "I read the file.", (call("read_file", {"file_path": "notes.txt"}),))


def make_studio(config: dict[str, Json], answer=script) -> Studio:
    made = Config.model_validate({"topics": {"prompt": "Files"}, **config})
    model = ScriptedModel(answer)
    return Studio(made, {"default": model}, MemoryJournal(), open_environments(made.tools, made.seed))


async def test_a_sample_is_a_row_of_its_run():
    studio = make_studio({"tools": {"use": ["files"], "files": {"notes.txt": "milk"}}})
    made = await make_sample(studio, SPEC)
    assert made.error is None
    assert made.row is not None
    said = [message.content for message in made.row.messages if message.role is not Role.SYSTEM]
    assert said == ["What is in notes.txt?", "I read the file.", "milk", "It says: milk"]
    info = made.row.lineage.sample
    assert info is not None
    assert info.kinds == ("single",)
