"""The writer of scenarios: requests that the teacher can carry out, in the words of a persona."""

from treadle.core.types import Json
from treadle.tasks.draw import Draw
from treadle.teacher.facts import Facts, number_of, object_of, objects_of, text_of, texts_of
from treadle.teacher.working.catalogue import ERRANDS
from treadle.teacher.working.errands import Shelf


def write_scenario(facts: Facts) -> Json:
    """Return the message, the goal, what is withheld and the signs of success."""
    key = "/".join(
        [str(number_of(facts, "seed", 0)), *texts_of(facts, "topic"), *texts_of(facts, "feedback")]
    )
    draw = Draw(f"scenario/{key}")
    topic = texts_of(facts, "topic")
    task = object_of(facts, "task")
    shelf = Shelf({text_of(item, "path"): text_of(item, "head") for item in objects_of(facts, "files")})
    request = text_of(task, "input")
    withheld = ""
    kind = text_of(facts, "kind")
    if not request or kind not in ("chained", "parallel", ""):
        errand = ERRANDS[0]
        values = errand.draw(shelf, draw) or {"path": "notes.txt"}
        if kind == "missing_parameter":
            request = draw.pick(errand.gapped).render(values)
            withheld = f"It is {values['path']}."
        else:
            request = draw.pick(errand.prompts).render(values)
    opening = f"This is about {topic[-1] if topic else 'our work'}."
    return {
        "message": f"{opening}\n\n{request}",
        "goal": request,
        "withheld": withheld,
        "success": ["The request is answered from what the tools returned."],
    }
