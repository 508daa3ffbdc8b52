"""The task sets `bfcl:CATEGORY` and `bfcl:FILE`: the data of the Berkeley Function Calling Leaderboard.

In single-turn categories the calls are not run: those of the first answer are compared with the possible answers by
value, as the leaderboard compares them. In multi-turn categories the calls work on the leaderboard's own classes,
and its own checker compares their state and results with those of its calls after each turn. A dot in the name of a
function is an underscore here, as many providers want.

Source: bfcl-eval 2026.3.23, `data/`, `eval_checker/` and `constants/type_mappings.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from itertools import islice, product
from pathlib import Path
from typing import Any

import msgspec

from treadle.core.errors import ConfigError
from treadle.core.registry import name_known
from treadle.core.texts.documents import UNREADABLE
from treadle.core.types import Effect, Json, Message, Role, ToolSpec
from treadle.runs.task import Grade, Task, TaskSet, get_task
from treadle.scoring.call_matching import ExpectedCall, MatchRules, find_call_fault, pair_up
from treadle.tasks.foreign.bfcl_worlds import BfclWorld, check_turns, read_call
from treadle.tasks.foreign.left_out import warn_left_out
from treadle.tasks.solver import Ask, Solver, Step, WantedCall
from treadle.tools.context import ToolContext
from treadle.tools.schema.validation import ArgumentChecker

_PREFIX = "BFCL_v4_"
_TYPES = {
    "dict": "object",
    "float": "number",
    "tuple": "array",
    "any": "string",
    "list": "array",
    "bool": "boolean",
}
_RULES = MatchRules(ignores_case=True, ignores_marks=True, is_literal=True)
"""The leaderboard's own notion of an equal value."""
_MOST_VALUES = 4096
"""How many combinations of the possible values of one argument are tried."""
_REFUSED = {
    "java": "its values are texts in the syntax of Java",
    "javascript": "its values are texts in the syntax of JavaScript",
    "miss_func": "its functions change between turns",
    "memory": "its runs share a memory that earlier runs filled",
    "web_search": "it needs a search engine on the web",
    "format_sensitivity": "it is about the words of prompts",
}


def open_bfcl(text: str) -> TaskSet:
    """Return the tasks of a category of the package bfcl-eval, or of a file. Raises: `ConfigError`."""
    path = Path(text).expanduser()
    if not text.endswith(".json"):
        path = _data_folder() / f"{_PREFIX}{text}.json"
        if not path.is_file():
            known = sorted(found.stem.removeprefix(_PREFIX) for found in path.parent.glob(f"{_PREFIX}*.json"))
            raise ConfigError(f"there is no category {text!r} of BFCL{name_known(text, known, 'it has')}")
    category = path.stem.removeprefix(_PREFIX)
    for part, why in _REFUSED.items():
        if category.endswith(part) or category.startswith(part):
            raise ConfigError(f"the category bfcl:{text} cannot be run here: {why}")
    return BfclSet(f"bfcl:{text}", category, path)


def _data_folder() -> Path:
    found = find_spec("bfcl_eval")
    if found is None or found.origin is None:
        raise ConfigError(
            "bfcl:CATEGORY needs the data of the package bfcl-eval; pip install --no-deps bfcl-eval, or give "
            f"a file {_PREFIX}NAME.json that has the folder possible_answer beside it"
        )
    return Path(found.origin).parent / "data"


@lru_cache(maxsize=16)
def _read_lines(path: Path) -> dict[str, dict[str, Any]]:
    """Return the objects of a file by id. Raises: `ConfigError`."""
    try:
        lines = [line for line in path.read_bytes().splitlines() if line.strip()]
        found = [msgspec.json.decode(line, type=dict[str, Any]) for line in lines]
        named = {str(item["id"]): item for item in found}
        if len(named) < len(found):
            ids = [str(item["id"]) for item in found]
            twin = next(task_id for task_id in ids if ids.count(task_id) > 1)
            raise ConfigError(f"the file {str(path)!r} has several lines with the id {twin!r}")
        return named
    except FileNotFoundError as error:
        raise ConfigError(
            f"there is no file {str(path)!r}; the data of BFCL are {_PREFIX}NAME.json, and the folder "
            "possible_answer beside it has a file of the same name"
        ) from error
    except (OSError, *UNREADABLE, KeyError, TypeError) as error:
        raise ConfigError(f"the file {str(path)!r} cannot be read as data of BFCL: {error!r}") from error


def plain_name(name: str) -> str:
    """Return the name of a function without dots."""
    return name.replace(".", "_")


def to_schema(given: Any) -> Any:
    """Return a JSON Schema for the leaderboard's description of a type."""
    if isinstance(given, list):
        return [to_schema(item) for item in given]
    if not isinstance(given, dict):
        return given
    made = {key: to_schema(value) for key, value in given.items() if key not in ("optional", "response")}
    if isinstance(kind := given.get("type"), str):
        made["type"] = _TYPES.get(kind, kind)
        if kind == "any":
            del made["type"]
    if isinstance(given.get("properties"), dict):
        made["properties"] = {name: to_schema(value) for name, value in given["properties"].items()}
    return made


