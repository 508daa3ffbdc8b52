"""The estimate of a generation: the calls, tokens, cost and time of each role, before any request is sent.

The numbers come from assumptions about the load of one piece of work, which are listed in the estimate, or from the
runs that the dataset's journal already has.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError, TreadleError
from treadle.core.prompts.estimates import CHARS_PER_TOKEN
from treadle.core.spec import PartSpec
from treadle.core.texts.documents import read_data
from treadle.core.types import Usage
from treadle.datagen.config.generation_config import GenerationConfig, Role
from treadle.datagen.config.roles import used_roles
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.scenarios.environment import MAX_LISTED_FILES
from treadle.datagen.scenarios.kinds import possible_kinds
from treadle.datagen.scenarios.scenario import Kind
from treadle.datagen.topics.topic_files import load_topics
from treadle.jobs.meter import is_free
from treadle.journal.protocol import Journal
from treadle.journal.registry import open_journal
from treadle.journal.run_info import RunFilter, RunInfo
from treadle.models.protocol import Model, estimate_cost_usd
from treadle.runs.task import task_set
from treadle.tools.resolve import is_code, resolve_tools

_DATA = read_data(__package__, "loads")
_TOOL_TOKENS, _HEAD_TOKENS, _RESULT_TOKENS, _CALL_TOKENS, _ANSWER_TOKENS, _COT_TOKENS = [
    int(_DATA["tokens"][name]) for name in ("tool", "head", "result", "call", "answer", "cot")
]
"""The assumed tokens of the parts of a conversation and of its prompts."""
_STEPS: dict[Kind, float] = {Kind(name): steps for name, steps in _DATA["steps"].items()}
"""The steps with calls in a conversation of each kind."""
_CALL_SECONDS: float = _DATA["seconds"]["call"]
_TOKENS_PER_SECOND: float = _DATA["seconds"]["tokens_per_second"]
_WORKS_ON_SERVERS = ("mcp", "openapi", "spin")


class Load(Struct, frozen=True, kw_only=True):
    """The calls, tokens and time of one piece of work: the expansion of a topic, a scenario, or a conversation."""

    calls: float
    input_tokens: float
    """The tokens of the prompts of all calls."""
    output_tokens: float
    seconds: float
    """The time of all calls, one after another."""
    cost_usd: float | None = None
    """The cost; `None` to compute it from the tokens."""


def assume_loads(config: GenerationConfig) -> tuple[dict[Role, Load], dict[Role, str]]:
    """Return the load of one piece of work by role, and the assumptions in words."""
    conversation, topics = config.generation.conversation, config.topics
    tools, files = tool_tokens(config), file_tokens(config)
    turns = (conversation.min_turns + conversation.max_turns) / 2
    steps = _steps(config)
    is_agent = conversation.type == "agent"
    answer = _COT_TOKENS if conversation.type == "cot" else _ANSWER_TOKENS
    system = _count(config.generation.instructions) + 60
    known_topics = min(topics.degree**topics.depth, 200) / 2
    agent = _conversation(turns, steps if is_agent else 0.0, system + (tools if is_agent else 0), answer)
    seen = turns * (answer + 60)
    loads: dict[Role, Load] = {
        "topics": _load(1, 450 + _count(topics.instructions) + 10 * known_topics, 14 * topics.degree + 20),
        "scenarios": _load(1, 700 + _count(config.generation.guidance) + tools + files, 180),
        "agent": agent,
        "user": _load(max(0.0, turns - 1), (450 + seen / 2) * max(0.0, turns - 1), 60 * max(0.0, turns - 1)),
        "judge": _load(
            1, 400 + seen + (steps * turns * (_RESULT_TOKENS + _CALL_TOKENS) if is_agent else 0), 80
        ),
    }
    texts: dict[Role, str] = {
        "topics": f"an answer with {topics.degree} topics has {14 * topics.degree + 20} tokens",
        "scenarios": f"a scenario has 180 tokens, its prompt {tools:,} for the tools and {files:,} for the files",
        "agent": f"a conversation has {turns:g} turns with {steps:.1f} steps with calls and an answer each; a call "
        f"has {_CALL_TOKENS} tokens, a result {_RESULT_TOKENS}, an answer {answer}"
        if is_agent
        else f"a conversation has {turns:g} turns, and an answer {answer} tokens",
        "user": "the simulated user is asked for each turn but the first, and writes 60 tokens",
        "judge": "the judge is asked once for each row",
    }
    texts["agent"] += f"; an answer takes {_CALL_SECONDS:g} s, and 1 s more for {_TOKENS_PER_SECOND:g} tokens"
    return loads, texts


def tool_tokens(config: GenerationConfig) -> int:
    """Return the number of tokens of the tools' definitions.

    For tools of servers, files and modules it is a guess, because none is started, asked or imported.
    """
    total = _count(msgspec.json.encode(config.tools.definitions).decode()) if config.tools.definitions else 0
    for part in toolsets_of(config):
        if is_server(part.name) or is_code(part.name):
            total += _DATA["server_tools"] * _TOOL_TOKENS
            continue
        try:
            specs = [item.spec for item in resolve_tools(part)]
        except TreadleError:
            continue
        total += _count(msgspec.json.encode(specs).decode())
    return total


def toolsets_of(config: GenerationConfig) -> tuple[PartSpec, ...]:
    """Return the toolsets of the agent: the configured ones, or else those of the task set."""
    tools = config.tools
    name = tools.task_set
    if tools.use or tools.definitions or name is None:
        return tools.parts()
    try:
        task = next(iter(task_set(name)), None)
    except TreadleError:
        return ()
    return () if task is None else tuple([PartSpec(name=name) for name in task.tools])


def is_server(name: str) -> bool:
    """Return whether a toolset starts or asks a server to learn its tools."""
    return name.partition(":")[0] in _WORKS_ON_SERVERS


def largest_prompts(config: GenerationConfig) -> dict[Role, int]:
    """Return the number of tokens of the longest prompt that each role is expected to get."""
    loads, _ = assume_loads(config)
    found: dict[Role, int] = {
        role: round(load.input_tokens / max(1.0, load.calls)) for role, load in loads.items()
    }
    # The last prompt of a conversation contains everything before it; the longest conversation has the most turns.
    turns = config.generation.conversation.max_turns
    found["agent"] += round(turns * _ANSWER_TOKENS + turns * _steps(config) * (_CALL_TOKENS + _RESULT_TOKENS))
    return found


def file_tokens(config: GenerationConfig) -> int:
    """Return the number of tokens of the description of the files in a scenario writer's prompt."""
    files = config.tools.files
    if files is None:
        return 0
    if isinstance(files, Mapping):
        return sum(min(_HEAD_TOKENS, 20 + _count(text)) for text in list(files.values())[:MAX_LISTED_FILES])
    if config.tools.task_set is not None:
        return 4 * _HEAD_TOKENS
    return max(1, len(list(islice(Path(files).rglob("*"), MAX_LISTED_FILES)))) * _HEAD_TOKENS


