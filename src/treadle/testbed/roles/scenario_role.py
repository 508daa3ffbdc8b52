"""The writer of scenarios: requests that the teacher can carry out, in the words of a persona.

A task of the set `files` is asked for word for word where it shows the kind of tool use that is wanted. For
other kinds, and for other files and tools, the request is a small errand.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.types import Json, ToolSpec
from treadle.tasks.draws import Draw, Wording
from treadle.tasks.files import identify
from treadle.testbed.play import misspell
from treadle.testbed.request_facts import Facts, number_of, object_of, objects_of, text_of, texts_of
from treadle.testbed.roles.errands import Errand, Shelf, errands
from treadle.testbed.roles.file_kit import FileTools, find_near
from treadle.testbed.roles.named_calls import draw_wishes
from treadle.testbed.roles.speakers import FOLLOW_UP, WritingManner, frame, manner_of
from treadle.testbed.roles.talks import Talk, talks
from treadle.testbed.roles.topic_role import things_of, words_of
from treadle.testbed.roles.words import load

MAX_FILE_BYTES = 50_000
"""The size up to which files are read; a tool cuts the results of larger ones."""
MAX_SHORT_BYTES = 1_500
"""The size up to which lines are counted."""
_TASK_TOOLS = {"read_file", "write_file", "list_files", "delete_file", "edit_file", "search_files"}
_TASK_CALLS = 20
"""How many calls a task may need."""
_TASK_STEPS = {1: 14, 2: 11}
"""How many steps a task may need, by the number of files that its solver reads at once."""
_FEW_STEPS = 9
_LONG_TASKS = {"pointer_chase": 14}
_UNSURE_TASKS = {"pointer_chase", "todo_count"}
"""Families whose tasks may be solved without calls in parallel."""
_EASY_ERRANDS = 0.6
"""The share of easy scenarios that ask for something smaller than the task."""
_QUIET = ("single", "no_tool", "refusal", "")
"""Kinds whose conversations must not have further calls."""


class RequestDraft(Struct, frozen=True):
    """The content of a scenario's request, before it is written in the words of a persona."""

    request: str
    """The request, as one paragraph."""
    withheld: str = ""
    makes: tuple[str, ...] = ()
    """The paths of the files that the agent is asked to create."""
    used: frozenset[str] = frozenset()
    """The paths that the request names."""
    has_count: bool = False
    """True if the answer is a number to which something can be added."""
    is_about_files: bool = False
    is_task: bool = False
    """True if the request is the task of the environment."""


class ScenarioScene(Struct, frozen=True):
    """The facts of a scenario in the forms that drafts are drawn from."""

    kind: str
    difficulty: str
    topic: tuple[str, ...]
    tools: tuple[ToolSpec, ...]
    shelf: Shelf
    task: str
    limits: Facts
    manner: WritingManner
    draw: Draw

    @property
    def things(self) -> str:
        return things_of(self.topic)

    def word(self, prompts: Sequence[Wording]) -> Wording:
        """Return one of the wordings; a question or an instruction, if the persona prefers these."""
        wanted = {"question": True, "instruction": False}.get(self.manner.habit)
        fitting = [item for item in prompts if wanted is not None and item.text.endswith("?") is wanted]
        return self.draw.pick(fitting or prompts)


Drafter: TypeAlias = Callable[[ScenarioScene], RequestDraft | None]


def write_scenario(facts: Facts, tries: int = 0, own: Drafter = lambda scene: None) -> Json:
    """Return the message, the goal, what is withheld, the signs of success and the files that will be created.

    After `tries` scenarios that could not be used, another one is written. The request is one of `own` if that
    returns one.
    """
    scene = _read(facts, tries)
    draft = own(scene) or _draft(scene, text_of(facts, "conversation"))
    topic = scene.topic[-1] if scene.topic else "our work"
    message = frame(draft.request, topic, scene.manner, scene.draw, bridge=draft.is_about_files)
    count = number_of(facts, "turns", 1) - 1 - bool(draft.withheld)
    further = list(_follow_ups(scene, draft, count, own))
    success = load("words")["success"]
    goal = [draft.request, *[f"{FOLLOW_UP}{request}" for request in further]]
    return {
        "message": message,
        "goal": "\n".join(goal),
        "withheld": draft.withheld,
        "success": [success.get(scene.kind, success["any"])],
        "new_files": list(draft.makes),
        # The check of a task grades the last answer, which is about something else if there are further requests.
        "is_task": draft.is_task and not further,
    }