def read_expected(truth: Mapping[str, Any]) -> ExpectedCall:
    """Return a possible answer, which has lists of the values that are right, as an expected call."""
    ((name, arguments),) = truth.items()
    values = {key: [value for item in listed for value in _spread(item)] for key, listed in arguments.items()}
    # The empty text stands for an argument that is left out.
    given = {
        key: [item for item in listed if item != ""] or listed for key, listed in values.items() if listed
    }
    return ExpectedCall(
        plain_name(name),
        {key: found[0] for key, found in given.items()},
        {key: found[1:] for key, found in given.items() if found[1:]},
        [key for key, listed in values.items() if "" in listed],
    )


def _spread(item: Any) -> list[Json]:
    """Return the values that a possible value stands for: an object has a list of values for each of its keys."""
    if isinstance(item, list) and any(isinstance(inner, dict) for inner in item):
        return [list(found) for found in islice(product(*[_spread(inner) for inner in item]), _MOST_VALUES)]
    if not isinstance(item, dict) or not all(isinstance(listed, list) for listed in item.values()):
        return [item]
    spread = []
    for key, listed in item.items():
        pairs = [[(key, value)] for inner in listed for value in _spread(inner)]
        spread.append(
            [*pairs, []] if "" in listed else pairs
        )  # the empty text says that the key may be left out
    return [
        dict(pair for pairs in found for pair in pairs) for found in islice(product(*spread), _MOST_VALUES)
    ]


class BfclTask:
    """A task of the leaderboard."""

    seed: int | None = None

    def __init__(self, owner: "BfclSet", entry: Mapping[str, Any]) -> None:
        self.task_set = owner.name
        self.task_id: str = entry["id"]
        self.turns: list[list[dict[str, str]]] = entry["question"]
        *said, first = [message["content"] for message in self.turns[0]]
        self.input: str = first
        self.instructions: str | None = "\n\n".join(said) or None
        self.files: Mapping[str, bytes] = {}
        self.tools: Sequence[str] = (f"bfcl-tools:{owner.name.partition(':')[2]}:{self.task_id}",)
        self.owner = owner
        self.entry = entry

    def find_solver(self, prompt: str) -> Solver | None:
        """Return a solver that makes the calls that the data says are right; `None` for another prompt."""
        if prompt.strip() != self.input.strip():
            return None
        if self.owner.is_multi_turn:
            return _solve_turns(self.owner.truth[self.task_id]["ground_truth"], self.specs())
        expected = [read_expected(truth) for truth in self._truth()]
        return _solve([WantedCall(call.name, call.arguments) for call in expected])

    def _truth(self) -> list[Any]:
        """Return the possible answers, one for each call."""
        found: list[Any] = self.owner.truth.get(self.task_id, {}).get("ground_truth", [])
        return found

    def check(self, output: str, files: Mapping[str, bytes]) -> Grade:
        """Refuse: `check_transcript` grades the calls. Raises: `ConfigError`."""
        raise ConfigError("a task of BFCL is graded by its calls, which are in the transcript of a run")

    def check_transcript(self, messages: Sequence[Message]) -> Grade:
        if self.owner.is_multi_turn:
            valid, detail = check_turns(self.entry, self.owner.truth[self.task_id]["ground_truth"], messages)
            return Grade(float(valid), detail)
        answers = [message for message in messages if message.role is Role.ASSISTANT]
        calls = answers[0].tool_calls if answers else ()
        return self.grade_calls([(call.name, call.parsed_or(None)) for call in calls])

    def grade_calls(self, calls: Sequence[tuple[str, Json]]) -> Grade:
        """Grade the calls of an answer, each a name and decoded arguments."""
        category = self.owner.category
        if category.endswith("irrelevance"):
            return Grade(
                float(not calls), f"{calls[0][0]!r} was called, although no tool fits" if calls else "no call"
            )
        if category.endswith("relevance"):
            return Grade(float(bool(calls)), "a tool was called" if calls else "no tool was called")
        expected = [read_expected(truth) for truth in self._truth()]
        schemas = {spec.name: spec.parameters for spec in self.specs()}
        faults = {
            (wanted, made): _find_fault(expected[wanted], *calls[made], schemas)
            for wanted in range(len(expected))
            for made in range(len(calls))
        }
        pairs = pair_up(
            range(len(expected)), range(len(calls)), lambda wanted, made: faults[wanted, made] is None
        )
        if len(pairs) == len(expected) == len(calls):
            return Grade(1.0, "the calls are the expected ones")
        if len(calls) != len(expected):
            return Grade(0.0, f"{len(calls)} calls were made, and {len(expected)} are expected")
        left = [pair for pair in faults if pair[0] not in pairs and pair[1] not in pairs.values()]
        left.sort(key=lambda pair: expected[pair[0]].name != calls[pair[1]][0])
        return Grade(0.0, str(faults[left[0]]))

    def specs(self) -> list[ToolSpec]:
        found = BfclWorld.documents(self.entry) if self.owner.is_multi_turn else self.entry["function"]
        effect = Effect.IDEMPOTENT if self.owner.is_multi_turn else Effect.PURE
        made = [
            ToolSpec(
                plain_name(item["name"]),
                item.get("description", ""),
                to_schema(item["parameters"]),
                effect=effect,
            )
            for item in found
        ]
        # Some tasks have two functions of one name. The checker of the leaderboard knows the first one.
        return list({spec.name: spec for spec in reversed(made)}.values())[::-1]

    def reply(self, messages: Sequence[Message]) -> str | None:
        """Return what the user says in the next turn; `None` after the last one."""
        turn = sum(message.role is Role.USER for message in messages)
        return self.turns[turn][0]["content"] if turn < len(self.turns) else None