def _steps(config: GenerationConfig) -> float:
    """Return the mean number of steps with calls in a turn."""
    weights = possible_kinds(
        config.generation.kinds,
        has_tools=True,
        max_calls=config.tools.max_calls,
        max_steps=config.tools.max_steps,
    )
    mean = sum(_STEPS[kind] * weight for kind, weight in weights.items()) / (sum(weights.values()) or 1)
    return min(mean, config.tools.max_steps - 1)


def _conversation(turns: float, steps: float, base: float, answer: float) -> Load:
    """Return the agent's load for a conversation. The prompt of each call contains everything before it."""
    calls = turns * (steps + 1)
    turn_tokens = 60 + steps * (_CALL_TOKENS + _RESULT_TOKENS) + answer
    before = turn_tokens * (turns - 1) / 2
    within = 60 + steps * (_CALL_TOKENS + _RESULT_TOKENS) / 2
    return _load(calls, calls * (base + before + within), turns * (steps * _CALL_TOKENS + answer))


def _load(calls: float, input_tokens: float, output_tokens: float) -> Load:
    seconds = calls * _CALL_SECONDS + output_tokens / _TOKENS_PER_SECOND
    return Load(calls=calls, input_tokens=input_tokens, output_tokens=output_tokens, seconds=seconds)


def _count(text: str) -> int:
    return len(text) // CHARS_PER_TOKEN