def _read(facts: Facts, tries: int) -> ScenarioScene:
    topic = texts_of(facts, "topic")
    kind = text_of(facts, "kind")
    key = [str(number_of(facts, "seed", 0)), str(tries), kind, *topic, *texts_of(facts, "feedback")]
    heads: dict[str, str] = {}
    others, short = set[str](), set[str]()
    for item in objects_of(facts, "files"):
        path, head = text_of(item, "path"), text_of(item, "head")
        size_bytes = number_of(item, "size_bytes", 0)
        if not head.strip() or size_bytes > MAX_FILE_BYTES:
            others.add(path)
            continue
        heads[path] = head
        if size_bytes <= MAX_SHORT_BYTES:
            short.add(path)
    tools = [
        ToolSpec(text_of(item, "name"), text_of(item, "description"), object_of(item, "parameters"))
        for item in objects_of(facts, "tools")
    ]
    task = text_of(object_of(facts, "task"), "input")
    shelf = Shelf(heads, frozenset(others), frozenset(short), things_of(topic))
    limits, manner = object_of(facts, "limits"), manner_of(object_of(facts, "persona"))
    draw = Draw(f"scenario/{'/'.join(key)}")
    difficulty = text_of(facts, "difficulty")
    return ScenarioScene(kind, difficulty, tuple(topic), tuple(tools), shelf, task, limits, manner, draw)


def _draft(scene: ScenarioScene, conversation: str) -> RequestDraft:
    """Return what to ask for, so that the conversation shows the kind."""
    if conversation in ("basic", "cot") or not scene.tools:
        plain = [*talks("problems"), *(talks("definitions") if conversation != "cot" else ())]
        return _draft_talk(plain, scene)
    if scene.kind == "no_tool":
        return _draft_talk([*talks("problems"), *[*talks("definitions")] * 3], scene)
    if scene.kind == "refusal":
        names = " ".join([tool.name.lower() for tool in scene.tools])
        fitting = [talk for talk in talks("refusals") if not any([part in names for part in talk.banned])]
        return _draft_talk(fitting or talks("refusals"), scene)
    return (
        _draft_task(scene)
        or _draft_errand(scene)
        or _draft_wishes(scene)
        or _draft_talk([*talks("problems"), *talks("definitions")], scene)
    )


def _draft_talk(sorts: Sequence[Talk], scene: ScenarioScene) -> RequestDraft:
    talk = scene.draw.pick(sorts)
    text = scene.word(talk.prompts).render(talk.draw(scene.things, scene.draw))
    return RequestDraft(text, has_count=talk.has_count)


def _draft_task(scene: ScenarioScene) -> RequestDraft | None:
    """Return the task of the environment, if it shows the kind and can be done with the tools and the limits."""
    found = identify(scene.task.strip()) if scene.task else None
    if found is None or scene.kind not in ("", "chained", "parallel"):
        return None
    family, _, habit = found
    steps = _LONG_TASKS.get(family.name, _TASK_STEPS.get(habit.batch, _FEW_STEPS))
    is_possible = (
        {tool.name for tool in scene.tools} >= _TASK_TOOLS
        and (number_of(scene.limits, "max_steps", steps) or steps) >= steps
        and (number_of(scene.limits, "max_calls", _TASK_CALLS) or _TASK_CALLS) >= _TASK_CALLS
    )
    if not is_possible:
        return None
    if scene.difficulty == "easy" and scene.draw.chance(_EASY_ERRANDS):
        return None
    if scene.kind == "parallel" and (habit.batch == 1 or family.name in _UNSURE_TASKS):
        return None
    return RequestDraft(scene.task.strip(), is_task=True, is_about_files=True)