def _solve(calls: list[WantedCall]) -> Solver:
    if calls:
        yield Step(calls, may_fail=True)
    return "Done."


def _solve_turns(truth: Sequence[Sequence[str]], specs: Sequence[ToolSpec]) -> Solver:
    names = {spec.name: list(spec.parameters["properties"]) for spec in specs}
    for turn, calls in enumerate(truth):
        if turn:
            yield Ask("Done.")
        for call in calls:
            name, arguments = read_call(call, names)
            yield Step([WantedCall(name, arguments)], may_fail=True)
    return "Done."


def _find_fault(wanted: ExpectedCall, name: str, arguments: Json, schemas: Mapping[str, Any]) -> str | None:
    schema = schemas.get(name, {})
    left_out = [
        key for key in schema.get("required", ()) if isinstance(arguments, dict) and key not in arguments
    ]
    if left_out and name == wanted.name:
        return f"the argument {left_out[0]!r} of {name!r} is missing"
    return find_call_fault(wanted, name, arguments, schema, _RULES)


class BfclSet:
    """A category of the leaderboard. Ids are those of its data."""

    def __init__(self, name: str, category: str, path: Path) -> None:
        """Read a file. Raises: `ConfigError`."""
        self.name = name
        self.category = category
        self.is_multi_turn = category.startswith("multi_turn")
        if self.is_multi_turn:
            _data_folder()
        self._entries = _read_lines(path)
        is_open = category.endswith("relevance")
        self._has_answers = not is_open
        self.truth = {} if is_open else _read_lines(path.parent / "possible_answer" / path.name)
        found = {key: self._find_obstacle(key) for key in self._entries}
        self._left_out = {key: obstacle for key, obstacle in found.items() if obstacle is not None}

    def _find_obstacle(self, task_id: str) -> str | None:
        """Return why a task cannot be run here; `None` if it can."""
        try:
            *before, last = [message["role"] for message in self._entries[task_id]["question"][0]]
        except (LookupError, TypeError, ValueError):
            return "it has no question"
        if last != "user" or any(role != "system" for role in before):
            return "its conversation has earlier answers or messages"
        return "it has no possible answer" if self._has_answers and task_id not in self.truth else None

    def __len__(self) -> int:
        return len(self._entries) - len(self._left_out)

    def __iter__(self) -> Iterator[Task]:
        warn_left_out(self.name, len(self._entries), self._left_out)
        return map(self.get, [task_id for task_id in self._entries if task_id not in self._left_out])

    def get(self, task_id: str) -> BfclTask:
        entry = get_task(self.name, self._entries, task_id)
        if (obstacle := self._left_out.get(task_id)) is not None:
            raise ConfigError(f"the task {self.name}:{task_id} cannot be run here: {obstacle}")
        return BfclTask(self, entry)


class BfclTool:
    """A function of the leaderboard: noted, or run on its classes."""

    def __init__(self, spec: ToolSpec, entry: Mapping[str, Any] | None) -> None:
        """Make a tool. `entry` is the task whose classes it works on; `None` if its calls are only noted."""
        self.spec = spec
        self.find_fault = ArgumentChecker(dict(spec.parameters)).find_fault
        self._entry = entry

    async def call(self, arguments: dict[str, Json], context: ToolContext[Any]) -> str:
        if self._entry is None:
            return "The call was noted."
        entry = self._entry
        world = await context.scope.get("bfcl", lambda: BfclWorld.open(entry, context.sandbox))
        return world.call(self.spec.name, arguments)


class BfclTools:
    """The functions of one task, the toolset `bfcl-tools:CATEGORY:ID`. See `Toolset`."""

    def __init__(self, text: str) -> None:
        """Make the tools. Raises: `ConfigError`."""
        name, _, task_id = text.rpartition(":")
        found = open_bfcl(name).get(task_id)
        assert isinstance(found, BfclTask)
        entry = found.entry if found.owner.is_multi_turn else None
        self._tools = [BfclTool(spec, entry) for spec in found.specs()]

    def tools(self) -> Sequence[BfclTool]:
        return self._tools