Part = Literal["topic", "scenario", "sample", "user", "judge"]
PARTS: Mapping[Role, Part] = {
    "topics": "topic",
    "scenarios": "scenario",
    "agent": "sample",
    "user": "user",
    "judge": "judge",
}
"""The label `part` of the runs of each role."""
MAX_MEASURED = 500
"""How many of the newest runs of a role are measured."""
MIN_MEASURED = 5
"""How many runs a role must have to be measured."""
ASSUMED_TRIES = 1.25
"""The assumed number of samples that are made for each row."""
_SPREAD = {True: 1.25, False: 2.0}
"""The factors by which measured and assumed numbers may be wrong."""


class MeasuredLoad(Struct, frozen=True):
    """The averages over the runs of a dataset."""

    loads: Mapping[Role, Load]
    """The load of an expansion for `topics`, of a sample for other roles; none for roles with too few runs."""
    tries: float | None = None
    """The mean number of samples that were made for a row; `None` if there were too few samples."""


class RoleEstimate(Struct, frozen=True, kw_only=True):
    role: Role
    model: str
    calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    """The cost in US dollars; `None` if the price is unknown."""
    seconds: float
    """The time of all calls, one after another."""
    is_measured: bool
    """True if the numbers come from runs of this dataset."""


class Estimate(Struct, frozen=True, kw_only=True):
    leaves: int
    """The number of leaf topics, which is an expectation until the topics have been built."""
    rows: int
    samples: int
    """How many samples will be made, the rejected ones included."""
    roles: tuple[RoleEstimate, ...]
    seconds: float
    """How long the generation will take, in seconds."""
    spread: float
    """The uncertainty: a real number lies between the estimate divided by this factor and multiplied by it."""
    assumptions: tuple[str, ...]
    calls: int
    """The number of requests of all roles."""
    input_tokens: int
    """The input tokens of all roles."""
    output_tokens: int
    """The output tokens of all roles."""
    cost_usd: float | None
    """The cost of all roles; `None` if a price is unknown."""


def expected_leaves(config: GenerationConfig) -> int:
    """Return the number of leaf topics in the file that is loaded, or the number that building is expected to give.

    Topics that building will merge are counted, because their number is not known. Raises: `ConfigError` for a file
    that cannot be read.
    """
    if config.topics.load is not None:
        return sum(1 for _ in load_topics(config.topics.load).leaves())
    return int(config.topics.degree**config.topics.depth)


def wanted_rows(config: GenerationConfig, leaves: int) -> int:
    """Return the number of rows that are asked for, if there are `leaves` topics."""
    number = config.generation.num_samples
    if isinstance(number, int):
        return number
    if number == "auto":
        return leaves
    return max(1, round(leaves * float(number.rstrip("% ")) / 100))


def estimate(
    config: GenerationConfig,
    leaves: int | None = None,
    *,
    models: Mapping[Role, Model] | None = None,
    measured: MeasuredLoad | None = None,
    kept: int = 0,
) -> Estimate:
    """Return the estimate of a generation.

    `leaves` is the number of leaf topics, or `None` if they are still to be built. `models` are for names and
    prices; without them, costs are unknown. `measured` is what `measure` returned for an earlier run of the same
    dataset, and `kept` the number of rows that it has.
    """
    count = expected_leaves(config) if leaves is None else leaves
    rows = max(0, wanted_rows(config, count) - kept)
    known = measured or MeasuredLoad({})
    tries = known.tries or ASSUMED_TRIES
    samples = math.ceil(rows * tries)
    expansions = 0
    if leaves is None and config.topics.load is None:
        degree, depth = config.topics.degree, config.topics.depth
        expansions = sum(degree**level for level in range(depth))
    assumed, texts = assume_loads(config)
    works = {"topics": expansions, "judge": samples if "judge" in known.loads else rows}
    roles = []
    for role in used_roles(config):
        load = known.loads.get(role, assumed[role])
        roles.append(
            _estimate_role(
                role, load, works.get(role, samples), (models or {}).get(role), role in known.loads
            )
        )
    told = [texts[item.role] for item in roles if item.calls and not item.is_measured]
    if known.tries is None and rows:
        told.append(f"samples for each row: {tries:g}")
    return Estimate(
        leaves=count,
        rows=rows,
        samples=samples,
        roles=tuple(roles),
        seconds=_wall_seconds(config, roles, samples),
        spread=_SPREAD[bool(known.loads)],
        assumptions=tuple(told),
        calls=sum(item.calls for item in roles),
        input_tokens=sum(item.input_tokens for item in roles),
        output_tokens=sum(item.output_tokens for item in roles),
        cost_usd=_sum_costs(item.cost_usd for item in roles),
    )