def _draft_errand(scene: ScenarioScene) -> RequestDraft | None:
    """Return an errand about the files."""
    kit, kind = FileTools(scene.tools), scene.kind or "chained"
    for errand in scene.draw.shuffled(errands()):
        if kind not in errand.kinds or not kit.can(*errand.needs):
            continue
        if kind == "missing_parameter" and not errand.gapped:
            continue
        values = errand.draw(scene.shelf, scene.draw)
        if values is None:
            continue
        if kind == "recovery" and errand.is_misspelt:
            wrong = _misspell_path(values["path"], scene) if kit.can("list") else None
            if wrong is None:
                continue
            values = {**values, "path": wrong}
        return _to_draft(errand, values, scene, has_gap=kind == "missing_parameter")
    return None


def _to_draft(
    errand: Errand, values: Mapping[str, str], scene: ScenarioScene, *, has_gap: bool
) -> RequestDraft:
    prompts = errand.gapped if has_gap else errand.prompts
    return RequestDraft(
        scene.word(prompts).render(values),
        f"The file is {values['path']}." if has_gap else "",
        tuple([values[name] for name in errand.makes]),
        frozenset(values.values()),
        errand.has_count,
        is_about_files=True,
    )


def _misspell_path(path: str, scene: ScenarioScene) -> str | None:
    """Return `path` with a mistake in it, if the agent can find out which path is meant."""
    wrong = misspell(path, str(scene.draw.below(1_000_000)))
    paths = [*scene.shelf.heads, *scene.shelf.others]
    return wrong if scene.shelf.is_free(wrong) and find_near(wrong, paths) == path else None


def _draft_wishes(scene: ScenarioScene) -> RequestDraft | None:
    """Return a request that names tools and arguments."""
    words = words_of(scene.topic[-1]) if scene.topic else []
    named = draw_wishes(scene.kind or "single", scene.tools, words, scene.draw)
    return None if named is None else RequestDraft(named.text, named.withheld)


def _follow_ups(scene: ScenarioScene, draft: RequestDraft, count: int, own: Drafter) -> Iterator[str]:
    """Yield up to `count` further requests, which do not change the kind of the conversation. They need tools
    wherever the kind allows more calls; elsewhere they are about the last answer."""
    made = [draft.request]
    for _ in range(20 * max(0, count)):
        text = _ask_tools(scene, draft, own) if scene.kind not in _QUIET else None
        text = text or _ask_about(scene, draft, made)
        if text not in made:
            made.append(text)
            yield text
        if len(made) > count:
            return


def _ask_tools(scene: ScenarioScene, draft: RequestDraft, own: Drafter) -> str | None:
    """Return a request that one call answers, about something that was not used before."""
    if (other := own(replace(scene, kind="single"))) is not None:
        return other.request
    # A task may change any file of a folder.
    readable = [
        path
        for path in scene.shelf.heads
        if path not in draft.used and not (draft.is_task and ("/" in path or path in scene.task))
    ]
    if readable and FileTools(scene.tools).can("read"):
        shelf = Shelf({path: scene.shelf.heads[path] for path in readable}, short=scene.shelf.short)
        quiet = [errand for errand in errands() if errand.needs == ("read",) and "single" in errand.kinds]
        for errand in scene.draw.shuffled(quiet):
            if (values := errand.draw(shelf, scene.draw)) is not None:
                return scene.word(errand.prompts).render(values)
    if FileTools(scene.tools).can("list"):
        looks = [errand for errand in errands() if errand.needs == ("list",) and not errand.rules]
        return scene.word(scene.draw.pick(looks).prompts).render({})
    wish = _draft_wishes(replace(scene, kind="single"))
    return None if wish is None else wish.request


def _ask_about(scene: ScenarioScene, draft: RequestDraft, made: Sequence[str]) -> str:
    """Return a request that needs no tool: the last answer restated or reckoned with, or what a word means."""
    restated = load("words")["calls"]["restate"]
    is_first = len(made) == 1 and scene.kind != "refusal" and not draft.withheld
    if is_first and draft.has_count and scene.draw.chance(0.4):
        wording = Wording(scene.draw.pick(load("words")["reckoning"]["more"]))
        return wording.render({"number": str(scene.draw.between(2, 60))})
    if is_first and scene.draw.chance(0.5):
        return str(scene.draw.pick(list(restated)))
    talk = scene.draw.pick(talks("definitions"))
    return scene.word(talk.prompts).render(talk.draw(scene.things, scene.draw))