def measure(journal: Journal, kept: int = 0, tried: int = 0) -> MeasuredLoad | None:
    """Return the averages over the newest runs of a dataset; `None` if there are too few. Blocks.

    `kept` is the number of its rows, and `tried` the number of samples that were made for them.
    """
    loads: dict[Role, Load] = {}
    samples = set[str]()
    # The runs of a sample have its own run's id and an ending.
    for role in ("agent", "scenarios", "user", "judge", "topics"):
        filter = RunFilter(labels={"part": PARTS[role]})
        runs = [run for run in journal.runs(filter, limit=MAX_MEASURED, newest_first=True) if run.steps]
        if role == "agent":
            samples = {run.run_id for run in runs}
        elif role != "topics":
            runs = [run for run in runs if run.run_id.rpartition("-")[0] in samples]
        if len(runs) >= MIN_MEASURED:
            loads[role] = _average(runs, len(runs) if role == "topics" else len(samples), role)
    if not loads:
        return None
    return MeasuredLoad(loads, tried / kept if kept >= MIN_MEASURED else None)


def measure_folder(folder: DatasetFolder) -> tuple[MeasuredLoad | None, int]:
    """Return the averages over the runs of the dataset in a folder, and the number of its rows. Blocks."""
    if not folder.journal.exists():
        return None, 0
    kept, rejected = _count_lines(folder.rows), _count_lines(folder.rejected)
    with open_journal(folder.journal, must_exist=True) as journal:
        return measure(journal, kept, kept + rejected), kept


def _count_lines(path: Path) -> int:
    if not path.exists():
        return 0
    with path.open("rb") as file:
        return sum(piece.count(b"\n") for piece in iter(lambda: file.read(1 << 20), b""))


def _average(runs: Sequence[RunInfo], count: int, role: Role) -> Load:
    """Return the mean load of one of the `count` pieces of work that `runs` did."""
    costs = [run.cost_usd for run in runs]
    # The time of the user's session is part of the time of the agent's session.
    seconds = 0.0 if role == "user" else sum(run.duration_seconds for run in runs)
    return Load(
        calls=sum(run.steps for run in runs) / count,
        input_tokens=sum(run.input_tokens for run in runs) / count,
        output_tokens=sum(run.output_tokens for run in runs) / count,
        seconds=seconds / count,
        cost_usd=None if None in costs else sum(cost for cost in costs if cost) / count,
    )


def _estimate_role(
    role: Role, load: Load, works: int, model: Model | None, is_measured: bool
) -> RoleEstimate:
    input_tokens, output_tokens = round(load.input_tokens * works), round(load.output_tokens * works)
    cost = None if load.cost_usd is None else load.cost_usd * works
    if cost is None and model is not None:
        cost = 0.0 if is_free(model) else _price(model, Usage(input_tokens, output_tokens))
    is_mock = model is not None and is_free(model) and not is_measured
    return RoleEstimate(
        role=role,
        model="" if model is None else model.name,
        calls=round(load.calls * works),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cost_usd=cost,
        seconds=0.0 if is_mock else load.seconds * works,
        is_measured=is_measured,
    )


def _price(model: Model, usage: Usage) -> float | None:
    try:
        return estimate_cost_usd(model, usage)
    except ConfigError:
        return None


def _wall_seconds(config: GenerationConfig, roles: list[RoleEstimate], samples: int) -> float:
    """Return how long the whole work takes, with as many things at the same time as the configuration allows."""
    total = 0.0
    topics = next((item for item in roles if item.role == "topics"), None)
    if topics is not None and topics.calls:
        # A level of topics begins with the first answer of the level above it, so the depth is a lower limit.
        each = topics.seconds / topics.calls
        total += max(topics.seconds / config.topics.window, each * config.topics.depth)
    work = sum(item.seconds for item in roles if item.role != "topics")
    if samples:
        total += max(work / config.generation.window, work / samples)
    return total


def _sum_costs(costs: Iterable[float | None]) -> float | None:
    total = 0.0
    for cost in costs:
        if cost is None:
            return None
        total += cost
    return total
